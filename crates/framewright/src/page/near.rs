//! What a CPU's cache knows of a zone whose frames it keeps: enough to see what the block of a
//! freed frame is for, without the zone and its lock.
//!
//! Most zones have one segment, so the longest is known here; frames of others are looked up in the
//! manager's directory, which takes a few nanoseconds more.
//!
//! Orders of memory: Relaxed: whoever has the cache touches the bounds (invariant 16). The state of
//! a block is read without the zone's lock: it is a fact only as far as the caller owns frames in
//! the block.

use super::words::WORD_ORDERS;
use crate::block::table::BlockTable;
use crate::block::{BlockState, MigrateType, Segment};
use crate::sync::table_atomic::{AtomicU32, AtomicU64, Ordering};
use crate::units::{BLOCK_ORDER, Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;

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
    #[inline]
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
        if number < TYPES { Some(Self(number)) } else { None }
    }
}

/// A zone's frames, and the table of its blocks.
#[derive(Clone, Copy)]
pub(crate) struct Near {
    /// From the first frame to the last that the zone can ever hand out.
    pub(crate) range: PfnRange,
    pub(crate) table: BlockTable,
    /// Its longest segment.
    pub(crate) segment: Segment,
}

impl Near {
    pub(crate) const NONE: Self =
        Self { range: PfnRange::new(0, 0), table: BlockTable::EMPTY, segment: Segment::EMPTY };
}

/// The frames of a [`Near`] zone that a cache keeps.
#[repr(C)]
pub(super) struct Kept {
    /// Of those that lie in the segment, the first of a whole block, and how many whole blocks'.
    seen: [AtomicU64; 2],
    /// The index of the block of the first.
    index: AtomicU32,
    near: Near,
    /// All that are kept: the first, and one past the last.
    all: [AtomicU64; 2],
}

impl Kept {
    /// All of the zone's.
    pub(super) fn new(near: Near) -> Self {
        let new = || core::array::from_fn(|_| AtomicU64::new(0));
        let kept = Self { seen: new(), index: AtomicU32::new(0), near, all: new() };
        kept.set(near.range);
        kept
    }

    pub(super) const fn near(&self) -> &Near {
        &self.near
    }

    /// Changes which frames are kept.
    pub(super) fn set(&self, range: PfnRange) {
        for (bound, pfn) in self.all.iter().zip([range.start, range.end]) {
            bound.store(pfn.0, Ordering::Relaxed);
        }
        let segment = &self.near.segment;
        let first = BlockNumber::containing(Pfn(range.start.0 + PAGES_PER_BLOCK - 1));
        let first = first.clamp(segment.start, segment.end());
        let end = BlockNumber::containing(range.end).clamp(first, segment.end());
        self.index.store(segment.index_of(first), Ordering::Relaxed);
        let pages = u64::from(end.0 - first.0) * PAGES_PER_BLOCK;
        for (bound, pages) in self.seen.iter().zip([first.start().0, pages]) {
            bound.store(pages, Ordering::Relaxed);
        }
    }

    /// Whether all frames of a range are kept.
    #[inline]
    pub(super) fn covers(&self, range: PfnRange) -> bool {
        let [first, end] = &self.all;
        first.load(Ordering::Relaxed) <= range.start.0 && range.end.0 <= end.load(Ordering::Relaxed)
    }

    /// How far into the frames whose blocks are known here this one lies, if it does.
    #[inline]
    fn offset(&self, start: Pfn) -> Option<u64> {
        let [first, pages] = &self.seen;
        let offset = start.0.wrapping_sub(first.load(Ordering::Relaxed));
        (offset < pages.load(Ordering::Relaxed)).then_some(offset)
    }

    #[inline]
    fn state(&self, offset: u64) -> Option<BlockState> {
        #[expect(clippy::cast_possible_truncation, reason = "blocks of a segment")]
        let block = (offset >> BLOCK_ORDER) as u32;
        self.near.table.state_if_ready(self.index.load(Ordering::Relaxed) + block)
    }
}

/// The state of the block of a frame that is kept; nothing when the directory has to be asked, or
/// the block is part of a larger one.
#[inline]
pub(super) fn state(kept: &[Kept; 2], pfn: Pfn) -> Option<BlockState> {
    let [home, other] = kept;
    let (in_home, in_other) = (home.offset(pfn), other.offset(pfn));
    // No branch, as nobody could predict it.
    let kept = if in_home.is_some() { home } else { other };
    kept.state(in_home.or(in_other)?)
}

/// Whether a frame lies where the blocks of one of these zones are known.
#[inline]
pub(super) fn is_seen(kept: &[Kept; 2], pfn: Pfn) -> bool {
    kept.iter().any(|kept| kept.offset(pfn).is_some())
}
