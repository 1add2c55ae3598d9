//! Nodes: sets of them, and the cursor that spreads helpers over them (SPEC 1.2, step 6).

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::const_fn;

/// Nodes are numbered 0..64.
pub const MAX_NODES: u32 = 64;

/// A set of nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeSet(u64);

impl NodeSet {
    /// No node.
    pub const EMPTY: Self = Self(0);

    /// This set and `node`. A node that is not below [`MAX_NODES`] is left out.
    #[must_use]
    pub const fn with(self, node: u32) -> Self {
        if node < MAX_NODES { Self(self.0 | 1 << node) } else { self }
    }

    /// Whether `node` is in it.
    #[must_use]
    pub const fn contains(self, node: u32) -> bool {
        node < MAX_NODES && self.0 >> node & 1 != 0
    }

    /// Whether no node is in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The nodes that are in both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The first node after `node` in cyclic order, which is `node` itself when it is the only one.
    fn after(self, node: u32) -> Option<u32> {
        let above = if node + 1 < MAX_NODES { self.0 >> (node + 1) << (node + 1) } else { 0 };
        let from = if above == 0 { self.0 } else { above };
        (from != 0).then(|| from.trailing_zeros())
    }
}

impl FromIterator<u32> for NodeSet {
    fn from_iter<I: IntoIterator<Item = u32>>(nodes: I) -> Self {
        nodes.into_iter().fold(Self::EMPTY, Self::with)
    }
}

/// The node that was used last, by any job: two jobs that run at once do not pile up on the same
/// nodes.
pub struct NodeCursor(AtomicU32);

impl Default for NodeCursor {
    fn default() -> Self {
        Self::new()
    }
}

impl NodeCursor {
    const_fn! {
        /// The first node that it gives is the lowest.
        #[must_use]
        pub fn new() -> Self {
            Self(AtomicU32::new(MAX_NODES - 1))
        }
    }

    /// The next node of `nodes` in cyclic order; nothing when there is none. Each node given is
    /// given to one caller.
    pub fn next(&self, nodes: NodeSet) -> Option<u32> {
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
        let nodes = NodeSet::from_iter([1, 4, 63, 64, 1000]);
        assert!(!nodes.contains(64) && !nodes.contains(1000));
        let given: Vec<_> = (0..5).filter_map(|_| cursor.next(nodes)).collect();
        assert_eq!(given, [1, 4, 63, 1, 4]);
        assert_eq!(cursor.next(NodeSet::EMPTY), None);
        // It goes on from where it was, in another set too.
        assert_eq!(cursor.next(NodeSet::from_iter([0, 5])), Some(5));
        assert_eq!(cursor.next(NodeSet::from_iter([5])), Some(5));
    }
}
