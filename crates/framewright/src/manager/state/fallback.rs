//! In which order nodes are asked.
//!
//! Orders of memory: a list changes when a node gets its first memory. A reader that finds it half
//! changed meets a node twice, and misses none that was there before: it asks for the length again
//! after each node. Acquire pairs with Release: who reads a node that moved sees the length that
//! it moved under. Relaxed: what only the one who changes the list reads, and lists that nobody
//! else has yet.

use crate::firmware::UNREACHABLE_DISTANCE;
use crate::sync::table_atomic::{AtomicU16, Ordering};
use crate::units::NodeId;
use core::fmt;

/// The nodes that have, or once had, memory, nearest to a node first.
#[derive(Clone, Copy)]
pub struct Fallback {
    /// First how many there are, then they; a place for each node.
    places: &'static [AtomicU16],
}

impl Fallback {
    pub(crate) const NONE: Self = Self { places: &[] };

    /// How many places the list of one of so many nodes has.
    pub(crate) const fn places(nodes: usize) -> usize {
        nodes + 1
    }

    /// The list of `nodes` in places of its own.
    pub(crate) fn new(places: &'static [AtomicU16], nodes: &[NodeId]) -> Self {
        for (place, node) in places.iter().skip(1).zip(nodes) {
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

    /// Each node, nearest first.
    pub fn iter(self) -> impl Iterator<Item = NodeId> + Clone {
        let mut next = 0;
        core::iter::from_fn(move || {
            next += 1;
            self.at(next - 1)
        })
    }

    /// The node at a place, nearest first.
    #[inline(never)]
    pub(crate) fn at(self, at: usize) -> Option<NodeId> {
        let place = self.places.get(at + 1).filter(|_| at < self.len())?;
        NodeId::new(usize::from(place.load(Ordering::Acquire)))
    }

    /// Puts a node in that is not in it, before those that are farther away. `distance` is how far
    /// a node is. The others move from the last one on, so that whoever reads meanwhile meets each.
    pub(crate) fn insert(self, node: NodeId, distance: &dyn Fn(NodeId) -> u8) {
        let len = self.len();
        if self.iter().any(|listed| listed == node) || len + 1 >= self.places.len() {
            return;
        }
        let far = |node| (distance(node) == UNREACHABLE_DISTANCE, distance(node));
        let place = self.iter().position(|listed| far(listed) > far(node)).unwrap_or(len);
        let listed = self.places.split_at(1).1;
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
    use std::boxed::Box;
    use std::vec::Vec;

    /// Wherever a reader is when a node comes, it meets all those that were there.
    #[test]
    fn who_reads_meanwhile_misses_none() {
        let node = |number| NodeId::new(number).expect("a node");
        for read in 0..=3 {
            for nearest in 0..=3 {
                let places: Vec<AtomicU16> = (0..5).map(|_| AtomicU16::new(0)).collect();
                let old = [node(0), node(1), node(2)];
                let list = Fallback::new(Box::leak(places.into_boxed_slice()), &old);
                let mut reader = list.iter();
                let mut met: Vec<NodeId> = reader.by_ref().take(read).collect();
                let far = |of: NodeId| u8::try_from(10 + 2 * of.index()).expect("near");
                let new = u8::try_from(9 + 2 * nearest).expect("near");
                list.insert(node(3), &|of| if of == node(3) { new } else { far(of) });
                met.extend(reader);
                assert!(old.iter().all(|node| met.contains(node)), "{read} {nearest}: {met:?}");
                assert_eq!(list.iter().nth(nearest), Some(node(3)));
            }
        }
    }
}
