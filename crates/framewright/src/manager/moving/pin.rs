//! Moving what is about to be pinned for long out of memory that is to stay movable.

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

/// Memory that was allocated before the move began: who runs short reclaims, and the adopter's hook
/// may enter the run, which nobody can while it is moved.
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
            // Allocated for this move and nobody else's, so that it cannot fail.
            let _ = self.manager.free_uncached(unused, Location::caller());
        }
    }
}

impl<P: Platform> Moving<'_, P> {
    /// To be called for a run before its owner pins it for long: where it lies in memory with a
    /// grade, which is to stay movable, it is moved to other memory. Returns where it is then,
    /// which may be where it was (Linux: `FOLL_LONGTERM`, `mm/gup.c`).
    ///
    /// # Errors
    /// Why it could not be moved; it is where it was.
    pub fn move_for_pin(self, run: PfnRange) -> Result<PfnRange, ObstacleKind> {
        if run.is_empty() {
            return Ok(run);
        }
        // A zone's parts are one place.
        let mut pieces = self.manager.pieces(run).map_err(|_| ObstacleKind::Reserved)?;
        let node = pieces.next().ok_or(ObstacleKind::Reserved)?.zone.id().node;
        let last = BlockNumber::containing(Pfn(run.end.0 - 1)).0;
        let mut blocks = BlockNumber::containing(run.start).0..=last;
        if blocks.all(|block| self.grade_of(BlockNumber(block).start()) == Some(Grade::Any)) {
            return Ok(run);
        }
        // Memory of no grade, where what is not moved stands together.
        let request = Request {
            align: alignment_of(run),
            node: NodeChoice::Preferred(node),
            migrate_type: MigrateType::Unmovable,
            ..Request::pages(run.pages())
        };
        // What the request moves is in no other's way.
        let to = self.manager.allocate(&request);
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
