//! Sets of nodes.

use crate::units::{MAX_NODES, NodeId};

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

    /// The same and another node.
    #[must_use]
    pub const fn with(self, node: NodeId) -> Self {
        Self(self.0 | 1 << node.index())
    }

    /// The same without a node.
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

    /// Its nodes, ascending.
    pub fn nodes(self) -> impl Iterator<Item = NodeId> + Clone {
        (0..MAX_NODES).filter_map(NodeId::new).filter(move |&node| self.contains(node))
    }
}
