//! Hands a machine over to the library's memory map and topology.

use super::error::SourceError;
use super::machine::Machine;
use framewright::firmware::{MapBuilder, MapRange, MemoryAffinity, Topology, TopologyError};
use framewright::units::NodeId;

impl Machine {
    /// Returns storage that is large enough for a [`MapBuilder`] to take this machine's ranges,
    /// however they overlap.
    #[must_use]
    pub fn map_storage(&self) -> Vec<MapRange> {
        // n ranges have at most 2n borders and so make at most 2n pieces. The builder needs room
        // for as many again while it splits them.
        vec![MapRange::EMPTY; 4 * self.ranges.len() + 32]
    }

    /// Returns storage that is large enough for a [`Topology`] to take this machine's affinities.
    #[must_use]
    pub fn topology_storage(&self) -> Vec<MemoryAffinity> {
        vec![MemoryAffinity::EMPTY; 4 * self.affinities.len() + 16]
    }

    /// Returns storage for [`Topology::with_distances`] that is large enough for this machine's
    /// distances.
    #[must_use]
    pub fn distance_storage(&self) -> Vec<u8> {
        let nodes = self.distances.iter().map(|&(from, to, _)| from.max(to) as usize + 1).max();
        let nodes = nodes.unwrap_or(0).min(framewright::units::MAX_NODES);
        vec![0; nodes * nodes]
    }

    /// Hands everything to the library: the ranges to `map`; nodes, CPUs and distances to
    /// `topology`. Node numbers are kept, so gaps become nodes with neither memory nor CPUs. A
    /// machine that names no CPU gets one on its lowest node.
    ///
    /// # Errors
    /// [`SourceError::Map`] or [`SourceError::Topology`] with what the library refused: a range
    /// beyond the address space, nodes that claim the same addresses, a node beyond the limit, an
    /// impossible distance, storage that is too small (see [`Machine::map_storage`]).
    pub fn load(
        &self,
        map: &mut MapBuilder<'_>,
        topology: &mut Topology<'_>,
    ) -> Result<(), SourceError> {
        for entry in &self.ranges {
            map.add(entry.range.start, entry.range.size(), entry.kind)
                .map_err(|error| SourceError::Map { name: self.name.clone(), error })?;
        }
        self.load_nodes(topology)
            .map_err(|error| SourceError::Topology { name: self.name.clone(), error })
    }

    fn load_nodes(&self, topology: &mut Topology<'_>) -> Result<(), TopologyError> {
        for affinity in &self.affinities {
            topology.add_memory(affinity.range, node_id(affinity.node)?, affinity.hot_pluggable)?;
        }
        for cpu in &self.cpus {
            node_id(cpu.node)?;
        }
        for node in self.cpu_nodes() {
            topology.add_cpu(node)?;
        }
        for &(from, to, distance) in &self.distances {
            topology.set_distance(node_id(from)?, node_id(to)?, distance)?;
        }
        Ok(())
    }
}

fn node_id(node: u32) -> Result<NodeId, TopologyError> {
    NodeId::new(node as usize).ok_or(TopologyError::NodeBeyondLimit { node: u64::from(node) })
}
