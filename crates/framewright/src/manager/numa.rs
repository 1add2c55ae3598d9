//! Whose memory a request got: what `numastat` tells.
//!
//! Only what is rare is counted: pages of another node than the wanted one, or than the caller's.
//! All others are the rest of what the node's zones handed out.

use super::Numa;
use crate::platform::Platform;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::{MAX_NODES, NodeId};
use crate::zone::ZoneFlow;

/// Pages of one node by whom they were for, since bring-up. As Linux counts them, with what CPUs'
/// caches took counted when they took it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NumaCounts {
    /// Wanted from this node and got from it.
    pub hit: u64,
    /// Got from this node, wanted from another.
    pub miss: u64,
    /// Wanted from this node, got from another.
    pub foreign: u64,
    /// Got from this node by a CPU of it. Pages that pools took count as such.
    pub local: u64,
    /// Got from this node by a CPU of another.
    pub other: u64,
}

/// What is counted of one node.
#[derive(Default)]
struct Rare {
    miss: AtomicU64,
    foreign: AtomicU64,
    other: AtomicU64,
}

/// See the module documentation.
pub(super) struct NumaMisses([Rare; MAX_NODES]);

impl NumaMisses {
    pub(super) fn new() -> Self {
        Self(core::array::from_fn(|_| Rare::default()))
    }

    /// Pages of `node` went to a caller on `local` who wanted them from `wanted`.
    #[cold]
    #[inline(never)]
    pub(super) fn note(&self, node: NodeId, wanted: NodeId, local: NodeId, pages: u64) {
        // Relaxed: counters.
        if node != wanted {
            self.0[node.index()].miss.fetch_add(pages, Ordering::Relaxed);
            self.0[wanted.index()].foreign.fetch_add(pages, Ordering::Relaxed);
        }
        if node != local {
            self.0[node.index()].other.fetch_add(pages, Ordering::Relaxed);
        }
    }
}

impl<P: Platform> Numa<'_, P> {
    /// What the zones of a node handed out and got back.
    pub fn flow(self, node: NodeId) -> ZoneFlow {
        let mut flow = ZoneFlow::default();
        for zone in self.manager.zones.iter().filter(|zone| zone.id().node == node) {
            flow += zone.flow(self.manager.platform);
        }
        flow
    }

    /// A node's counters of `numastat`; zero for a node that there is not.
    pub fn counts(self, node: NodeId) -> NumaCounts {
        let rare = &self.manager.pressure.numa.0[node.index()];
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // Read before what they are a part of.
        let (miss, foreign, other) = (load(&rare.miss), load(&rare.foreign), load(&rare.other));
        let all = self.flow(node).allocated_pages;
        NumaCounts {
            hit: all.saturating_sub(miss),
            miss,
            foreign,
            local: all.saturating_sub(other),
            other,
        }
    }
}
