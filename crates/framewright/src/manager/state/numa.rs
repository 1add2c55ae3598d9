//! Whose memory a request got: what `numastat` tells.
//!
//! Only what is rare is counted: pages of another node than the wanted one, or than the caller's.
//! All others are the rest of what the node's zones handed out.

use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::{MAX_NODES, NodeId};

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
pub(crate) struct Rare {
    pub(crate) miss: AtomicU64,
    pub(crate) foreign: AtomicU64,
    pub(crate) other: AtomicU64,
}

/// See the module documentation.
pub(crate) struct NumaMisses(pub(crate) [Rare; MAX_NODES]);

impl NumaMisses {
    pub(crate) fn new() -> Self {
        Self(core::array::from_fn(|_| Rare::default()))
    }

    /// Pages of `node` went to a caller on `local` who wanted them from `wanted`.
    #[cold]
    #[inline(never)]
    pub(crate) fn note(&self, node: NodeId, wanted: NodeId, local: NodeId, pages: u64) {
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
