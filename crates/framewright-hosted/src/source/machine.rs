//! [`Machine`]: what a source said about a machine, before anything is made of it.

use framewright::firmware::MapRange;
use framewright::units::{NodeId, PhysRange};

/// Most CPUs that a machine may have, which is also the most that Linux can be built for.
pub const MAX_CPUS: u32 = 8192;

/// What a source said about a machine, before anything is made of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// What the machine is and where the description comes from, in one line.
    pub name: String,
    /// Memory and reservations as firmware gave them: unsorted, and possibly overlapping.
    pub ranges: Vec<MapRange>,
    /// Addresses that the machine mirrors: unsorted, possibly overlapping, and not necessarily
    /// memory.
    pub mirrored: Vec<PhysRange>,
    /// Which addresses belong to which node. Empty on a machine with one node.
    pub affinities: Vec<Affinity>,
    /// CPUs and their nodes. Empty if the source names none.
    pub cpus: Vec<CpuAffinity>,
    /// Distances `(from, to, distance)` between nodes, in units of ACPI's SLIT. A pair that is not
    /// listed has the default distance.
    pub distances: Vec<(u32, u32, u8)>,
    /// What a reader should know about how this description came about, a line each.
    pub notes: Vec<String>,
}

/// Addresses that belong to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// The addresses, in bytes; they need not all be memory.
    pub range: PhysRange,
    /// The node, as the source numbers it.
    pub node: u32,
    /// Whether the memory there may be removed later.
    pub hot_pluggable: bool,
}

/// The node of one CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuAffinity {
    /// The CPU's number. Numbers have gaps if CPUs are offline.
    pub cpu: u32,
    /// The node, as the source numbers it.
    pub node: u32,
}

impl Machine {
    /// Returns the number of CPUs, at least 1: if the source names none, there is still the boot
    /// CPU.
    #[must_use]
    pub fn cpu_count(&self) -> u32 {
        u32::try_from(self.cpus.len()).unwrap_or(u32::MAX).max(1)
    }

    /// Returns how many bytes are mirrored, and how many bytes all ranges of the firmware have.
    /// Bytes count as often as they are named, as in Linux.
    #[must_use]
    pub fn mirrored_bytes(&self) -> (u64, u64) {
        let all = self.ranges.iter().map(|entry| entry.range);
        (total_bytes(self.mirrored.iter().copied()), total_bytes(all))
    }

    /// Returns the nodes of the CPUs, [`Machine::cpu_count`] in number, as [`Machine::load`] gives
    /// them to the library. CPU i of a platform is the i-th of these, whatever its number. A node
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
