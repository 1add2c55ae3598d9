//! A synthetic machine of a given size, shaped like a QEMU q35.

use super::error::SourceError;
use super::machine::{Affinity, CpuAffinity, MAX_CPUS, Machine};
use framewright::firmware::{MapRange, MemoryKind};
use framewright::units::{MAX_NODES, PAGE_SIZE, PHYSICAL_ADDRESS_END, PhysRange};

/// Where low memory ends if there is more.
const LOW_END: u64 = 2 << 30;
/// Where the memory beyond low memory begins.
const HIGH_START: u64 = 4 << 30;
/// Nodes get whole multiples of this, as in QEMU.
const NODE_GRAIN: u64 = 8 << 20;
/// Size of the firmware's tables at the end of low memory.
const TABLES: u64 = 0x2_1000;
/// Where the memory below the first hole ends.
const BASE_END: u64 = 0xa_0000;
/// Where memory goes on after the first hole.
const EXTENDED_START: u64 = 0x10_0000;
/// Addresses that processors with HyperTransport reserve. Reserved only if memory ends below them.
const HYPERTRANSPORT: PhysRange = PhysRange::new(0xfd_0000_0000, 0x100_0000_0000);
/// The smallest machine, in bytes.
const MIN_BYTES: u64 = 8 << 20;
/// The largest machine, in bytes.
const MAX_BYTES: u64 = PHYSICAL_ADDRESS_END - HIGH_START;

impl Machine {
    /// Makes a machine with `memory_bytes` of memory (rounded down to pages), split over `nodes` as
    /// QEMU splits it, and `cpus` CPUs dealt to the nodes in turn. The first 2 GiB of memory begin
    /// at address 0, the rest at 4 GiB. A machine with one node has no affinities.
    ///
    /// # Errors
    /// [`SourceError::MemorySize`], [`SourceError::NodeCount`], [`SourceError::CpuCount`], and
    /// [`SourceError::MoreNodesThanMemory`] below 8 MiB a node.
    pub fn synthetic(memory_bytes: u64, nodes: u32, cpus: u32) -> Result<Self, SourceError> {
        if !(MIN_BYTES..=MAX_BYTES).contains(&memory_bytes) {
            return Err(SourceError::MemorySize {
                memory_bytes,
                least_bytes: MIN_BYTES,
                most_bytes: MAX_BYTES,
            });
        }
        if nodes == 0 || nodes as usize > MAX_NODES {
            return Err(SourceError::NodeCount { nodes });
        }
        if cpus == 0 || cpus > MAX_CPUS {
            return Err(SourceError::CpuCount { cpus });
        }
        if memory_bytes / u64::from(nodes) < NODE_GRAIN {
            return Err(SourceError::MoreNodesThanMemory {
                nodes,
                node_bytes: NODE_GRAIN,
                memory_bytes,
            });
        }
        let memory_bytes = memory_bytes / PAGE_SIZE * PAGE_SIZE;
        Ok(Self {
            name: format!(
                "a made-up machine of {} MiB, {} and {}",
                memory_bytes >> 20,
                counted(nodes, "node"),
                counted(cpus, "CPU")
            ),
            ranges: ranges(memory_bytes),
            mirrored: Vec::new(),
            affinities: if nodes == 1 { Vec::new() } else { affinities(memory_bytes, nodes) },
            cpus: (0..cpus).map(|cpu| CpuAffinity { cpu, node: cpu % nodes }).collect(),
            distances: Vec::new(),
            notes: Vec::new(),
        })
    }
}

fn ranges(memory_bytes: u64) -> Vec<MapRange> {
    use MemoryKind::{Conventional, Reserved};
    let low_end = memory_bytes.min(LOW_END);
    let high_end = HIGH_START + (memory_bytes - low_end);
    let mut out = Vec::new();
    let mut add = |start, end, kind| out.push(MapRange { range: PhysRange::new(start, end), kind });
    add(0, 0x9_fc00, Conventional);
    add(0x9_fc00, BASE_END, Reserved);
    add(0xf_0000, EXTENDED_START, Reserved);
    add(EXTENDED_START, low_end - TABLES, Conventional);
    add(low_end - TABLES, low_end, Reserved);
    add(0xb000_0000, 0xc000_0000, Reserved);
    add(0xfed1_c000, 0xfed2_0000, Reserved);
    add(0xfffc_0000, HIGH_START, Reserved);
    if high_end > HIGH_START {
        add(HIGH_START, high_end, Conventional);
    }
    if high_end <= HYPERTRANSPORT.start {
        add(HYPERTRANSPORT.start, HYPERTRANSPORT.end, Reserved);
    }
    out
}

/// Cuts memory, counted without holes, into equal parts, and then lays each part over the
/// addresses.
fn affinities(memory_bytes: u64, nodes: u32) -> Vec<Affinity> {
    let pieces =
        [PhysRange::new(0, BASE_END), PhysRange::new(EXTENDED_START, LOW_END.min(memory_bytes))];
    let high = PhysRange::new(HIGH_START, HIGH_START + memory_bytes.saturating_sub(LOW_END));
    let mut out = Vec::new();
    let mut start = 0;
    for node in 0..nodes {
        let share = u128::from(memory_bytes) * (u128::from(node) + 1) / u128::from(nodes);
        let share = u64::try_from(share).unwrap_or(memory_bytes);
        let end = if node + 1 == nodes { memory_bytes } else { share / NODE_GRAIN * NODE_GRAIN };
        let low = PhysRange::new(start, end);
        // Offsets beyond low memory lie in high memory.
        let moved = PhysRange::new(
            start.max(LOW_END) + (HIGH_START - LOW_END),
            end.max(LOW_END) + (HIGH_START - LOW_END),
        );
        let parts =
            pieces.iter().map(|piece| piece.intersection(low)).chain([high.intersection(moved)]);
        out.extend(parts.filter(|range| !range.is_empty()).map(|range| Affinity {
            range,
            node,
            hot_pluggable: false,
        }));
        start = end;
    }
    out
}

fn counted(number: u32, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
