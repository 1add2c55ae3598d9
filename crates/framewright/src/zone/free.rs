//! Frees in one zone, under its lock.
//!
//! [`Zone::free_order`] frees one run, as `drain` does many. It takes the first path that applies:
//!
//! 1. a block of 1 GiB: [`Zone::free_largest`], which the manager tries before it calls this;
//! 2. an aligned run of a split block: [`LockedZone::free_run`], which changes one word of a free
//!    map;
//! 3. a block of 2 MiB that is movable or has a grade: setting one bit defers its merge;
//! 4. any other block that was allocated whole: it is merged, or stays isolated;
//! 5. anything else: every frame is checked, and blocks that were allocated whole are divided.
//!
//! A free that fails has changed nothing: the whole range is checked before any of it is freed
//! (invariant 13). The one exception is a range of which somebody else frees a part meanwhile.

use super::locked::{LockedZone, ZoneGuard};
use super::page_free::Refused;
use super::{FreeError, Zone};
use crate::block::deferred_merge::{MERGE_DEFERRED, deferrable_grade};
use crate::block::list::Position;
use crate::block::segment::{self, Segment, offset_in_block};
use crate::block::split::divide_whole;
use crate::block::{BlockState, FreeMap, State};
use crate::platform::Platform;
use crate::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;
use core::ops::Range;

const FRAMES: usize = FreeMap::<8>::PAGES;
/// How many heads are checked and freed under one hold of the lock.
const HEADS: usize = 64;

impl Zone {
    /// Frees frames, all of which must be allocated and lie in `segment`. They need not be exactly
    /// what one call allocated.
    pub(crate) fn free<P: Platform>(
        &self,
        platform: &P,
        segment: &Segment,
        range: PfnRange,
    ) -> Result<(), FreeError> {
        if let Some(order) = range.as_order() {
            return self.free_order(platform, segment, range.start, order);
        }
        self.free_heads(platform, self.lock(platform), segment, range)
    }

    /// [`free`](Self::free) for 2^`order` frames.
    pub(crate) fn free_order<P: Platform>(
        &self,
        platform: &P,
        segment: &Segment,
        start: Pfn,
        order: Order,
    ) -> Result<(), FreeError> {
        let mut locked = self.lock(platform);
        let index = segment.index_of(BlockNumber::containing(start));
        if !locked.free_exactly(index, start, order) {
            let range = PfnRange::of_order(start, order);
            return self.free_heads(platform, locked, segment, range);
        }
        locked.freed_pages += order.pages();
        Ok(())
    }

    /// Frees any range. A range of more than [`HEADS`] heads is first checked and then freed, in
    /// several holds of the lock. As all of it is the caller's (invariant 42), none of it changes
    /// between the holds. Two callers that free the same range can break that rule, so each hold
    /// checks again what it is about to free.
    fn free_heads<P: Platform>(
        &self,
        platform: &P,
        mut locked: ZoneGuard<'_, P>,
        segment: &Segment,
        range: PfnRange,
    ) -> Result<(), FreeError> {
        let mut checked = locked.check(segment, range)?;
        if checked == range.end {
            locked.free_checked(segment, range);
            locked.freed_pages += range.pages();
            return Ok(());
        }
        drop(locked);
        while checked < range.end {
            checked = self.read(platform).check(segment, PfnRange { start: checked, ..range })?;
        }
        let mut start = range.start;
        while start < range.end {
            let mut locked = self.lock(platform);
            let end = locked.check(segment, PfnRange { start, ..range })?;
            let some = PfnRange { start, end };
            locked.free_checked(segment, some);
            locked.freed_pages += some.pages();
            start = end;
        }
        Ok(())
    }

    /// Checks that all frames of `range`, which lies in `segment`, are allocated.
    pub(crate) fn check_allocated<P: Platform>(
        &self,
        platform: &P,
        segment: &Segment,
        range: PfnRange,
    ) -> Result<(), FreeError> {
        let mut start = range.start;
        while start < range.end {
            start = self.read(platform).check(segment, PfnRange { start, ..range })?;
        }
        Ok(())
    }

    /// Clears the mark *kept* of the blocks in `range`, frames of the vmemmap that are about to be
    /// freed: the manager does not keep these blocks for itself any longer.
    pub(crate) fn end_keeping<P: Platform>(
        &self,
        platform: &P,
        segment: &Segment,
        range: PfnRange,
    ) {
        let mut locked = self.lock(platform);
        let mut index = segment.index_of(BlockNumber::containing(range.start));
        let end = segment.index_of(BlockNumber::containing(Pfn(range.end.0 - 1))) + 1;
        while let Some(found) = self.table.heads(index..end).next() {
            if !found.state.is(State::Whole) || !found.state.has(BlockState::KEPT) {
                index = found.end();
                continue;
            }
            index = found.index;
            let Some(order) = divide_whole(&self.table, index, end) else { return };
            self.table.set_state(index, self.table.state(index).without(BlockState::KEPT));
            locked.kept_pages -= order.pages();
            index += crate::block::table::blocks_of(order);
        }
    }

    /// The state of `block`, with the order of the block that covers it.
    pub(crate) fn state_of<P: Platform>(
        &self,
        platform: &P,
        block: BlockNumber,
    ) -> Option<BlockState> {
        let segment = segment::find(self.segments, block)?;
        let locked = self.read_coalesced(platform);
        locked.buddy.table.head_of(segment.index_of(block)).map(|(_, state)| state)
    }
}

impl LockedZone {
    /// Frees an aligned run of a split block, or exactly the block that one allocation returned.
    /// Returns false and changes nothing in all other cases.
    #[inline]
    fn free_exactly(&mut self, index: u32, start: Pfn, order: Order) -> bool {
        if !start.is_aligned(order) {
            return false;
        }
        if order < Order::BLOCK {
            return self.free_run(index, offset_in_block(start), order);
        }
        // `index` must be the head itself. Its entry may be read if its group is ready or if it is
        // the group's first entry, as the head of a block of the largest order is.
        let table = &self.buddy.table;
        if !table.is_ready(index) && order < Order::MAX {
            return false;
        }
        let state = table.state(index);
        if !state.is(State::Whole) || state.order() != order || state.is_nobodys() {
            return false;
        }
        self.free_block(index, state)
    }

    /// Frees a block that is allocated whole and has its head at `index`. Returns false if the
    /// block is free already.
    #[inline]
    pub(super) fn free_block(&mut self, index: u32, state: BlockState) -> bool {
        if state == MERGE_DEFERRED {
            if self.buddy.defer_merge_of_one(index) {
                return true;
            }
            if self.buddy.is_deferred(index) {
                return false;
            }
        }
        if cfg!(feature = "moving")
            && state.is_graded()
            && let Some(grade) = deferrable_grade(state)
        {
            if self.buddy.defer_graded_merge(index, 1, grade) {
                return true;
            }
            if self.buddy.is_deferred(index) {
                return false;
            }
        }
        self.free_and_merge(index, state);
        true
    }

    /// Frees and merges a block that is allocated whole and has its head at `index`.
    #[inline]
    fn free_and_merge(&mut self, index: u32, state: BlockState) {
        if state.has(BlockState::COUNTED | BlockState::ISOLATED) {
            return self.free_marked(index);
        }
        self.buddy.free(index, state.order(), state.migrate_type(), Position::Head);
    }

    /// [`free_and_merge`](Self::free_and_merge) for a block that has a reference count or is
    /// isolated.
    #[cold]
    fn free_marked(&mut self, index: u32) {
        self.end_count(index);
        let state = self.buddy.table.state(index);
        if state.is_isolated() {
            self.keep_isolated(index, state);
        } else {
            self.buddy.free(index, state.order(), state.migrate_type(), Position::Head);
        }
    }

    /// Marks an isolated block as free. It stays isolated.
    pub(super) fn keep_isolated(&mut self, index: u32, state: BlockState) {
        let (order, migrate_type) = (state.order(), state.migrate_type());
        self.isolated_pages += order.pages();
        self.buddy.table.clear_entry(index);
        let isolated = BlockState::head(State::Isolated, order, migrate_type);
        self.buddy.table.set_state(index, isolated);
    }

    /// Checks that the frames of `range` are allocated (invariant 13). Stops after [`HEADS`] heads
    /// and returns the frame up to which it got.
    fn check(&self, segment: &Segment, range: PfnRange) -> Result<Pfn, FreeError> {
        let mut position = range.start;
        for _ in 0..HEADS {
            if position >= range.end {
                break;
            }
            let block = BlockNumber::containing(position);
            let index = segment.index_of(block);
            let (part, next) = part_of_block(position, range.end);
            if let Err(refused) = self.check_part(index, &part) {
                let frame = |frame: usize| block.start().add(frame as u64);
                let (pfn, state) = match refused {
                    Refused::Free(offset) => (frame(offset), Some(State::Free)),
                    Refused::Unmanaged(offset) => (frame(offset), Some(State::Reserved)),
                    Refused::State(state) => (position, state),
                };
                return Err(FreeError::NotAllocated { pfn, state, history: None });
            }
            position = match self.buddy.table.head_of(index) {
                // A large block needs no look at each 2 MiB of it.
                Some((head, state)) if state.is(State::Whole) => {
                    segment.block_of(head).start().add(state.order().pages()).max(next)
                }
                _ => next,
            };
        }
        Ok(position.min(range.end))
    }

    /// Frees frames that [`check`](Self::check) found to be all allocated.
    fn free_checked(&mut self, segment: &Segment, range: PfnRange) {
        let table = self.buddy.table;
        let end = segment.index + (BlockNumber::containing(range.end).0 - segment.start.0);
        let mut position = range.start;
        while position < range.end {
            let index = segment.index_of(BlockNumber::containing(position));
            let (part, next) = part_of_block(position, range.end);
            let whole = table
                .head_of(index)
                .filter(|(_, state)| part.len() == FRAMES && state.is(State::Whole));
            if let Some((head, _)) = whole {
                self.end_count(head);
            }
            if whole.is_some()
                && let Some(order) = divide_whole(&table, index, end)
            {
                self.free_and_merge(index, table.state(index));
                position = position.add(order.pages());
            } else {
                self.free_part(index, part);
                position = next;
            }
        }
    }
}

/// Returns the frames of `position..end` that lie in `position`'s block, as offsets in it, and
/// where the next block begins.
fn part_of_block(position: Pfn, end: Pfn) -> (Range<usize>, Pfn) {
    let start = offset_in_block(position);
    let next = Pfn(position.0 - start as u64 + PAGES_PER_BLOCK).min(end);
    let pages = usize::try_from(next.0 - position.0).unwrap_or(FRAMES);
    (start..start + pages, next)
}
