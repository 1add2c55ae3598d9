//! Moves runs that are about to be pinned for long out of memory that has to stay movable.

use super::outcome::{Budget, ObstacleKind};
use super::runs::{Mission, Purpose};
use super::targets::{Targets, alignment_of};
use crate::block::MigrateType;
use crate::manager::facets::Moving;
use crate::manager::request::Request;
use crate::manager::state::Manager;
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::units::{Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;
use crate::zone::Grade;
use core::panic::Location;

/// A target that was allocated before the move began: an allocation that runs short reclaims, and
/// the adopter's hook may then use the run, which nobody can use while it is moved.
struct Ready<'m, P: Platform> {
    manager: &'m Manager<P>,
    to: Option<PfnRange>,
}

impl<P: Platform> Targets<P> for Ready<'_, P> {
    fn take(&mut self, _: &Manager<P>, _: PfnRange) -> Option<Pfn> {
        self.to.take().map(|to| to.start)
    }
}

impl<P: Platform> Drop for Ready<'_, P> {
    fn drop(&mut self) {
        if let Some(unused) = self.to {
            // This cannot fail: the frames were allocated for this move and nobody else has them.
            let _ = self.manager.free_uncached(unused, Location::caller());
        }
    }
}

impl<P: Platform> Moving<'_, P> {
    /// Moves a run out of memory with a grade, which has to stay movable. To be called before the
    /// owner pins the run for long. Returns where the run is afterwards, which may be where it was
    /// (Linux: `FOLL_LONGTERM`, `mm/gup.c`).
    ///
    /// # Errors
    /// Why the run could not be moved; it is where it was.
    pub fn move_for_pin(self, run: PfnRange) -> Result<PfnRange, ObstacleKind> {
        if run.is_empty() {
            return Ok(run);
        }
        // The parts of a zone count as one place.
        let mut pieces = self.manager.pieces(run).map_err(|_| ObstacleKind::Reserved)?;
        let node = pieces.next().ok_or(ObstacleKind::Reserved)?.zone.id().node;
        let last = BlockNumber::containing(Pfn(run.end.0 - 1)).0;
        let mut blocks = BlockNumber::containing(run.start).0..=last;
        if blocks.all(|block| self.grade_of(BlockNumber(block).start()) == Some(Grade::Any)) {
            return Ok(run);
        }
        // Ask for memory without a grade, where unmovable contents are grouped.
        let request = Request {
            align: alignment_of(run),
            node: NodeChoice::Preferred(node),
            migrate_type: MigrateType::Unmovable,
            ..Request::pages(run.pages())
        };
        // Allocate before the mission begins, so that moves of this request do not count as others'
        // moves.
        let to = self.manager.allocate_any(&request, Location::caller());
        let mut ignored = |_| {};
        let mut mission = Mission::new(self, Purpose::Vacate, Budget::UNLIMITED, &mut ignored);
        let Ok(to) = to else {
            mission.refuse(run, ObstacleKind::NoMemory);
            let _ = mission.end();
            return Err(ObstacleKind::NoMemory);
        };
        let mut target = Ready { manager: self.manager, to: Some(to) };
        let moved = mission.move_one(run, &mut target);
        let _ = mission.end();
        moved.map(|()| to)
    }
}
