//! Tiers of memory: how slow nodes are, and where pages go that are to make room on one (Linux:
//! `mm/memory-tiers.c`).
//!
//! A node's tier is a number that the adopter sets from what firmware says; a higher one is
//! slower. Requests that their node refuses go to faster ones first. Nothing is moved here:
//! [`Numa::demotion_targets`] says where to, whoever moves pages does it.
//!
//! An *abstract distance* is how much slower than DRAM memory is, where DRAM is
//! [`DRAM_DISTANCE`]; a tier is [`TIER_DISTANCE`] of it.

use crate::manager::facets::Numa;
use crate::manager::policy::PolicyError;
use crate::manager::state::{Manager, Node};
use crate::platform::Platform;
use crate::units::{NodeId, NodeMask};
use crate::zone::fallback::{Candidate, Rank};

/// Abstract distances of one tier (Linux: `include/linux/memory-tiers.h`,
/// `MEMTIER_CHUNK_SIZE`).
pub const TIER_DISTANCE: u32 = 128;
/// The abstract distance of DRAM, in the middle of its tier.
pub const DRAM_DISTANCE: u32 = 4 * TIER_DISTANCE + TIER_DISTANCE / 2;
/// The abstract distance of memory behind a device (CXL, DAX) of which nothing is known (Linux:
/// `drivers/dax/kmem.c`, `MEMTIER_DEFAULT_DAX_ADISTANCE`).
pub const UNKNOWN_DEVICE_DISTANCE: u32 = 5 * DRAM_DISTANCE;
/// The tier of DRAM, which every node has at first. There is room for four faster ones.
pub const DRAM_TIER: u8 = tier_of(DRAM_DISTANCE);

/// The tier of an abstract distance; the last for what is farther than all tiers.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "checked against the largest")]
pub const fn tier_of(distance: u32) -> u8 {
    let tier = distance / TIER_DISTANCE;
    if tier > u8::MAX as u32 { u8::MAX } else { tier as u8 }
}

/// How fast a node's memory is, as firmware says in the table HMAT: reads and writes added.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Performance {
    /// Latency of a read and of a write, added, in any unit.
    pub latency: u32,
    /// Bandwidth of reads and of writes, added, in any unit.
    pub bandwidth: u32,
}

impl Performance {
    /// The abstract distance of memory that is so fast where DRAM is as fast as `dram`:
    /// proportional to its latency, and to the reciprocal of its bandwidth (Linux:
    /// `mm/memory-tiers.c`, `mt_perf_to_adistance`). Nothing when one of the numbers is 0, which
    /// is what firmware writes where it does not know.
    #[must_use]
    pub fn distance(self, dram: Self) -> Option<u32> {
        let numbers = [self.latency, self.bandwidth, dram.latency, dram.bandwidth];
        if numbers.contains(&0) {
            return None;
        }
        let [latency, bandwidth, dram_latency, dram_bandwidth] = numbers.map(u128::from);
        // Multiplied first, so that nothing is lost.
        let distance =
            u128::from(DRAM_DISTANCE) * latency * dram_bandwidth / (dram_latency * bandwidth);
        Some(u32::try_from(distance).unwrap_or(u32::MAX))
    }
}

impl<P: Platform> Manager<P> {
    /// Where a node stands in another's list.
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
    /// The tier of a node; [`DRAM_TIER`] unless somebody has set another, or there is no such node.
    #[must_use]
    pub fn tier(self, node: NodeId) -> u8 {
        self.manager.numa.tier(node).unwrap_or(DRAM_TIER)
    }

    /// Says how slow a node's memory is: [`tier_of`] its abstract distance. From now on requests
    /// that find nothing on the node that they ask first go to faster tiers before slower ones, and
    /// to the nearest node of each; those under way ask each node, in the one order or the other.
    /// Caches of CPUs stay where they are.
    ///
    /// # Errors
    /// [`PolicyError::NoNode`]; nothing was changed.
    pub fn set_tier(self, node: NodeId, tier: u8) -> Result<(), PolicyError> {
        self.known(node)?;
        self.manager.numa.set_tier(node, tier);
        for from in self.manager.nodes {
            // Held for each list alone, as there may be a thousand. Who sets another tier
            // meanwhile puts all lists in order after that.
            let _writer = self.manager.tunables.lock(self.manager.platform);
            from.fallback.sort(&|to| self.manager.rank(from, to));
        }
        Ok(())
    }

    /// The nodes with memory of a tier.
    #[must_use]
    pub fn tier_nodes(self, tier: u8) -> NodeMask {
        self.with_memory_where(|of| of == tier)
    }

    /// Where pages of a node are to go that make room there: the nearest of the nodes with memory
    /// in the next slower tier, all that are equally near (Linux: `mm/memory-tiers.c`,
    /// `establish_demotion_targets`, which takes one of these by chance). None for the slowest
    /// tier, whose pages go to where they would without tiers. Computed at each call, so a node
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

    /// Where such pages may go when [those](Self::demotion_targets) are full: all nodes with
    /// memory of all slower tiers (Linux: `mm/memory-tiers.c`, `node_get_allowed_targets`).
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
