//! Moves blocks between a zone and the pools of huge pages, in whole runs, under the zone lock.

use super::locked::LockedZone;
use super::unaccepted_again::leaked_word;
use super::{Zone, segment};
use crate::block::heads::HeadIn;
use crate::block::list::{NONE, Position};
use crate::block::shuffle::InTheWay;
use crate::block::split::Moved;
use crate::block::table::largest_piece;
use crate::block::table::{BlockTable, GROUP, blocks_of};
use crate::block::{BLOCK_ORDERS, BlockState, MigrateType, State};
use crate::block::{Chain, PageList, first_link};
use crate::platform::Platform;
use crate::units::{Order, Pfn, PfnRange};
use crate::vmemmap_space::{BlockNumber, VMEMMAP_PAGES_PER_BLOCK};
use core::ops::RangeInclusive;

/// How many free blocks are taken, or runs of pages given back, under one hold of the lock.
/// Neighbouring pages count as one run.
const RUNS_AT_ONCE: u32 = 32;
/// The most block entries that are written to give pages back under one hold of the lock.
const BLOCKS_AT_ONCE: u32 = 128;
/// Migrate types whose free blocks a pool may have, in this order.
const TYPES: [MigrateType; 3] =
    [MigrateType::Movable, MigrateType::Reclaimable, MigrateType::Unmovable];

/// What a pool requests from a zone.
pub(crate) struct ForPool {
    /// The order of a page.
    pub(crate) order: Order,
    /// The most pages to take.
    pub(crate) most: u64,
    /// Free pages to leave in the zone.
    pub(crate) keep_pages: u64,
    /// Blocks of at least this order are taken before all smaller ones.
    pub(crate) least: Order,
}

impl Zone {
    /// The zone's table, for the links of pages in pools.
    pub(crate) const fn table(&self) -> &BlockTable {
        &self.table
    }

    /// The frames of the block of `order` whose head is at `index`.
    pub(crate) fn frames_of(&self, index: u32, order: Order) -> Option<PfnRange> {
        segment::run(self.segments, index, 0, order)
    }

    /// Takes blocks for a pool, fewer than there are if taking all would take long. The smallest
    /// free blocks come first, and each that is not too large is taken whole, so that the rest
    /// stays in large pieces. `note` is called with the frames of each.
    pub(crate) fn take_for_pool<P: Platform>(
        &self,
        platform: &P,
        wanted: &ForPool,
        note: &mut dyn FnMut(Option<PfnRange>),
    ) -> PageList {
        let ForPool { order, most, keep_pages, least } = *wanted;
        let mut list = PageList::EMPTY;
        let needed_pages = keep_pages.saturating_add(order.pages());
        // The spare gives back the frames of its descriptors when it is merged.
        let of_spare = self.descriptor_pages().min(VMEMMAP_PAGES_PER_BLOCK);
        // Read without the lock, so that a full zone is refused at once.
        if self.free_pages() + of_spare < needed_pages {
            return list;
        }
        if self.gathers(order) && most != 0 {
            return self.gather_for_pool(platform, order, needed_pages, note);
        }
        let mut locked = self.lock_coalesced(platform);
        if locked.free_pages() < needed_pages {
            locked.release_spare();
        }
        for _ in 0..RUNS_AT_ONCE {
            let spare = locked.free_pages().saturating_sub(keep_pages) / order.pages();
            let Some(most_order) = largest_order(order, spare.min(most - list.pages())) else {
                break;
            };
            let large = if (order..most_order).contains(&least) || least == most_order {
                locked.move_out(least..=most_order)
            } else {
                None
            };
            let run = large.or_else(|| locked.move_out(order..=most_order));
            let Some(moved) = run else { break };
            list.append(&self.table, self.make_list(&moved, order));
            note(self.frames_of(moved.index, moved.order));
            if list.pages() * u64::from(blocks_of(order)) >= u64::from(GROUP) {
                break;
            }
        }
        list
    }

    /// Takes one page of `order` where no free block is as large, because blocks are shuffled, if
    /// at least `needed_pages` are free.
    #[cold]
    #[inline(never)]
    fn gather_for_pool<P: Platform>(
        &self,
        platform: &P,
        order: Order,
        needed_pages: u64,
        note: &mut dyn FnMut(Option<PfnRange>),
    ) -> PageList {
        let mut list = PageList::EMPTY;
        let page = self.gathered(platform, order, Pfn(u64::MAX), &mut |locked, index| {
            if locked.free_pages() < needed_pages {
                return Err(InTheWay { heads: 0, after: index });
            }
            locked.buddy.gather(index, order, MigrateType::Movable)?;
            list = PageList::unreported(self.make_pool(index, order, order, false));
            Ok(())
        });
        if page.is_some() {
            note(page);
        }
        list
    }

    /// Makes the allocated run at `index` into a list of pages of `order`. A page counts as
    /// reported if all of it was reported.
    #[inline]
    fn make_list(&self, moved: &Moved, order: Order) -> PageList {
        let (index, whole) = (moved.index, moved.order);
        let Some(reported) = &moved.reported else {
            return PageList::unreported(self.make_pool(index, whole, order, false));
        };
        let blocks = blocks_of(order);
        let pages = blocks_of(whole) / blocks;
        if (0..pages).all(|page| reported.has_all(page * blocks, order)) {
            return PageList::of(self.make_pool(index, whole, order, true));
        }
        self.make_pool(index, whole, order, false);
        let mut list = PageList::EMPTY;
        for page in 0..pages {
            let chain = if reported.has_all(page * blocks, order) {
                &mut list.reported
            } else {
                &mut list.unreported
            };
            chain.push_back(&self.table, index + page * blocks);
        }
        list
    }

    /// Makes the allocated run at `index` into pages of `order`, linked in ascending order, that
    /// are either all reported or all unreported.
    fn make_pool(&self, index: u32, whole: Order, order: Order, reported: bool) -> Chain {
        if whole == Order::MAX && order < Order::MAX {
            self.table.make_ready(index, true);
        }
        let step = blocks_of(order);
        let last = index + blocks_of(whole) - step;
        if order < Order::MAX {
            self.table.clear_all_lots(index..index + blocks_of(whole));
        }
        let word = BlockState::head(State::Pool, order, MigrateType::Movable);
        let mut position = index;
        loop {
            let entry = self.table.entry(position);
            let previous =
                if position == index { NONE } else { first_link(position - step, reported) };
            let next = if position == last { NONE } else { position + step };
            // Write the links first: a reader that finds the state of a pool's page then also finds
            // a pool's links.
            entry.set_links(previous, next);
            entry.set_state_in_no_lot(word);
            if position == last {
                break;
            }
            position += step;
        }
        Chain { first: index, last, pages: u64::from(blocks_of(whole) / step), reported }
    }

    /// Gives pages of `order` from a pool back to the zone, neighbours together. Isolated ones stay
    /// isolated. Ones with memory errors stay allocated for ever, owned by nobody; returns how many
    /// those are. Pages that were reported count as reported in the zone.
    pub(crate) fn release_from_pool<P: Platform>(
        &self,
        platform: &P,
        order: Order,
        chain: Chain,
    ) -> u64 {
        let mut leaked = 0;
        let mut index = chain.first;
        while index != NONE {
            let mut locked = self.lock(platform);
            let before = locked.unused_pages();
            let mut blocks = 0;
            for _ in 0..RUNS_AT_ONCE {
                if index == NONE || blocks >= BLOCKS_AT_ONCE {
                    break;
                }
                let run = locked.release_run(order, chain.reported, index, &mut leaked);
                (index, blocks) = (run.next, blocks + run.blocks);
            }
            locked.note_freed_since(before);
        }
        leaked
    }

    /// Divides a pool's page of `order` into pages of `smaller`, which are reported if it was.
    /// Returns nothing if it is isolated or has a memory error.
    pub(crate) fn divide_for_pool<P: Platform>(
        &self,
        platform: &P,
        page: Chain,
        order: Order,
        smaller: Order,
    ) -> Option<Chain> {
        let _locked = self.read(platform);
        let state = self.table.state(page.first);
        let plain = state == BlockState::head(State::Pool, order, MigrateType::Movable);
        plain.then(|| self.make_pool(page.first, order, smaller, page.reported))
    }

    /// Makes the block that one allocation of `order` returned a page of a pool. Returns nothing if
    /// the block was isolated meanwhile.
    pub(crate) fn adopt_for_pool<P: Platform>(
        &self,
        platform: &P,
        start: Pfn,
        order: Order,
    ) -> Option<Chain> {
        let block = BlockNumber::containing(start);
        let index = segment::find(self.segments, block)?.index_of(block);
        let mut locked = self.lock(platform);
        let (head, state) = self.table.head_of(index)?;
        // If the block ever had a reference count, that ended before this allocation. A pool gets
        // no isolated block: freeing it keeps it isolated. Nor does it get a block with a grade,
        // which would lose it.
        let plain = BlockState::head(State::Whole, order, state.migrate_type());
        (head == index && state == plain && !state.is_graded()).then(|| {
            locked.buddy.retype(state.migrate_type(), MigrateType::Movable, blocks_of(order));
            self.make_pool(index, order, order, false)
        })
    }

    /// Makes the blocks in `frames`, which make up one page of `order`, a page of a pool that keeps
    /// their grade. Returns nothing unless they are all of one grade, allocated whole and in no
    /// other use.
    pub(crate) fn adopt_graded_for_pool<P: Platform>(
        &self,
        platform: &P,
        frames: PfnRange,
        order: Order,
    ) -> Option<Chain> {
        let index = self.segments.iter().find_map(|segment| {
            let block = BlockNumber::containing(frames.start);
            (segment.start <= block && block < segment.end()).then(|| segment.index_of(block))
        })?;
        let range = index..index + blocks_of(order);
        let _locked = self.lock(platform);
        let migrate_type = self.table.head_of(index)?.1.migrate_type();
        let mut next = index;
        for HeadIn { head, state, .. } in self.table.heads(range.clone()) {
            let plain = BlockState::head(State::Whole, state.order(), migrate_type);
            if head != next || state != plain || !state.is_graded() {
                return None;
            }
            next = head + blocks_of(state.order());
        }
        if next != range.end || frames.pages() != order.pages() {
            return None;
        }
        self.table.clear_lots(index);
        self.table.clear_entries_and_lots(index + 1..range.end);
        let page = self.make_pool(index, order, order, false);
        let word = BlockState::head(State::Pool, order, migrate_type);
        self.table.set_state(index, word);
        Some(page)
    }

    /// Makes those blocks in `frames` that were kept for the pool and are not smaller than `order`
    /// into pages of the pool.
    pub(crate) fn adopt_all_for_pool<P: Platform>(
        &self,
        platform: &P,
        frames: PfnRange,
        order: Order,
    ) -> Chain {
        let mut chain = Chain::EMPTY;
        for segment in self.segments {
            let number = BlockNumber::containing;
            let (start, end) =
                (number(frames.start).max(segment.start), number(frames.end).min(segment.end()));
            let mut block = start;
            while block < end {
                let index = segment.index_of(block);
                // At most one GiB under each hold of the lock.
                let mut locked = self.lock(platform);
                let Some((head, state)) =
                    self.table.head_of(index).filter(|&(head, _)| head == index)
                else {
                    break;
                };
                let kept = BlockState::head(State::Whole, state.order(), MigrateType::Movable)
                    .with(BlockState::KEPT);
                if state == kept && state.order() >= order {
                    locked.kept_pages -= state.order().pages();
                    chain.append(&self.table, self.make_pool(head, state.order(), order, false));
                }
                block.0 += blocks_of(state.order());
            }
        }
        chain
    }

    /// Makes a page of a pool an allocated block again, isolated if the page was. Returns false for
    /// a page with a memory error, which must not be freed.
    pub(crate) fn disown_from_pool<P: Platform>(&self, platform: &P, index: u32) -> bool {
        let _locked = self.read(platform);
        let state = self.table.state(index);
        if state.has(BlockState::POISONED) {
            return false;
        }
        let mut now = BlockState::head(State::Whole, state.order(), state.migrate_type());
        if state.has(BlockState::ISOLATED) {
            now = now.with(BlockState::ISOLATED);
        }
        self.table.clear_entry(index);
        self.table.set_state(index, now);
        true
    }

    /// Notes a memory error in a page of a pool. Returns false if its head is not at `index` any
    /// more.
    pub(crate) fn poison_in_pool<P: Platform>(
        &self,
        platform: &P,
        index: u32,
        order: Order,
    ) -> bool {
        let _locked = self.read(platform);
        let state = self.table.state(index);
        let fits = state.is(State::Pool) && state.order() == order;
        if fits {
            self.table.set_state(index, state.with(BlockState::POISONED));
        }
        fits
    }

    /// Whether the free page at `index` may be handed out: neither isolated nor with an error.
    pub(crate) fn is_good_in_pool(&self, index: u32) -> bool {
        !self.table.state(index).has(BlockState::ISOLATED | BlockState::POISONED)
    }

    /// Whether the free page at `index` may be handed out and divided. A page with a grade belongs
    /// to a reserve area and may not be divided.
    pub(crate) fn is_divisible_in_pool(&self, index: u32) -> bool {
        self.is_good_in_pool(index) && !self.table.state(index).is_graded()
    }

    /// Pages of pools by order, 9 first, counted from the table with some heads under each hold of
    /// the lock. Exact while no pool changes.
    pub(crate) fn count_pool_pages<P: Platform>(&self, platform: &P) -> [u64; BLOCK_ORDERS] {
        let mut counts = [0; BLOCK_ORDERS];
        self.for_each_head(platform, &mut |_, found| {
            if found.state.is(State::Pool) {
                let order = found.state.order().max(Order::BLOCK);
                counts[usize::from(order.get() - Order::BLOCK.get())] += 1;
            }
        });
        counts
    }
}

/// What one call of `release_run` gave back.
struct Released {
    /// The index of the chain's next page.
    next: u32,
    /// How many blocks' entries were written.
    blocks: u32,
}

impl LockedZone {
    /// Takes a free block of one of `orders`: the smallest that there is, or a piece of a larger
    /// one.
    fn move_out(&mut self, orders: RangeInclusive<Order>) -> Option<Moved> {
        for is_last in [false, true] {
            let moved = TYPES.iter().find_map(|&from| self.buddy.move_out(orders.clone(), from));
            if is_last || moved.is_some() {
                return moved;
            }
            // The spare, once merged, may be all that is missing.
            self.release_spare();
        }
        None
    }

    /// Gives back the page at `first` together with those that follow it both in the chain and in
    /// memory.
    fn release_run(
        &mut self,
        order: Order,
        reported: bool,
        first: u32,
        leaked: &mut u64,
    ) -> Released {
        let table = self.buddy.table;
        let state = table.state(first);
        let next = table.links(first).1;
        let migrate_type = state.migrate_type();
        let plain = BlockState::head(State::Pool, order, migrate_type);
        if state != plain {
            self.release_marked(first, leaked);
            return Released { next, blocks: 1 };
        }
        if order > Order::BLOCK {
            if reported {
                self.buddy.reported.report(first, order, false);
            }
            self.buddy.free(first, order, migrate_type, Position::Head);
            return Released { next, blocks: 1 };
        }
        let limit = (first & !(BLOCKS_AT_ONCE - 1)) + BLOCKS_AT_ONCE;
        let limit = self.buddy.segment_of(first).end.min(limit);
        let (mut end, mut next) = (first + 1, next);
        while next == end && end < limit && table.state(end) == plain {
            next = table.links(end).1;
            end += 1;
        }
        let mut position = first;
        while position < end {
            let piece = largest_piece(position, end, Order::MAX);
            if reported {
                self.buddy.reported.report(position, piece, false);
            }
            self.buddy.free_divided(position, piece, migrate_type);
            position += blocks_of(piece);
        }
        Released { next, blocks: end - first }
    }

    /// Gives back a page that is isolated or has a memory error.
    #[cold]
    fn release_marked(&mut self, index: u32, leaked: &mut u64) {
        let table = self.buddy.table;
        let state = table.state(index);
        if !state.has(BlockState::POISONED) {
            return self.keep_isolated(index, state);
        }
        *leaked += 1;
        table.clear_entry(index);
        let word = leaked_word(state.order(), state.migrate_type());
        table.set_state(index, word.with(state.word() & BlockState::ISOLATED));
    }
}

/// The largest order that at most `pages` pages of `order` make up; nothing if `pages` is 0.
fn largest_order(order: Order, pages: u64) -> Option<Order> {
    let above = pages.checked_ilog2()?;
    let most = u32::from(order.get()).saturating_add(above).min(u32::from(Order::MAX.get()));
    Order::new(u8::try_from(most).ok()?)
}
