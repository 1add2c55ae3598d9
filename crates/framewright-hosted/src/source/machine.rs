//! [`Machine`]: what a source said about a machine, before anything is made of it.

use framewright::firmware::MapRange;
use framewright::units::{NodeId, PhysRange};

/// Most CPUs that a machine may have; as many as Linux can be built for.
pub const MAX_CPUS: u32 = 8192;

/// What is known of a machine before anything is made of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// What it is and where that was read, in one line.
    pub name: String,
    /// Memory and reservations as firmware gave them: unsorted, possibly overlapping.
    pub ranges: Vec<MapRange>,
    /// Addresses that the machine keeps mirrored: in any order, perhaps overlapping, memory or not.
    pub mirrored: Vec<PhysRange>,
    /// Which addresses belong to which node. Empty on a machine with one node.
    pub affinities: Vec<Affinity>,
    /// CPUs and their nodes. Empty when the source names none.
    pub cpus: Vec<CpuAffinity>,
    /// Distances `(from, to, distance)` between nodes in units of ACPI's SLIT; a pair that is not
    /// listed has the usual distance.
    pub distances: Vec<(u32, u32, u8)>,
    /// What a reader should know about how this came to be, a line each.
    pub notes: Vec<String>,
}

/// Addresses that belong to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// The addresses, in bytes; they need not all be memory.
    pub range: PhysRange,
    /// The node, as the source numbers it.
    pub node: u32,
    /// Whether the memory there may be taken out later.
    pub hot_pluggable: bool,
}

/// The node of one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuAffinity {
    /// The CPU's number. Numbers may have gaps where CPUs are offline.
    pub cpu: u32,
    /// The node, as the source numbers it.
    pub node: u32,
}

impl Machine {
    /// Number of CPUs, at least 1: a source that names none leaves the one that booted.
    #[must_use]
    pub fn cpu_count(&self) -> u32 {
        u32::try_from(self.cpus.len()).unwrap_or(u32::MAX).max(1)
    }

    /// Bytes that it keeps mirrored, and bytes of all ranges that firmware named, each counted as
    /// often as it is named (Linux counts so, too).
    #[must_use]
    pub fn mirrored_bytes(&self) -> (u64, u64) {
        let all = self.ranges.iter().map(|entry| entry.range);
        (total_bytes(self.mirrored.iter().copied()), total_bytes(all))
    }

    /// The nodes of the CPUs, as many as [`Machine::cpu_count`] says, as [`Machine::load`] gives
    /// them to the library: CPU i of a platform is the i-th here, whatever its number. A node
    /// beyond the limit, which `load` refuses, counts as node 0.
    #[must_use]
    pub fn cpu_nodes(&self) -> Vec<NodeId> {
        let lowest = self.affinities.iter().map(|affinity| affinity.node).min().unwrap_or(0);
        let named = self.cpus.iter().map(|cpu| cpu.node);
        let nodes = named.chain(self.cpus.is_empty().then_some(lowest));
        nodes.map(|node| NodeId::new(node as usize).unwrap_or_default()).collect()
    }
}

fn total_bytes(ranges: impl Iterator<Item = PhysRange>) -> u64 {
    ranges.fold(0, |sum: u64, range| sum.saturating_add(range.size()))
}
