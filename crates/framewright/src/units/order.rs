//! Orders: sizes of frame runs that are powers of two.

use super::sizes::{BLOCK_ORDER, MAX_ORDER};
use core::fmt;

/// log2 of a number of frames, 0..=[`MAX_ORDER`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Order(u8);

impl Order {
    /// One page.
    pub const PAGE: Self = Self(0);
    /// One block, 2 MiB.
    pub const BLOCK: Self = Self(BLOCK_ORDER);
    /// The largest order, 1 GiB.
    pub const MAX: Self = Self(MAX_ORDER);

    /// `order`, or `None` when it is above [`MAX_ORDER`].
    #[must_use]
    pub const fn new(order: u8) -> Option<Self> {
        if order <= MAX_ORDER { Some(Self(order)) } else { None }
    }

    /// The smallest order that holds `pages` frames, or `None` when no order does.
    #[must_use]
    pub const fn for_pages(pages: u64) -> Option<Self> {
        if pages > 1 << MAX_ORDER {
            return None;
        }
        // Never the logarithm of 0, for which processors without LZCNT need a branch.
        #[expect(clippy::cast_possible_truncation, reason = "at most 18")]
        let order = (pages.saturating_sub(1) * 2 + 1).ilog2() as u8;
        Some(Self(order))
    }

    /// The order that has `pages` frames, a power of two, or `None` when no order does.
    #[must_use]
    pub(crate) const fn of_power(pages: u64) -> Option<Self> {
        #[expect(clippy::cast_possible_truncation, reason = "at most 63")]
        let order = pages.trailing_zeros() as u8;
        Self::new(order)
    }

    /// The number itself.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// The number of frames in a run of this order.
    #[must_use]
    pub const fn pages(self) -> u64 {
        1 << self.0
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "order {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_hold_their_pages() {
        assert_eq!(Order::for_pages(0), Some(Order::PAGE));
        assert_eq!(Order::for_pages(1), Some(Order::PAGE));
        assert_eq!(Order::for_pages(513).map(Order::get), Some(10));
        assert_eq!(Order::for_pages(1 << 18), Some(Order::MAX));
        assert_eq!(Order::for_pages((1 << 18) + 1), None);
        for pages in 1..=1 << 18 {
            let order = Order::for_pages(pages).map(Order::get);
            assert_eq!(order.map(u32::from), Some(pages.next_power_of_two().trailing_zeros()));
        }
        for order in 0..64 {
            assert_eq!(
                Order::of_power(1 << order).map(Order::get),
                Some(order).filter(|&o| o <= 18)
            );
        }
    }
}
