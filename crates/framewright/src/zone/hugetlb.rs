//! Blocks between a zone and the pools of huge pages: whole runs at a time, under the zone lock.

use super::flow::unused_pages;
use super::isolate::largest_piece;
use super::{Zone, segment};
use crate::block::lists::{FreeLists, NONE, Position};
use crate::block::reported::ReportedBits;
use crate::block::table::{BlockTable, GROUP, blocks_of};
use crate::block::{BLOCK_ORDERS, BlockState, MigrateType, State, buddy};
use crate::block::{Chain, Lot, first_link};
use crate::platform::Platform;
use crate::units::{Order, Pfn, PfnRange};

/// Free blocks that are taken under one hold of the lock, and runs that are given back: what is
/// neighbouring counts once.
const RUNS_AT_ONCE: u32 = 32;
/// Types whose free blocks a pool may have, in this order.
const TYPES: [MigrateType; 3] =
    [MigrateType::Movable, MigrateType::Reclaimable, MigrateType::Unmovable];

impl Zone {
    /// Its table, for the links of pages that pools have.
    pub(crate) const fn table(&self) -> &BlockTable {
        &self.table
    }

    /// The frames of the block of `order` whose head is at `index`.
    pub(crate) fn frames_of(&self, index: u32, order: Order) -> Option<PfnRange> {
        self.run(index, 0, order)
    }

    /// Takes up to `most` blocks of `order` for a pool and leaves `keep` free pages; fewer than
    /// there are when that takes long. The smallest free blocks come first, and each is taken as a
    /// whole where it is not too large, so that what stays free is in large pieces. Blocks of at
    /// least `least` come before all smaller ones. `note` is told where they are.
    pub(crate) fn take_for_pool<P: Platform>(
        &self,
        platform: &P,
        order: Order,
        most: u64,
        keep: u64,
        least: Order,
        note: &mut dyn FnMut(Option<PfnRange>),
    ) -> Lot {
        let mut lot = Lot::EMPTY;
        // Without the lock: a zone that is full says so at once.
        if self.free_pages() < keep.saturating_add(order.pages()) {
            return lot;
        }
        let mut lists = self.lock_coalesced(platform);
        for _ in 0..RUNS_AT_ONCE {
            let spare = lists.free_pages().saturating_sub(keep) / order.pages();
            let Some(most_order) = largest_order(order, spare.min(most - lot.pages())) else {
                break;
            };
            let large = if (order..most_order).contains(&least) || least == most_order {
                self.take_run(&mut lists, least, most_order)
            } else {
                None
            };
            let run = large.or_else(|| self.take_run(&mut lists, order, most_order));
            let Some((index, taken, reported)) = run else { break };
            lot.append(&self.table, self.make_lot(index, taken, order, reported.as_ref()));
            note(self.run(index, 0, taken));
            if lot.pages() * u64::from(blocks_of(order)) >= u64::from(GROUP) {
                break;
            }
        }
        self.publish(&lists);
        lot
    }

    /// Makes what is allocated at `index` into pages of `order`, as a lot: a page was reported if
    /// all of it was.
    #[inline]
    fn make_lot(
        &self,
        index: u32,
        whole: Order,
        order: Order,
        reported: Option<&ReportedBits>,
    ) -> Lot {
        let Some(reported) = reported else {
            return Lot::fresh(self.make_pool(index, whole, order, false));
        };
        let blocks = blocks_of(order);
        let pages = blocks_of(whole) / blocks;
        if (0..pages).all(|page| reported.has_all(page * blocks, order)) {
            return Lot::of(self.make_pool(index, whole, order, true));
        }
        self.make_pool(index, whole, order, false);
        let mut lot = Lot::EMPTY;
        for page in 0..pages {
            let chain =
                if reported.has_all(page * blocks, order) { &mut lot.told } else { &mut lot.fresh };
            chain.push_back(&self.table, index + page * blocks);
        }
        lot
    }

    /// Takes a free block of between `order` and `most`: the smallest that there is, or a piece of
    /// it. Which of its blocks were reported stands beside it.
    fn take_run(
        &self,
        lists: &mut FreeLists,
        order: Order,
        most: Order,
    ) -> Option<(u32, Order, Option<ReportedBits>)> {
        let take = |lists: &mut FreeLists| {
            let mut types = TYPES.into_iter();
            types.find_map(|from| {
                buddy::move_up_to(lists, &self.table, (order, most), from, MigrateType::Movable)
            })
        };
        if let Some(taken) = take(lists) {
            return Some(taken);
        }
        // The block that is kept split may be all that is missing.
        self.release_spare(lists);
        take(lists)
    }

    /// Makes what is allocated at `index` into pages of `order`, linked in ascending order: as ones
    /// that were reported, or that were not.
    fn make_pool(&self, index: u32, whole: Order, order: Order, told: bool) -> Chain {
        if whole == Order::MAX && order < Order::MAX {
            self.table.make_ready(index, true);
        }
        let step = blocks_of(order);
        let last = index + blocks_of(whole) - step;
        let word = BlockState::head(State::Pool, order, MigrateType::Movable);
        let mut position = index;
        loop {
            let entry = self.table.entry(position);
            let previous = if position == index { NONE } else { first_link(position - step, told) };
            let next = if position == last { NONE } else { position + step };
            // The links first: who finds a page of a pool finds links that are a pool's.
            entry.set_links(previous, next);
            entry.set_state(word);
            if position == last {
                break;
            }
            position += step;
        }
        Chain { first: index, last, pages: u64::from(blocks_of(whole) / step), told }
    }

    /// Gives pages of `order` that pools had back to the zone; neighbours together. Isolated ones
    /// stay isolated, and ones with memory errors are nobody's from now on: they stay allocated for
    /// ever. Returns how many those are. Those that were reported count as reported in the zone.
    pub(crate) fn release_from_pool<P: Platform>(
        &self,
        platform: &P,
        order: Order,
        chain: Chain,
    ) -> u64 {
        let mut leaked = 0;
        let mut index = chain.first;
        while index != NONE {
            let mut lists = self.changing.lists.lock(platform);
            let before = unused_pages(&lists);
            for _ in 0..RUNS_AT_ONCE {
                if index == NONE {
                    break;
                }
                index = self.release_run(&mut lists, (order, chain.told), index, &mut leaked);
            }
            self.note_freed_since(&lists, before);
            self.publish(&lists);
        }
        leaked
    }

    /// Gives the page at `first` back with those that follow it in the chain and in memory; returns
    /// the next of the chain.
    fn release_run(
        &self,
        lists: &mut FreeLists,
        (order, told): (Order, bool),
        first: u32,
        leaked: &mut u64,
    ) -> u32 {
        let state = self.table.state(first);
        let next = self.table.links(first).1;
        let Some(segment) = segment::find_index(self.segments, first) else { return next };
        let indices = segment.indices();
        let migrate_type = state.migrate_type();
        let plain = BlockState::head(State::Pool, order, migrate_type);
        if state != plain {
            self.release_marked(lists, first, leaked);
            return next;
        }
        if order > Order::BLOCK {
            if told {
                lists.reported.report(first, order, false);
            }
            buddy::free(lists, &self.table, &indices, first, order, migrate_type, Position::Head);
            return next;
        }
        // At most a GiB, which one hold of the lock may take.
        let limit = indices.end.min((first & !(GROUP - 1)) + GROUP);
        let (mut end, mut next) = (first + 1, next);
        while next == end && end < limit && self.table.state(end) == plain {
            next = self.table.links(end).1;
            end += 1;
        }
        let mut position = first;
        while position < end {
            let piece = largest_piece(position, end, Order::MAX);
            if told {
                lists.reported.report(position, piece, false);
            }
            buddy::free_divided(lists, &self.table, &indices, position, piece, migrate_type);
            position += blocks_of(piece);
        }
        next
    }

    /// One that is isolated, or has a memory error.
    #[cold]
    fn release_marked(&self, lists: &mut FreeLists, index: u32, leaked: &mut u64) {
        let state = self.table.state(index);
        let (order, migrate_type) = (state.order(), state.migrate_type());
        let now = if state.has(BlockState::POISONED) {
            *leaked += 1;
            let isolated = state.word() & BlockState::ISOLATED;
            BlockState::head(State::Whole, order, migrate_type)
                .with(BlockState::POISONED | isolated)
        } else {
            lists.isolated_pages += order.pages();
            BlockState::head(State::Isolated, order, migrate_type)
        };
        self.table.set_inner(index);
        self.table.set_state(index, now);
    }

    /// Divides a page of a pool into pages of another, as ones that were reported or were not;
    /// nothing when it is isolated or has a memory error.
    pub(crate) fn divide_for_pool<P: Platform>(
        &self,
        platform: &P,
        index: u32,
        (order, smaller): (Order, Order),
        told: bool,
    ) -> Option<Chain> {
        let _lists = self.changing.lists.lock(platform);
        let plain =
            self.table.state(index) == BlockState::head(State::Pool, order, MigrateType::Movable);
        plain.then(|| self.make_pool(index, order, smaller, told))
    }

    /// Makes a block that one allocation of `order` gave a page of a pool; nothing when it was
    /// isolated meanwhile.
    pub(crate) fn adopt_for_pool<P: Platform>(
        &self,
        platform: &P,
        start: Pfn,
        order: Order,
    ) -> Option<Chain> {
        let block = crate::vmemmap_space::BlockNumber::containing(start);
        let index = segment::find(self.segments, block)?.index_of(block);
        let _lists = self.changing.lists.lock(platform);
        let (head, state) = self.table.head_of(index)?;
        // Its count, if it ever had one, ended before it was allocated. What is isolated no pool
        // gets: freed it stays so.
        let plain = BlockState::head(State::Whole, order, state.migrate_type());
        (head == index && state == plain).then(|| self.make_pool(index, order, order, false))
    }

    /// Makes the blocks in `frames` that were kept for it, and are not smaller than `order`, into
    /// pages of a pool.
    pub(crate) fn adopt_all_for_pool<P: Platform>(
        &self,
        platform: &P,
        frames: PfnRange,
        order: Order,
    ) -> Chain {
        let mut chain = Chain::EMPTY;
        for segment in self.segments {
            let number = |pfn: Pfn| crate::vmemmap_space::BlockNumber::containing(pfn);
            let (start, end) =
                (number(frames.start).max(segment.start), number(frames.end).min(segment.end()));
            let mut block = start;
            while block < end {
                let index = segment.index_of(block);
                // At most a GiB under each hold of the lock.
                let mut lists = self.changing.lists.lock(platform);
                let Some((head, state)) =
                    self.table.head_of(index).filter(|&(head, _)| head == index)
                else {
                    break;
                };
                let kept = BlockState::head(State::Whole, state.order(), MigrateType::Movable)
                    .with(BlockState::KEPT);
                if state == kept && state.order() >= order {
                    lists.kept_pages -= state.order().pages();
                    chain.append(&self.table, self.make_pool(head, state.order(), order, false));
                }
                block.0 += blocks_of(state.order());
            }
        }
        chain
    }

    /// Makes a page of a pool an allocated block again, isolated if it was; not one with a memory
    /// error, which nobody is to free.
    pub(crate) fn disown_from_pool<P: Platform>(&self, platform: &P, index: u32) -> bool {
        let _lists = self.changing.lists.lock(platform);
        let state = self.table.state(index);
        if state.has(BlockState::POISONED) {
            return false;
        }
        let mut now = BlockState::head(State::Whole, state.order(), state.migrate_type());
        if state.has(BlockState::ISOLATED) {
            now = now.with(BlockState::ISOLATED);
        }
        self.table.set_inner(index);
        self.table.set_state(index, now);
        true
    }

    /// Notes a memory error in a page of a pool; false when its head is not at `index` any more.
    pub(crate) fn poison_in_pool<P: Platform>(
        &self,
        platform: &P,
        index: u32,
        order: Order,
    ) -> bool {
        let _lists = self.changing.lists.lock(platform);
        let state = self.table.state(index);
        let fits = state.is(State::Pool) && state.order() == order;
        if fits {
            self.table.set_state(index, state.with(BlockState::POISONED));
        }
        fits
    }

    /// Whether the free page at `index` may be handed out or divided: neither isolated nor with a
    /// memory error.
    pub(crate) fn is_good_in_pool(&self, index: u32) -> bool {
        !self.table.state(index).has(BlockState::ISOLATED | BlockState::POISONED)
    }

    /// Pages of pools by order, 9 first, counted from the table.
    pub(crate) fn count_pool_pages<P: Platform>(&self, platform: &P) -> [u64; BLOCK_ORDERS] {
        let _lists = self.changing.lists.lock(platform);
        let mut counts = [0; BLOCK_ORDERS];
        for segment in self.segments {
            let mut index = segment.index;
            while index < segment.indices().end {
                index = match self.table.head_of(index) {
                    Some((head, state)) => {
                        let slot =
                            usize::from(state.order().max(Order::BLOCK).get() - Order::BLOCK.get());
                        counts[slot] += u64::from(state.is(State::Pool));
                        head + blocks_of(state.order())
                    }
                    None => index + 1,
                };
            }
        }
        counts
    }
}

/// The largest order of a run of at most `pages` blocks of `order`; nothing for none.
fn largest_order(order: Order, pages: u64) -> Option<Order> {
    let above = pages.checked_ilog2()?;
    let most = u32::from(order.get()).saturating_add(above).min(u32::from(Order::MAX.get()));
    Order::new(u8::try_from(most).ok()?)
}
