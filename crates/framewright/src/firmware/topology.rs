//! Nodes: which memory and how many CPUs belong to each, and how far apart they are.

use crate::units::{MAX_NODES, NodeId, PHYSICAL_ADDRESS_END, PhysRange};
use core::fmt;

/// The distance of a node to itself, the unit of the table (ACPI SLIT).
pub const LOCAL_DISTANCE: u8 = 10;
/// The distance between two nodes when firmware says nothing.
pub const REMOTE_DISTANCE: u8 = 20;
/// The distance that means "cannot be reached" (ACPI SLIT).
pub const UNREACHABLE_DISTANCE: u8 = 255;

/// Addresses that belong to one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryAffinity {
    /// The addresses; they need not be memory.
    pub range: PhysRange,
    /// The node.
    pub node: NodeId,
    /// Whether the memory there may be removed later.
    pub hot_pluggable: bool,
}

impl MemoryAffinity {
    /// A placeholder to fill storage with.
    pub const EMPTY: Self =
        Self { range: PhysRange::new(0, 0), node: NodeId::ZERO, hot_pluggable: false };
}

/// Why the topology was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TopologyError {
    /// Two nodes claim the same addresses.
    OverlappingNodes {
        /// The node that claimed first.
        first: NodeId,
        /// The other one.
        second: NodeId,
        /// The addresses that both claim.
        range: PhysRange,
    },
    /// The table of distances has no room for this node.
    TooFewDistances {
        /// The node.
        node: NodeId,
        /// The number of nodes that there is room for.
        nodes: usize,
    },
    /// A node number is not below [`MAX_NODES`].
    NodeBeyondLimit {
        /// The number as given.
        node: u64,
    },
    /// There are more proximity domains than nodes.
    TooManyDomains {
        /// The domain that found no node.
        domain: u32,
    },
    /// There are more affinity ranges than the storage has entries. Nothing was changed.
    TooManyRanges {
        /// The number of entries in the storage.
        capacity: usize,
    },
    /// A distance to another node is not above [`LOCAL_DISTANCE`], or a node is not
    /// [`LOCAL_DISTANCE`] from itself.
    BadDistance {
        /// From this node.
        from: NodeId,
        /// To this node.
        to: NodeId,
        /// The distance as given.
        distance: u8,
    },
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFewDistances { node, nodes } => {
                write!(
                    f,
                    "there is room for the distances of {nodes} nodes, but not for node {node}"
                )
            }
            Self::OverlappingNodes { first, second, range } => {
                write!(f, "nodes {first} and {second} both claim {range}")
            }
            Self::NodeBeyondLimit { node } => {
                write!(f, "node {node} is beyond the limit of {MAX_NODES} nodes")
            }
            Self::TooManyDomains { domain } => {
                write!(f, "no node left for proximity domain {domain}: {MAX_NODES} at most")
            }
            Self::TooManyRanges { capacity } => write!(f, "more than {capacity} affinity ranges"),
            Self::BadDistance { from, to, distance } => write!(
                f,
                "distance {distance} from node {from} to node {to}: a node is {LOCAL_DISTANCE} \
                 from itself and farther from others"
            ),
        }
    }
}

impl core::error::Error for TopologyError {}

/// The nodes of a machine. The caller provides the storage for affinity ranges.
///
/// A machine without affinity information has no ranges: all memory then belongs to node 0.
pub struct Topology<'a> {
    ranges: &'a mut [MemoryAffinity],
    len: usize,
    domains: [u32; MAX_NODES],
    node_count: usize,
    cpus: [u32; MAX_NODES],
    /// Distances among the first nodes, used if the caller gave no table.
    near: [[u8; NEAR]; NEAR],
    /// A row for each of [`table_nodes`](Self::table_nodes).
    table: &'a mut [u8],
}

/// The number of nodes that have distances without a table from the caller.
const NEAR: usize = if MAX_NODES < 64 { MAX_NODES } else { 64 };

/// Returns the distances that are assumed when firmware says nothing.
const fn unknown_distances() -> [[u8; NEAR]; NEAR] {
    let mut distances = [[REMOTE_DISTANCE; NEAR]; NEAR];
    let mut node = 0;
    while node < NEAR {
        distances[node][node] = LOCAL_DISTANCE;
        node += 1;
    }
    distances
}

impl<'a> Topology<'a> {
    /// Begins with one node, no CPU, nothing claimed. `n` affinity ranges need at most `2 * n`
    /// entries, and `n` when none overlap.
    pub fn new(storage: &'a mut [MemoryAffinity]) -> Self {
        let near = unknown_distances();
        Self {
            ranges: storage,
            len: 0,
            domains: [0; MAX_NODES],
            node_count: 0,
            cpus: [0; MAX_NODES],
            near,
            table: &mut [],
        }
    }

    /// Keeps distances in `table`, a byte for each pair of nodes: `n` nodes need `n * n` bytes.
    /// Without a table, distances can be set among the first 64 nodes. Distances that were set
    /// before are forgotten.
    #[must_use]
    pub fn with_distances(mut self, table: &'a mut [u8]) -> Self {
        self.table = table;
        self.forget_distances();
        self
    }

    /// Returns the number of nodes whose distances can be set.
    fn table_nodes(&self) -> usize {
        if self.table.is_empty() { NEAR } else { self.table.len().isqrt() }
    }

    /// Returns the node of ACPI proximity domain `domain`, created when the domain is first seen.
    /// Domains may be sparse; nodes are dense and numbered in the order in which firmware first
    /// names them, as in Linux.
    ///
    /// # Errors
    /// [`TopologyError::TooManyDomains`].
    pub fn node_of_domain(&mut self, domain: u32) -> Result<NodeId, TopologyError> {
        if let Some(node) = self.find_domain(domain) {
            return Ok(node);
        }
        let node = NodeId::new(self.node_count).ok_or(TopologyError::TooManyDomains { domain })?;
        self.domains[self.node_count] = domain;
        self.node_count += 1;
        Ok(node)
    }

    /// Returns the node of a domain that was seen before.
    #[must_use]
    pub fn find_domain(&self, domain: u32) -> Option<NodeId> {
        self.domains[..self.node_count]
            .iter()
            .position(|&known| known == domain)
            .and_then(NodeId::new)
    }

    /// Declares node `node`, and every lower one, directly, without a domain.
    ///
    /// # Errors
    /// [`TopologyError::NodeBeyondLimit`].
    pub fn declare_node(&mut self, node: usize) -> Result<NodeId, TopologyError> {
        let id = NodeId::new(node).ok_or(TopologyError::NodeBeyondLimit { node: node as u64 })?;
        while self.node_count <= node {
            // A machine uses either domains or nodes; if it uses nodes, the domain is the node.
            self.domains[self.node_count] = u32::try_from(self.node_count).unwrap_or(u32::MAX);
            self.node_count += 1;
        }
        Ok(id)
    }

    /// Assigns `range` to `node`. Empty ranges are ignored; ranges of one node may overlap and
    /// touch.
    ///
    /// # Errors
    /// [`TopologyError::OverlappingNodes`], [`TopologyError::TooManyRanges`]; nothing has then
    /// changed.
    pub fn add_memory(
        &mut self,
        range: PhysRange,
        node: NodeId,
        hot_pluggable: bool,
    ) -> Result<(), TopologyError> {
        let range = range.intersection(PhysRange::new(0, PHYSICAL_ADDRESS_END));
        if range.is_empty() {
            return Ok(());
        }
        // Claims are sorted and disjoint, so the ones that meet `range` are adjacent.
        let claims = &self.ranges[..self.len];
        let first = claims.partition_point(|known| known.range.end <= range.start);
        let met = &claims[first..];
        let met = &met[..met.partition_point(|known| known.range.start < range.end)];
        if let Some(known) = met.iter().find(|known| known.node != node) {
            let both = known.range.intersection(range);
            return Err(TopologyError::OverlappingNodes {
                first: known.node,
                second: node,
                range: both,
            });
        }
        // Within one node, parts that are already claimed keep their flag; only the uncovered parts
        // are new.
        let mut parts = 0;
        let mut position = range.start;
        for known in met {
            parts += usize::from(position < known.range.start);
            position = known.range.end;
        }
        parts += usize::from(position < range.end);
        if self.len + parts > self.ranges.len() {
            return Err(TopologyError::TooManyRanges { capacity: self.ranges.len() });
        }
        self.declare_node(node.index())?;
        let mut position = range.start;
        while position < range.end {
            let index =
                self.ranges[..self.len].partition_point(|known| known.range.end <= position);
            let next = self.ranges[..self.len]
                .get(index)
                .map_or(range.end, |known| known.range.start.max(position));
            let end = next.min(range.end);
            if end > position {
                self.ranges.copy_within(index..self.len, index + 1);
                self.ranges[index] =
                    MemoryAffinity { range: PhysRange::new(position, end), node, hot_pluggable };
                self.len += 1;
                position = end;
            } else {
                position = self.ranges[index].range.end;
            }
        }
        Ok(())
    }

    /// Counts one more CPU on `node`.
    ///
    /// # Errors
    /// None today; the node is declared if it was not yet.
    pub fn add_cpu(&mut self, node: NodeId) -> Result<(), TopologyError> {
        self.declare_node(node.index())?;
        self.cpus[node.index()] += 1;
        Ok(())
    }

    /// Sets the distance from one node to another.
    ///
    /// # Errors
    /// [`TopologyError::BadDistance`], [`TopologyError::TooFewDistances`].
    pub fn set_distance(
        &mut self,
        from: NodeId,
        to: NodeId,
        distance: u8,
    ) -> Result<(), TopologyError> {
        let sane = if from == to { distance == LOCAL_DISTANCE } else { distance > LOCAL_DISTANCE };
        if !sane {
            return Err(TopologyError::BadDistance { from, to, distance });
        }
        let nodes = self.table_nodes();
        if from.max(to).index() >= nodes {
            return Err(TopologyError::TooFewDistances { node: from.max(to), nodes });
        }
        let place = match self.table.get_mut(from.index() * nodes + to.index()) {
            Some(place) => place,
            None => &mut self.near[from.index()][to.index()],
        };
        *place = distance;
        Ok(())
    }

    /// Forgets all distances: nodes are then as far apart as when firmware says nothing.
    pub fn forget_distances(&mut self) {
        self.near = unknown_distances();
        self.table.fill(REMOTE_DISTANCE);
        let nodes = self.table_nodes();
        self.table.iter_mut().step_by(nodes + 1).for_each(|own| *own = LOCAL_DISTANCE);
    }

    /// Forgets everything but the number of CPUs, which all go to node 0. For the parameter
    /// `numa=off`, or for firmware tables that cannot be trusted.
    pub fn flatten(&mut self) {
        let cpus = self.cpus.iter().sum();
        self.len = 0;
        self.node_count = 0;
        self.domains = [0; MAX_NODES];
        self.cpus = [0; MAX_NODES];
        self.cpus[0] = cpus;
        self.forget_distances();
    }

    /// Returns the number of nodes, at least one. Some may have no memory, some no CPU.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.node_count.max(1)
    }

    /// Returns all nodes, ascending.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.node_count()).filter_map(NodeId::new)
    }

    /// Returns the number of CPUs of `node`.
    #[must_use]
    pub fn cpus(&self, node: NodeId) -> u32 {
        self.cpus[node.index()]
    }

    /// Returns the proximity domain that `node` stands for.
    #[must_use]
    pub fn domain(&self, node: NodeId) -> u32 {
        self.domains[node.index()]
    }

    /// Returns how far `to` is from `from`.
    #[must_use]
    pub fn distance(&self, from: NodeId, to: NodeId) -> u8 {
        if !cfg!(feature = "numa") {
            return LOCAL_DISTANCE;
        }
        let nodes = self.table_nodes();
        if from.max(to).index() >= nodes {
            // No distance could be set for these nodes.
            return if from == to { LOCAL_DISTANCE } else { REMOTE_DISTANCE };
        }
        let told = self.table.get(from.index() * nodes + to.index());
        told.copied().unwrap_or_else(|| self.near[from.index()][to.index()])
    }

    /// Returns the claims, ascending and disjoint.
    #[must_use]
    pub fn memory(&self) -> &[MemoryAffinity] {
        &self.ranges[..self.len]
    }

    /// Returns the owner of the addresses from `address` on: the node, whether the memory may be
    /// removed, whether firmware claimed it, and where that answer ends. Unclaimed memory goes to
    /// the node whose claim ends closest below it, else to the one whose claim begins closest
    /// above, else to node 0.
    #[must_use]
    pub fn owner(&self, address: u64) -> Owner {
        if !cfg!(any(feature = "numa", feature = "moving")) {
            return Owner {
                node: NodeId::ZERO,
                hot_pluggable: false,
                claimed: true,
                end: PHYSICAL_ADDRESS_END,
            };
        }
        let claims = self.memory();
        let index = claims.partition_point(|claim| claim.range.end <= address);
        match claims.get(index) {
            Some(claim) if claim.range.start <= address => Owner {
                node: claim.node,
                hot_pluggable: claim.hot_pluggable,
                claimed: true,
                end: claim.range.end,
            },
            next => {
                let node = index
                    .checked_sub(1)
                    .map(|below| claims[below].node)
                    .or(next.map(|next| next.node));
                Owner {
                    node: node.unwrap_or(NodeId::ZERO),
                    hot_pluggable: false,
                    claimed: claims.is_empty(),
                    end: next.map_or(PHYSICAL_ADDRESS_END, |next| next.range.start),
                }
            }
        }
    }
}

impl fmt::Debug for Topology<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topology")
            .field("nodes", &self.node_count())
            .field("memory", &self.memory())
            .finish_non_exhaustive()
    }
}

/// The answer of [`Topology::owner`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The node.
    pub node: NodeId,
    /// Whether the memory may be removed later.
    pub hot_pluggable: bool,
    /// Whether firmware said so; false if a node was chosen for unclaimed memory.
    pub claimed: bool,
    /// One past the last address for which this holds.
    pub end: u64,
}
