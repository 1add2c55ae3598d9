//! The number of free heads in each GiB, by order. A search by address uses it to find the lowest
//! free block of at least some order.
//!
//! The lists are sorted by order, not by address. A group of 512 blocks has at most 512 heads of
//! order 9, 256 of order 10 and so on down to two of order 17, so the counts of these nine orders
//! fit into one word, with larger orders in higher bits. A group has a head of at least some order
//! exactly when its word is at least what one such head adds. Heads of order 18 are not counted:
//! the group's first entry shows them.
//!
//! A word is meaningful only while its group is ready. All of it is used under the zone lock.
//!
//! Orders of memory: Relaxed: words are written under the zone lock, which orders them.

use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::{BLOCK_ORDER, MAX_ORDER, Order};

/// The number of blocks in a GiB: of the entries in a group, which share a word.
pub(crate) const GROUP: u32 = 1 << (MAX_ORDER - BLOCK_ORDER);
/// The number of orders of blocks.
const BLOCK_ORDERS: usize = (MAX_ORDER - BLOCK_ORDER) as usize + 1;

fn slot(order: Order) -> usize {
    usize::from(order.get() - BLOCK_ORDER)
}

/// What one head of each order adds to its group's word, order 9 first. The last order is not
/// counted.
const ONE: [u64; BLOCK_ORDERS] = ones();

const fn ones() -> [u64; BLOCK_ORDERS] {
    let mut ones = [0; BLOCK_ORDERS];
    let (mut shift, mut slot) = (0, 0);
    // Enough bits to count the heads that fill a group.
    let mut bits = GROUP.ilog2() + 1;
    while slot < BLOCK_ORDERS - 1 {
        ones[slot] = 1 << shift;
        shift += bits;
        bits -= 1;
        slot += 1;
    }
    assert!(shift <= u64::BITS);
    ones
}

/// See the module documentation. This is a handle: copies refer to the same words.
#[derive(Clone, Copy)]
pub(crate) struct FreeHeads(&'static [AtomicU64]);

impl FreeHeads {
    pub(crate) const EMPTY: Self = Self(&[]);

    /// Uses `words`, one per group, of any content.
    pub(crate) const fn new(words: &'static [AtomicU64]) -> Self {
        Self(words)
    }

    /// Notes that a group has no free heads.
    pub(super) fn clear(self, group: u32) {
        if let Some(word) = self.0.get(group as usize) {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Counts a block at `index` that became a free head.
    pub(super) fn add(self, index: u32, order: Order) {
        self.change(index, ONE[slot(order)]);
    }

    /// Counts blocks of a group that became free heads; `sum` adds up their
    /// [`one_of`](Self::one_of).
    #[inline(never)]
    pub(super) fn add_heads(self, group: u32, sum: u64) {
        if sum != 0 {
            self.change(group.wrapping_mul(GROUP), sum);
        }
    }

    /// Returns what one head adds to its group's word; its order is `level` above a block's.
    #[inline]
    pub(super) const fn one_of(level: usize) -> u64 {
        ONE[level]
    }

    /// Uncounts a block at `index` that is no longer a free head.
    pub(super) fn remove(self, index: u32, order: Order) {
        self.change(index, ONE[slot(order)].wrapping_neg());
    }

    fn change(self, index: u32, by: u64) {
        if let Some(word) = self.0.get((index / GROUP) as usize) {
            word.store(word.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
        }
    }

    /// Returns whether a group that is ready has a free head of at least `order`, which must be
    /// below 18.
    pub(super) fn has(self, group: u32, order: Order) -> bool {
        let one = ONE[slot(order)];
        let word = self.0.get(group as usize).map_or(0, |word| word.load(Ordering::Relaxed));
        one != 0 && word >= one
    }

    /// Returns the word of a group, for verification.
    pub(crate) fn word(self, group: u32) -> u64 {
        self.0.get(group as usize).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Returns what one head of `order` adds to a word, for verification.
    pub(crate) fn one(order: Order) -> u64 {
        ONE[slot(order)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_group_full_of_one_order_has_that_and_nothing_larger() {
        let words: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(u64::MAX)).collect();
        let heads = FreeHeads::new(words.leak());
        let order = |of| Order::new(of).expect("small");
        heads.clear(1);
        for of in 9..18_u8 {
            let step = 1 << (of - 9);
            for index in (GROUP..2 * GROUP).step_by(step) {
                heads.add(index, order(of));
                for other in 9..18 {
                    assert_eq!(heads.has(1, order(other)), other <= of, "{of} {other}");
                }
            }
            for index in (GROUP..2 * GROUP).step_by(step) {
                heads.remove(index, order(of));
            }
            assert_eq!(heads.word(1), 0);
        }
        // Heads of order 18 are not counted.
        heads.add(GROUP, order(18));
        assert!(heads.word(1) == 0 && !heads.has(1, order(18)));
    }
}
