//! Deals pages out over nodes in turn, one page at a time, as Linux's cursors do, but without a
//! step per page.

#![cfg_attr(not(feature = "numa"), expect(clippy::modulo_one, reason = "there is one node"))]

use crate::units::NodeMask;
use crate::units::{MAX_NODES, NodeId};

/// The number of pages for each node.
pub(crate) type Shares = [u64; MAX_NODES];

/// Gives `total` pages to the nodes in turn, beginning at `cursor` and skipping nodes that have no
/// more room. Pages that no node has room for are not given. The result is the same as if one page
/// were given at a time. Returns the shares, the number of pages given, and where the next page
/// would go.
#[inline(never)]
pub(crate) fn spread(
    total: u64,
    cursor: usize,
    nodes: NodeMask,
    room: &dyn Fn(NodeId) -> u64,
) -> (Shares, u64, usize) {
    let mut rooms = [0; MAX_NODES];
    for node in nodes.nodes() {
        rooms[node.index()] = room(node);
    }
    let total = total.min(rooms.iter().fold(0, |all: u64, &room| all.saturating_add(room)));
    // What is left after so many rounds, or nothing if there are not so many pages.
    let left_after = |rounds: u64| {
        rooms.iter().try_fold(total, |left: u64, &room| left.checked_sub(room.min(rounds)))
    };
    // The most whole rounds that leave something, bit by bit: what is left says where the last page
    // goes. Callers hold a lock, and going from round to round takes as many steps as there are
    // nodes with different room.
    let (mut rounds, mut left) = (0, total);
    for bit in (0..u64::BITS).rev() {
        let more = rounds | 1 << bit;
        if let Some(rest @ 1..) = left_after(more) {
            (rounds, left) = (more, rest);
        }
    }
    let mut shares = rooms.map(|room| room.min(rounds));
    // At most a round is left: the first nodes from the cursor on get one page each.
    let mut cursor = cursor % MAX_NODES;
    for index in (cursor..MAX_NODES).chain(0..cursor) {
        if left != 0 && rooms[index] > rounds {
            shares[index] += 1;
            left -= 1;
            cursor = (index + 1) % MAX_NODES;
        }
    }
    (shares, total, cursor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    /// Computes the reference, one page at a time.
    fn slowly(total: u64, mut cursor: usize, rooms: &[u64]) -> (Vec<u64>, u64, usize) {
        let mut shares = std::vec![0; rooms.len()];
        let mut given = 0;
        while given < total {
            let next = (0..MAX_NODES).map(|step| (cursor + step) % MAX_NODES);
            let Some(node) = next
                .into_iter()
                .find(|&node| rooms.get(node).is_some_and(|&room| shares[node] < room))
            else {
                break;
            };
            shares[node] += 1;
            given += 1;
            cursor = (node + 1) % MAX_NODES;
        }
        (shares, given, cursor)
    }

    proptest! {
        #[test]
        fn dealing_at_once_is_dealing_one_by_one(
            total in 0_u64..60,
            cursor in 0_usize..70,
            rooms in prop::collection::vec(0_u64..20, 0..7),
        ) {
            let nodes = (0..rooms.len()).filter_map(NodeId::new);
            let nodes = nodes.fold(NodeMask::EMPTY, NodeMask::with);
            let (shares, given, next) = spread(total, cursor, nodes, &|node| rooms[node.index()]);
            let (expected, all, cursor) = slowly(total, cursor % MAX_NODES, &rooms);
            prop_assert_eq!(&shares[..rooms.len()], &expected[..]);
            prop_assert_eq!(given, all);
            prop_assert_eq!(next, cursor);
            prop_assert!(shares[rooms.len()..].iter().all(|&share| share == 0));
        }
    }

    /// Memory that is added makes room at any moment.
    #[test]
    fn room_that_comes_in_between_is_not_taken_twice() {
        let two = NodeMask::only(NodeId::ZERO).with(NodeId::new(1).expect("a node"));
        for looks in 0..6 {
            let looked = std::cell::Cell::new(0);
            let room = |node: NodeId| {
                looked.set(looked.get() + usize::from(node != NodeId::ZERO));
                if node == NodeId::ZERO || looked.get() > looks { 10 } else { 0 }
            };
            let (shares, given, _) = spread(15, 0, two, &room);
            assert_eq!(shares.iter().sum::<u64>(), given, "{looks}");
            assert!((10..=15).contains(&given) && shares.iter().all(|&share| share <= 10));
        }
    }

    #[test]
    fn numbers_without_end_are_dealt_out_at_once() {
        let two = NodeMask::only(NodeId::ZERO).with(NodeId::new(5).expect("a node"));
        let (shares, given, _) = spread(u64::MAX, 0, two, &|_| u64::MAX);
        assert_eq!(given, u64::MAX);
        assert_eq!(shares[0] - shares[5], 1);
    }
}
