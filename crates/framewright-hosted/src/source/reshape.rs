//! Changes the nodes and CPUs of a machine.

use super::error::SourceError;
use super::machine::{Affinity, CpuAffinity, MAX_CPUS, Machine};
use super::split;
use framewright::firmware::{MapBuilder, MapRange, MemoryKind};
use framewright::units::{MAX_NODES, PhysRange};

/// The least memory of an emulated node, as in Linux (`FAKE_NODE_MIN_SIZE`).
const NODE_MIN_BYTES: u64 = 32 << 20;

impl Machine {
    /// Replaces the nodes by `nodes` new ones that share present memory evenly by address, cut at 2
    /// MiB boundaries. CPUs are dealt to them in turn, as with Linux's parameter `numa=fake=N`.
    /// Distances become the default ones; hot-pluggable memory remains so.
    ///
    /// # Errors
    /// [`SourceError::NodeCount`], [`SourceError::MoreNodesThanMemory`] below 32 MiB a node, and
    /// [`SourceError::Map`] if the memory map itself is refused. An error changes nothing.
    pub fn emulate_nodes(&mut self, nodes: u32) -> Result<(), SourceError> {
        if nodes == 0 || nodes as usize > MAX_NODES {
            return Err(SourceError::NodeCount { nodes });
        }
        let present = self.present()?;
        let memory_bytes = present.iter().map(|range| range.size()).sum();
        if memory_bytes / u64::from(nodes) < NODE_MIN_BYTES {
            return Err(SourceError::MoreNodesThanMemory {
                nodes,
                node_bytes: NODE_MIN_BYTES,
                memory_bytes,
            });
        }
        let parts = split::by_weight(&present, &vec![1; nodes as usize]);
        let mut affinities = Vec::new();
        for (node, part) in (0..nodes).zip(parts) {
            // If claims overlap, the library keeps the first, so the hot-pluggable parts come
            // first.
            let hot = self
                .affinities
                .iter()
                .filter(|old| old.hot_pluggable)
                .map(|old| old.range.intersection(part));
            affinities.extend(hot.filter(|range| !range.is_empty()).map(|range| Affinity {
                range,
                node,
                hot_pluggable: true,
            }));
            affinities.push(Affinity { range: part, node, hot_pluggable: false });
        }
        self.affinities = affinities;
        for (cpu, node) in self.cpus.iter_mut().zip((0..nodes).cycle()) {
            cpu.node = node;
        }
        self.distances.clear();
        self.notes.push(format!("{nodes} nodes are emulated: memory is split evenly by address"));
        Ok(())
    }

    /// Leaves this percentage of the usable memory unaccepted, from the highest addresses down and
    /// in units of 2 MiB, as the firmware of a confidential guest does.
    pub fn leave_unaccepted(&mut self, percent: u64) {
        const UNIT: u64 = 2 << 20;
        // If the map is refused there is nothing to leave unaccepted, and loading it reports the
        // error.
        let usable = self.resolved(|kind| kind == MemoryKind::Conventional).unwrap_or_default();
        let bytes: u64 = usable.iter().map(|range| range.size()).sum();
        let mut left = bytes / 100 * percent.min(100);
        let mut unaccepted = Vec::new();
        for usable in usable.iter().rev() {
            let end = usable.end / UNIT * UNIT;
            let start = end.saturating_sub(left).max(usable.start).next_multiple_of(UNIT);
            if start < end {
                let kind = MemoryKind::Unaccepted;
                unaccepted.push(MapRange { range: PhysRange::new(start, end), kind });
                left -= (end - start).min(left);
            }
        }
        // The most restrictive kind wins if ranges overlap.
        self.ranges.extend(unaccepted);
    }

    /// Replaces the CPUs by `cpus` new ones, numbered from 0 and dealt in turn to the nodes that
    /// had CPUs or, if none had, to the nodes with memory.
    ///
    /// # Errors
    /// [`SourceError::CpuCount`]. An error changes nothing.
    pub fn set_cpus(&mut self, cpus: u32) -> Result<(), SourceError> {
        if cpus == 0 || cpus > MAX_CPUS {
            return Err(SourceError::CpuCount { cpus });
        }
        let mut nodes: Vec<u32> = self.cpus.iter().map(|cpu| cpu.node).collect();
        if nodes.is_empty() {
            nodes = self.affinities.iter().map(|affinity| affinity.node).collect();
        }
        if nodes.is_empty() {
            nodes.push(0);
        }
        nodes.sort_unstable();
        nodes.dedup();
        self.cpus = (0..cpus)
            .zip(nodes.into_iter().cycle())
            .map(|(cpu, node)| CpuAffinity { cpu, node })
            .collect();
        Ok(())
    }

    /// Returns present memory as the library will see it: ascending, disjoint, in whole frames.
    pub(super) fn present(&self) -> Result<Vec<PhysRange>, SourceError> {
        self.resolved(MemoryKind::is_present)
    }

    /// Returns memory of some kinds as the library will see it.
    fn resolved(&self, is_meant: fn(MemoryKind) -> bool) -> Result<Vec<PhysRange>, SourceError> {
        let refused = |error| SourceError::Map { name: self.name.clone(), error };
        let mut storage = self.map_storage();
        let mut map = MapBuilder::new(&mut storage);
        for entry in &self.ranges {
            map.add(entry.range.start, entry.range.size(), entry.kind).map_err(refused)?;
        }
        let map = map.finish().map_err(refused)?;
        let meant = map.ranges().iter().filter(|entry| is_meant(entry.kind));
        Ok(meant.map(|entry| entry.range).collect())
    }
}
