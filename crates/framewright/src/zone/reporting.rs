//! Lending free memory to the hypervisor, under the zone lock: what is taken for a report, and how
//! it comes back.
//!
//! A block that is out has a state of its own, is in no list and merges with nothing; a run of a
//! split block is allocated to its free map. Nobody can get either, so the hypervisor may discard
//! it until it says that it has done so. What is taken is never more than 64 MiB at once, and each
//! hold of the lock looks at no more than [`MOST_VISITED`] entries.
//!
//! Orders of memory: Relaxed: counters and marks, written under the zone lock.

use super::Zone;
use super::segment::{self, Segment};
use crate::block::in_flight::MOST_IN_FLIGHT;
use crate::block::lists::{FreeLists, Position};
use crate::block::table::{GROUP, blocks_of};
use crate::block::{BlockState, State, buddy};
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::{BLOCK_ORDER, Order, PAGES_PER_BLOCK, PfnRange};

/// Entries that are looked at under one hold of the lock.
pub(crate) const MOST_VISITED: u32 = 1024;
/// Pieces in a batch.
pub(crate) const MOST_PIECES: usize = MOST_IN_FLIGHT;
/// The largest piece: 64 MiB, as much as may be out at once.
const LARGEST: Order = match Order::new(BLOCK_ORDER + 5) {
    Some(order) => order,
    None => Order::BLOCK,
};
/// The largest run of a split block.
const LARGEST_RUN: Order = match Order::new(BLOCK_ORDER - 1) {
    Some(order) => order,
    None => Order::PAGE,
};
/// Entries that cutting a piece out of the largest block looks at besides those that it clears.
const CUT: u32 = 40;

/// Something free that was taken for a report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    index: u32,
    /// First frame in the block, of a run of a split block.
    start: Option<u16>,
    order: Order,
    pub(crate) range: PfnRange,
}

/// Pieces of one zone, all with the hypervisor or about to be.
pub(crate) struct Batch {
    pieces: [Option<Piece>; MOST_PIECES],
    len: usize,
    pages: u64,
}

impl Batch {
    pub(crate) const EMPTY: Self = Self { pieces: [None; MOST_PIECES], len: 0, pages: 0 };

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn pages(&self) -> u64 {
        self.pages
    }

    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.pieces[..self.len].iter().flatten()
    }

    fn push(&mut self, piece: Piece) {
        if let Some(place) = self.pieces.get_mut(self.len) {
            *place = Some(piece);
            self.len += 1;
            self.pages += piece.order.pages();
        }
    }
}

/// What a batch may hold, and what it must leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    /// The smallest run that is reported.
    pub(crate) order: Order,
    pub(crate) most_pieces: usize,
    pub(crate) most_pages: u64,
    /// What the zone must have above its low mark.
    pub(crate) guard_pages: u64,
}

/// Where the search for runs of split blocks goes on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    index: u32,
    frame: u16,
}

/// How far a batch was filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Collected {
    /// There is nothing more.
    All,
    /// It is full, or the lock was held long enough: there may be more.
    Some,
    /// More would leave the zone with less than it must have.
    Short,
}

/// What became of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Returned {
    /// The hypervisor was told of it, and it may be zero now.
    Reported { zero: bool },
    /// It was not told, or may not have listened.
    Refused,
    /// It was not even asked.
    Unasked,
}

impl Zone {
    #[cold]
    pub(super) fn publish_reported(&self, lists: &FreeLists) {
        self.changing.reporting_pages.store(lists.reporting_pages, Ordering::Relaxed);
        self.changing.reported_pages.store(lists.reported.reported_pages(), Ordering::Relaxed);
        self.changing.unreported_pages.store(lists.unreported_pages(), Ordering::Relaxed);
    }

    /// Begins to keep marks, unless that was done before: nothing was reported yet.
    pub(crate) fn track_reported<P: Platform>(&self, platform: &P) {
        let (reported, zero) = {
            let lists = self.changing.lists.lock(platform);
            if lists.reported.is_tracked() {
                return;
            }
            lists.reported.words()
        };
        // Nobody looks at them before they are kept, and one device at a time is registered.
        for word in reported.iter().chain(zero) {
            word.store(0, Ordering::Relaxed);
        }
        let mut lists = self.changing.lists.lock(platform);
        let unreported_pages = lists.unreported_pages();
        lists.reported.keep(unreported_pages);
        self.publish(&lists);
    }

    /// The least that was free in blocks and not reported since the last call, in pages.
    pub(crate) fn unreported_floor<P: Platform>(&self, platform: &P) -> u64 {
        let mut lists = self.changing.lists.lock(platform);
        let listed_pages = lists.unreported_pages() + lists.reported.reported_pages();
        lists.reported.take_floor(listed_pages)
    }

    /// Whether there is a block of at least `order` with something to report.
    pub(crate) fn has_unreported<P: Platform>(&self, platform: &P, order: Order) -> bool {
        self.unreported_pages() != 0 && self.lock_coalesced(platform).coldest(order).is_some()
    }

    /// Pages of reported blocks that were handed out again, and those of them that were although
    /// there was another choice.
    pub(crate) fn reused_pages<P: Platform>(&self, platform: &P) -> (u64, u64) {
        self.changing.lists.lock(platform).reported.reused_pages()
    }

    /// Takes what is to be reported next: of blocks the largest, and of equal ones those that would
    /// be handed out last; then, where the order is below 9, runs of split blocks from the cursor
    /// on. Nothing is taken that was reported already.
    pub(crate) fn collect<P: Platform>(
        &self,
        platform: &P,
        goal: Goal,
        cursor: &mut Cursor,
        batch: &mut Batch,
    ) -> Collected {
        if self.free_pages() <= self.watermarks().low_pages + goal.guard_pages {
            return Collected::Short;
        }
        let mut lists = self.lock_coalesced(platform);
        let mut visited = 0;
        let mut collected = self.collect_blocks(&mut lists, goal, batch, &mut visited);
        if collected == Collected::All && goal.order < Order::BLOCK {
            collected = self.collect_runs(&mut lists, goal, cursor, batch, &mut visited);
        }
        self.publish(&lists);
        collected
    }

    /// Whether taking `pages` more would leave the zone below its min mark.
    fn is_short(&self, lists: &FreeLists, pages: u64) -> bool {
        lists.free_pages() < self.watermarks().min_pages + pages
    }

    fn collect_blocks(
        &self,
        lists: &mut FreeLists,
        goal: Goal,
        batch: &mut Batch,
        visited: &mut u32,
    ) -> Collected {
        let least = goal.order.clamp(Order::BLOCK, LARGEST);
        if goal.most_pages < least.pages() {
            return Collected::All;
        }
        loop {
            let Some(head) = lists.coldest(goal.order) else { return Collected::All };
            let state = self.table.state(head);
            let have = state.order();
            let room = goal.most_pages.saturating_sub(batch.pages());
            let most = (BLOCK_ORDER..=LARGEST.get())
                .rev()
                .filter_map(Order::new)
                .find(|order| order.pages() <= room);
            let Some(most) = most.filter(|&most| most >= least && batch.len() < goal.most_pieces)
            else {
                return Collected::Some;
            };
            let cost = CUT + if self.table.is_ready(head) { 0 } else { GROUP };
            if *visited + cost > MOST_VISITED {
                return Collected::Some;
            }
            *visited += cost;
            let Some((index, order)) = lists.reported.unreported(head, have, most) else {
                return Collected::All;
            };
            if self.is_short(lists, order.pages()) {
                return Collected::Short;
            }
            let Some(range) = self.run(index, 0, order) else { return Collected::All };
            let migrate_type = state.migrate_type();
            buddy::take_from(lists, &self.table, head, index, order, migrate_type);
            self.table.set_state(index, BlockState::head(State::Reporting, order, migrate_type));
            lists.reporting_pages += order.pages();
            batch.push(Piece { index, start: None, order, range });
        }
    }

    fn collect_runs(
        &self,
        lists: &mut FreeLists,
        goal: Goal,
        cursor: &mut Cursor,
        batch: &mut Batch,
        visited: &mut u32,
    ) -> Collected {
        while cursor.index < self.table.len() {
            if *visited >= MOST_VISITED {
                return Collected::Some;
            }
            *visited += 1;
            let Some((head, state)) = self.table.head_of(cursor.index) else {
                *cursor = Cursor { index: cursor.index + 1, frame: 0 };
                continue;
            };
            let next = Cursor { index: head + blocks_of(state.order()), frame: 0 };
            let fresh = cursor.frame == 0;
            if !state.is(State::Split)
                || state.is_unavailable()
                || state.free_pages() < goal.order.pages()
                || fresh && state.has(BlockState::SWEPT)
            {
                *cursor = next;
                continue;
            }
            if fresh {
                // Before anything was reported: whatever is freed from now on ends it. What else is
                // free in the block may hold anything.
                self.table.set_state(head, state.with(BlockState::SWEPT));
                lists.reported.set_zero(head, false);
            }
            loop {
                let room = goal.most_pages.saturating_sub(batch.pages());
                let most = (0..=LARGEST_RUN.get())
                    .rev()
                    .filter_map(Order::new)
                    .find(|order| order.pages() <= room);
                let Some(most) =
                    most.filter(|&most| most >= goal.order && batch.len() < goal.most_pieces)
                else {
                    return Collected::Some;
                };
                if self.is_short(lists, most.pages()) {
                    self.unsweep(head);
                    return Collected::Short;
                }
                let from = usize::from(cursor.frame);
                let Some((start, order)) = self.tier(lists).lend_run(head, from, goal.order, most)
                else {
                    break;
                };
                let (Some(range), Ok(first)) = (self.run(head, start, order), u16::try_from(start))
                else {
                    break;
                };
                batch.push(Piece { index: head, start: Some(first), order, range });
                cursor.frame = first + (1 << order.get());
            }
            *cursor = next;
        }
        Collected::All
    }

    /// Takes the pieces of a batch back, which is empty afterwards. `returned` says what became of
    /// each, by its number.
    pub(crate) fn give_back<P: Platform>(
        &self,
        platform: &P,
        batch: &mut Batch,
        returned: &dyn Fn(usize) -> Returned,
    ) {
        let mut lists = self.changing.lists.lock(platform);
        for (number, piece) in batch.pieces().enumerate() {
            let Some(segment) = segment::find_index(self.segments, piece.index) else { continue };
            match piece.start {
                None => self.give_back_block(&mut lists, segment, piece, returned(number)),
                Some(start) => {
                    let acknowledged = matches!(returned(number), Returned::Reported { .. });
                    let run = (usize::from(start), piece.order);
                    self.tier(&mut lists).return_run(
                        &segment.indices(),
                        piece.index,
                        run,
                        acknowledged,
                    );
                    if !acknowledged {
                        self.unsweep(piece.index);
                    }
                }
            }
        }
        self.publish(&lists);
        drop(lists);
        *batch = Batch::EMPTY;
    }

    /// A search for runs ends here: the block in whose middle it is was not swept.
    pub(crate) fn end_sweep<P: Platform>(&self, platform: &P, cursor: Cursor) {
        if cursor.frame != 0 {
            let _lists = self.changing.lists.lock(platform);
            self.unsweep(cursor.index);
        }
    }

    /// Not all of a split block was reported after all.
    fn unsweep(&self, index: u32) {
        if self.table.is_ready(index) && self.table.state(index).is(State::Split) {
            self.table.set_state(index, self.table.state(index).without(BlockState::SWEPT));
        }
    }

    fn give_back_block(
        &self,
        lists: &mut FreeLists,
        segment: &Segment,
        piece: &Piece,
        returned: Returned,
    ) {
        let indices = segment.indices();
        let (mut index, end) = (piece.index, piece.index + blocks_of(piece.order));
        // In one piece as it was taken, unless a part of it was isolated meanwhile.
        while index < end {
            let state = self.table.state(index);
            let (order, migrate_type) = (state.order().max(Order::BLOCK), state.migrate_type());
            lists.reporting_pages -= order.pages();
            if state.has(BlockState::ISOLATED) {
                lists.isolated_pages += order.pages();
                self.table.set_inner(index);
                self.table.set_state(index, BlockState::head(State::Isolated, order, migrate_type));
            } else {
                let position = match returned {
                    // Next to be handed out, so that what cannot be reported does not stand in the
                    // way of what can.
                    Returned::Refused => Position::Head,
                    Returned::Reported { .. } | Returned::Unasked => Position::Tail,
                };
                if let Returned::Reported { zero } = returned {
                    lists.reported.report(index, order, zero);
                }
                buddy::free(lists, &self.table, &indices, index, order, migrate_type, position);
            }
            index += blocks_of(order);
        }
    }

    /// Forgets which split blocks are swept, some entries at a time from `from` on: runs that were
    /// too small to be reported are not any more. Returns where to go on.
    pub(crate) fn forget_sweeps<P: Platform>(&self, platform: &P, from: u32) -> Option<u32> {
        let mut lists = self.changing.lists.lock(platform);
        let mut index = from;
        for _ in 0..MOST_VISITED {
            if index >= self.table.len() {
                return None;
            }
            index = match self.table.head_of(index) {
                Some((head, state)) => {
                    if state.is(State::Split) && state.has(BlockState::SWEPT) {
                        self.table.set_state(head, state.without(BlockState::SWEPT));
                        lists.reported.set_zero(head, false);
                    }
                    head + blocks_of(state.order())
                }
                None => index + 1,
            };
        }
        Some(index)
    }

    /// Whether a page that was just taken out of the block at `index` is known to be zero.
    pub(super) fn is_known_zero(&self, lists: &FreeLists, index: u32, order: Order) -> bool {
        if !lists.reported.is_tracked() {
            return false;
        }
        if order >= Order::BLOCK {
            return lists.last_taken.zero;
        }
        lists.reported.is_zero(index) && self.table.state(index).has(BlockState::SWEPT)
    }
}

const _: () =
    assert!(LARGEST.pages() == MOST_PIECES as u64 * PAGES_PER_BLOCK, "64 MiB, a block a piece");
