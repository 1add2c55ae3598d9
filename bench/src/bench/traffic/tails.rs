//! The slowest calls: how long each call took, by its kind and the order of its run.

use super::histogram::Histogram;
use crate::rows::{Measured, Tail};
use framewright::units::Order;
use std::ops::RangeInclusive;
use std::time::Duration;

/// The names of classes of orders, and the orders that each counts.
const CLASSES: [(&str, RangeInclusive<u8>); 4] =
    [("0", 0..=0), ("1-3", 1..=3), ("4-8", 4..=8), ("9", 9..=9)];
/// The name for all orders together.
pub const ALL: &str = "all";
/// The names of calls, by [`Call`].
pub const OPERATIONS: [&str; 3] = ["get", "put", "refused"];

/// The kinds of calls, which are counted separately.
#[derive(Clone, Copy)]
pub enum Call {
    /// All gets, including refused ones.
    Get,
    Put,
    /// Gets that found no memory; they count here, too.
    Refused,
}

/// The names of the classes of orders.
pub fn classes() -> impl Iterator<Item = &'static str> {
    CLASSES.iter().map(|(name, _)| *name)
}

/// The times of calls.
pub struct Tails {
    /// One histogram for each of [`OPERATIONS`] and each class.
    histograms: [[Histogram; CLASSES.len()]; OPERATIONS.len()],
}

impl Tails {
    /// Starts without calls.
    pub fn new() -> Self {
        let none = |_| std::array::from_fn(|_| Histogram::new());
        Self { histograms: std::array::from_fn(none) }
    }

    /// Counts a call.
    #[inline]
    pub fn count(&mut self, call: Call, order: Order, took: Duration) {
        self.histograms[call as usize][class(order)].count(took);
    }

    /// Adds the calls of another thread.
    pub fn add(&mut self, other: &Self) {
        let all = self.histograms.as_flattened_mut().iter_mut();
        all.zip(other.histograms.as_flattened()).for_each(|(sum, one)| sum.add(one));
    }

    /// A row for each kind of call that occurred, for all orders and for each class; `like` has the
    /// trace and the allocator.
    pub fn rows(&self, like: &Tail) -> Vec<Tail> {
        let mut rows = Vec::new();
        for (operation, histograms) in OPERATIONS.iter().zip(&self.histograms) {
            let mut all = Histogram::new();
            histograms.iter().for_each(|one| all.add(one));
            let each = classes().zip(histograms);
            let each = std::iter::once((ALL, &all)).chain(each).filter(|(_, one)| one.calls() != 0);
            rows.extend(each.map(|(orders, one)| Tail {
                operation: (*operation).into(),
                orders: orders.into(),
                calls: Measured(Some(one.calls())),
                p50_ns: Measured(one.all_but(2)),
                p99_ns: Measured(one.all_but(100)),
                p99_9_ns: Measured(one.all_but(1000)),
                p99_99_ns: Measured(one.all_but(10_000)),
                max_ns: Measured(one.longest()),
                ..like.clone()
            }));
        }
        rows
    }
}

/// The class of an order.
#[inline]
fn class(order: Order) -> usize {
    match order.get() {
        0 => 0,
        1..=3 => 1,
        4..=8 => 2,
        _ => 3,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_that_have_names() {
        for (index, (_, orders)) in CLASSES.iter().enumerate() {
            let mut orders = orders.clone().filter_map(Order::new);
            assert!(orders.all(|order| class(order) == index));
        }
    }

    #[test]
    fn rows_are_of_calls_that_there_were() {
        let mut tails = Tails::new();
        let ns = Duration::from_nanos;
        (0..2000).for_each(|time| tails.count(Call::Get, Order::PAGE, ns(time)));
        let mut other = Tails::new();
        other.count(Call::Get, Order::BLOCK, ns(9000));
        tails.add(&other);
        let rows = tails.rows(&Tail { allocator: "a".into(), ..Tail::default() });
        let orders: Vec<_> = rows.iter().map(|row| (&*row.operation, &*row.orders)).collect();
        assert_eq!(orders, [("get", "all"), ("get", "0"), ("get", "9")]);
        let [all, page, block] = &rows[..] else { panic!("three rows") };
        assert_eq!((all.calls.get(), all.max_ns.get()), (Some(2001), Some(9000)));
        assert_eq!((page.max_ns.get(), page.p99_99_ns.get()), (Some(1999), None));
        assert!(page.p50_ns.get().is_some_and(|ns| (1000..1032).contains(&ns)));
        // The longest of one call is known, and nothing else.
        assert_eq!((block.p50_ns.get(), block.max_ns.get()), (None, Some(9000)));
        assert!(rows.iter().all(|row| row.allocator == "a"));
    }
}
