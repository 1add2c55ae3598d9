//! Memory of a zone that the guest has not accepted yet, and how runs of it are claimed.
//!
//! Unaccepted blocks are heads in the state *unaccepted*, as large as possible, linked in ascending
//! order through their entries. The block table serves as the bitmap of unaccepted memory. A CPU
//! that accepts memory cuts a piece out of a head and makes it *accepting*, under the lock. It
//! accepts the piece outside of all locks, and frees it under the lock again. A run that is being
//! accepted keeps its place in the list, so that a rest that was not accepted can go back there.
//!
//! ```text
//!              ┌──── claim ────┐                 ┌──> free
//!   unaccepted │               v   finish        │
//!      ^  ^    └─────────── accepting ───────────┼──> reserved and poisoned: it failed
//!      │  └──────────────────────────────────────┤    behind what failed, not tried
//!      └─ ahead ─────────────────────────────────┘    accepted, but what follows is not yet
//! ```
//!
//! Reads of a block's last page may reach past its end, so before that page is handed out the block
//! behind it is accepted. That next block stays in the list, *ahead* of its use: when its turn
//! comes, only the one behind it has to be accepted.
//!
//! Orders of memory: Relaxed: the number of runs that are being accepted only tells a CPU to wait;
//! a CPU that reads zero looks once more under the lock. Pages leave the list with Release, like
//! other withheld memory (`deferred`): they were published as free before.

use super::locked::LockedZone;
use super::{Segment, Zone};
use crate::block::heads::HeadIn;
use crate::block::list::{NONE, Position};
use crate::block::split::lower;
use crate::block::table::blocks_of;
use crate::block::{ACCEPTS, BlockState, MigrateType, State, segment};
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::{BLOCK_ORDER, MAX_ORDER, Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use core::ops::Range;

/// How many heads a search looks at under one hold of the lock. If none of them is large enough, a
/// smaller one will do.
pub(super) const MOST_HEADS: u32 = 1 << 9;

/// Unaccepted memory of a zone, under its lock.
pub(super) struct Unaccepted {
    pub(super) first: u32,
    pub(super) last: u32,
    /// The last known place in the list, near which the next head will probably be inserted.
    pub(super) near: u32,
}

impl Unaccepted {
    pub(super) const NONE: Self = Self { first: NONE, last: NONE, near: NONE };
}

/// A run that its holder has claimed and must accept.
#[derive(Clone, Copy)]
pub(crate) struct AcceptRun {
    pub(super) index: u32,
    pub(super) order: Order,
    pub(super) start: Pfn,
    /// Whether it is accepted already, ahead of its use.
    pub(super) is_ahead: bool,
    /// Whether the memory was added while the machine ran, or came back.
    pub(super) is_again: bool,
}

impl AcceptRun {
    /// The frames of the run.
    pub(crate) fn frames(&self) -> PfnRange {
        PfnRange { start: self.start, end: self.start.add(self.order.pages()) }
    }

    /// Whether the run is accepted already.
    pub(crate) const fn is_ahead(&self) -> bool {
        self.is_ahead
    }
}

/// What to claim.
#[derive(Clone, Copy)]
pub(crate) struct AcceptWanted {
    /// The most to claim; at least a block.
    pub(crate) order: Order,
    /// One past the last frame that may be claimed.
    pub(crate) max: Pfn,
    /// The request's migrate type: memory with a grade is only for movable requests.
    pub(crate) migrate_type: MigrateType,
    /// Whether the claim may be a block that is accepted and waits for the one behind it.
    pub(crate) ahead: bool,
}

impl AcceptWanted {
    fn allows(&self, state: BlockState) -> bool {
        (self.migrate_type == MigrateType::Movable || !state.is_graded())
            && (self.ahead || !state.has(BlockState::AHEAD))
    }
}

/// How a claim of a run ends.
pub(crate) struct RunEnd {
    /// How many of the run's first blocks are accepted.
    pub(crate) accepted_blocks: u32,
    /// What becomes of the run's last block, if that is accepted.
    pub(crate) last: LastBlock,
    /// Whether pages may be read past their end.
    pub(crate) guards: bool,
}

/// What becomes of the last block of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastBlock {
    /// It becomes free with the rest.
    Free,
    /// It waits while another CPU accepts the block behind it.
    Ahead,
    /// It stays out of use, because the block behind it could not be accepted.
    Lost,
}

impl Zone {
    /// Frames that are not accepted, or were but have not been handed over since. Includes frames
    /// that are being accepted at this moment, and frames that were accepted ahead of their use.
    #[must_use]
    pub fn unaccepted_pages(&self) -> u64 {
        // Acquire, as for deferred pages.
        if ACCEPTS { self.changing.unaccepted_pages.load(Ordering::Acquire) } else { 0 }
    }

    /// Those of the [unaccepted pages](Self::unaccepted_pages) that have a grade.
    pub(crate) fn unaccepted_graded_pages(&self) -> u64 {
        if !ACCEPTS || !cfg!(feature = "moving") {
            return 0;
        }
        // Acquire, as for all unaccepted pages.
        self.changing.unaccepted_graded_pages.load(Ordering::Acquire)
    }

    /// Counts `pages` more as unaccepted.
    #[inline(never)]
    pub(super) fn add_unaccepted(&self, pages: u64, migrate_type: MigrateType) {
        if migrate_type.is_grade() {
            self.changing.unaccepted_graded_pages.fetch_add(pages, Ordering::Relaxed);
        }
        self.changing.unaccepted_pages.fetch_add(pages, Ordering::Release);
    }

    /// Counts `pages` fewer as unaccepted.
    #[inline(never)]
    pub(super) fn sub_unaccepted(&self, pages: u64, migrate_type: MigrateType) {
        self.changing.unaccepted_pages.fetch_sub(pages, Ordering::Release);
        if migrate_type.is_grade() {
            self.changing.unaccepted_graded_pages.fetch_sub(pages, Ordering::Release);
        }
    }

    /// Frames that could not be accepted, and accepted frames before them, reads of which may reach
    /// into them. All of these are reserved.
    #[must_use]
    pub fn lost_pages(&self) -> u64 {
        if ACCEPTS { self.changing.lost_pages.load(Ordering::Acquire) } else { 0 }
    }

    /// Frames that come up when they are wanted.
    #[must_use]
    pub fn withheld_pages(&self) -> u64 {
        self.deferred_pages() + self.unaccepted_pages()
    }

    /// Whether memory of the zone is being accepted at this moment.
    pub(crate) fn is_accepting(&self) -> bool {
        self.changing.accepting_runs.load(Ordering::Relaxed) != 0
    }

    /// Appends a head that was made at bring-up to the list.
    pub(super) fn note_unaccepted(&mut self, index: u32, order: Order) {
        *self.changing.unaccepted_pages.get_mut() += order.pages();
        self.changing.locked.get_mut().append_unaccepted(index);
    }

    /// Claims the lowest run of the wanted order among the heads that one hold of the lock looks
    /// at; if there is none, the whole of a smaller head.
    pub(crate) fn claim_lowest<P: Platform>(
        &self,
        platform: &P,
        wanted: &AcceptWanted,
    ) -> Option<AcceptRun> {
        if self.unaccepted_pages() == 0 {
            return None;
        }
        let mut at = NONE;
        loop {
            let mut locked = self.lock(platform);
            let (mut found, mut index) = (None, locked.resume(at, locked.unaccepted.first));
            for _ in 0..MOST_HEADS {
                if index == NONE {
                    break;
                }
                let state = self.table.state(index);
                let order = state.order().min(wanted.order);
                if self.start_of(index).add(order.pages()) > wanted.max {
                    index = NONE;
                    break;
                }
                if locked.is_claimable(index, order) && wanted.allows(state) {
                    found = found.filter(|_| order < wanted.order).or(Some((index, order)));
                    if order == wanted.order {
                        break;
                    }
                }
                (_, index) = self.table.links(index);
            }
            if let Some((index, order)) = found {
                return Some(self.claim(&mut locked, index, index + blocks_of(order)));
            }
            if index == NONE {
                return None;
            }
            at = index;
        }
    }

    /// Claims the highest run of at most the wanted order. A block that waits for the one behind it
    /// is left out until that one can be read.
    pub(crate) fn claim_highest<P: Platform>(
        &self,
        platform: &P,
        wanted: &AcceptWanted,
    ) -> Option<AcceptRun> {
        if self.unaccepted_pages() == 0 {
            return None;
        }
        let mut at = NONE;
        loop {
            let mut locked = self.lock(platform);
            let mut index = locked.resume(at, locked.unaccepted.last);
            for _ in 0..MOST_HEADS {
                if index == NONE {
                    return None;
                }
                let state = self.table.state(index);
                let order = state.order().min(wanted.order);
                let end = index + blocks_of(state.order());
                let start = end - blocks_of(order);
                let waits = state.has(BlockState::AHEAD) && self.is_wait_for(end);
                if state.is(State::Unaccepted)
                    && !waits
                    && wanted.allows(state)
                    && self.start_of(start).add(order.pages()) <= wanted.max
                {
                    return Some(self.claim(&mut locked, start, end));
                }
                (index, _) = self.table.links(index);
            }
            if index == NONE {
                return None;
            }
            at = index;
        }
    }

    /// Claims the highest run in a range of indices, which is short enough for one hold of the
    /// lock.
    pub(crate) fn claim_in<P: Platform>(
        &self,
        platform: &P,
        range: &Range<u32>,
    ) -> Option<AcceptRun> {
        if self.unaccepted_pages() == 0 {
            return None;
        }
        let mut locked = self.lock(platform);
        let heads = self.table.heads(range.clone());
        let HeadIn { head, state, .. } = heads
            .filter(|found| is_listed(found.state) && found.state.is(State::Unaccepted))
            .last()?;
        let start = head.max(range.start);
        let end = (head + blocks_of(state.order())).min(range.end);
        // The largest aligned piece at the end.
        let level = (end - start).ilog2().min(end.trailing_zeros());
        let blocks = 1 << level.min(u32::from(MAX_ORDER - BLOCK_ORDER));
        Some(self.claim(&mut locked, end - blocks, end))
    }

    /// Whether any memory in a range of indices is not accepted yet.
    pub(crate) fn has_unaccepted_in<P: Platform>(&self, platform: &P, range: &Range<u32>) -> bool {
        if self.unaccepted_pages() == 0 {
            return false;
        }
        let _locked = self.read(platform);
        self.table.heads(range.clone()).any(|found| is_listed(found.state))
    }

    /// Cuts `start..end` out of the head that covers it and claims it for the caller.
    pub(super) fn claim(&self, locked: &mut LockedZone, start: u32, end: u32) -> AcceptRun {
        let order = locked.cut_unaccepted(start, end);
        let state = self.table.state(start);
        debug_assert!(state.is(State::Unaccepted), "block {start} is {state:?}");
        let is_ahead = state.has(BlockState::AHEAD);
        let word = BlockState::head(State::Accepting, order, state.migrate_type());
        let is_again = state.has(BlockState::AGAIN);
        self.table.set_state(start, word.with(again(state)));
        self.changing.accepting_runs.fetch_add(1, Ordering::Relaxed);
        AcceptRun { index: start, order, start: self.start_of(start), is_ahead, is_again }
    }

    /// Ends the claim of a run. If all of it is accepted, the last block becomes what `last` says.
    /// Otherwise the first block that is not accepted is lost, and the blocks behind it are
    /// unaccepted as before. If pages may be read past their end, the last accepted block is lost,
    /// too. Returns how many pages came up.
    pub(crate) fn finish_run<P: Platform>(
        &self,
        platform: &P,
        run: &AcceptRun,
        RunEnd { accepted_blocks, last, guards }: RunEnd,
    ) -> u64 {
        let end = run.index + blocks_of(run.order);
        let up_to = run.index + accepted_blocks.min(end - run.index);
        let (free_end, lost_end) = if up_to < end {
            let before = u32::from(guards && up_to > run.index);
            (up_to - before, up_to + 1)
        } else {
            match last {
                LastBlock::Free => (end, end),
                LastBlock::Ahead => (end - 1, end - 1),
                LastBlock::Lost => (end - 1, end),
            }
        };
        if let Some(array) = self.array.filter(|_| !run.is_again)
            && free_end > run.index
        {
            array.describe(run.index..free_end, run.start);
        }
        let mut locked = self.lock(platform);
        let migrate_type = self.table.state(run.index).migrate_type();
        let pages = locked.settle(run.index..free_end, Settled::Free);
        let good_end = up_to.clamp(free_end, lost_end);
        let lost = locked.settle(free_end..good_end, Settled::LostAccepted)
            + locked.settle(good_end..lost_end, Settled::Lost);
        let rest = if up_to < end { Settled::Back } else { Settled::Ahead };
        locked.settle(lost_end..end, rest);
        locked.publish();
        self.changing.lost_pages.fetch_add(lost, Ordering::Release);
        // Last, after the free pages were published, so that a reader that adds both, reading this
        // first, misses none.
        self.sub_unaccepted(pages + lost, migrate_type);
        self.changing.accepting_runs.fetch_sub(1, Ordering::Relaxed);
        pages
    }

    /// The first unaccepted head among these indices, or rather the part of it that lies in them.
    pub(crate) fn unaccepted_in<P: Platform>(
        &self,
        platform: &P,
        range: Range<u32>,
    ) -> Option<Range<u32>> {
        if self.unaccepted_pages() == 0 {
            return None;
        }
        let mut next = range.start;
        while next < range.end {
            let _locked = self.read(platform);
            for found in self.table.heads(next..range.end).take(MOST_HEADS as usize) {
                next = found.end();
                if is_listed(found.state) {
                    return Some(found.index..found.end().min(range.end));
                }
            }
        }
        None
    }

    /// Gives unaccepted heads in `range` the migrate type of a grade, at bring-up. Unaccepted
    /// memory needs no isolation for this.
    pub(crate) fn grade_unaccepted<P: Platform>(
        &self,
        platform: &P,
        range: Range<u32>,
        to: MigrateType,
    ) {
        let mut locked = self.lock(platform);
        let mut index = range.start;
        while let Some(found) = self.table.heads(index..range.end).next() {
            index = found.end();
            if !is_listed(found.state) || !found.state.is(State::Unaccepted) {
                continue;
            }
            let order = locked.cut_unaccepted(found.index, range.end);
            let state = self.table.state(found.index);
            self.table.set_state(found.index, state.with_migrate_type(to));
            locked.buddy.retype(state.migrate_type(), to, blocks_of(order));
            locked.is_unusual = true;
            self.changing.unaccepted_graded_pages.fetch_add(order.pages(), Ordering::Relaxed);
            index = found.index + blocks_of(order);
        }
    }

    /// Returns the head after `index` in the list of unaccepted memory, or the first, and the frame
    /// where it begins. For bring-up, which takes the lock for each step of its walk.
    pub(crate) fn unaccepted_after<P: Platform>(
        &self,
        platform: &P,
        index: Option<u32>,
    ) -> Option<(u32, Pfn)> {
        let locked = self.read(platform);
        let next = index.map_or(locked.unaccepted.first, |index| self.table.links(index).1);
        (next != NONE).then(|| (next, self.start_of(next)))
    }

    /// Where the head that covers block `index` ends.
    pub(crate) fn end_of<P: Platform>(&self, platform: &P, index: u32) -> Option<Pfn> {
        let _locked = self.read(platform);
        let (head, state) = self.table.head_of(index)?;
        Some(self.start_of(head).add(state.order().pages()))
    }

    pub(super) fn start_of(&self, index: u32) -> Pfn {
        let found = segment::find_index(self.segments, index);
        found.map_or(Pfn(0), |segment: &Segment| segment.block_of(index).start())
    }

    /// Checks that the list is in order and names the heads that it must. Returns the frames in it,
    /// and those of them with a grade.
    pub(super) fn verify_unaccepted(&self, locked: &LockedZone) -> Result<[u64; 2], u32> {
        let (mut before, mut index) = (NONE, locked.unaccepted.first);
        let mut pages = [0; 2];
        let near = locked.unaccepted.near;
        if near != NONE && locked.resume(near, NONE) == NONE {
            return Err(near);
        }
        while index != NONE {
            let (state, links) = (self.table.state(index), self.table.links(index));
            let ascends = before == NONE || before < index;
            if !is_listed(state) || links.0 != before || !ascends {
                return Err(index);
            }
            pages[0] += state.order().pages();
            pages[1] += if state.is_graded() { state.order().pages() } else { 0 };
            (before, index) = (index, links.1);
        }
        if locked.unaccepted.last == before { Ok(pages) } else { Err(before) }
    }
}

/// Whether a head is in the list.
pub(super) fn is_listed(state: BlockState) -> bool {
    match state.state() {
        Some(State::Accepting) => !state.has(BlockState::GOING),
        Some(State::Unaccepted) => !state.has(BlockState::KEPT | BlockState::GOING),
        _ => false,
    }
}

/// The bit `AGAIN`, which marks memory that was added while the machine ran or came back, if it is
/// set.
pub(super) fn again(state: BlockState) -> u64 {
    if state.has(BlockState::AGAIN) { BlockState::AGAIN } else { 0 }
}

/// Whether a block could not be accepted.
pub(super) fn is_lost(state: BlockState) -> bool {
    state.is(State::Reserved) && state.has(BlockState::POISONED)
}

/// What blocks become after they were being accepted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Settled {
    Free,
    Lost,
    /// It is accepted, but the block behind it is lost.
    LostAccepted,
    Ahead,
    Back,
}

impl LockedZone {
    fn append_unaccepted(&mut self, index: u32) {
        let table = self.buddy.table;
        let last = core::mem::replace(&mut self.unaccepted.last, index);
        let entry = table.cold_entry(index);
        entry.set_links(last, NONE);
        match last {
            NONE => self.unaccepted.first = index,
            last => table.set_next(last, index),
        }
    }

    pub(super) fn unlink_unaccepted(&mut self, index: u32) {
        let table = self.buddy.table;
        let (previous, next) = table.links(index);
        if self.unaccepted.near == index {
            self.unaccepted.near = previous;
        }
        match previous {
            NONE => self.unaccepted.first = next,
            previous => table.set_next(previous, next),
        }
        match next {
            NONE => self.unaccepted.last = previous,
            next => table.set_previous(next, previous),
        }
    }

    /// Where a search goes on that stopped at `at`, if it has begun: there, unless that head has
    /// left the list meanwhile; then at `begin` again.
    fn resume(&self, at: u32, begin: u32) -> u32 {
        let head = if at == NONE { None } else { self.buddy.table.head_of(at) };
        match head {
            Some((head, state)) if head == at && is_listed(state) => at,
            _ => begin,
        }
    }

    fn is_accepting(&self, index: u32) -> bool {
        let head = self.buddy.table.head_of(index);
        head.is_some_and(|(_, state)| state.is(State::Accepting))
    }

    /// Whether a head is unaccepted and the block behind its first piece of `order` is not being
    /// accepted.
    fn is_claimable(&self, index: u32, order: Order) -> bool {
        self.buddy.table.state(index).is(State::Unaccepted)
            && !self.is_accepting(index + blocks_of(order))
    }

    /// Halves heads of the list until one begins at `index` and none that begins in `index..end`
    /// reaches over `end`. Returns that head's order. `index` must lie in a head of the list.
    pub(super) fn cut_unaccepted(&mut self, index: u32, end: u32) -> Order {
        let table = self.buddy.table;
        loop {
            let Some((head, state)) = table.head_of(index) else { return Order::BLOCK };
            let order = state.order();
            if order == Order::BLOCK || head == index && blocks_of(order) <= end - index {
                return order;
            }
            if order == Order::MAX {
                table.make_ready(head, true);
            }
            let half = lower(order);
            let second = head + blocks_of(half);
            let word = state.with_order(half);
            let (first, behind) = (table.cold_entry(head), table.cold_entry(second));
            first.set_state_in_no_lot(word);
            behind.set_state_in_no_lot(word);
            let (_, next) = first.links();
            first.set_next(second);
            behind.set_links(head, next);
            match next {
                NONE => self.unaccepted.last = second,
                next => table.set_previous(next, second),
            }
        }
    }

    /// Settles blocks that were being accepted. Returns how many pages these are.
    fn settle(&mut self, range: Range<u32>, to: Settled) -> u64 {
        let table = self.buddy.table;
        let mut index = range.start;
        while index < range.end {
            let order = self.cut_unaccepted(index, range.end);
            let state = table.state(index);
            debug_assert!(state.is(State::Accepting), "block {index} is {state:?}");
            let migrate_type = state.migrate_type();
            match to {
                Settled::Free => {
                    self.unlink_unaccepted(index);
                    // To the tail of its list, like everything at bring-up.
                    self.buddy.free(index, order, migrate_type, Position::Tail);
                }
                Settled::Lost | Settled::LostAccepted => {
                    self.unlink_unaccepted(index);
                    let word = BlockState::head(State::Reserved, order, migrate_type);
                    let is_good = to == Settled::LostAccepted;
                    let mark = if is_good { BlockState::ACCEPTED } else { 0 };
                    table.set_state(index, word.with(BlockState::POISONED | mark));
                }
                Settled::Ahead => {
                    debug_assert!(order == Order::BLOCK, "one block waits, not more");
                    let word = BlockState::head(State::Unaccepted, order, migrate_type);
                    table.set_state(index, word.with(BlockState::AHEAD | again(state)));
                }
                Settled::Back => {
                    let word = BlockState::head(State::Unaccepted, order, migrate_type);
                    table.set_state(index, word.with(again(state)));
                }
            }
            index += blocks_of(order);
        }
        u64::from(range.end.saturating_sub(range.start)) * PAGES_PER_BLOCK
    }
}
