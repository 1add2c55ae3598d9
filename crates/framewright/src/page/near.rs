//! What a CPU's cache knows of a zone whose frames it keeps: enough to see what the block of a
//! freed frame is for, without the zone and its lock.
//!
//! Most zones have one segment, so the longest is known here, and the second longest where there is
//! no other zone; frames of others are looked up in the manager's directory, which takes a few
//! nanoseconds more.
//!
//! Orders of memory: Relaxed: whoever has the cache touches the bounds (invariant 16). The state of
//! a block is read without the zone's lock: it is a fact only as far as the caller owns frames in
//! the block.

use super::words::WORD_ORDERS;
use crate::block::table::BlockTable;
use crate::block::{BlockState, MigrateType, Segment};
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::{BLOCK_ORDER, Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use core::cell::UnsafeCell;

/// A block is crowded, and its frames may be used again by the CPU that freed them, while at most
/// so many of its frames are free.
const CROWDED_PAGES: u64 = PAGES_PER_BLOCK / 4;

/// Migrate types that are cached: the mergeable ones, which come first.
const TYPES: u8 = 3;
/// Stacks of an order that comes by the word: one for each type, and what goes back.
pub(super) const LOTS: usize = TYPES as usize + 1;

/// Which of a cache's stacks of an order a run is in: that to be handed out to requests of a
/// migrate type, or that of what is to go back to the zone. A number, as every free computes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lot(u8);

impl Lot {
    /// To go back to the zone.
    pub(crate) const BACK: Self = Self(TYPES);
    /// To be handed out to movable requests.
    pub(crate) const MOVABLE: Self = Self(MigrateType::Movable as u8);

    /// To be handed out to requests of this type, if that is cached at all.
    #[inline]
    pub(crate) const fn of_type(migrate_type: MigrateType) -> Option<Self> {
        let number = migrate_type as u8;
        if number < TYPES { Some(Self(number)) } else { None }
    }

    /// What runs in it are for.
    pub(crate) const fn migrate_type(self) -> MigrateType {
        const UNMOVABLE: u8 = MigrateType::Unmovable as u8;
        const RECLAIMABLE: u8 = MigrateType::Reclaimable as u8;
        match self.0 {
            UNMOVABLE => MigrateType::Unmovable,
            RECLAIMABLE => MigrateType::Reclaimable,
            // What goes back is movable, too.
            _ => MigrateType::Movable,
        }
    }

    /// All.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..=TYPES).map(Self)
    }

    /// Its place among those of an order.
    #[inline]
    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }

    /// Where a run of `order` (at most 9) belongs, of a block with this state: nowhere when nobody
    /// can have it allocated, or only its zone can take it.
    #[inline(always)]
    pub(crate) const fn of(state: BlockState, order: Order) -> Option<Self> {
        let may_be = if order.get() < BLOCK_ORDER {
            state.is_available_split()
        } else {
            state.is_somebodys_block()
        };
        if !may_be {
            return None;
        }
        if order.get() < WORD_ORDERS
            && state.is_of(MigrateType::Movable)
            && state.free_pages() > CROWDED_PAGES
        {
            return Some(Self::BACK);
        }
        let number = state.type_number();
        // What only movable requests may have is theirs.
        Some(if number < TYPES { Self(number) } else { Self::MOVABLE })
    }
}

/// A zone's frames, and the table of its blocks.
#[derive(Clone, Copy)]
pub(crate) struct Near<'a> {
    /// From the first frame to the last that the zone can ever hand out.
    pub(crate) range: PfnRange,
    pub(crate) table: &'a BlockTable,
    /// Its longest segment, or the second longest where the first is known beside it.
    pub(crate) segment: Segment,
}

impl Near<'_> {
    pub(crate) const NONE: Self =
        Self { range: PfnRange::new(0, 0), table: &BlockTable::EMPTY, segment: Segment::EMPTY };
}

/// Frames from one to another, which change: the first, and one past the last.
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

    /// Whether all frames of a range, which is not empty, are among them.
    #[inline]
    pub(super) fn covers(&self, range: PfnRange) -> bool {
        let [first, end] = &self.0;
        first.load(Ordering::Relaxed) <= range.start.0 && range.end.0 <= end.load(Ordering::Relaxed)
    }
}

/// The frames of a [`Near`] zone that a cache keeps.
#[repr(C)]
pub(super) struct Kept {
    /// Those that lie in the segment: the first, and how many. Those of a block of which another
    /// part is not kept are among them: such blocks are the fullest, so that they are used first.
    seen: [AtomicU64; 2],
    known: UnsafeCell<Known>,
    /// All that are kept.
    all: Bounds,
}

/// The zone, as frames are looked up in it.
struct Known {
    /// What a block's number and its index in the table differ by.
    to_index: u32,
    /// As [`Near`] has them.
    range: PfnRange,
    segment: Segment,
    table: BlockTable,
}

impl Known {
    const NOTHING: Self = Self {
        to_index: 0,
        range: PfnRange::new(0, 0),
        segment: Segment::EMPTY,
        table: BlockTable::EMPTY,
    };

    const fn know(&mut self, near: &Near<'_>) {
        let segment = near.segment;
        self.to_index = segment.index.wrapping_sub(segment.start.0);
        (self.range, self.segment) = (near.range, segment);
        self.table.name(near.table);
    }
}

// SAFETY: what is known is read and changed by whoever has the cache, one at a time (invariant 16).
unsafe impl Sync for Kept {}

impl Kept {
    /// All of the zone's.
    pub(super) const fn nothing() -> Self {
        let seen = [const { AtomicU64::new(0) }; 2];
        Self { seen, known: UnsafeCell::new(Known::NOTHING), all: Bounds::none() }
    }

    /// All of the zone's.
    #[cfg(all(test, not(any(loom, shuttle))))]
    fn new(near: Near<'_>) -> Self {
        let kept = Self::nothing();
        kept.replace(&near);
        kept
    }

    #[inline(always)]
    fn known(&self) -> &Known {
        // SAFETY: the caller has the cache, and nobody changes it meanwhile (invariant 16).
        unsafe { &*self.known.get() }
    }

    /// From the first frame to the last of the zone.
    pub(super) fn range(&self) -> PfnRange {
        self.known().range
    }

    /// Keeps frames of another zone from now on, all of them.
    pub(super) fn replace(&self, near: &Near<'_>) {
        // SAFETY: the caller has the cache, and no reference into it outlives the call that made it
        // (invariant 16).
        let known = unsafe { &mut *self.known.get() };
        known.know(near);
        self.set(near.range);
    }

    /// Changes which frames are kept.
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

    /// Whether all frames of a range are kept.
    #[inline]
    pub(super) fn covers(&self, range: PfnRange) -> bool {
        self.all.covers(range)
    }

    /// How far into the frames whose blocks are known here this one lies, and how many there are;
    /// past the last if it is none of them.
    #[inline(always)]
    fn offset(&self, start: Pfn) -> (u64, u64) {
        let [first, seen] = &self.seen;
        (start.0.wrapping_sub(first.load(Ordering::Relaxed)), seen.load(Ordering::Relaxed))
    }

    /// The state of the block of a frame that lies there.
    #[inline(always)]
    fn state(&self, pfn: Pfn) -> Option<BlockState> {
        #[expect(clippy::cast_possible_truncation, reason = "blocks of a segment")]
        let block = (pfn.0 >> BLOCK_ORDER) as u32;
        let known = self.known();
        known.table.state_if_ready(block.wrapping_add(known.to_index))
    }
}

/// The state of the block of a run of `order` whose frames are kept; nothing when the directory has
/// to be asked, or the block is part of a larger one.
#[inline(always)]
pub(super) fn state(kept: &[Kept; 2], start: Pfn, order: Order) -> Option<BlockState> {
    let [home, other] = kept;
    let (of_home, of_other) = (home.offset(start), other.offset(start));
    let in_home = of_home.0 < of_home.1;
    // No branch on which it is, as nobody could predict it.
    let kept = if in_home { home } else { other };
    let (offset, seen) = if in_home { of_home } else { of_other };
    // The whole run, as other frames of its block may be kept by nobody.
    if offset < seen.saturating_sub(order.pages() - 1) { kept.state(start) } else { None }
}

/// Whether a frame lies where the blocks of one of these zones are known.
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
        // What lies before the segment, or is cut off since, is not.
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
