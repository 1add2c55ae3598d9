//! From which nodes requests got memory: the counters of `numastat`.
//!
//! Only the rare cases are counted: pages of another node than the wanted one, or than the
//! caller's. Everything else follows from these and from what the node's zones handed out.

use crate::manager::facets::Numa;
use crate::manager::state::numa::NumaCounts;
use crate::platform::Platform;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::NodeId;
use crate::zone::ZoneFlow;

impl<P: Platform> Numa<'_, P> {
    /// The pages that the zones of a node handed out and got back.
    pub fn flow(self, node: NodeId) -> ZoneFlow {
        let mut flow = ZoneFlow::default();
        for zone in self.manager.zones().iter().filter(|zone| zone.id().node == node) {
            flow += zone.flow(self.manager.platform);
        }
        flow
    }

    /// A node's counters for `numastat`; all zero if there is no such node.
    pub fn counts(self, node: NodeId) -> NumaCounts {
        let Some(rare) = self.manager.pressure.numa.find(node) else {
            return NumaCounts::default();
        };
        // Relaxed: each counter is the value of some moment.
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // Read before the total that they are part of.
        let (miss, foreign, other) = (load(&rare.miss), load(&rare.foreign), load(&rare.other));
        let all = self.flow(node).allocated_pages;
        NumaCounts {
            hit: all.saturating_sub(miss),
            miss,
            foreign,
            local: all.saturating_sub(other),
            other,
            interleave: load(&rare.interleave),
            refused: load(&rare.refused),
        }
    }

    /// Requests under a policy none of whose nodes has memory that the request may have.
    #[must_use]
    pub fn without_memory(self) -> u64 {
        self.manager.pressure.numa.without_memory()
    }
}
