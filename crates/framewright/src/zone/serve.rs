//! Allocation and free in one zone, under its lock.
//!
//! Orders of memory: Relaxed: counters, written under the zone lock.

use super::Zone;
use super::segment::{self, Segment};
use crate::block::deferred_merge::MERGE_DEFERRED;
use crate::block::lists::{FreeLists, Position};
use crate::block::shuffle::gather;
use crate::block::table::blocks_of;
use crate::block::{BlockState, FreeMap, MigrateType, State, buddy};
use crate::debug::PageHistory;
use crate::page::{Refused, Tier};
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;
use core::fmt;
use core::ops::Range;

/// Heads that one search looks at before it lets others have the lock.
const SEARCH_SLICE: u32 = 256;

/// Why a range was not freed. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreeError {
    /// There is no frame in the range.
    Empty(PfnRange),
    /// No zone manages this frame: it is a hole, or lies beyond all memory.
    NotManaged(Pfn),
    /// The range lies in more than one zone; no allocation does.
    SpansZones(PfnRange),
    /// This frame is not part of an allocation; `state` says what its block is.
    NotAllocated {
        /// First frame that is not.
        pfn: Pfn,
        /// What its block is; [`State::Free`] and [`State::Reserved`] also for such a frame of a
        /// split block, [`State::Reserved`] for what the manager keeps for itself, and
        /// [`State::Offline`] for what left a pool with a memory error.
        state: Option<State>,
        /// Who had it and who freed it, with `page_owner=on` and unless it was never allocated.
        history: Option<PageHistory>,
    },
    /// The first frame is not aligned to the order, as that of each allocation is.
    NotAligned {
        /// The first frame.
        start: Pfn,
        /// The order.
        order: Order,
    },
    /// This frame is free and was never anything else (`page_owner=on`; without it this is
    /// [`NotAllocated`](Self::NotAllocated)).
    NeverAllocated(Pfn),
    /// The range holds more than the allocation that it begins in (`page_owner=on`).
    WrongSize {
        /// The range.
        range: PfnRange,
        /// That of its first frame.
        allocation: Option<PageHistory>,
        /// First frame that belongs to another.
        pfn: Pfn,
    },
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty(range) => write!(f, "cannot free {range:?}: there is no frame in it"),
            Self::NotManaged(pfn) => write!(f, "cannot free pfn {pfn}: no zone manages it"),
            Self::SpansZones(range) => {
                write!(f, "cannot free {range:?}: it lies in more than one zone")
            }
            Self::NotAllocated { pfn, state, history } => {
                match state {
                    Some(State::Free) => {
                        write!(f, "cannot free pfn {pfn}: it is free already (double free)")?
                    }
                    _ => write!(
                        f,
                        "cannot free pfn {pfn}: it was not allocated, its block is {state:?}"
                    )?,
                }
                history.map_or(Ok(()), |history| write!(f, "; it was {history}"))
            }
            Self::NotAligned { start, order } => {
                write!(f, "cannot free pfn {start}: it is not aligned to {order:?}")
            }
            Self::NeverAllocated(pfn) => {
                write!(f, "cannot free pfn {pfn}: it is free and was never allocated")
            }
            Self::WrongSize { range, allocation, pfn } => {
                write!(
                    f,
                    "cannot free {range:?}: pfn {pfn} belongs to another allocation (wrong size)"
                )?;
                allocation.map_or(Ok(()), |history| write!(f, "; the first frame was {history}"))
            }
        }
    }
}

impl core::error::Error for FreeError {}

impl FreeError {
    /// A frame that is free already.
    pub(crate) const fn free_already(pfn: Pfn) -> Self {
        Self::NotAllocated { pfn, state: Some(State::Free), history: None }
    }
}

impl Zone {
    pub(super) fn publish(&self, lists: &FreeLists) {
        self.changing.free_pages.store(lists.free_pages(), Ordering::Relaxed);
        self.changing.map_pages.store(lists.map_pages, Ordering::Relaxed);
        self.changing.isolated_pages.store(lists.isolated_pages, Ordering::Relaxed);
        if lists.reported.is_tracked() {
            self.publish_reported(lists);
        }
    }

    pub(super) fn tier<'a>(&'a self, lists: &'a mut FreeLists) -> Tier<'a> {
        Tier {
            lists,
            table: &self.table,
            partials: self.partials,
            descriptors: self.descriptors.as_ref(),
        }
    }

    /// The frame `offset` frames into the block at `index`.
    #[inline]
    pub(super) fn frame(&self, index: u32, offset: usize) -> Option<Pfn> {
        // Nearly always there is one segment.
        let segment = match self.segments {
            [only] if only.indices().contains(&index) => only,
            segments => segment::find_index(segments, index)?,
        };
        Some(segment.block_of(index).start().add(offset as u64))
    }

    /// The frames of 2^`order` pages that begin `offset` frames into the block at `index`.
    pub(super) fn run(&self, index: u32, offset: usize, order: Order) -> Option<PfnRange> {
        let start = self.frame(index, offset)?;
        Some(PfnRange { start, end: start.add(order.pages()) })
    }

    /// Takes 2^`order` pages that end at or below `max`, and says whether they are known to be
    /// zero.
    pub(crate) fn allocate<P: Platform>(
        &self,
        platform: &P,
        order: Order,
        migrate_type: MigrateType,
        max: Pfn,
    ) -> Option<(PfnRange, bool)> {
        if self.span.start >= max {
            return None;
        }
        if self.gathers(order) {
            return self
                .allocate_gathered(platform, order, migrate_type, max)
                .map(|taken| (taken, false));
        }
        if self.span.end > max {
            return self
                .allocate_below(platform, order, migrate_type, max)
                .map(|taken| (taken, false));
        }
        // What is loose is merged first: else it would stay in pieces while larger blocks are
        // divided.
        let mut lists = if order > Order::BLOCK {
            self.lock_coalesced(platform)
        } else {
            self.changing.lists.lock(platform)
        };
        let (index, offset) = self.take(&mut lists, order, migrate_type)?;
        let is_zero = self.is_known_zero(&lists, index, order);
        self.publish(&lists);
        drop(lists);
        self.run(index, offset, order).map(|taken| (taken, is_zero))
    }

    /// Takes single frames until `pages` is full or the zone has no more above `keep` free pages;
    /// returns how many.
    pub(crate) fn allocate_bulk<P: Platform>(
        &self,
        platform: &P,
        migrate_type: MigrateType,
        keep: u64,
        pages: &mut [Pfn],
    ) -> usize {
        let mut done = 0;
        let mut lists = self.changing.lists.lock(platform);
        while done < pages.len() {
            let spare = lists.free_pages().saturating_sub(keep);
            let limit = u32::try_from(spare.min((pages.len() - done) as u64)).unwrap_or(u32::MAX);
            let taken = if limit == 0 {
                None
            } else {
                self.tier(&mut lists).take_word(Order::PAGE, migrate_type, limit)
            };
            let Some((index, first, mut runs)) = taken else { break };
            let Some(segment) = segment::find_index(self.segments, index) else { break };
            let start = segment.block_of(index).start().add(first as u64);
            while runs != 0 {
                pages[done] = start.add(u64::from(runs.trailing_zeros()));
                done += 1;
                runs &= runs - 1;
            }
        }
        self.publish(&lists);
        done
    }

    /// Whether all frames of `range`, which lies in `segment`, are allocated.
    pub(crate) fn check_allocated<P: Platform>(
        &self,
        platform: &P,
        segment: &Segment,
        range: PfnRange,
    ) -> Result<(), FreeError> {
        let mut lists = self.changing.lists.lock(platform);
        self.check(&mut lists, segment, range)
    }

    pub(super) fn take(
        &self,
        lists: &mut FreeLists,
        order: Order,
        migrate_type: MigrateType,
    ) -> Option<(u32, usize)> {
        if order < Order::BLOCK {
            return self.tier(lists).take(order, migrate_type);
        }
        if let Some(index) = buddy::take(lists, &self.table, order, migrate_type) {
            return Some((index, 0));
        }
        // The block that is kept split may be all that is missing.
        self.release_spare(lists);
        buddy::take(lists, &self.table, order, migrate_type).map(|index| (index, 0))
    }

    /// Makes the block that is kept split whole, as a request for whole blocks does that finds
    /// none.
    pub(crate) fn give_up_spare<P: Platform>(&self, platform: &P) {
        let mut lists = self.lock_coalesced(platform);
        self.release_spare(&mut lists);
    }

    pub(super) fn release_spare(&self, lists: &mut FreeLists) {
        self.tier(lists)
            .release_spare(|index| segment::find_index(self.segments, index).map(Segment::indices));
        // The frames of its descriptors are free now, whether or not what follows succeeds.
        self.publish(lists);
    }

    /// The slow way, for limits inside the zone: heads in ascending order, a slice of them at a
    /// time.
    fn allocate_below<P: Platform>(
        &self,
        platform: &P,
        order: Order,
        migrate_type: MigrateType,
        max: Pfn,
    ) -> Option<PfnRange> {
        for segment in self.segments {
            let mut index = segment.index;
            while index < segment.indices().end && segment.block_of(index).start() < max {
                let mut lists = self.lock_coalesced(platform);
                if order >= Order::BLOCK {
                    self.release_spare(&mut lists);
                }
                for _ in 0..SEARCH_SLICE {
                    if index >= segment.indices().end || segment.block_of(index).start() >= max {
                        break;
                    }
                    let Some((head, state)) = self.table.head_of(index) else {
                        index += 1;
                        continue;
                    };
                    let start = segment.block_of(head).start();
                    if let Some(offset) =
                        self.take_below(&mut lists, (head, start), order, migrate_type, max)
                    {
                        self.publish(&lists);
                        return self.run(head, offset, order);
                    }
                    index = head + blocks_of(state.order());
                }
            }
        }
        None
    }

    /// Takes the lowest run of `order` in what `head` heads, if it is free and ends at or below
    /// `max`; returns its first frame in the block.
    fn take_below(
        &self,
        lists: &mut FreeLists,
        (head, start): (u32, Pfn),
        order: Order,
        migrate_type: MigrateType,
        max: Pfn,
    ) -> Option<usize> {
        let state = self.table.state(head);
        if state.migrate_type() != migrate_type
            && !migrate_type.fallbacks().contains(&state.migrate_type())
        {
            return None;
        }
        let fits = |offset: usize| start.add(offset as u64 + order.pages()) <= max;
        if state.is(State::Free) && state.order() >= order && fits(0) {
            if order >= Order::BLOCK {
                buddy::take_from(lists, &self.table, head, head, order, migrate_type);
                return Some(0);
            }
            return self.tier(lists).take_at(head, 0, order).then_some(0);
        }
        if state.is(State::Split) && order < Order::BLOCK {
            let offset =
                self.table.free_map(head).find(order.get()).filter(|&offset| fits(offset))?;
            return self.tier(lists).take_at(head, offset, order).then_some(offset);
        }
        None
    }

    /// Takes the frames of `order` that begin at `start`, if all of them are free.
    pub(crate) fn allocate_at<P: Platform>(
        &self,
        platform: &P,
        start: Pfn,
        order: Order,
        migrate_type: MigrateType,
    ) -> Option<PfnRange> {
        let block = BlockNumber::containing(start);
        let index = segment::find(self.segments, block)?.index_of(block);
        let mut lists = self.lock_coalesced(platform);
        let offset = offset_in_block(start);
        if order < Order::BLOCK {
            if !self.tier(&mut lists).take_at(index, offset, order) {
                return None;
            }
        } else if self.gathers(order) {
            self.release_spare(&mut lists);
            let segment = segment::find_index(self.segments, index)?;
            let inside = segment.indices().end - index >= blocks_of(order);
            if !inside || !gather(&mut lists, &self.table, index, order, migrate_type) {
                return None;
            }
        } else {
            self.release_spare(&mut lists);
            let (head, state) = self.table.head_of(index)?;
            // Free neighbours of one type are merged, so an aligned piece is free only if one free
            // block holds it.
            if !state.is(State::Free) || state.order() < order {
                return None;
            }
            buddy::take_from(&mut lists, &self.table, head, index, order, migrate_type);
        }
        self.publish(&lists);
        self.run(index, offset, order)
    }

    /// Gives frames back, all of which must be allocated and lie in `segment`; they need not be
    /// what one call allocated.
    pub(crate) fn free<P: Platform>(
        &self,
        platform: &P,
        segment: &Segment,
        range: PfnRange,
    ) -> Result<(), FreeError> {
        if let Some(order) =
            Order::for_pages(range.pages()).filter(|order| order.pages() == range.pages())
        {
            return self.free_order(platform, segment, range.start, order);
        }
        let mut lists = self.changing.lists.lock(platform);
        self.check(&mut lists, segment, range)?;
        self.give(&mut lists, segment, range);
        self.note_freed(range.pages());
        self.publish(&lists);
        Ok(())
    }

    /// The same for what one allocation of `order` gave.
    pub(crate) fn free_order<P: Platform>(
        &self,
        platform: &P,
        segment: &Segment,
        start: Pfn,
        order: Order,
    ) -> Result<(), FreeError> {
        let mut lists = self.changing.lists.lock(platform);
        let index = segment.index_of(BlockNumber::containing(start));
        if !self.give_exactly(&mut lists, segment, index, start, order) {
            let range = PfnRange { start, end: start.add(order.pages()) };
            self.check(&mut lists, segment, range)?;
            self.give(&mut lists, segment, range);
        }
        self.note_freed(order.pages());
        self.publish(&lists);
        Ok(())
    }

    /// Frames of the vmemmap are about to be freed: the blocks they lie in are kept no more.
    pub(crate) fn end_keeping<P: Platform>(
        &self,
        platform: &P,
        segment: &Segment,
        range: PfnRange,
    ) {
        let mut lists = self.changing.lists.lock(platform);
        let mut index = segment.index_of(BlockNumber::containing(range.start));
        let end = segment.index_of(BlockNumber::containing(Pfn(range.end.0 - 1))) + 1;
        while index < end {
            let Some((head, state)) = self.table.head_of(index) else {
                index += 1;
                continue;
            };
            if !state.is(State::Whole) || !state.has(BlockState::KEPT) {
                index = head + blocks_of(state.order());
                continue;
            }
            let Some(order) = buddy::divide_whole(&self.table, index, end) else { return };
            self.table.set_state(index, self.table.state(index).without(BlockState::KEPT));
            lists.kept_pages -= order.pages();
            index += blocks_of(order);
        }
    }

    /// The usual case in one step: an aligned run of a split block, or just what one allocation
    /// gave. False, and nothing changed, for all else.
    #[inline]
    pub(super) fn give_exactly(
        &self,
        lists: &mut FreeLists,
        segment: &Segment,
        index: u32,
        start: Pfn,
        order: Order,
    ) -> bool {
        let indices = segment.indices();
        if order < Order::BLOCK {
            return start.is_aligned(order)
                && self.tier(lists).free_run(&indices, index, offset_in_block(start), order);
        }
        // The head itself: readable when its group is ready or it is the group's first.
        if !self.table.is_ready(index) && order < Order::MAX || !start.is_aligned(order) {
            return false;
        }
        let state = self.table.state(index);
        if !state.is(State::Whole) || state.order() != order || state.is_nobodys() {
            return false;
        }
        self.give_whole_or_defer_merge(lists, &indices, index, state)
    }

    /// Frees and merges a block that is allocated whole and has its head at `index`.
    #[inline]
    fn give_whole(
        &self,
        lists: &mut FreeLists,
        indices: &Range<u32>,
        index: u32,
        state: BlockState,
    ) {
        if state.has(BlockState::COUNTED | BlockState::ISOLATED) {
            return self.give_marked(lists, indices, index);
        }
        buddy::free(
            lists,
            &self.table,
            indices,
            index,
            state.order(),
            state.migrate_type(),
            Position::Head,
        );
    }

    /// Frees a block that is allocated whole and has its head at `index`; false when it is free
    /// already.
    #[inline]
    pub(super) fn give_whole_or_defer_merge(
        &self,
        lists: &mut FreeLists,
        indices: &Range<u32>,
        index: u32,
        state: BlockState,
    ) -> bool {
        if state == MERGE_DEFERRED {
            if lists.defer_merge_of_one(&self.table, indices, index) {
                return true;
            }
            if lists.deferred.contains(index) {
                return false;
            }
        }
        self.give_whole(lists, indices, index, state);
        true
    }

    /// The same for one that has a reference count or is isolated.
    #[cold]
    fn give_marked(&self, lists: &mut FreeLists, indices: &Range<u32>, index: u32) {
        self.tier(lists).end_count(index);
        let state = self.table.state(index);
        let (order, migrate_type) = (state.order(), state.migrate_type());
        if state.has(BlockState::ISOLATED) {
            lists.isolated_pages += order.pages();
            self.table.set_inner(index);
            self.table.set_state(index, BlockState::head(State::Isolated, order, migrate_type));
        } else {
            buddy::free(lists, &self.table, indices, index, order, migrate_type, Position::Head);
        }
    }

    /// Whether all frames of `range` are allocated (invariant 13).
    fn check(
        &self,
        lists: &mut FreeLists,
        segment: &Segment,
        range: PfnRange,
    ) -> Result<(), FreeError> {
        let tier = self.tier(lists);
        let mut position = range.start;
        while position < range.end {
            let block = BlockNumber::containing(position);
            let index = segment.index_of(block);
            let (part, next) = part_of_block(position, range.end);
            if let Err(refused) = tier.check(index, &part) {
                let (pfn, state) = match refused {
                    Refused::Free(frame) => (block.start().add(frame as u64), Some(State::Free)),
                    Refused::Unmanaged(frame) => {
                        (block.start().add(frame as u64), Some(State::Reserved))
                    }
                    Refused::State(state) => (position, state),
                };
                return Err(FreeError::NotAllocated { pfn, state, history: None });
            }
            position = match self.table.head_of(index) {
                // The rest of a large block needs no look at each of its blocks.
                Some((head, state)) if state.is(State::Whole) => {
                    segment.block_of(head).start().add(state.order().pages()).max(next)
                }
                _ => next,
            };
        }
        Ok(())
    }

    fn give(&self, lists: &mut FreeLists, segment: &Segment, range: PfnRange) {
        let indices = segment.indices();
        let end = segment.index + (BlockNumber::containing(range.end).0 - segment.start.0);
        let mut position = range.start;
        while position < range.end {
            let index = segment.index_of(BlockNumber::containing(position));
            let (part, next) = part_of_block(position, range.end);
            let whole = self
                .table
                .head_of(index)
                .filter(|(_, state)| part.len() == FRAMES && state.is(State::Whole));
            if let Some((head, _)) = whole {
                self.tier(lists).end_count(head);
            }
            if whole.is_some()
                && let Some(order) = buddy::divide_whole(&self.table, index, end)
            {
                self.give_whole(lists, &indices, index, self.table.state(index));
                position = position.add(order.pages());
            } else {
                self.tier(lists).free(&indices, index, part);
                position = next;
            }
        }
    }

    /// What the block of `block` is, with the order of the block that covers it.
    pub(crate) fn state_of<P: Platform>(
        &self,
        platform: &P,
        block: BlockNumber,
    ) -> Option<BlockState> {
        let segment = segment::find(self.segments, block)?;
        let lists = self.lock_coalesced(platform);
        let head = self.table.head_of(segment.index_of(block));
        drop(lists);
        head.map(|(_, state)| state)
    }
}

const FRAMES: usize = FreeMap::<8>::PAGES;

pub(super) fn offset_in_block(pfn: Pfn) -> usize {
    usize::try_from(pfn.0 % PAGES_PER_BLOCK).unwrap_or(0)
}

/// The frames of `position..end` that lie in `position`'s block, as offsets in it, and where the
/// next block begins.
fn part_of_block(position: Pfn, end: Pfn) -> (Range<usize>, Pfn) {
    let start = offset_in_block(position);
    let next = Pfn(position.0 - start as u64 + PAGES_PER_BLOCK).min(end);
    let pages = usize::try_from(next.0 - position.0).unwrap_or(FRAMES);
    (start..start + pages, next)
}
