//! Whose turn it is: what a caller remembers between interleaved requests.
//!
//! A cursor names the node that was used last and what is left of its turn. Requests move a copy,
//! which replaces the cursor once memory was found: an error changes no cursor.

use super::weights::Weights;
use crate::units::{MAX_NODES, NodeId, NodeMask};

/// The position of an interleave: the node that was used last, and how many pages of its weight are
/// left. Four bytes that the caller keeps beside its policy, in a task, a file or a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InterleaveCursor {
    node: NodeId,
    rest: u8,
}

impl Default for InterleaveCursor {
    fn default() -> Self {
        Self::START
    }
}

impl InterleaveCursor {
    /// The start: the first node of any set comes next (Linux: `kernel/fork.c` and
    /// `init/init_task.c`, where `il_prev` is the highest possible node).
    pub const START: Self = Self {
        node: match NodeId::new(MAX_NODES - 1) {
            Some(node) => node,
            None => NodeId::ZERO,
        },
        rest: 0,
    };

    /// The node that was used last.
    #[must_use]
    pub const fn node(self) -> NodeId {
        self.node
    }

    /// How many more pages that node gets before the next one has its turn.
    #[must_use]
    pub const fn rest(self) -> u8 {
        self.rest
    }

    /// Returns the node of `nodes` for the next page: the current node while something is left of
    /// its weight and it is still in the set, otherwise the next node, with its whole weight
    /// (Linux: `mm/mempolicy.c`, `weighted_interleave_nodes`). `None` when the set is empty.
    pub(super) fn advance(
        &mut self,
        nodes: NodeMask,
        weight: impl Fn(NodeId) -> u8,
    ) -> Option<NodeId> {
        if self.rest == 0 || !nodes.contains(self.node) {
            let node = nodes.next_after(self.node)?;
            *self = Self { node, rest: weight(node) };
        }
        self.rest = self.rest.saturating_sub(1);
        Some(self.node)
    }

    /// Deals out `pages` as that many calls of [`advance`](Self::advance) would, and adds to
    /// `shares` what each node gets. Takes at most twice as many steps as there are nodes.
    pub(super) fn share(
        &mut self,
        nodes: NodeMask,
        weights: &Weights,
        pages: usize,
        shares: &mut [usize; MAX_NODES],
    ) {
        if nodes.is_empty() {
            return;
        }
        let mut left = pages;
        let mut take = |cursor: &mut Self, left: &mut usize| {
            let taken = usize::from(cursor.rest).min(*left);
            shares[cursor.node.index()] += taken;
            // A node takes no more than is left of its turn.
            cursor.rest -= u8::try_from(taken).unwrap_or(cursor.rest);
            *left -= taken;
        };
        if nodes.contains(self.node) {
            take(self, &mut left);
        }
        let round: usize = nodes.nodes().map(|node| usize::from(weights.of(node))).sum();
        // The last round is walked even if it is a whole one, so that the cursor ends where single
        // steps would leave it.
        let rounds = left.saturating_sub(1) / round;
        left -= rounds * round;
        while left != 0
            && let Some(node) = nodes.next_after(self.node)
        {
            *self = Self { node, rest: weights.of(node) };
            take(self, &mut left);
        }
        for node in nodes.nodes() {
            shares[node.index()] += rounds * usize::from(weights.of(node));
        }
    }

    /// The cursor without the rest of a turn, for modes whose turns are one page.
    pub(super) const fn without_rest(self) -> Self {
        Self { rest: 0, ..self }
    }
}

const _: () = assert!(size_of::<InterleaveCursor>() == 4);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn node(index: usize) -> NodeId {
        NodeId::new(index).expect("a node")
    }

    fn mask(nodes: &[usize]) -> NodeMask {
        nodes.iter().map(|&index| node(index)).fold(NodeMask::EMPTY, NodeMask::with)
    }

    /// Returns the next `count` nodes.
    fn turns(
        cursor: &mut InterleaveCursor,
        nodes: NodeMask,
        weights: &Weights,
        count: usize,
    ) -> Vec<usize> {
        let mut next = || cursor.advance(nodes, |node| weights.of(node)).expect("a node").index();
        (0..count).map(|_| next()).collect()
    }

    #[test]
    fn weights_of_five_and_two() {
        let weights = Weights::new(&[5, 2]).expect("weights");
        let (nodes, mut cursor) = (mask(&[0, 1]), InterleaveCursor::START);
        assert_eq!(turns(&mut cursor, nodes, &weights, 8), [0, 0, 0, 0, 0, 1, 1, 0]);
        let (mut shares, mut cursor) = ([0; MAX_NODES], InterleaveCursor::START);
        cursor.share(nodes, &weights, 20, &mut shares);
        assert_eq!(shares[..2], [15, 5]);
        assert_eq!(turns(&mut cursor, nodes, &weights, 2), [1, 0], "node 1 has one left");
    }

    #[test]
    fn a_node_that_is_taken_out_of_the_set_loses_its_turn() {
        let weights = Weights::new(&[5, 2, 3]).expect("weights");
        let mut cursor = InterleaveCursor::START;
        turns(&mut cursor, mask(&[0, 1, 2]), &weights, 2);
        assert_eq!((cursor.node(), cursor.rest()), (node(0), 3));
        assert_eq!(turns(&mut cursor, mask(&[1, 2]), &weights, 6), [1, 1, 2, 2, 2, 1]);
        let mut cursor = InterleaveCursor { node: node(0), rest: 3 };
        let mut shares = [0; MAX_NODES];
        cursor.share(mask(&[1, 2]), &weights, 6, &mut shares);
        assert_eq!(shares[..3], [0, 3, 3]);
        assert_eq!(cursor.advance(NodeMask::EMPTY, |_| 1), None);
    }

    proptest! {
        /// Dealing in bulk equals dealing one by one, to the last bit of the cursor, from any
        /// start.
        #[test]
        fn shares_are_turns(
            bits in 1_u64..1 << 10,
            of in proptest::collection::vec(1_u8..=255, 10),
            last in 0_usize..MAX_NODES,
            rest in 0_u8..=255,
            pages in 0_usize..6000,
        ) {
            let nodes: Vec<usize> = (0..10).filter(|index| bits >> index & 1 != 0).collect();
            let (nodes, weights) = (mask(&nodes), Weights::new(&of).expect("weights"));
            let mut one = InterleaveCursor { node: node(last), rest };
            let mut all = one;
            let mut expected = [0; MAX_NODES];
            for turn in turns(&mut one, nodes, &weights, pages) {
                expected[turn] += 1;
            }
            let mut shares = [0; MAX_NODES];
            all.share(nodes, &weights, pages, &mut shares);
            prop_assert_eq!(shares, expected);
            prop_assert_eq!(all, one);
        }
    }
}
