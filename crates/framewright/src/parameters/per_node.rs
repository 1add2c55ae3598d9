//! Per-node values of a command line: few nodes are named, but any number may be among them.

use crate::units::{NodeId, NodeMask};

/// The most nodes that one word can name.
pub(super) const MOST_NAMED: usize = 64;

/// A value for each named node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PerNode<T> {
    named: [(NodeId, T); MOST_NAMED],
    len: usize,
}

impl<T: Copy + Default> PerNode<T> {
    /// No node is named.
    pub(super) fn new() -> Self {
        Self { named: [(NodeId::ZERO, T::default()); MOST_NAMED], len: 0 }
    }

    fn named(&self) -> &[(NodeId, T)] {
        &self.named[..self.len]
    }

    /// The value of a node; the default for a node that is not named.
    pub(super) fn of(&self, node: NodeId) -> T {
        let said = self.named().iter().find(|(named, _)| *named == node);
        said.map_or(T::default(), |&(_, said)| said)
    }

    /// The value of `node`, for changing; this names the node. `None` when too many nodes are
    /// named.
    pub(super) fn of_mut(&mut self, node: NodeId) -> Option<&mut T> {
        let at = self.named().iter().position(|(named, _)| *named == node).unwrap_or(self.len);
        let (named, said) = self.named.get_mut(at)?;
        *named = node;
        self.len = self.len.max(at + 1);
        Some(said)
    }

    /// The values, in the order in which their nodes were first named.
    pub(super) fn values(&self) -> impl Iterator<Item = T> {
        self.named().iter().map(|&(_, said)| said)
    }

    /// The nodes with a value other than the default.
    pub(super) fn nodes(&self) -> NodeMask
    where
        T: PartialEq,
    {
        let said = self.named().iter().filter(|(_, said)| *said != T::default());
        said.map(|&(node, _)| node).fold(NodeMask::EMPTY, NodeMask::with)
    }
}
