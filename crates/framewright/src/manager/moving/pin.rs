//! Moving what is about to be pinned for long out of memory that is to stay movable.

use super::runs::Mission;
use super::targets::{Targets, alignment_of};
use super::vacate::{Budget, ObstacleKind};
use crate::block::MigrateType;
use crate::manager::facets::Moving;
use crate::manager::request::Request;
use crate::manager::state::Manager;
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::units::{Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;
use crate::zone::Grade;

/// Memory that was allocated before the move began: who runs short reclaims, and the adopter's hook
/// may enter the run, which nobody can while it is moved.
struct Ready(Option<PfnRange>);

impl<P: Platform> Targets<P> for Ready {
    fn take(&mut self, _: &Manager<P>, _: PfnRange) -> Option<Pfn> {
        self.0.take().map(|to| to.start)
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
        let mut ignored = |_| {};
        let mut mission = Mission::new(self, Budget::UNLIMITED, &mut ignored);
        let Ok(to) = self.manager.allocate(&request) else {
            mission.refuse(run, ObstacleKind::NoMemory);
            let _ = mission.end();
            return Err(ObstacleKind::NoMemory);
        };
        let mut target = Ready(Some(to));
        let moved = mission.move_one(run, &mut target);
        if let Some(unused) = target.0 {
            mission.free(unused);
        }
        let _ = mission.end();
        moved.map(|()| to)
    }
}
