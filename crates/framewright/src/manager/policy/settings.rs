//! The manager's weights, for interleave policies without their own, and the bandwidths of nodes
//! (Linux: `mm/mempolicy.c`, `/sys/kernel/mm/mempolicy/weighted_interleave`).
//!
//! At first the manager computes the weights: from bandwidths where these were set, otherwise 1.
//! Once a caller sets one weight, all weights are under manual control, and the others stay as they
//! are.

use super::PolicyError;
use super::weights::{Weights, checked};
use crate::manager::facets::Numa;
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::{NodeId, NodeMask};
use crate::zone::{Zone, ZoneId, ZoneKind};

impl<P: Platform> Numa<'_, P> {
    /// The weights of all nodes.
    #[must_use]
    pub fn weights(self) -> Weights {
        let mut weights = Weights::EVEN;
        for node in self.nodes().nodes() {
            // Stored weights are valid, so this cannot fail.
            let _ = weights.set(node, self.weight(node).into());
        }
        weights
    }

    /// Returns a node's weight; 1 if there is no such node.
    #[must_use]
    pub fn weight(self, node: NodeId) -> u8 {
        self.manager.numa.weight(node)
    }

    /// Sets a node's weight. From then on weights no longer follow bandwidths.
    ///
    /// # Errors
    /// [`PolicyError::BadWeight`], [`PolicyError::NoNode`]; nothing was changed.
    pub fn set_weight(self, node: NodeId, weight: u64) -> Result<(), PolicyError> {
        let weight = checked(weight)?;
        self.known(node)?;
        let _writer = self.manager.tunables.lock(self.manager.platform);
        self.manager.numa.set_auto(false);
        self.manager.numa.set_weight(node, weight);
        Ok(())
    }

    /// Whether weights follow bandwidths.
    #[must_use]
    pub fn weights_are_auto(self) -> bool {
        self.manager.numa.is_auto()
    }

    /// Makes weights follow bandwidths, beginning with those already set; or leaves them as they
    /// are from now on. Weights are 1 where no bandwidth is known.
    pub fn set_weights_auto(self, auto: bool) {
        let tunables = self.manager.tunables.lock(self.manager.platform);
        self.manager.numa.set_auto(auto);
        if auto {
            self.apply_bandwidths();
        }
        drop(tunables);
    }

    /// Sets how much data a node can move in a second, in the same unit for all nodes (Linux: MB,
    /// from the table HMAT); 0 if unknown. Weights follow at once, unless a caller has set one.
    ///
    /// # Errors
    /// [`PolicyError::NoNode`]; nothing was changed.
    pub fn set_bandwidth(self, node: NodeId, bandwidth: u64) -> Result<(), PolicyError> {
        self.known(node)?;
        let tunables = self.manager.tunables.lock(self.manager.platform);
        // Relaxed: weights are computed from it under the lock.
        self.manager.numa.nodes()[node.index()].bandwidth.store(bandwidth, Ordering::Relaxed);
        if self.manager.numa.is_auto() {
            self.apply_bandwidths();
        }
        drop(tunables);
        Ok(())
    }

    /// Returns what [`set_bandwidth`](Self::set_bandwidth) set for a node; 0 if nothing is known,
    /// or there is no such node.
    #[must_use]
    pub fn bandwidth(self, node: NodeId) -> u64 {
        // Relaxed: a number that stands alone.
        let known = self.manager.numa.nodes().get(node.index());
        known.map_or(0, |node| node.bandwidth.load(Ordering::Relaxed))
    }

    /// Called when nodes got or lost memory: weights that nobody has set follow (Linux:
    /// `mm/mempolicy.c`, `mempolicy_set_node_perf`). The caller holds the lock of the tunables.
    pub(in crate::manager) fn follow_memory(self) {
        if self.manager.numa.is_auto() {
            self.apply_bandwidths();
        }
    }

    /// Computes the weights of all nodes from the known bandwidths of the nodes that have memory.
    /// The caller holds the lock of the tunables.
    fn apply_bandwidths(self) {
        let of = |node: NodeId| {
            self.manager.numa.nodes()[node.index()].bandwidth.load(Ordering::Relaxed)
        };
        let weights = Weights::from_bandwidths(self.with_memory(), &of);
        for node in self.nodes().nodes() {
            self.manager.numa.set_weight(node, weights.of(node));
        }
    }

    /// All nodes that there are.
    pub(crate) fn nodes(self) -> NodeMask {
        self.manager.nodes.iter().map(|node| node.id).fold(NodeMask::EMPTY, NodeMask::with)
    }

    /// All nodes that have memory, withheld memory included.
    #[must_use]
    pub fn with_memory(self) -> NodeMask {
        // Each node's fallback list has all nodes with a place for memory.
        let nodes =
            self.manager.nodes.first().map_or(crate::manager::Fallback::NONE, |node| node.fallback);
        nodes.iter().filter(|&node| self.has_memory(node)).fold(NodeMask::EMPTY, NodeMask::with)
    }

    /// Whether a node has memory, withheld memory included.
    #[inline(never)]
    pub(super) fn has_memory(self, node: NodeId) -> bool {
        let pages =
            |kind| self.manager.parts(ZoneId { node, kind }).sum(&Zone::final_managed_pages);
        ZoneKind::ALL.into_iter().any(|kind| pages(kind) != 0)
    }

    pub(crate) fn known(self, node: NodeId) -> Result<(), PolicyError> {
        if self.nodes().contains(node) { Ok(()) } else { Err(PolicyError::NoNode(node)) }
    }
}
