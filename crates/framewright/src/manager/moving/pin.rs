//! Moving what is about to be pinned for long out of memory that is to stay movable.

use super::runs::{Mission, Targets, alignment_of};
use super::vacate::{Budget, ObstacleKind};
use crate::block::MigrateType;
use crate::manager::facets::Moving;
use crate::manager::request::Request;
use crate::manager::state::Manager;
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::units::{NodeId, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;
use crate::zone::Grade;

/// Memory of no grade, where what is not moved stands together.
struct ForPins {
    node: NodeId,
    taken: Option<PfnRange>,
}

impl<P: Platform> Targets<P> for ForPins {
    fn take(&mut self, manager: &Manager<P>, run: PfnRange) -> Option<PfnRange> {
        let request = Request {
            align: alignment_of(run),
            node: NodeChoice::Preferred(self.node),
            migrate_type: MigrateType::Unmovable,
            ..Request::pages(run.pages())
        };
        self.taken = manager.allocate(&request).ok();
        self.taken
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
        let (zone, _) = self.manager.zone_of_range(run).map_err(|_| ObstacleKind::Reserved)?;
        let last = BlockNumber::containing(Pfn(run.end.0 - 1)).0;
        let mut blocks = BlockNumber::containing(run.start).0..=last;
        if blocks.all(|block| self.grade_of(BlockNumber(block).start()) == Some(Grade::Any)) {
            return Ok(run);
        }
        let mut targets = ForPins { node: zone.id().node, taken: None };
        let mut ignored = |_| {};
        let mut mission = Mission::new(self, Budget::UNLIMITED, &mut ignored);
        let moved = mission.move_one(run, &mut targets);
        let _ = mission.end();
        moved?;
        targets.taken.ok_or(ObstacleKind::Failed)
    }
}
