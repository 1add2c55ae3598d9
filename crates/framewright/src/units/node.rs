//! Nodes and sets of them. How a set is written is in `node_list`.

use super::sizes::MAX_NODES;
use core::fmt;

/// A node: memory and CPUs that are near to one another. Dense, 0..[`MAX_NODES`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeId(u8);

impl NodeId {
    /// The first node.
    pub const ZERO: Self = Self(0);

    /// Node `index`, or nothing when it is not below [`MAX_NODES`].
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "checked against MAX_NODES, which fits")]
    pub const fn new(index: usize) -> Option<Self> {
        if index < MAX_NODES { Some(Self(index as u8)) } else { None }
    }

    /// The number as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The number as firmware and jobs write it.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A set of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct NodeMask(u64);

impl NodeMask {
    /// No node.
    pub const EMPTY: Self = Self(0);
    /// Every node that there can be.
    pub const ALL: Self = Self(u64::MAX);

    /// One node.
    #[must_use]
    pub const fn only(node: NodeId) -> Self {
        Self(1 << node.index())
    }

    /// These nodes and `node`.
    #[must_use]
    pub const fn with(self, node: NodeId) -> Self {
        Self(self.0 | 1 << node.index())
    }

    /// These nodes without `node`.
    #[must_use]
    pub const fn without(self, node: NodeId) -> Self {
        Self(self.0 & !(1 << node.index()))
    }

    /// Whether a node is among them.
    #[must_use]
    pub const fn contains(self, node: NodeId) -> bool {
        self.0 >> node.index() & 1 != 0
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those that are in both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// How many they are.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// The first of them, if there is any.
    #[must_use]
    pub const fn first(self) -> Option<NodeId> {
        NodeId::new(self.0.trailing_zeros() as usize)
    }

    /// The next of them after `node`, which need not be one; after the last comes the first again
    /// (Linux: `next_node_in` in `include/linux/nodemask.h`). Nothing when there is none.
    #[must_use]
    pub const fn next_after(self, node: NodeId) -> Option<NodeId> {
        // Two shifts, as one by all bits is none.
        let behind = Self(self.0 & (u64::MAX << node.index() << 1));
        if behind.is_empty() { self.first() } else { behind.first() }
    }

    /// Number `index` of them, counted from 0, ascending; nothing when they are fewer.
    #[must_use]
    pub fn nth(self, index: usize) -> Option<NodeId> {
        self.nodes().nth(index)
    }

    /// Its nodes, ascending.
    pub fn nodes(self) -> impl Iterator<Item = NodeId> + Clone {
        (0..MAX_NODES).filter_map(NodeId::new).filter(move |&node| self.contains(node))
    }
}

const _: () = assert!(MAX_NODES <= 64, "a set of nodes is one word");
