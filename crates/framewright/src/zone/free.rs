//! Frees in one zone, under its lock.
//!
//! [`Zone::free_order`] is the dispatcher for one run, as `drain` is for many. It takes the first
//! path that applies:
//!
//! 1. a block of 1 GiB: [`Zone::free_largest`], which the manager tries before;
//! 2. an aligned run of a split block: [`LockedZone::free_run`], one word of a free map;
//! 3. a block of 2 MiB that is movable or has a grade: its merge is deferred, which is one bit;
//! 4. any other block that was allocated whole: it is merged, or stays isolated;
//! 5. all else: every frame is checked, and what was allocated whole is divided.
//!
//! Whatever fails has changed nothing: all is checked before anything is freed (invariant 13),
//! unless somebody frees a part of it meanwhile.

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
/// Heads that are looked at and freed under one hold of the lock.
const HEADS: usize = 64;

impl Zone {
    /// Gives frames back, all of which must be allocated and lie in `segment`; they need not be
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

    /// [`free`](Self::free) of 2^`order` frames.
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

    /// The general way. What has more than some heads is looked at and then freed in several holds
    /// of the lock: as all of it is the caller's (invariant 42), nothing of it changes in between,
    /// and where it does all the same, because two free the same, each looks again at what it is
    /// about to free.
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

    /// Whether all frames of `range`, which lies in `segment`, are allocated.
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

    /// Frames of the vmemmap are about to be freed: the manager keeps the blocks they lie in no
    /// more.
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

    /// What the block of `block` is, with the order of the block that covers it.
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
    /// Frees an aligned run of a split block, or just what one allocation of a block gave. False,
    /// and nothing is changed, for all else.
    #[inline]
    fn free_exactly(&mut self, index: u32, start: Pfn, order: Order) -> bool {
        if !start.is_aligned(order) {
            return false;
        }
        if order < Order::BLOCK {
            return self.free_run(index, offset_in_block(start), order);
        }
        // The head itself: readable when its group is ready or it is the group's first.
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

    /// Frees a block that is allocated whole and has its head at `index`; false when it is free
    /// already.
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

    /// [`free_and_merge`](Self::free_and_merge) of a block that has a reference count or is
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

    /// An isolated block is free and stays where it is.
    pub(super) fn keep_isolated(&mut self, index: u32, state: BlockState) {
        let (order, migrate_type) = (state.order(), state.migrate_type());
        self.isolated_pages += order.pages();
        self.buddy.table.set_inner(index);
        let isolated = BlockState::head(State::Isolated, order, migrate_type);
        self.buddy.table.set_state(index, isolated);
    }

    /// Whether all frames of `range` are allocated (invariant 13), up to where it returns that it
    /// got: some heads further.
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
                // The rest of a large block needs no look at each of its blocks.
                Some((head, state)) if state.is(State::Whole) => {
                    segment.block_of(head).start().add(state.order().pages()).max(next)
                }
                _ => next,
            };
        }
        Ok(position.min(range.end))
    }

    /// Frees frames all of which [`check`](Self::check) found allocated.
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

/// The frames of `position..end` that lie in `position`'s block, as offsets in it, and where the
/// next block begins.
fn part_of_block(position: Pfn, end: Pfn) -> (Range<usize>, Pfn) {
    let start = offset_in_block(position);
    let next = Pfn(position.0 - start as u64 + PAGES_PER_BLOCK).min(end);
    let pages = usize::try_from(next.0 - position.0).unwrap_or(FRAMES);
    (start..start + pages, next)
}
