//! In which order nodes are asked.
//!
//! Orders of memory: Relaxed: a list changes when a node gets its first memory. A reader that finds
//! it half changed meets a node twice, and misses none that was there before.

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
        self.places.first().map_or(0, |len| usize::from(len.load(Ordering::Relaxed)))
    }

    fn set_len(self, len: usize) {
        if let Some(place) = self.places.first() {
            place.store(u16::try_from(len).unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// Each node, nearest first.
    pub fn iter(self) -> impl Iterator<Item = NodeId> + Clone {
        let listed = self.places.iter().skip(1).take(self.len());
        listed.filter_map(|place| NodeId::new(usize::from(place.load(Ordering::Relaxed))))
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
            listed[index + 1].store(moved, Ordering::Relaxed);
            if index + 1 == len {
                self.set_len(len + 1);
            }
        }
        listed[place].store(number(node), Ordering::Relaxed);
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
