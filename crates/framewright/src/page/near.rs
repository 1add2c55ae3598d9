//! What a CPU's cache knows of a zone whose frames it keeps: enough to look up the block of a freed
//! frame without the zone and its lock.
//!
//! Most zones have one segment, so the cache knows the longest and, if its node has no other zone,
//! the second longest. Of a zone of another node (`away`) it knows the longest of the part that
//! served. Frames of other segments are looked up in the manager's directory, which takes a few
//! nanoseconds more.
//!
//! Orders of memory: Relaxed: only the CPU that has the cache touches the bounds (invariant 16).
//! Lots are read without the zone lock; they are reliable only as far as the caller owns frames in
//! the block.

use crate::block::table::{BlockTable, ReadyLots};
use crate::block::{Lot, Segment};
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::{BLOCK_ORDER, Order, Pfn, PfnRange};
use core::cell::UnsafeCell;

/// A zone's frames, and the table of its blocks.
#[derive(Clone, Copy)]
pub(crate) struct Near<'a> {
    /// The frames from the first to the last that the zone can ever hand out.
    pub(crate) range: PfnRange,
    pub(crate) table: &'a BlockTable,
    /// The zone's longest segment, or its second longest where another `Near` knows the first.
    pub(crate) segment: Segment,
}

impl Near<'_> {
    pub(crate) const NONE: Self =
        Self { range: PfnRange::new(0, 0), table: &BlockTable::EMPTY, segment: Segment::EMPTY };
}

/// A range of frames that can change: the first frame, and one past the last.
pub(super) struct Bounds([AtomicU64; 2]);

impl Bounds {
    pub(super) const fn none() -> Self {
        Self([const { AtomicU64::new(0) }; 2])
    }

    pub(super) fn set(&self, range: PfnRange) {
        for (bound, pfn) in self.0.iter().zip([range.start, range.end]) {
            bound.store(pfn.0, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn is_none(&self) -> bool {
        self.0[1].load(Ordering::Relaxed) == 0
    }

    /// Returns whether all frames of a range, which must not be empty, are inside.
    #[inline]
    pub(super) fn covers(&self, range: PfnRange) -> bool {
        let [first, end] = &self.0;
        first.load(Ordering::Relaxed) <= range.start.0 && range.end.0 <= end.load(Ordering::Relaxed)
    }
}

/// The frames of a [`Near`] zone that a cache keeps.
#[repr(C)]
pub(super) struct Kept {
    /// The kept frames that lie in the segment: the first, and how many. They include frames of
    /// blocks that are only partly kept: such blocks are the fullest, so they are used first.
    seen: [AtomicU64; 2],
    known: UnsafeCell<Known>,
    /// All frames that are kept.
    all: Bounds,
}

/// What is needed to look frames up in the zone.
struct Known {
    /// The difference between a block's number and its index in the table.
    to_index: u32,
    /// From [`Near`], as are the fields below.
    range: PfnRange,
    segment: Segment,
    lots: ReadyLots,
}

impl Known {
    const NOTHING: Self = Self {
        to_index: 0,
        range: PfnRange::new(0, 0),
        segment: Segment::EMPTY,
        lots: ReadyLots::EMPTY,
    };

    const fn know(&mut self, near: &Near<'_>) {
        let segment = near.segment;
        self.to_index = segment.index.wrapping_sub(segment.start.0);
        (self.range, self.segment) = (near.range, segment);
        self.lots = near.table.ready_lots();
    }
}

// SAFETY: only whoever has the cache reads and changes what is known, one at a time (invariant 16).
unsafe impl Sync for Kept {}

impl Kept {
    /// Keeps no frames, of no zone.
    pub(super) const fn nothing() -> Self {
        let seen = [const { AtomicU64::new(0) }; 2];
        Self { seen, known: UnsafeCell::new(Known::NOTHING), all: Bounds::none() }
    }

    /// Keeps all frames of the zone.
    #[cfg(all(test, not(any(loom, shuttle))))]
    fn new(near: Near<'_>) -> Self {
        let kept = Self::nothing();
        kept.replace(&near);
        kept
    }

    #[inline(always)]
    fn known(&self) -> &Known {
        // SAFETY: the caller has the cache, so nobody changes this meanwhile (invariant 16).
        unsafe { &*self.known.get() }
    }

    /// Returns the frames from the first to the last of the zone.
    pub(super) fn range(&self) -> PfnRange {
        self.known().range
    }

    /// Keeps all frames of another zone from now on.
    pub(super) fn replace(&self, near: &Near<'_>) {
        // SAFETY: the caller has the cache, and no reference into it outlives the call that made it
        // (invariant 16).
        let known = unsafe { &mut *self.known.get() };
        known.know(near);
        self.set(near.range);
    }

    /// Changes which of the zone's frames are kept.
    pub(super) fn set(&self, range: PfnRange) {
        self.all.set(range);
        let segment = self.known().segment;
        let seen =
            range.intersection(PfnRange::new(segment.start.start().0, segment.end().start().0));
        let pages = if seen.is_empty() { 0 } else { seen.pages() };
        for (bound, pages) in self.seen.iter().zip([seen.start.0, pages]) {
            bound.store(pages, Ordering::Relaxed);
        }
    }

    /// Returns whether all frames of a range are kept.
    #[inline]
    pub(super) fn covers(&self, range: PfnRange) -> bool {
        self.all.covers(range)
    }

    /// Returns the frame's offset into the kept frames of the segment, and the number of these. The
    /// offset is not below that number if the frame is none of them.
    #[inline(always)]
    fn offset(&self, start: Pfn) -> (u64, u64) {
        let [first, seen] = &self.seen;
        (start.0.wrapping_sub(first.load(Ordering::Relaxed)), seen.load(Ordering::Relaxed))
    }

    /// Returns whether nothing is kept.
    #[inline]
    pub(super) fn is_nothing(&self) -> bool {
        self.all.is_none()
    }

    /// Returns the lot for `order` of a run of `pages` pages in one block, if its frames are kept
    /// and lie in the segment.
    #[inline(always)]
    pub(super) fn lot_of_seen(&self, start: Pfn, pages: u64, order: Order) -> Option<Lot> {
        let (offset, seen) = self.offset(start);
        if offset < seen.saturating_sub(pages - 1) { self.lot(start, order) } else { None }
    }

    /// Returns the lot for `order` of a run whose frames are among those.
    #[inline(always)]
    fn lot(&self, pfn: Pfn, order: Order) -> Option<Lot> {
        #[expect(clippy::cast_possible_truncation, reason = "blocks of a segment")]
        let block = (pfn.0 >> BLOCK_ORDER) as u32;
        let known = self.known();
        known.lots.get(block.wrapping_add(known.to_index), order)
    }
}

/// Returns the lot for `order` of a run of `pages` pages in one block, if its frames are kept.
/// Nothing if the directory has to be asked, or if only the zone can take the run back.
#[inline(always)]
pub(super) fn lot(kept: &[Kept; 2], start: Pfn, pages: u64, order: Order) -> Option<Lot> {
    let [home, other] = kept;
    let (offset, seen) = home.offset(start);
    // Chooses without a branch, because which of the two it is is unpredictable.
    let kept = if offset < seen { home } else { other };
    // Tests the whole run, because the cache may not keep the other frames of its block.
    kept.lot_of_seen(start, pages, order)
}

/// Returns whether a frame lies where the cache knows the blocks of one of these zones.
#[inline]
pub(super) fn is_seen(kept: &[Kept; 2], pfn: Pfn) -> bool {
    kept.iter().map(|kept| kept.offset(pfn)).any(|(offset, seen)| offset < seen)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::vmemmap_space::BlockNumber;

    #[test]
    fn blocks_that_are_kept_in_part_are_known() {
        let segment = Segment { start: BlockNumber(1), blocks: 3, ..Segment::EMPTY };
        let near = |start, end| Near { range: PfnRange::new(start, end), segment, ..Near::NONE };
        let kept = [Kept::new(near(600, 1900)), Kept::new(Near::NONE)];
        for (pfn, is_known) in
            [(511, false), (599, false), (600, true), (1899, true), (1900, false)]
        {
            assert_eq!(is_seen(&kept, Pfn(pfn)), is_known, "{pfn}");
        }
        // Frames before the segment, or frames that were cut off since, do not count.
        let kept = [Kept::new(Near::NONE), Kept::new(near(100, 5000))];
        for (pfn, is_known) in [(100, false), (512, true), (2047, true), (2048, false)] {
            assert_eq!(is_seen(&kept, Pfn(pfn)), is_known, "{pfn}");
        }
        kept[1].set(PfnRange::new(700, 700));
        assert!(!is_seen(&kept, Pfn(700)));
        kept[1].set(PfnRange::new(4000, 5000));
        assert!(!is_seen(&kept, Pfn(2047)) && !is_seen(&kept, Pfn(4000)));
    }
}
