//! Memory tiers: how slow nodes are, and where pages go when a node has to make room (Linux:
//! `mm/memory-tiers.c`).
//!
//! The adopter sets each node's tier, a number, from what firmware says; a higher tier is slower.
//! Requests that their node refuses go to faster tiers first. Nothing is moved here:
//! [`Numa::demotion_targets`] says where pages should go, and the code that demotes pages moves
//! them.
//!
//! An *abstract distance* says how slow memory is in comparison with DRAM, whose distance is
//! [`DRAM_DISTANCE`]. One tier spans [`TIER_DISTANCE`].

use crate::manager::facets::Numa;
use crate::manager::policy::PolicyError;
use crate::manager::state::{Manager, Node};
use crate::platform::Platform;
use crate::units::{NodeId, NodeMask};
use crate::zone::fallback::{Candidate, Rank};

/// The span of abstract distances of one tier (Linux: `include/linux/memory-tiers.h`,
/// `MEMTIER_CHUNK_SIZE`).
pub const TIER_DISTANCE: u32 = 128;
/// The abstract distance of DRAM, in the middle of its tier.
pub const DRAM_DISTANCE: u32 = 4 * TIER_DISTANCE + TIER_DISTANCE / 2;
/// The abstract distance of memory behind a device (CXL, DAX) of unknown performance (Linux:
/// `drivers/dax/kmem.c`, `MEMTIER_DEFAULT_DAX_ADISTANCE`).
pub const UNKNOWN_DEVICE_DISTANCE: u32 = 5 * DRAM_DISTANCE;
/// The tier of DRAM, which is the default of every node. There is room for four faster ones.
pub const DRAM_TIER: u8 = tier_of(DRAM_DISTANCE);

/// Returns the tier of an abstract distance; the last tier for all larger distances.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "checked against the largest")]
pub const fn tier_of(distance: u32) -> u8 {
    let tier = distance / TIER_DISTANCE;
    if tier > u8::MAX as u32 { u8::MAX } else { tier as u8 }
}

/// How fast a node's memory is according to the firmware table HMAT: sums over reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Performance {
    /// The latencies of a read and of a write, added, in any unit.
    pub latency: u32,
    /// The bandwidths of reads and of writes, added, in any unit.
    pub bandwidth: u32,
}

impl Performance {
    /// Returns the abstract distance of memory with this performance where DRAM has that of `dram`:
    /// proportional to the latency, and to the reciprocal of the bandwidth (Linux:
    /// `mm/memory-tiers.c`, `mt_perf_to_adistance`). `None` when one of the numbers is 0, which
    /// firmware writes for unknown values.
    #[must_use]
    pub fn distance(self, dram: Self) -> Option<u32> {
        let numbers = [self.latency, self.bandwidth, dram.latency, dram.bandwidth];
        if numbers.contains(&0) {
            return None;
        }
        let [latency, bandwidth, dram_latency, dram_bandwidth] = numbers.map(u128::from);
        // Multiplied first, so that no precision is lost.
        let distance =
            u128::from(DRAM_DISTANCE) * latency * dram_bandwidth / (dram_latency * bandwidth);
        Some(u32::try_from(distance).unwrap_or(u32::MAX))
    }
}

impl<P: Platform> Manager<P> {
    /// The rank of a node in the fallback list of another.
    pub(in crate::manager) fn rank(&self, from: &Node, node: NodeId) -> Rank {
        let candidate = Candidate {
            node,
            distance: from.distances.get(node.index()).copied().unwrap_or(u8::MAX),
            tier: self.numa.tier(node).unwrap_or(DRAM_TIER),
            has_cpus: self.nodes.get(node.index()).is_some_and(|node| node.cpus != 0),
        };
        Rank::of(from.id, self.nodes.len(), &candidate)
    }
}

impl<P: Platform> Numa<'_, P> {
    /// The tier of a node; [`DRAM_TIER`] if none was set, or there is no such node.
    #[must_use]
    pub fn tier(self, node: NodeId) -> u8 {
        self.manager.numa.tier(node).unwrap_or(DRAM_TIER)
    }

    /// Sets how slow a node's memory is: the [`tier_of`] its abstract distance. From now on
    /// requests that find nothing on their first node go to faster tiers before slower ones, and to
    /// the nearest node first within each tier. Requests under way ask every node, in the old order
    /// or the new one. The caches of CPUs keep frames of the same nodes as before.
    ///
    /// # Errors
    /// [`PolicyError::NoNode`]; nothing was changed.
    pub fn set_tier(self, node: NodeId, tier: u8) -> Result<(), PolicyError> {
        self.known(node)?;
        self.manager.numa.set_tier(node, tier);
        for from in self.manager.nodes {
            // The lock is held for one list at a time, as there may be a thousand. A caller that
            // sets another tier meanwhile sorts all lists again after that.
            let _writer = self.manager.tunables.lock(self.manager.platform);
            from.fallback.sort(&|to| self.manager.rank(from, to));
        }
        Ok(())
    }

    /// The nodes with memory in a tier.
    #[must_use]
    pub fn tier_nodes(self, tier: u8) -> NodeMask {
        self.with_memory_where(|of| of == tier)
    }

    /// Where pages of a node should go to make room there: the nodes with memory in the next slower
    /// tier that are nearest, all of them if several are equally near (Linux: `mm/memory-tiers.c`,
    /// `establish_demotion_targets`, which picks one of these at random). Empty for the slowest
    /// tier, whose pages go where they would go without tiers. Computed at each call, so a node
    /// that gets or loses memory counts at once.
    #[must_use]
    pub fn demotion_targets(self, node: NodeId) -> NodeMask {
        let Some(from) = self.manager.nodes.get(node.index()) else { return NodeMask::EMPTY };
        let slower = self.demotion_allowed(node);
        let next = slower.nodes().map(|node| self.tier(node)).min();
        let Some(next) = next else { return NodeMask::EMPTY };
        let next = slower.nodes().filter(|&node| self.tier(node) == next);
        let distance = |to: NodeId| from.distances.get(to.index()).copied().unwrap_or(u8::MAX);
        let least = next.clone().map(distance).min();
        let nearest = next.filter(|&to| Some(distance(to)) == least);
        nearest.fold(NodeMask::EMPTY, NodeMask::with)
    }

    /// Where such pages may go when the [targets](Self::demotion_targets) are full: all nodes with
    /// memory in slower tiers (Linux: `mm/memory-tiers.c`, `node_get_allowed_targets`).
    #[must_use]
    pub fn demotion_allowed(self, node: NodeId) -> NodeMask {
        let tier = self.tier(node);
        self.with_memory_where(|of| of > tier)
    }

    fn with_memory_where(self, wanted: impl Fn(u8) -> bool) -> NodeMask {
        let nodes = self.with_memory();
        nodes.nodes().filter(|&node| wanted(self.tier(node))).fold(NodeMask::EMPTY, NodeMask::with)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_tiers_as_in_linux() {
        assert_eq!((DRAM_DISTANCE, DRAM_TIER), (576, 4));
        assert_eq!((UNKNOWN_DEVICE_DISTANCE, tier_of(UNKNOWN_DEVICE_DISTANCE)), (2880, 22));
        assert_eq!([0, 127, 128, 511, 512, 639, 640].map(tier_of), [0, 0, 1, 3, 4, 4, 5]);
        assert_eq!((tier_of(255 * 128), tier_of(u32::MAX)), (255, 255));
    }

    #[test]
    fn slower_memory_is_farther() {
        let dram = Performance { latency: 200, bandwidth: 1000 };
        let at = |latency, bandwidth| Performance { latency, bandwidth }.distance(dram);
        assert_eq!(at(200, 1000), Some(576));
        assert_eq!(at(500, 500), Some(2880), "latency x 2.5, half the bandwidth");
        assert_eq!(at(200, 4000), Some(144), "HBM is faster");
        assert_eq!(at(u32::MAX, 1), Some(u32::MAX));
        for (latency, bandwidth) in [(0, 1), (1, 0)] {
            assert_eq!(at(latency, bandwidth), None);
            let unknown = Performance { latency, bandwidth };
            assert_eq!(dram.distance(unknown), None);
        }
    }
}
