//! Targets of allocation.

use super::Sample;
use super::sample::{over, threads, words};
use crate::rows::{Alloc, Rows};
use std::cmp::Ordering;

const COMMAND: &str = "alloc";
pub(super) const OURS: &str = "framewright";
pub(super) const PEERS: [&str; 2] = ["buddy_system_allocator", "frame-alloc"];
const REQUEST: &str = "allocate_order and free_order";

/// Which value of a row is judged.
type Half = fn(&Alloc) -> Option<f64>;

fn get(row: &Alloc) -> Option<f64> {
    row.alloc_ns.middle
}

fn put(row: &Alloc) -> Option<f64> {
    row.free_ns.middle
}

// All are ratios to other measurements of one run, as times alone depend on the machine.
targets! { TARGETS:
    Allocation, COMMAND, "faster-than-peers",
        "Every row: time over that of the faster of two Rust allocators",
        <= 0.67 "x", "buddy_system_allocator, frame-alloc", over_peers;
    Allocation, COMMAND, "any-request",
        "allocate and free, orders 0, 3 and 9: pair over that of the calls for one order",
        <= 1.3 "x", REQUEST,
        |rows| pairs(rows, "request pair", &[0, 3, 9], "pair");
    Allocation, COMMAND, "any-size",
        "3 and 384 pages, pair over that of a request for 4 and 512",
        <= 1.5 "x", "the order above", |rows| pairs(rows, "odd pair", &[2, 9], "request pair");
    Allocation, COMMAND, "own-node-full",
        "The caller's node is full, orders 0 and 9: pair over that with memory there",
        <= 1.5 "x", "own node", |rows| pairs(rows, "away pair", &[0, 9], "own node pair");
    Allocation, COMMAND, "two-threads", "Cached orders: two threads over one, per operation",
        <= 1.5 "x", "one thread", two_threads;
}

/// Pairs of one pattern by one thread over those of another.
fn pairs(rows: &Rows, pattern: &str, orders: &[u64], other: &str) -> Vec<Sample> {
    let of = |pattern: &str| {
        let pattern = pattern.to_owned();
        rows.alloc
            .iter()
            .filter(move |row| row.allocator == OURS && row.pattern == pattern && row.threads == 1)
    };
    let place = |row: &Alloc| words(&[&row.place(), &row.pattern]);
    let ours = of(pattern).filter(|row| orders.contains(&row.order));
    over(ours, of(other), |row| (row.managed_gib, row.order), get, place)
}

/// The name of each half of a row.
const HALVES: [(Half, &str); 2] = [(get, "get"), (put, "put")];

/// Get, put and pair of orders that CPUs cache, two threads over one.
fn two_threads(rows: &Rows) -> Vec<Sample> {
    let of = |threads: u64| {
        rows.alloc.iter().filter(move |row| {
            row.allocator == OURS
                && row.threads == threads
                && matches!(row.order, 0..=3 | 9)
                && matches!(row.pattern.as_str(), "bulk" | "pair")
        })
    };
    let compared = HALVES.into_iter().flat_map(|(half, word)| {
        let key = |row| (Alloc::place(row), row.pattern.as_str());
        over(of(2), of(1), key, half, |row| words(&[word, &row.place(), &row.pattern]))
    });
    compared.collect()
}

/// Each operation of a row against the faster of the peers' corresponding rows.
fn over_peers(rows: &Rows) -> Vec<Sample> {
    let compared = HALVES.into_iter().flat_map(|(half, word)| {
        let key = |row: &Alloc| (row.place(), row.pattern.clone(), row.threads);
        let place = |row: &Alloc| words(&[word, &row.place(), &row.pattern, &threads(row.threads)]);
        let ours = rows.alloc.iter().filter(|row| row.allocator == OURS && get(row).is_some());
        let is_peer = |row: &&Alloc| PEERS.contains(&&*row.allocator) && half(row).is_some();
        let mut peers: Vec<&Alloc> = rows.alloc.iter().filter(is_peer).collect();
        // Of several rows the last one counts.
        peers.sort_by(|one, other| half(other).partial_cmp(&half(one)).unwrap_or(Ordering::Equal));
        over(ours, peers, key, half, place)
    });
    compared.collect()
}

impl Alloc {
    /// The machine and the order.
    fn place(&self) -> String {
        format!("{} GiB, order {}", self.managed_gib, self.order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn each_time_is_compared_with_the_faster_peer_once() {
        let row = |allocator: &str, order: u64, get: f64, put: Option<f64>| {
            json!({ "bench": "alloc", "allocator": allocator, "managed_gib": 8, "order": order,
                "pattern": "bulk", "threads": 1, "alloc_ns": get, "free_ns": put })
        };
        let rows = Rows::of(&[
            row(OURS, 0, 10.0, Some(30.0)),
            row(PEERS[0], 0, 20.0, Some(60.0)),
            row(PEERS[1], 0, 40.0, Some(15.0)),
            row(OURS, 9, 3.0, None),
            row(PEERS[1], 9, 4.0, None),
        ]);
        let samples = over_peers(&rows);
        let found: Vec<(f64, &str)> =
            samples.iter().map(|sample| (sample.value, sample.place.as_str())).collect();
        assert_eq!(
            found,
            [
                (0.5, "get, 8 GiB, order 0, bulk, 1 thread"),
                (0.75, "get, 8 GiB, order 9, bulk, 1 thread"),
                (2.0, "put, 8 GiB, order 0, bulk, 1 thread"),
            ]
        );
    }

    #[test]
    fn pairs_are_compared_on_the_machine_and_the_order_that_they_are_of() {
        let row = |pattern: &str, order: u64, threads: u64, ns: f64| {
            json!({ "bench": "alloc", "allocator": OURS, "managed_gib": 8, "order": order,
                "pattern": pattern, "threads": threads, "alloc_ns": ns })
        };
        let rows: Vec<Value> = vec![
            row("pair", 0, 1, 10.0),
            row("pair", 9, 1, 20.0),
            row("pair", 9, 2, 99.0),
            row("request pair", 0, 1, 12.0),
            row("request pair", 2, 1, 10.0),
            row("request pair", 9, 1, 22.0),
            row("odd pair", 2, 1, 14.0),
            row("own node pair", 9, 1, 20.0),
            row("away pair", 9, 1, 50.0),
        ];
        let rows = Rows::of(&rows);
        let values = |id: &str| -> Vec<f64> {
            let target = TARGETS.iter().find(|target| target.id == id).expect("there is one");
            (target.measure)(&rows).iter().map(|sample| sample.value).collect()
        };
        assert_eq!(values("any-request"), [1.2, 1.1]);
        assert_eq!((values("any-size"), values("own-node-full")), (vec![1.4], vec![2.5]));
    }
}
