//! Whose memory a request got: what `numastat` tells.
//!
//! Only what is rare is counted: pages of another node than the wanted one, or than the caller's.
//! All others are the rest of what the node's zones handed out. Of requests under a policy that
//! deals out over nodes, pages that came from the node whose turn it was are counted, too.
//!
//! Beside it what can be set for nodes: weights of interleaves, and tiers.
//!
//! Orders of memory: Relaxed everywhere: counters, and settings each of which says all that is to
//! be said by itself. Who changes several settings together holds the lock of the parameters.

use crate::sync::SpinLock;
use crate::sync::table_atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use crate::units::NodeId;
use crate::zone::Defer;

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
    /// Got from this node when it was its turn in an interleave; `numa_interleave` of `vmstat`.
    pub interleave: u64,
    /// Requests that found too little within their nodes ([`PolicyMode::Bind`]), of which this was
    /// the nearest, whatever other nodes had. Many pages wanted together are one.
    ///
    /// [`PolicyMode::Bind`]: crate::manager::PolicyMode::Bind
    pub refused: u64,
}

/// What is counted of one node.
#[derive(Default)]
pub(crate) struct Rare {
    pub(crate) miss: AtomicU64,
    pub(crate) foreign: AtomicU64,
    pub(crate) other: AtomicU64,
    pub(crate) interleave: AtomicU64,
    pub(crate) refused: AtomicU64,
}

/// What the manager keeps of one node beside its memory: an entry for each node that there is.
pub(crate) struct PerNode {
    rare: Rare,
    weight: AtomicU8,
    tier: AtomicU8,
    /// What it can move in a second; 0 where it is not known.
    pub(crate) bandwidth: AtomicU64,
    /// The first frame of its movable memory at boot; 0 where it has none.
    pub(crate) movable_start: AtomicU64,
    /// Pages at boot of memory that is not movable.
    pub(crate) boot_kernel_pages: AtomicU64,
    /// Requests that ask it first, whose compaction failed not long ago.
    pub(crate) defer: SpinLock<Defer>,
}

impl PerNode {
    pub(crate) fn new() -> Self {
        Self {
            rare: Rare::default(),
            weight: AtomicU8::new(1),
            tier: AtomicU8::new(0),
            bandwidth: AtomicU64::new(0),
            movable_start: AtomicU64::new(0),
            boot_kernel_pages: AtomicU64::new(0),
            defer: SpinLock::new(Defer::new()),
        }
    }
}

/// See the module documentation.
pub(crate) struct NumaMisses {
    nodes: &'static [PerNode],
    /// Requests whose nodes have no memory for them.
    without_memory: AtomicU64,
}

impl NumaMisses {
    pub(crate) fn new(nodes: &'static [PerNode]) -> Self {
        Self { nodes, without_memory: AtomicU64::new(0) }
    }

    /// Of a node that there is.
    pub(crate) fn of(&self, node: NodeId) -> &Rare {
        &self.nodes[node.index()].rare
    }

    /// Of any node; nothing where there is none.
    pub(crate) fn find(&self, node: NodeId) -> Option<&Rare> {
        self.nodes.get(node.index()).map(|node| &node.rare)
    }

    /// Pages came from the node whose turn it was.
    pub(crate) fn note_interleave(&self, node: NodeId, pages: u64) {
        self.of(node).interleave.fetch_add(pages, Ordering::Relaxed);
    }

    /// A request found too little within its nodes, of which `nearest` is the nearest.
    pub(crate) fn note_refused(&self, nearest: NodeId) {
        self.of(nearest).refused.fetch_add(1, Ordering::Relaxed);
    }

    /// A request's nodes have no memory for it.
    pub(crate) fn note_without_memory(&self) {
        self.without_memory.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn without_memory(&self) -> u64 {
        self.without_memory.load(Ordering::Relaxed)
    }

    /// Pages of `node` went to a caller on `local` who wanted them from `wanted`.
    #[cold]
    #[inline(never)]
    pub(crate) fn note(&self, node: NodeId, wanted: NodeId, local: NodeId, pages: u64) {
        // Relaxed: counters.
        if node != wanted {
            self.of(node).miss.fetch_add(pages, Ordering::Relaxed);
            self.of(wanted).foreign.fetch_add(pages, Ordering::Relaxed);
        }
        if node != local {
            self.of(node).other.fetch_add(pages, Ordering::Relaxed);
        }
    }
}

/// What is set for each node.
pub(crate) struct NumaSettings {
    nodes: &'static [PerNode],
    /// Whether weights follow bandwidths.
    auto: AtomicBool,
}

impl NumaSettings {
    /// All nodes alike, and of this tier.
    pub(crate) fn new(nodes: &'static [PerNode], tier: u8) -> Self {
        nodes.iter().for_each(|node| node.tier.store(tier, Ordering::Relaxed));
        Self { nodes, auto: AtomicBool::new(true) }
    }

    /// All nodes, ascending.
    pub(crate) const fn nodes(&self) -> &'static [PerNode] {
        self.nodes
    }

    /// Linux's default where there is no such node.
    pub(crate) fn weight(&self, node: NodeId) -> u8 {
        self.nodes.get(node.index()).map_or(1, |node| node.weight.load(Ordering::Relaxed))
    }

    pub(crate) fn set_weight(&self, node: NodeId, weight: u8) {
        self.nodes[node.index()].weight.store(weight, Ordering::Relaxed);
    }

    pub(crate) fn is_auto(&self) -> bool {
        self.auto.load(Ordering::Relaxed)
    }

    pub(crate) fn set_auto(&self, auto: bool) {
        self.auto.store(auto, Ordering::Relaxed);
    }

    pub(crate) fn tier(&self, node: NodeId) -> Option<u8> {
        Some(self.nodes.get(node.index())?.tier.load(Ordering::Relaxed))
    }

    pub(crate) fn set_tier(&self, node: NodeId, tier: u8) {
        self.nodes[node.index()].tier.store(tier, Ordering::Relaxed);
    }
}
