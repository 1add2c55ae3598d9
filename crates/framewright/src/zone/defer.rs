//! How long compaction is skipped after it failed (`defer_compaction`, `compaction_deferred` and
//! `compaction_defer_reset` in Linux's `mm/compaction.c`).
//!
//! Each failure doubles the number of requests until the next try, from 2 to 64. Requests of a
//! smaller order than any that failed are not affected. A success ends the deferral.
//!
//! ```
//! use framewright::units::Order;
//! use framewright::zone::Defer;
//!
//! let mut defer = Defer::new();
//! assert!(!defer.skips(Order::BLOCK));
//! defer.failed(Order::BLOCK);
//! assert!(defer.skips(Order::BLOCK)); // The first of two,
//! assert!(!defer.skips(Order::BLOCK)); // and the second is tried.
//! ```

use crate::units::{MAX_ORDER, Order};

/// After many failures one in 2^6 requests is still tried.
const MOST_SHIFT: u8 = 6;
/// Stands for no order.
const NONE: u8 = MAX_ORDER + 1;

/// The history of failures of compaction on a node, for requests that may have the memory of one
/// zone and those below it. Its holder must not let two callers use it at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Defer {
    /// Requests since the last failure for which compaction was considered.
    considered: u8,
    /// One in 2^`shift` of them is tried.
    shift: u8,
    /// Compaction is expected to fail for requests of this order and above.
    failed_order: u8,
}

impl Default for Defer {
    fn default() -> Self {
        Self::new()
    }
}

impl Defer {
    /// Nothing has failed yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { considered: 0, shift: 0, failed_order: NONE }
    }

    /// The smallest order that failed, if any did.
    #[must_use]
    pub const fn failed_order(&self) -> Option<Order> {
        Order::new(self.failed_order)
    }

    /// Whether to skip compaction for a request of `order`. This counts the request.
    pub const fn skips(&mut self, order: Order) -> bool {
        if order.get() < self.failed_order {
            return false;
        }
        let limit = 1 << self.shift;
        if self.considered < limit {
            self.considered += 1;
        }
        self.considered < limit
    }

    /// Lets the next request be tried, whatever its order.
    pub const fn allow(&mut self) {
        self.considered = 1 << self.shift;
    }

    /// Records that compaction failed for a request of `order`.
    pub const fn failed(&mut self, order: Order) {
        self.considered = 0;
        if self.shift < MOST_SHIFT {
            self.shift += 1;
        }
        if order.get() < self.failed_order {
            self.failed_order = order.get();
        }
    }

    /// Records that compaction made room for a request of `order`. The request may not have got it:
    /// others may have taken it, or there was no request.
    pub const fn made_room(&mut self, order: Order) {
        // Raise the order only if something failed: otherwise no order is known to fail.
        if order.get() >= self.failed_order {
            self.failed_order = order.get() + 1;
        }
    }

    /// Records that a request of `order` got its memory after compaction.
    pub const fn succeeded(&mut self, order: Order) {
        self.considered = 0;
        self.shift = 0;
        self.made_room(order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn order(order: u8) -> Order {
        Order::new(order).expect("an order")
    }

    /// How many requests it takes until one is tried.
    fn requests(defer: &mut Defer, order: Order) -> u32 {
        (1..1000).find(|_| !defer.skips(order)).expect("tried some time")
    }

    #[test]
    fn tries_become_rare_and_a_success_ends_that() {
        let mut defer = Defer::new();
        assert_eq!((defer.failed_order(), requests(&mut defer, Order::BLOCK)), (None, 1));
        for expected in [2, 4, 8, 16, 32, 64, 64, 64] {
            defer.failed(Order::BLOCK);
            assert_eq!(requests(&mut defer, Order::BLOCK), expected);
            assert!(!defer.skips(order(3)), "a smaller order");
        }
        assert_eq!(defer.failed_order(), Some(Order::BLOCK));
        // Until the try has ended, all other requests are tried, too.
        assert_eq!(requests(&mut defer, Order::BLOCK), 1);
        defer.succeeded(Order::BLOCK);
        assert_eq!((defer.failed_order(), requests(&mut defer, Order::MAX)), (Order::new(10), 1));
        defer.failed(Order::BLOCK);
        assert_eq!(requests(&mut defer, Order::BLOCK), 2);
    }

    #[test]
    fn the_smallest_order_that_failed_counts() {
        let mut defer = Defer::new();
        defer.failed(Order::BLOCK);
        defer.failed(order(4));
        assert_eq!(defer.failed_order(), Order::new(4));
        assert!(defer.skips(order(4)) && defer.skips(Order::MAX) && !defer.skips(order(3)));
        // Room for a larger request means that smaller ones have it, too. It does not end the wait.
        defer.made_room(order(5));
        assert_eq!(defer.failed_order(), Order::new(6));
        assert!(!defer.skips(order(5)) && defer.skips(order(6)));
        defer.made_room(order(3));
        assert_eq!(defer.failed_order(), Order::new(6));
        defer.succeeded(Order::MAX);
        assert_eq!(defer, Defer::new());
    }

    proptest! {
        /// The model is a history: requests since the last failure, and failures since the last
        /// success.
        #[test]
        fn it_is_as_its_history_says(calls in vec((0_u8..4, 0_u8..=18), 0..400)) {
            let mut defer = Defer::new();
            let (mut failures, mut since, mut smallest) = (0_u32, 0_u32, 19);
            for (call, of) in calls {
                match call {
                    0 => {
                        defer.failed(order(of));
                        failures += 1;
                        since = 0;
                        smallest = of.min(smallest);
                    }
                    1 => {
                        defer.succeeded(order(of));
                        (failures, since) = (0, 0);
                        if of >= smallest {
                            smallest = of + 1;
                        }
                    }
                    _ => {
                        let skips = of >= smallest && {
                            since += 1;
                            since < 1 << failures.min(6)
                        };
                        prop_assert_eq!(defer.skips(order(of)), skips);
                    }
                }
                prop_assert_eq!(defer.failed_order(), Order::new(smallest));
            }
        }
    }
}
