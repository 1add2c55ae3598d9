//! Changes the grade of blocks, at boot and while the machine runs.

use crate::firmware::MirrorNote;
use crate::manager::facets::Moving;
use crate::manager::state::Manager;
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::NodeId;
use crate::units::{PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap_space::{BlockNumber, BlockRange};
use crate::zone::{Grade, IsolateError, Segment, Zone};
use core::fmt;

/// How often a grade is set where others put the blocks back meanwhile.
const ATTEMPTS: u32 = 8;

/// Why blocks do not get another grade. Nothing has changed, unless others isolate some of the
/// blocks or put them back at the same time, again and again: then some may have the grade.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GradeError {
    /// The blocks could not be isolated for the change.
    Isolate(IsolateError),
    /// The block at this frame holds memory that cannot be moved, or that was allocated as
    /// unmovable.
    InUse(Pfn),
    /// The block at this frame belongs to a reserve area, which stays removable.
    Area(Pfn),
}

impl fmt::Display for GradeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Isolate(error) => error.fmt(f),
            Self::InUse(pfn) => {
                write!(f, "the block at pfn {pfn} holds unmovable memory")
            }
            Self::Area(pfn) => write!(f, "the block at pfn {pfn} belongs to a reserve area"),
        }
    }
}

impl core::error::Error for GradeError {}

impl<P: Platform> Moving<'_, P> {
    /// Sets which requests may use blocks from now on. The contents stay: the blocks must be free,
    /// or their contents must have been allocated as movable. Withheld memory among them is made
    /// available.
    ///
    /// # Errors
    /// See [`GradeError`].
    pub fn set_grade(self, range: BlockRange, grade: Grade) -> Result<(), GradeError> {
        self.check_area(range, grade)?;
        self.grade_alone(range, grade)
    }

    /// Refuses any grade other than *removable* for the blocks of areas.
    fn check_area(self, range: BlockRange, grade: Grade) -> Result<(), GradeError> {
        match self.area_in(range) {
            Some(pfn) if grade != Grade::Removable => Err(GradeError::Area(pfn)),
            _ => Ok(()),
        }
    }

    /// Does [`set_grade`](Self::set_grade), also for a caller that is making an area, which is
    /// removable.
    pub(super) fn grade_alone(self, range: BlockRange, grade: Grade) -> Result<(), GradeError> {
        if grade != Grade::Any
            && let Some(found) = self.manager.isolation().without_grade(range)
        {
            return Err(GradeError::InUse(found.start.start()));
        }
        let set = self.try_to_grade(range, grade);
        // Bring-up does this once for all. After a failure some blocks may have the grade.
        if self.manager.moving.is_up {
            self.manager.follow_grades();
        }
        set
    }

    fn try_to_grade(self, range: BlockRange, grade: Grade) -> Result<(), GradeError> {
        let isolation = self.manager.isolation();
        let mut attempts = ATTEMPTS;
        loop {
            isolation.isolate(range).map_err(GradeError::Isolate)?;
            // A caller that makes an area first enters it and then isolates its blocks, so that one
            // of the two sees the other.
            let is_none = self.check_area(range, grade);
            let set = is_none.and_then(|()| match isolation.regrade(range, grade) {
                Ok(None) => Ok(()),
                Ok(Some(pfn)) => Err(GradeError::Isolate(IsolateError::NotIsolated(pfn))),
                Err(pfn) => Err(GradeError::InUse(pfn)),
            });
            // Some of the range may have been removed and added again meanwhile.
            self.put_back(range);
            attempts -= 1;
            if attempts == 0 || !matches!(set, Err(GradeError::Isolate(_))) {
                return set;
            }
        }
    }

    /// Returns where the memory that is only for movable contents began on a node at bring-up;
    /// `None` if the node had none.
    #[must_use]
    pub fn start_on_node(self, node: NodeId) -> Option<Pfn> {
        // Relaxed: only bring-up changes it.
        let start =
            self.manager.numa.nodes().get(node.index())?.movable_start.load(Ordering::Relaxed);
        Some(Pfn(start)).filter(|&start| start != Pfn(0))
    }

    /// Returns what to report about `kernelcore=mirror`, if the command line has it.
    #[must_use]
    pub const fn mirror_note(self) -> Option<MirrorNote> {
        self.manager.moving.mirror_note
    }

    /// Returns how many bytes were allocated before bring-up that should be in mirrored memory but
    /// are not, because there was too little
    /// ([`Memblock::unmirrored_bytes`](crate::memblock::Memblock::unmirrored_bytes)).
    #[must_use]
    pub const fn unmirrored_bytes(self) -> u64 {
        self.manager.moving.unmirrored_bytes
    }

    /// Returns the grade of a frame's block; `None` if there is no memory.
    #[must_use]
    pub fn grade_of(self, pfn: Pfn) -> Option<Grade> {
        let range = PfnRange { start: pfn, end: Pfn(pfn.0.checked_add(1)?) };
        let (zone, _) = self.manager.zone_of_range(range).ok()?;
        zone.grade_of(self.manager.platform, pfn)
    }
}

impl<P: Platform> Manager<P> {
    /// Restricts each node's movable memory to movable contents.
    pub(in crate::manager) fn grade_at_boot(&self) {
        for zone in self.zones() {
            for segment in zone.segments() {
                let all = BlockRange { start: segment.start, end: segment.end() };
                self.grade_movable(zone, segment, all);
            }
        }
    }

    /// Restricts to movable contents what a segment has of its node's
    /// [movable](Moving::start_on_node) memory among `within`: all blocks from its start on, except
    /// mirrored ones. What the manager has reserved there stays. At boot, and for reserved memory
    /// that is released.
    #[inline(never)]
    pub(in crate::manager) fn grade_movable(
        &self,
        zone: &Zone,
        segment: &Segment,
        within: BlockRange,
    ) {
        let Some(start) = self.moving().start_on_node(zone.id().node) else { return };
        let end = within.end;
        let mut from = within.start.max(first_block_from(start)).min(end);
        for range in self.moving.mirrored {
            // A block that is only partly mirrored counts as not mirrored: the kernel's memory must
            // be safe.
            let (start, after) =
                (first_block_from(range.start), BlockNumber::containing(range.end));
            if start >= after || after <= from {
                continue;
            }
            let before = BlockRange { start: from, end: start.clamp(from, end) };
            self.grade_of_segment(zone, segment, before);
            from = after.min(end);
        }
        self.grade_of_segment(zone, segment, BlockRange { start: from, end });
    }

    /// Does [`grade_movable`](Self::grade_movable) for blocks all of which are to be restricted.
    fn grade_of_segment(&self, zone: &Zone, segment: &Segment, range: BlockRange) {
        let mut rest = range;
        // Unaccepted memory needs no isolation, which would accept it.
        while let Some(found) = zone
            .unaccepted_in(self.platform, segment.index_of(rest.start)..segment.index_of(rest.end))
        {
            let after = segment.block_of(found.end);
            self.grade_blocks(BlockRange { end: segment.block_of(found.start), ..rest });
            zone.grade_unaccepted(self.platform, found, Grade::MovableOnly.migrate_type());
            rest.start = after;
        }
        self.grade_blocks(rest);
    }

    /// Restricts blocks to movable contents, except those in which the manager has reserved memory.
    /// Whole heads with such memory are skipped as they are.
    fn grade_blocks(&self, range: BlockRange) {
        let mut rest = range;
        while let Some(found) = self.isolation().without_grade(rest) {
            self.grade_between(BlockRange { end: found.start, ..rest });
            rest.start = found.end;
        }
        self.grade_between(rest);
    }

    /// Does [`grade_blocks`](Self::grade_blocks) for a range in which all heads, except some single
    /// blocks, can have a grade.
    fn grade_between(&self, range: BlockRange) {
        let mut rest = range;
        while rest.start < rest.end {
            let Err(GradeError::InUse(pfn)) = self.moving().set_grade(rest, Grade::MovableOnly)
            else {
                return;
            };
            let block = BlockNumber::containing(pfn);
            let before = BlockRange { end: block, ..rest };
            if before.start < before.end {
                let _ = self.moving().set_grade(before, Grade::MovableOnly);
            }
            rest.start = BlockNumber(block.0 + 1);
        }
    }
}

fn first_block_from(pfn: Pfn) -> BlockNumber {
    BlockNumber::containing(Pfn(pfn.0.saturating_add(PAGES_PER_BLOCK - 1)))
}
