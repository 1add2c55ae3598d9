//! NUMA nodes: sets of nodes, parts of a job on them, and the cursor that spreads helpers over
//! them.

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::const_fn;
use core::ops::Range;

/// Nodes are numbered from 0 and stay below this limit: 1024, or 64 without the feature
/// `many-nodes`.
pub const MAX_NODES: u32 = if cfg!(feature = "many-nodes") { 1024 } else { 64 };

/// The number of words in a set of nodes.
const WORDS: usize = MAX_NODES as usize / 64;

/// The most parts that a job may have.
pub const MAX_PARTS: usize = 64;

/// A set of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeSet([u64; WORDS]);

impl NodeSet {
    /// The empty set.
    pub const EMPTY: Self = Self([0; WORDS]);

    /// This set with `node` added. A node that is not below [`MAX_NODES`] is left out.
    #[must_use]
    pub const fn with(mut self, node: u32) -> Self {
        if node < MAX_NODES {
            self.0[node as usize / 64] |= 1 << (node % 64);
        }
        self
    }

    /// Whether `node` is in the set.
    #[must_use]
    pub const fn contains(&self, node: u32) -> bool {
        node < MAX_NODES && self.0[node as usize / 64] >> (node % 64) & 1 != 0
    }

    /// Whether the set has no nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// The nodes that are in both sets.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(core::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// The first node after `node` in cyclic order; `node` itself if it is the only one.
    fn after(&self, node: u32) -> Option<u32> {
        self.first_from(node + 1).or_else(|| self.first_from(0))
    }

    fn first_from(&self, from: u32) -> Option<u32> {
        let first = from as usize / 64;
        (0_u32..).step_by(64).zip(self.0).skip(first).find_map(|(base, bits)| {
            let kept = if base < from { u64::MAX << (from % 64) } else { u64::MAX };
            let bits = bits & kept;
            (bits != 0).then(|| base + bits.trailing_zeros())
        })
    }
}

impl FromIterator<u32> for NodeSet {
    fn from_iter<I: IntoIterator<Item = u32>>(nodes: I) -> Self {
        nodes.into_iter().fold(Self::EMPTY, Self::with)
    }
}

/// A piece of a job that is best done on one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The node.
    pub node: u32,
    /// The units.
    pub range: Range<u64>,
}

/// The node that a job used last, shared by all jobs so that two jobs that run at once spread over
/// different nodes.
pub(crate) struct NodeCursor(AtomicU32);

impl NodeCursor {
    const_fn! {
        /// Creates a cursor that hands out the lowest node first.
        pub(crate) fn new() -> Self {
            Self(AtomicU32::new(MAX_NODES - 1))
        }
    }

    /// Advances to the next node of `nodes` in cyclic order; returns `None` if the set is empty.
    pub(crate) fn next(&self, nodes: NodeSet) -> Option<u32> {
        // Relaxed: the cursor is a number that orders nothing else.
        let mut last = self.0.load(Ordering::Relaxed);
        loop {
            let next = nodes.after(last.min(MAX_NODES - 1))?;
            match self.0.compare_exchange_weak(last, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(next),
                Err(seen) => last = seen,
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn the_cursor_goes_round_over_the_nodes_that_are_there() {
        let cursor = NodeCursor::new();
        let last = MAX_NODES - 1;
        let nodes = NodeSet::from_iter([1, 30, last, MAX_NODES]);
        assert!(nodes.contains(last) && !nodes.contains(29) && !nodes.contains(MAX_NODES));
        let given: Vec<_> = (0..4).filter_map(|_| cursor.next(nodes)).collect();
        assert_eq!(given, [1, 30, last, 1]);
        assert_eq!(cursor.next(NodeSet::EMPTY), None);
        // In another set the cursor goes on from where it was.
        assert_eq!(cursor.next(NodeSet::from_iter([0, 5])), Some(5));
        assert_eq!(cursor.next(NodeSet::from_iter([5])), Some(5));
    }
}
