//! In which order nodes are asked.
//!
//! A list changes when a node gets its first memory or another tier. A reader that finds it half
//! changed meets a node twice, and misses none that was there before: he asks for the length again
//! after each node, and when there is none left, whether the order changed on his way; then he
//! begins anew. So nobody waits who finds what he wants.
//!
//! Orders of memory: Acquire pairs with Release: who reads a node that moved sees the length that
//! it moved under, and that the order is being changed. Relaxed: what only the one who changes the
//! list reads, and lists that nobody else has yet.

use crate::sync::table_atomic::{AtomicU16, Ordering};
use crate::units::{MAX_NODES, NodeId};
use crate::zone::fallback::Rank;
use core::fmt;

/// Places before those of nodes: how many there are, and how often their order changed, twice for
/// each time, so that it is odd meanwhile.
const HEAD: usize = 2;

/// The nodes that have, or once had, memory, in the order in which they are asked.
#[derive(Clone, Copy)]
pub struct Fallback {
    /// [`HEAD`], then a place for each node.
    places: &'static [AtomicU16],
}

/// One way through a list.
#[derive(Clone)]
pub(crate) struct Walk {
    list: Fallback,
    next: usize,
    /// The count of orders that it began under.
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
            // One that was behind may be before now.
            (self.turn, self.next) = (turn, 0);
        }
    }
}

impl Fallback {
    pub(crate) const NONE: Self = Self { places: &[] };

    /// How many places the list of one of so many nodes has.
    pub(crate) const fn places(nodes: usize) -> usize {
        nodes + HEAD
    }

    /// The list of `nodes` in places of its own.
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

    /// How often the order changed.
    fn turn(self) -> u16 {
        self.places.get(1).map_or(0, |turn| turn.load(Ordering::Acquire))
    }

    /// Each node, those first that are asked first.
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

    /// Puts a node in that is not in it, before those of a higher rank. The others move from the
    /// last one on, so that whoever reads meanwhile meets each. Nobody else changes the list.
    pub(crate) fn insert(self, node: NodeId, rank: &dyn Fn(NodeId) -> Rank) {
        let len = self.len();
        if self.iter().any(|listed| listed == node) || len + HEAD >= self.places.len() {
            return;
        }
        let place = self.iter().position(|listed| rank(listed) > rank(node)).unwrap_or(len);
        let listed = self.places.split_at(HEAD).1;
        // The last one twice, then the length, then the others.
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

    /// Puts the nodes in order by rank. Nobody else changes the list.
    pub(crate) fn sort(self, rank: &dyn Fn(NodeId) -> Rank) {
        let Some(listed) = self.places.get(HEAD..HEAD + self.len()) else { return };
        let rank_of = |place: &AtomicU16| {
            // Relaxed: only who is here changes it.
            NodeId::new(usize::from(place.load(Ordering::Relaxed))).map(rank)
        };
        if listed.is_sorted_by_key(rank_of) {
            return;
        }
        let turn = self.turn();
        // Release on each node behind it: who reads one that moved sees that the turn is odd.
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

    /// By a number for each node: its distance.
    fn far(of: NodeId, distance: u8) -> Rank {
        let candidate = Candidate { node: of, distance, tier: 4, has_cpus: true };
        Rank::of(node(9), 10, &candidate)
    }

    /// Wherever a reader is when a node comes, it meets all those that were there.
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

    /// When nodes change places he misses none either: all orders of four, wherever a reader is.
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

    /// Who comes while the order is being changed does not end on what he met.
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
