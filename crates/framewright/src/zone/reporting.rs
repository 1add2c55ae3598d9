//! Lends free memory to the hypervisor, under the zone lock: takes memory for a report and takes it
//! back.
//!
//! A lent block has a state of its own, is in no list and merges with nothing. A lent run of a
//! split block looks allocated in the free map. No request can get either, so the hypervisor may
//! discard the memory until it says that it has done so. At most 64 MiB are lent at once, and each
//! hold of the lock looks at no more than [`MOST_VISITED`] entries.
//!
//! Orders of memory: Relaxed: counters and bitmaps, which are written under the zone lock.

use super::Zone;
use super::locked::LockedZone;
use crate::block::in_flight::MOST_IN_FLIGHT;
use crate::block::list::Position;
use crate::block::split::divide_whole;
use crate::block::table::{GROUP, blocks_of};
use crate::block::{BlockState, FreeMap, State};
use crate::platform::Platform;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::{BLOCK_ORDER, Order, PAGES_PER_BLOCK, PfnRange};
use core::ops::Range;

/// The most entries that are looked at under one hold of the lock.
pub(crate) const MOST_VISITED: u32 = 1024;
const FRAMES: usize = FreeMap::<8>::PAGES;
/// The most pieces in a batch.
pub(crate) const MOST_PIECES: usize = MOST_IN_FLIGHT;
/// The largest piece: 64 MiB, as much as may be lent at once.
const LARGEST: Order = match Order::new(BLOCK_ORDER + 5) {
    Some(order) => order,
    None => Order::BLOCK,
};
/// The largest run of a split block.
const LARGEST_RUN: Order = match Order::new(BLOCK_ORDER - 1) {
    Some(order) => order,
    None => Order::PAGE,
};
/// How many entries cutting a piece out of the largest block looks at, besides those that it
/// clears.
const CUT: u32 = 40;

/// A piece of free memory that was taken for a report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    index: u32,
    /// The first frame in the block, if it is a run of a split block.
    start: Option<u16>,
    order: Order,
    pub(crate) range: PfnRange,
}

/// Pieces of one zone that the hypervisor has or is about to get.
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

/// How many words of each bitmap are cleared under one hold of the lock: about 1 us.
const WORDS_AT_ONCE: usize = 1024;

/// What a batch may hold, and how much memory it must leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    /// The smallest run that is reported.
    pub(crate) order: Order,
    pub(crate) most_pieces: usize,
    pub(crate) most_pages: u64,
    /// Free pages that the zone must keep above its low watermark. A part keeps its share of this.
    pub(crate) guard_pages: u64,
    /// Whether whole blocks, too, are looked for by address from the cursor on.
    pub(crate) by_address: bool,
}

/// Where a search by address goes on: one for runs of split blocks, or one for anything.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    index: u32,
    frame: u16,
}

/// How far a batch was filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Collected {
    /// There is nothing more to report.
    All,
    /// The batch is full, or the lock was held long enough: there may be more.
    Some,
    /// Taking more would leave the zone with less than it must have.
    Short,
}

/// What became of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Returned {
    /// The hypervisor took it. It may be zero now.
    Reported { zero: bool },
    /// The device failed: nobody knows whether it was reported.
    Refused,
    /// The device was not even asked.
    Unasked,
}

impl Zone {
    /// Begins to track which memory is reported, unless the zone does so already. Nothing is
    /// reported yet.
    pub(crate) fn track_reported<P: Platform>(&self, platform: &P) {
        // Bitmaps in the zone's own memory exist only while some of that is there, which may end
        // whenever the lock is free. So they are cleared under one hold. Memory that comes later is
        // tracked from then on.
        let at_once = if self.has_own_tables { usize::MAX } else { WORDS_AT_ONCE };
        let mut next = 0;
        loop {
            let mut locked = self.lock(platform);
            // One CPU may register a device here while another adds memory. The first that gets to
            // the end has cleared all words; after that they must not be cleared any more.
            let is_gone = self.has_own_tables && self.present_pages() == 0;
            if locked.buddy.reported.is_tracked() || is_gone {
                return;
            }
            let (reported, zero) = locked.buddy.reported.words();
            let clear = |words: &[AtomicU64]| {
                let some = words.iter().skip(next).take(at_once);
                some.for_each(|word| word.store(0, Ordering::Relaxed));
            };
            clear(reported);
            clear(zero);
            next = next.saturating_add(at_once);
            // Track under the hold that cleared the last words, as one hold may have cleared all.
            if next >= reported.len().max(zero.len()) {
                let unreported_pages = locked.buddy.unreported_pages();
                locked.buddy.reported.track(unreported_pages);
                locked.is_unusual = true;
                return;
            }
        }
    }

    /// The smallest number of pages since the last call that were free in blocks and not reported.
    pub(crate) fn unreported_floor<P: Platform>(&self, platform: &P) -> u64 {
        let mut locked = self.lock(platform);
        let free_pages = locked.buddy.free_pages();
        locked.buddy.reported.take_floor(free_pages)
    }

    /// Whether there is a block of at least `order` that has something to report.
    pub(crate) fn has_unreported<P: Platform>(&self, platform: &P, order: Order) -> bool {
        self.unreported_pages() != 0
            && self.read_coalesced(platform).buddy.coldest(order, false).is_some()
    }

    /// Pages of reported blocks that were handed out again, and how many of them although there was
    /// another choice.
    pub(crate) fn reused_pages<P: Platform>(&self, platform: &P) -> (u64, u64) {
        self.read(platform).buddy.reported.reused_pages()
    }

    /// Takes the memory to report next: first blocks, the largest first and of equal ones those
    /// that would be handed out last; then, if the order is below 9, runs of split blocks from the
    /// cursor on. By address, all come from the cursor on. Memory that was reported already is not
    /// taken. Memory without a grade is taken only while enough of it stays for requests that can
    /// have no other.
    pub(crate) fn collect<P: Platform>(
        &self,
        platform: &P,
        goal: Goal,
        cursor: &mut Cursor,
        batch: &mut Batch,
    ) -> Collected {
        let watermarks = self.watermarks();
        let least_pages = self.share_of(watermarks.low_pages) + goal.guard_pages;
        let free_pages = self.free_pages();
        if free_pages <= least_pages + self.share_of(self.movable_watermarks().low_pages) {
            return Collected::Short;
        }
        let graded_pages = self.graded_pages();
        let graded_only = free_pages.saturating_sub(graded_pages) <= least_pages;
        let mut locked = self.lock_coalesced(platform);
        let min_pages = self.share_of(watermarks.min_pages);
        let mut collector =
            Collector { goal, graded_pages, graded_only, min_pages, batch, cursor, visited: 0 };
        collector.collect(&mut locked)
    }

    /// Takes back the pieces of a batch, which is empty afterwards. `returned` says what became of
    /// each, by its number.
    pub(crate) fn give_back<P: Platform>(
        &self,
        platform: &P,
        batch: &mut Batch,
        returned: &dyn Fn(usize) -> Returned,
    ) {
        let mut locked = self.lock(platform);
        for (number, piece) in batch.pieces().enumerate() {
            let returned = returned(number);
            match piece.start {
                None => locked.return_block(piece, returned),
                Some(start) => {
                    let acknowledged = matches!(returned, Returned::Reported { .. });
                    locked.return_run(piece, usize::from(start), acknowledged);
                    if !acknowledged {
                        locked.unsweep(piece.index);
                    }
                }
            }
        }
        drop(locked);
        *batch = Batch::EMPTY;
    }

    /// Takes back the pieces of a batch, all of them whole blocks, as unaccepted memory; the batch
    /// is empty then. If blocks were isolated meanwhile, the first run of them is returned and the
    /// batch stays as it was. The caller calls again when that run is back
    /// ([`end_report`](Self::end_report)).
    pub(crate) fn take_back_unaccepted<P: Platform>(
        &self,
        platform: &P,
        batch: &mut Batch,
    ) -> Option<PfnRange> {
        for piece in batch.pieces() {
            let mut locked = self.near_place(piece.index, || self.lock(platform));
            let (mut index, end) = (piece.index, piece.index + blocks_of(piece.order));
            while index < end {
                let Some((head, state)) = locked.buddy.table.head_of(index) else { break };
                let order = state.order().max(Order::BLOCK);
                if head == index && state.is(State::Reporting) {
                    if state.is_isolated() {
                        return locked.run(index, 0, order);
                    }
                    locked.reporting_pages -= order.pages();
                    locked.buddy.table.clear_entry(index);
                    let word = BlockState::head(State::Unaccepted, order, state.migrate_type());
                    locked.buddy.table.set_state(index, word.with(BlockState::AGAIN));
                    locked.insert_unaccepted(index);
                    self.add_unaccepted(order.pages(), state.migrate_type());
                }
                index = head + blocks_of(order);
            }
        }
        *batch = Batch::EMPTY;
        None
    }

    /// Takes back blocks of which the first `accepted` are accepted. The others could not be
    /// accepted and are lost. Returns how many of the lost ones others had isolated; their
    /// isolation ends.
    pub(crate) fn end_report<P: Platform>(
        &self,
        platform: &P,
        range: &Range<u32>,
        accepted: u32,
    ) -> u32 {
        let mut locked = self.lock(platform);
        let mut isolated = 0;
        let mut index = range.start;
        while index < range.end {
            let good_end = range.start + accepted;
            let end = if index < good_end { good_end.min(range.end) } else { range.end };
            let order = divide_whole(&locked.buddy.table, index, end).unwrap_or(Order::BLOCK);
            let state = locked.buddy.table.state(index);
            if state.is(State::Reporting) {
                locked.reporting_pages -= order.pages();
                if index >= good_end {
                    if state.is_isolated() {
                        locked.isolated_blocks[state.migrate_type() as usize] -= blocks_of(order);
                        isolated += blocks_of(order);
                    }
                    locked.buddy.table.clear_entry(index);
                    self.lose(&locked, index, order, state.migrate_type());
                } else if state.is_isolated() {
                    locked.keep_isolated(index, state);
                } else {
                    locked.buddy.free(index, order, state.migrate_type(), Position::Tail);
                }
            }
            index += blocks_of(order);
        }
        isolated
    }

    /// Ends a search for runs: the block in the middle of which it stopped counts as not swept.
    pub(crate) fn end_sweep<P: Platform>(&self, platform: &P, cursor: Cursor) {
        if cursor.frame != 0 {
            self.lock(platform).unsweep(cursor.index);
        }
    }

    /// Forgets which split blocks are swept, some entries at a time from `from` on, because runs
    /// that were too small to be reported no longer are. Returns where to go on.
    pub(crate) fn forget_sweeps<P: Platform>(&self, platform: &P, from: u32) -> Option<u32> {
        let mut locked = self.lock(platform);
        let mut next = None;
        let heads = self.table.heads(from..self.table.len());
        for found in heads.take(MOST_VISITED as usize) {
            if found.state.is(State::Split) && found.state.has(BlockState::SWEPT) {
                locked.forget_sweep(found.head, found.state);
            }
            next = Some(found.end());
        }
        next
    }
}

/// A search for what is to be reported next, under one hold of the lock.
struct Collector<'a> {
    goal: Goal,
    /// Free pages with a grade, which not every request can have.
    graded_pages: u64,
    /// Only memory with a grade can be spared.
    graded_only: bool,
    /// This part's share of the zone's min watermark, below which nothing is taken.
    min_pages: u64,
    batch: &'a mut Batch,
    cursor: &'a mut Cursor,
    /// How many entries were looked at.
    visited: u32,
}

impl Collector<'_> {
    /// The largest order up to `limit` that the goal leaves room for.
    fn most(&self, least: Order, limit: Order) -> Option<Order> {
        let room = self.goal.most_pages.saturating_sub(self.batch.pages());
        let mut orders = (least.get()..=limit.get()).rev().filter_map(Order::new);
        orders
            .find(|order| order.pages() <= room)
            .filter(|_| self.batch.len() < self.goal.most_pieces)
    }

    /// Whether taking `pages` more pages of the grade that `state` has would leave the zone below
    /// its min watermark for requests that can have that memory.
    const fn is_short(&self, locked: &LockedZone, state: BlockState, pages: u64) -> bool {
        let out_of_reach = if state.is_graded() { 0 } else { self.graded_pages };
        locked.free_pages() < self.min_pages + out_of_reach + pages
    }

    #[inline(never)]
    fn collect(&mut self, locked: &mut LockedZone) -> Collected {
        if !self.goal.by_address {
            while self.has_room_for_blocks()
                && let Some(head) = locked.buddy.coldest(self.goal.order, self.graded_only)
            {
                match self.take_piece(locked, head, head) {
                    Ok(_) => {}
                    Err(Collected::All) => break,
                    Err(ended) => return ended,
                }
            }
        }
        if self.goal.by_address || self.goal.order < Order::BLOCK {
            return self.collect_by_address(locked);
        }
        Collected::All
    }

    /// The order of the smallest piece of whole blocks.
    fn least_piece(&self) -> Order {
        self.goal.order.clamp(Order::BLOCK, LARGEST)
    }

    fn has_room_for_blocks(&self) -> bool {
        self.goal.most_pages >= self.least_piece().pages()
    }

    /// Takes the first piece of a free block, at or after `from`, that was not reported. Returns
    /// where it ends, or why there is none.
    fn take_piece(
        &mut self,
        locked: &mut LockedZone,
        head: u32,
        from: u32,
    ) -> Result<u32, Collected> {
        let table = locked.buddy.table;
        let state = table.state(head);
        let most = self.most(self.least_piece(), LARGEST).ok_or(Collected::Some)?;
        let cost = CUT + if table.is_ready(head) { 0 } else { GROUP };
        if self.visited + cost > MOST_VISITED {
            return Err(Collected::Some);
        }
        self.visited += cost;
        let unreported = locked.buddy.reported.unreported(head, state.order(), from, most);
        let (index, order) = unreported.ok_or(Collected::All)?;
        if self.is_short(locked, state, order.pages()) {
            return Err(Collected::Short);
        }
        let range = locked.run(index, 0, order).ok_or(Collected::All)?;
        let migrate_type = state.migrate_type();
        locked.buddy.take_from(head, index, order, migrate_type);
        table.set_state(index, BlockState::head(State::Reporting, order, migrate_type));
        locked.reporting_pages += order.pages();
        self.batch.push(Piece { index, start: None, order, range });
        Ok(index + blocks_of(order))
    }

    /// Takes memory from the cursor on: runs of split blocks if the order is below 9, and whole
    /// blocks if these are not taken largest first.
    fn collect_by_address(&mut self, locked: &mut LockedZone) -> Collected {
        let table = locked.buddy.table;
        let takes_blocks = self.goal.by_address && self.has_room_for_blocks();
        let takes_runs = self.goal.order < Order::BLOCK;
        let least = self.goal.order.min(LARGEST);
        if self.goal.most_pages < least.pages() {
            return Collected::All;
        }
        while self.cursor.index < table.len() {
            // Begin no block of which nothing can be taken: it would count as swept.
            let is_full = self.most(least, LARGEST).is_none();
            if is_full || self.visited >= MOST_VISITED {
                return Collected::Some;
            }
            self.visited += 1;
            let Some((head, state)) = table.head_of(self.cursor.index) else {
                *self.cursor = Cursor { index: self.cursor.index + 1, frame: 0 };
                continue;
            };
            let next = Cursor { index: head + blocks_of(state.order()), frame: 0 };
            let begins = self.cursor.frame == 0;
            let is_spared = self.graded_only && !state.is_graded();
            let is_whole = state.is(State::Free) && state.order() >= self.goal.order;
            if takes_blocks && is_whole && !is_spared && !state.has(BlockState::REPORTED) {
                match self.take_piece(locked, head, self.cursor.index) {
                    Ok(index) => *self.cursor = Cursor { index, frame: 0 },
                    Err(Collected::All) => *self.cursor = next,
                    Err(ended) => return ended,
                }
                continue;
            }
            if !takes_runs
                || !state.is(State::Split)
                || is_spared
                || state.is_unavailable()
                || state.free_pages() < self.goal.order.pages()
                || begins && state.has(BlockState::SWEPT)
            {
                if !begins {
                    // Perhaps it was isolated in the middle of the sweep, so its rest was not
                    // looked at.
                    locked.unsweep(head);
                }
                *self.cursor = next;
                continue;
            }
            if begins {
                // Set the mark before anything is reported: any free from now on clears it. Other
                // free frames of the block may hold anything, so it is not zero.
                table.set_state(head, state.with(BlockState::SWEPT));
                locked.buddy.reported.set_zero(head, false);
            }
            if let Some(collected) = self.collect_runs_of(locked, head) {
                return collected;
            }
            *self.cursor = next;
        }
        Collected::All
    }

    /// Takes the runs of one split block from the cursor on. Returns why it stopped, if it did not
    /// get to the end.
    fn collect_runs_of(&mut self, locked: &mut LockedZone, head: u32) -> Option<Collected> {
        loop {
            let Some(most) = self.most(self.goal.order, LARGEST_RUN) else {
                return Some(Collected::Some);
            };
            if self.is_short(locked, locked.buddy.table.state(head), most.pages()) {
                locked.unsweep(head);
                return Some(Collected::Short);
            }
            let from = usize::from(self.cursor.frame);
            let (start, order) = locked.lend_run(head, from, self.goal.order, most)?;
            let (range, first) = (locked.run(head, start, order)?, u16::try_from(start).ok()?);
            self.batch.push(Piece { index: head, start: Some(first), order, range });
            self.cursor.frame = first + (1 << order.get());
        }
    }
}

impl LockedZone {
    /// Lends the lowest free run of a split block at or after frame `from` to the hypervisor, of an
    /// order from `least` to `most`, both below 9. Returns its first frame and order.
    fn lend_run(
        &mut self,
        index: u32,
        from: usize,
        least: Order,
        most: Order,
    ) -> Option<(usize, Order)> {
        let map = self.buddy.table.cold_free_map(index);
        let start = (from.next_multiple_of(1 << least.get())..FRAMES)
            .step_by(1 << least.get())
            .find(|&start| map.is_run_free(start, least.get()))?;
        let larger = (least.get()..=most.get())
            .take_while(|&order| start.is_multiple_of(1 << order) && map.is_run_free(start, order));
        let order = larger.last().and_then(Order::new).unwrap_or(least);
        if !self.in_flight.add(index, start, order.get()) {
            return None;
        }
        map.take_run(start, order.get());
        self.taken(index, order.pages());
        self.reporting_pages += order.pages();
        self.buddy
            .table
            .set_state(index, self.buddy.table.state(index).with(BlockState::REPORTING));
        Some((start, order))
    }

    /// Takes back a lent run. The block stays swept if it was and the hypervisor has acknowledged
    /// the run.
    fn return_run(&mut self, piece: &Piece, start: usize, acknowledged: bool) {
        let Piece { index, order, .. } = *piece;
        let (was_out, more) = self.in_flight.remove(index, start);
        debug_assert!(was_out, "only what was lent comes back");
        let state = self.buddy.table.state(index);
        if !more {
            self.buddy.table.set_state(index, state.without(BlockState::REPORTING));
        }
        self.reporting_pages -= order.pages();
        let freed = self.free_run(index, start, order);
        debug_assert!(freed, "what is lent stays allocated");
        let now = self.buddy.table.state(index);
        if acknowledged && state.has(BlockState::SWEPT) && now.is(State::Split) {
            self.buddy.table.set_state(index, now.with(BlockState::SWEPT));
        }
    }

    fn return_block(&mut self, piece: &Piece, returned: Returned) {
        let table = self.buddy.table;
        let (mut index, end) = (piece.index, piece.index + blocks_of(piece.order));
        // The block is in one piece, as it was taken, unless a part of it was isolated meanwhile.
        while index < end {
            let state = table.state(index);
            let (order, migrate_type) = (state.order().max(Order::BLOCK), state.migrate_type());
            self.reporting_pages -= order.pages();
            if state.is_isolated() {
                self.keep_isolated(index, state);
            } else {
                let position = match returned {
                    // To the head of its list, to be handed out next: memory that cannot be
                    // reported must not stand in the way of memory that can.
                    Returned::Refused => Position::Head,
                    Returned::Reported { .. } | Returned::Unasked => Position::Tail,
                };
                if let Returned::Reported { zero } = returned {
                    self.buddy.reported.report(index, order, zero);
                }
                self.buddy.free(index, order, migrate_type, position);
            }
            index += blocks_of(order);
        }
    }

    /// Clears the mark *swept* of a split block, not all of which was reported after all.
    fn unsweep(&self, index: u32) {
        let table = &self.buddy.table;
        if table.is_ready(index) && table.state(index).is(State::Split) {
            table.set_state(index, table.state(index).without(BlockState::SWEPT));
        }
    }

    fn forget_sweep(&mut self, index: u32, state: BlockState) {
        self.buddy.table.set_state(index, state.without(BlockState::SWEPT));
        self.buddy.reported.set_zero(index, false);
    }

    /// Whether pages that were just taken out of the block at `index` are known to be zero.
    pub(super) fn is_known_zero(&self, index: u32, order: Order) -> bool {
        if !self.buddy.reported.is_tracked() {
            return false;
        }
        if order >= Order::BLOCK {
            return self.buddy.last_taken.zero;
        }
        self.buddy.reported.is_zero(index) && self.buddy.table.state(index).has(BlockState::SWEPT)
    }
}

const _: () =
    assert!(LARGEST.pages() == MOST_PIECES as u64 * PAGES_PER_BLOCK, "64 MiB, a block a piece");
