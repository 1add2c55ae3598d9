//! The order in which a request asks the nodes for memory.
//!
//! A node's list changes when some node gets its first memory or moves to another tier. A reader
//! that meets a half-changed list may see some node twice, but misses no node that was in the list
//! before: it reads the length again after each node, and at the end of the list it checks whether
//! the order changed meanwhile; if so, it starts again. So a reader that finds what it wants never
//! waits.
//!
//! Orders of memory: Acquire pairs with Release: a reader that sees a moved node also sees the
//! length that belongs to the move and the mark that the order is being changed. Relaxed: for words
//! that only the thread that changes the list reads, and for lists that nobody else has yet.

use crate::sync::table_atomic::{AtomicU16, Ordering};
use crate::units::{MAX_NODES, NodeId};
use crate::zone::fallback::Rank;
use core::fmt;

/// How many places come before those of the nodes: the length, and the turn, which counts each
/// change of the order twice, so that it is odd during the change.
const HEAD: usize = 2;

/// The nodes that have or once had memory, in the order in which they are asked.
#[derive(Clone, Copy)]
pub struct Fallback {
    /// [`HEAD`], then a place for each node.
    places: &'static [AtomicU16],
}

/// One pass over a list.
#[derive(Clone)]
pub(crate) struct Walk {
    list: Fallback,
    next: usize,
    /// The list's turn when the pass began.
    turn: u16,
}

impl Iterator for Walk {
    type Item = NodeId;

    #[inline(never)]
    fn next(&mut self) -> Option<NodeId> {
        loop {
            if let Some(node) = self.list.at(self.next) {
                self.next += 1;
                return Some(node);
            }
            let turn = self.list.turn();
            if MAX_NODES == 1 || turn == self.turn && turn.is_multiple_of(2) {
                return None;
            }
            // A node that was still ahead may have moved behind this position.
            (self.turn, self.next) = (turn, 0);
        }
    }
}

impl Fallback {
    pub(crate) const NONE: Self = Self { places: &[] };

    /// Returns how many places a list needs on a machine with `nodes` nodes.
    pub(crate) const fn places(nodes: usize) -> usize {
        nodes + HEAD
    }

    /// Returns a list of `nodes` in `places`, which nobody else uses.
    pub(crate) fn new(places: &'static [AtomicU16], nodes: &[NodeId]) -> Self {
        for (place, node) in places.iter().skip(HEAD).zip(nodes) {
            place.store(number(*node), Ordering::Relaxed);
        }
        let fallback = Self { places };
        fallback.set_len(nodes.len());
        fallback
    }

    fn len(self) -> usize {
        self.places.first().map_or(0, |len| usize::from(len.load(Ordering::Acquire)))
    }

    fn set_len(self, len: usize) {
        if let Some(place) = self.places.first() {
            place.store(u16::try_from(len).unwrap_or(0), Ordering::Release);
        }
    }

    /// Returns twice the number of changes of the order, plus one during a change.
    fn turn(self) -> u16 {
        self.places.get(1).map_or(0, |turn| turn.load(Ordering::Acquire))
    }

    /// Returns the nodes, in the order in which they are asked.
    pub fn iter(self) -> impl Iterator<Item = NodeId> + Clone {
        self.walk()
    }

    pub(crate) fn walk(self) -> Walk {
        Walk { list: self, next: 0, turn: self.turn() }
    }

    fn at(self, at: usize) -> Option<NodeId> {
        let place = self.places.get(at + HEAD).filter(|_| at < self.len())?;
        NodeId::new(usize::from(place.load(Ordering::Acquire)))
    }

    /// Inserts a node, unless it is there, before the nodes of a higher rank. Moves those from the
    /// last one on, so that a concurrent reader meets each of them. Nobody else changes the list
    /// meanwhile.
    pub(crate) fn insert(self, node: NodeId, rank: &dyn Fn(NodeId) -> Rank) {
        let len = self.len();
        if self.iter().any(|listed| listed == node) || len + HEAD >= self.places.len() {
            return;
        }
        let place = self.iter().position(|listed| rank(listed) > rank(node)).unwrap_or(len);
        let listed = self.places.split_at(HEAD).1;
        // Duplicate the last node, then raise the length, then move the others.
        for index in (place..len).rev() {
            let moved = listed[index].load(Ordering::Relaxed);
            listed[index + 1].store(moved, Ordering::Release);
            if index + 1 == len {
                self.set_len(len + 1);
            }
        }
        listed[place].store(number(node), Ordering::Release);
        self.set_len(len + 1);
    }

    /// Sorts the nodes by rank. Nobody else changes the list meanwhile.
    pub(crate) fn sort(self, rank: &dyn Fn(NodeId) -> Rank) {
        let Some(listed) = self.places.get(HEAD..HEAD + self.len()) else { return };
        let rank_of = |place: &AtomicU16| {
            // Relaxed: only this thread changes the list.
            NodeId::new(usize::from(place.load(Ordering::Relaxed))).map(rank)
        };
        if listed.is_sorted_by_key(rank_of) {
            return;
        }
        let turn = self.turn();
        // Relaxed, as each node is stored with Release below: a reader that sees a moved node sees
        // that the turn is odd.
        self.places[1].store(turn.wrapping_add(1), Ordering::Relaxed);
        for end in 1..listed.len() {
            let mut at = end;
            while at > 0 && rank_of(&listed[at]) < rank_of(&listed[at - 1]) {
                let [before, after] = [at - 1, at].map(|at| listed[at].load(Ordering::Relaxed));
                listed[at].store(before, Ordering::Release);
                listed[at - 1].store(after, Ordering::Release);
                at -= 1;
            }
        }
        self.places[1].store(turn.wrapping_add(2), Ordering::Release);
    }
}

fn number(node: NodeId) -> u16 {
    u16::try_from(node.index()).unwrap_or(u16::MAX)
}

impl fmt::Debug for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::zone::fallback::Candidate;
    use std::boxed::Box;
    use std::vec::Vec;

    fn node(number: usize) -> NodeId {
        NodeId::new(number).expect("a node")
    }

    fn list(room: usize, nodes: &[NodeId]) -> Fallback {
        let places: Vec<AtomicU16> = (0..HEAD + room).map(|_| AtomicU16::new(0)).collect();
        Fallback::new(Box::leak(places.into_boxed_slice()), nodes)
    }

    /// The rank of a node at this distance.
    fn far(of: NodeId, distance: u8) -> Rank {
        let candidate = Candidate { node: of, distance, tier: 4, has_cpus: true };
        Rank::of(node(9), 10, &candidate)
    }

    /// Wherever a reader is when a node is inserted, it meets all nodes that were there.
    #[test]
    fn who_reads_meanwhile_misses_none() {
        for read in 0..=3 {
            for nearest in 0..=3 {
                let old = [node(0), node(1), node(2)];
                let list = list(4, &old);
                let mut reader = list.iter();
                let mut met: Vec<NodeId> = reader.by_ref().take(read).collect();
                let distance = |of: NodeId| u8::try_from(10 + 2 * of.index()).expect("near");
                let new = u8::try_from(9 + 2 * nearest).expect("near");
                list.insert(node(3), &|of| far(of, if of == node(3) { new } else { distance(of) }));
                met.extend(reader);
                assert!(old.iter().all(|node| met.contains(node)), "{read} {nearest}: {met:?}");
                assert_eq!(list.iter().nth(nearest), Some(node(3)));
            }
        }
    }

    /// Nor does a reader miss a node when nodes change places: tries all orders of four nodes, and
    /// the reader at each position.
    #[test]
    fn who_reads_while_nodes_change_places_misses_none() {
        for read in 0..=4 {
            for order in 0..4_usize.pow(4) {
                let old = [0, 1, 2, 3].map(node);
                let list = list(4, &old);
                let mut reader = list.iter();
                let mut met: Vec<NodeId> = reader.by_ref().take(read).collect();
                let distance = |of: NodeId| {
                    let digit = order / 4_usize.pow(of.number()) % 4;
                    far(of, u8::try_from(10 + digit).expect("near"))
                };
                list.sort(&distance);
                met.extend(reader);
                assert!(old.iter().all(|node| met.contains(node)), "{read} {order}: {met:?}");
                assert!(list.iter().is_sorted_by_key(distance));
                assert_eq!(list.iter().count(), 4);
            }
        }
    }

    /// A reader that begins while the order is being changed does not stop at what it met until
    /// then.
    #[test]
    fn who_begins_in_the_middle_begins_again() {
        let list = list(2, &[node(0), node(1)]);
        list.places[1].store(1, Ordering::Relaxed);
        list.places[HEAD + 1].store(0, Ordering::Relaxed);
        let mut reader = list.iter();
        assert_eq!([reader.next(), reader.next()], [Some(node(0)); 2]);
        list.places[HEAD].store(1, Ordering::Relaxed);
        list.places[1].store(2, Ordering::Relaxed);
        assert_eq!(reader.collect::<Vec<_>>(), [node(1), node(0)]);
    }
}
