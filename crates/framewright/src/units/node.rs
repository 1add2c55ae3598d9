//! NUMA nodes and sets of nodes. The text form of a set is in `node_list`.

use super::sizes::MAX_NODES;
use core::fmt;

/// A node: memory and CPUs that are near to one another. Nodes have dense numbers,
/// 0..[`MAX_NODES`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeId(u16);

impl NodeId {
    /// The first node.
    pub const ZERO: Self = Self(0);

    /// Node `index`, or `None` when it is not below [`MAX_NODES`].
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "checked against MAX_NODES, which fits")]
    pub const fn new(index: usize) -> Option<Self> {
        if index < MAX_NODES { Some(Self(index as u16)) } else { None }
    }

    /// The number as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        if MAX_NODES == 1 { 0 } else { self.0 as usize }
    }

    /// The number as firmware and `framewright-jobs` write it.
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

/// The number of words in a set.
const WORDS: usize = MAX_NODES.div_ceil(64);

/// A set of nodes. It takes up to 128 bytes, so no data on the path of every request holds one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct NodeMask([u64; WORDS]);

impl NodeMask {
    /// The empty set.
    pub const EMPTY: Self = Self([0; WORDS]);
    /// Every possible node.
    pub const ALL: Self =
        Self([if MAX_NODES < 64 { (1 << MAX_NODES) - 1 } else { u64::MAX }; WORDS]);

    /// The set of `node` alone.
    #[must_use]
    pub const fn only(node: NodeId) -> Self {
        Self::EMPTY.with(node)
    }

    /// This set with `node` added.
    #[must_use]
    pub const fn with(mut self, node: NodeId) -> Self {
        self.0[node.index() / 64] |= 1 << (node.index() % 64);
        self
    }

    /// This set without `node`.
    #[must_use]
    pub const fn without(mut self, node: NodeId) -> Self {
        self.0[node.index() / 64] &= !(1 << (node.index() % 64));
        self
    }

    /// Whether `node` is in the set.
    #[must_use]
    pub const fn contains(&self, node: NodeId) -> bool {
        self.0[node.index() / 64] >> (node.index() % 64) & 1 != 0
    }

    /// Whether the set is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// The nodes that are in both sets.
    #[must_use]
    pub const fn and(mut self, other: Self) -> Self {
        let mut word = 0;
        while word < WORDS {
            self.0[word] &= other.0[word];
            word += 1;
        }
        self
    }

    /// The number of nodes in the set.
    #[must_use]
    pub const fn len(&self) -> usize {
        let (mut len, mut word) = (0, 0);
        while word < WORDS {
            len += self.0[word].count_ones() as usize;
            word += 1;
        }
        len
    }

    /// The first node, if there is any.
    #[must_use]
    pub const fn first(&self) -> Option<NodeId> {
        self.first_from(0)
    }

    /// The first node whose index is at least `from`.
    const fn first_from(&self, from: usize) -> Option<NodeId> {
        let (mut word, mut kept) = (from / 64, u64::MAX << (from % 64));
        while word < WORDS {
            let bits = self.0[word] & kept;
            if bits != 0 {
                return NodeId::new(word * 64 + bits.trailing_zeros() as usize);
            }
            word += 1;
            kept = u64::MAX;
        }
        None
    }

    /// The next node of the set after `node`, which need not be in it; after the last node comes
    /// the first again (Linux: `next_node_in` in `include/linux/nodemask.h`). `None` when the set
    /// is empty.
    #[must_use]
    pub const fn next_after(&self, node: NodeId) -> Option<NodeId> {
        match self.first_from(node.index() + 1) {
            None => self.first(),
            next => next,
        }
    }

    /// The node at position `index`, counted from 0 in ascending order; `None` when the set has
    /// fewer.
    #[must_use]
    pub fn nth(&self, index: usize) -> Option<NodeId> {
        self.nodes().nth(index)
    }

    /// The nodes of the set, ascending.
    pub fn nodes(&self) -> impl Iterator<Item = NodeId> + Clone + use<> {
        let (nodes, mut from) = (*self, 0);
        core::iter::from_fn(move || {
            let node = nodes.first_from(from)?;
            from = node.index() + 1;
            Some(node)
        })
    }
}

const _: () = assert!((MAX_NODES == 1 || MAX_NODES.is_multiple_of(64)) && MAX_NODES <= 1 << 16);

#[cfg(all(test, feature = "many-nodes"))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    fn node(index: usize) -> NodeId {
        NodeId::new(index).expect("a node")
    }

    #[test]
    fn words_meet_without_a_gap() {
        assert_eq!(NodeId::new(1023).map(NodeId::number), Some(1023));
        assert_eq!(NodeId::new(1024), None);
        let borders = [63, 64, 127, 128, 1023];
        for index in borders {
            let only = NodeMask::only(node(index));
            assert_eq!((only.len(), only.first()), (1, Some(node(index))));
            assert_eq!(only.next_after(node(index)), Some(node(index)));
            assert!(only.without(node(index)).is_empty());
        }
        let all = borders.map(node).into_iter().fold(NodeMask::EMPTY, NodeMask::with);
        let found: Vec<usize> = all.nodes().map(NodeId::index).collect();
        assert_eq!(found, borders);
        assert_eq!(all.next_after(node(63)), Some(node(64)));
        assert_eq!(all.next_after(node(128)), Some(node(1023)));
        assert_eq!(all.next_after(node(1023)), Some(node(63)));
        assert_eq!((NodeMask::ALL.len(), NodeMask::ALL.nodes().count()), (1024, 1024));
    }

    fn set() -> impl Strategy<Value = BTreeSet<u16>> {
        prop::collection::btree_set(0_u16..1024, 0..40)
    }

    fn mask(set: &BTreeSet<u16>) -> NodeMask {
        set.iter().map(|&index| node(index.into())).fold(NodeMask::EMPTY, NodeMask::with)
    }

    proptest! {
        #[test]
        fn a_mask_is_a_set(one in set(), other in set(), at in 0_u16..1024, nth in 0_usize..50) {
            let (nodes, id) = (mask(&one), node(at.into()));
            let numbers =
                |mask: NodeMask| mask.nodes().map(|node| node.0).collect::<BTreeSet<u16>>();
            prop_assert_eq!(&numbers(nodes), &one);
            prop_assert_eq!(nodes.len(), one.len());
            prop_assert_eq!(nodes.is_empty(), one.is_empty());
            prop_assert_eq!(nodes.contains(id), one.contains(&at));
            prop_assert_eq!(nodes.first().map(|node| node.0), one.first().copied());
            prop_assert_eq!(nodes.nth(nth).map(|node| node.0), one.iter().nth(nth).copied());
            let next = one.range(at + 1..).next().or(one.first()).copied();
            prop_assert_eq!(nodes.next_after(id).map(|node| node.0), next);
            let both: BTreeSet<u16> = one.intersection(&other).copied().collect();
            prop_assert_eq!(numbers(nodes.and(mask(&other))), both);
            let mut changed = one.clone();
            changed.insert(at);
            prop_assert_eq!(numbers(nodes.with(id)), changed.clone());
            changed.remove(&at);
            prop_assert_eq!(numbers(nodes.with(id).without(id)), changed);
        }
    }
}
