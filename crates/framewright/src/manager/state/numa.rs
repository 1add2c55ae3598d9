//! Counts of which node's memory requests got, as `numastat` shows them.
//!
//! Only rare cases are counted: pages that came from another node than the wanted one, or than the
//! caller's. The other counts follow from the total that the node's zones handed out. For requests
//! under an interleave policy, pages that came from the node whose turn it was are counted, too.
//!
//! The module also keeps the settings of nodes: interleave weights and tiers.
//!
//! Orders of memory: Relaxed everywhere: counters, and settings that are independent of each other.
//! A caller that changes several settings together holds the lock of the parameters.

use crate::sync::SpinLock;
use crate::sync::table_atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use crate::units::NodeId;
use crate::zone::{Defer, ZoneKind};

/// Pages of one node by who they were for, since bring-up. They are counted as Linux documents it
/// (`Documentation/admin-guide/numastat.rst`), except that pages in CPU caches count from when the
/// cache took them, and that a request past the caches counts the power of two that it was cut
/// from. A request from a node without memory that it may have counts as a miss there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NumaCounts {
    /// Wanted from this node and allocated on it.
    pub hit: u64,
    /// Allocated on this node but wanted from another.
    pub miss: u64,
    /// Wanted from this node but allocated on another.
    pub foreign: u64,
    /// Allocated on this node by a CPU of this node. Pages that pools took count as such.
    pub local: u64,
    /// Allocated on this node by a CPU of another node.
    pub other: u64,
    /// Allocated on this node when it was its turn in an interleave; `numa_interleave` of `vmstat`.
    pub interleave: u64,
    /// Requests that found too little within their nodes ([`PolicyMode::Bind`]), of which this was
    /// the nearest, whatever other nodes had. A request for many pages counts once.
    ///
    /// [`PolicyMode::Bind`]: crate::manager::PolicyMode::Bind
    pub refused: u64,
}

/// The rare cases that are counted for one node.
#[derive(Default)]
pub(crate) struct Rare {
    pub(crate) miss: AtomicU64,
    pub(crate) foreign: AtomicU64,
    pub(crate) other: AtomicU64,
    pub(crate) interleave: AtomicU64,
    pub(crate) refused: AtomicU64,
}

/// The manager's state of one existing node apart from its memory.
pub(crate) struct PerNode {
    rare: Rare,
    weight: AtomicU8,
    tier: AtomicU8,
    /// How much the node's memory can transfer per second; 0 if that is not known.
    pub(crate) bandwidth: AtomicU64,
    /// The first frame of the node's movable memory at boot; 0 if it has none.
    pub(crate) movable_start: AtomicU64,
    /// Recent failures of compaction for requests that ask this node first, by the highest zone
    /// that they may have.
    pub(crate) defer: SpinLock<[Defer; ZoneKind::COUNT]>,
}

impl PerNode {
    pub(crate) fn new() -> Self {
        Self {
            rare: Rare::default(),
            weight: AtomicU8::new(1),
            tier: AtomicU8::new(0),
            bandwidth: AtomicU64::new(0),
            movable_start: AtomicU64::new(0),
            defer: SpinLock::new([Defer::new(); ZoneKind::COUNT]),
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

    /// Returns the counts of a node, which must exist.
    pub(crate) fn of(&self, node: NodeId) -> &Rare {
        &self.nodes[node.index()].rare
    }

    /// Returns the counts of a node; `None` if it does not exist.
    pub(crate) fn find(&self, node: NodeId) -> Option<&Rare> {
        self.nodes.get(node.index()).map(|node| &node.rare)
    }

    /// Notes that pages came from the node whose turn it was.
    pub(crate) fn note_interleave(&self, node: NodeId, pages: u64) {
        self.of(node).interleave.fetch_add(pages, Ordering::Relaxed);
    }

    /// Notes that a request found too little within its nodes, of which `nearest` is the nearest.
    pub(crate) fn note_refused(&self, nearest: NodeId) {
        self.of(nearest).refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that a request's nodes have no memory for it.
    pub(crate) fn note_without_memory(&self) {
        self.without_memory.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn without_memory(&self) -> u64 {
        self.without_memory.load(Ordering::Relaxed)
    }

    /// Notes that pages of `node` went to a caller on `local` who wanted them from `wanted`.
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

/// The settings of each node.
pub(crate) struct NumaSettings {
    nodes: &'static [PerNode],
    /// Whether weights are computed from bandwidths.
    auto: AtomicBool,
}

impl NumaSettings {
    /// Returns settings with equal weights for all nodes, and with all nodes in `tier`.
    pub(crate) fn new(nodes: &'static [PerNode], tier: u8) -> Self {
        nodes.iter().for_each(|node| node.tier.store(tier, Ordering::Relaxed));
        Self { nodes, auto: AtomicBool::new(true) }
    }

    /// Returns all nodes, ascending.
    pub(crate) const fn nodes(&self) -> &'static [PerNode] {
        self.nodes
    }

    /// Returns the node's weight; Linux's default if there is no such node.
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
