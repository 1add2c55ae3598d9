//! What a command line says of some nodes: few are named, whatever their numbers.

use crate::units::{NodeId, NodeMask};

/// The most nodes that one word can name.
pub(super) const MOST_NAMED: usize = 64;

/// A number for each node that is named.
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

    /// What is said of a node; the default of what is not named.
    pub(super) fn of(&self, node: NodeId) -> T {
        let said = self.named().iter().find(|(named, _)| *named == node);
        said.map_or(T::default(), |&(_, said)| said)
    }

    /// What is said of `node`, to be changed, which names it; nothing when too many are named.
    pub(super) fn of_mut(&mut self, node: NodeId) -> Option<&mut T> {
        let at = self.named().iter().position(|(named, _)| *named == node).unwrap_or(self.len);
        let (named, said) = self.named.get_mut(at)?;
        *named = node;
        self.len = self.len.max(at + 1);
        Some(said)
    }

    /// What is said, in the order in which nodes were named first.
    pub(super) fn values(&self) -> impl Iterator<Item = T> {
        self.named().iter().map(|&(_, said)| said)
    }

    /// The nodes of which something else than the default is said.
    pub(super) fn nodes(&self) -> NodeMask
    where
        T: PartialEq,
    {
        let said = self.named().iter().filter(|(_, said)| *said != T::default());
        said.map(|&(node, _)| node).fold(NodeMask::EMPTY, NodeMask::with)
    }
}
