//! The tables of the debug aids: page owners, and which free pages hold poison.

use crate::carve::{Carver, room};
use crate::debug::{Aids, Damage, Filled, Owners, PLACES, PageRecord, Places};
use crate::manager::init::error::BringUpError;
use crate::manager::init::obtained::Obtained;
use crate::platform::Platform;
use crate::sync::SpinLock;
use crate::sync::table_atomic::{AtomicPtr, AtomicU32, AtomicU64};
use crate::units::{NodeId, PAGES_PER_BLOCK};
use crate::vmemmap_space::BlockNumber;
use crate::zone::Segment;
use core::ptr;

/// The aids' tables for one segment, and for the segments that adjoin it: the parts of a zone are
/// segments of their own, and a range of frames may lie in several of them.
#[derive(Clone, Copy)]
pub(crate) struct SegmentAids {
    /// The block of the first page.
    pub(crate) start: BlockNumber,
    pub(crate) records: &'static [PageRecord],
    pub(crate) filled: Filled,
}

/// How often damage was found, and the last damage that was found.
pub(crate) type FoundDamage = SpinLock<(u64, Option<Damage>)>;

/// The debug aids of a manager.
pub(crate) struct DebugState {
    pub(crate) aids: Aids,
    pub(crate) places: Places,
    /// One for each segment of the directory; empty if no aid needs tables.
    pub(crate) segments: &'static [SegmentAids],
    pub(crate) serial: AtomicU32,
    pub(crate) damage: &'static FoundDamage,
}

/// How much memory the tables of the aids take.
#[derive(Clone, Copy)]
struct Size {
    /// Blocks that have page records, and blocks that have marks of filled pages.
    recorded: u64,
    marked: u64,
    segments: u64,
}

impl Size {
    fn of(aids: Aids, directory: &[Segment]) -> Self {
        let blocks: u64 = directory.iter().map(|segment| u64::from(segment.blocks)).sum();
        Self {
            recorded: if aids.page_owner { blocks } else { 0 },
            marked: if aids.page_poison { blocks } else { 0 },
            segments: directory.len() as u64,
        }
    }

    fn bytes(self) -> u64 {
        if self.recorded == 0 && self.marked == 0 {
            return 0;
        }
        room::<PageRecord>(self.recorded * PAGES_PER_BLOCK)
            + room::<AtomicU64>(self.marked * (PAGES_PER_BLOCK / 64))
            + room::<SegmentAids>(self.segments)
            + room::<AtomicPtr<()>>(PLACES as u64)
    }
}

pub(crate) fn as_index(pages: u64) -> usize {
    usize::try_from(pages).unwrap_or(0)
}

impl DebugState {
    /// Returns the aids without their tables.
    pub(crate) const fn new(aids: Aids, damage: &'static FoundDamage) -> Self {
        let serial = AtomicU32::new(0);
        Self { aids, places: Places(&[]), segments: &[], serial, damage }
    }

    /// Returns the state that lies in a manager, in which nothing was counted yet.
    pub(crate) const fn begin(&self) -> Self {
        let &Self { aids, places, segments, damage, .. } = self;
        Self { aids, places, segments, serial: AtomicU32::new(0), damage }
    }

    /// Allocates the tables that the aids need.
    pub(crate) fn allocate<P: Platform>(
        &mut self,
        platform: &'static P,
        memory: &mut Obtained<'_, '_, P>,
        directory: &[Segment],
    ) -> Result<(), BringUpError> {
        if !cfg!(feature = "debug") {
            return Ok(());
        }
        let size = Size::of(self.aids, directory);
        if size.bytes() == 0 {
            Ok(())
        } else {
            self.allocate_all(platform, memory, directory, size)
        }
    }

    #[inline(never)]
    fn allocate_all<P: Platform>(
        &mut self,
        platform: &'static P,
        memory: &mut Obtained<'_, '_, P>,
        directory: &[Segment],
        size: Size,
    ) -> Result<(), BringUpError> {
        let range =
            memory.take_zeroed("page owners and marks of poison", size.bytes(), NodeId::ZERO)?;
        // SAFETY: the range was just reserved for this manager, below the direct limit, in one
        // range of the map (invariants 1, 3 and 15).
        let mut carver = unsafe { Carver::new(platform, range) };
        self.places = Places(carver.values(PLACES, |_| AtomicPtr::new(ptr::null_mut())));
        let mut records: &'static [PageRecord] =
            carver.any(as_index(size.recorded * PAGES_PER_BLOCK));
        let mut marks: &'static [AtomicU64] =
            carver.any(as_index(size.marked * (PAGES_PER_BLOCK / 64)));
        let mut joined = SegmentAids { start: BlockNumber(0), records: &[], filled: Filled(&[]) };
        self.segments = carver.values(directory.len(), |index| {
            let adjoins = |index: usize| directory[index].end() == directory[index + 1].start;
            if index != 0 && adjoins(index - 1) {
                return joined;
            }
            let end = (index..directory.len() - 1).find(|&index| !adjoins(index));
            let end = directory[end.unwrap_or(directory.len() - 1)].end();
            let start = directory[index].start;
            let pages = as_index(u64::from(end.0 - start.0) * PAGES_PER_BLOCK);
            let (mine, others) = records.split_at(pages.min(records.len()));
            let (my_marks, other_marks) = marks.split_at((pages / 64).min(marks.len()));
            (records, marks) = (others, other_marks);
            joined = SegmentAids { start, records: mine, filled: Filled(my_marks) };
            joined
        });
        Ok(())
    }

    pub(crate) fn owners(&self, segment: &SegmentAids) -> Owners {
        Owners { records: segment.records, places: self.places }
    }
}
