//! Allocation.

use super::Sample;
use super::sample::{over, samples, threads, words};
use crate::rows::{Alloc, Rows};

const COMMAND: &str = "alloc";
pub(super) const OURS: &str = "framewright";
pub(super) const PEERS: [&str; 2] = ["buddy_system_allocator", "frame-alloc"];
const LARGE_GIB: u64 = 1024;

/// What of a row is measured.
type Half = fn(&Alloc) -> Option<f64>;

fn get(row: &Alloc) -> Option<f64> {
    row.alloc_ns.middle
}

fn put(row: &Alloc) -> Option<f64> {
    row.free_ns.middle
}

fn gib(row: &Alloc) -> String {
    format!("{} GiB", row.managed_gib)
}

fn is(row: &Alloc, (pattern, order, threads): (&str, u64, u64)) -> bool {
    row.allocator == OURS && row.pattern == pattern && row.order == order && row.threads == threads
}

/// Nanoseconds of one kind of operation, on machines of all sizes.
fn ns(rows: &Rows, half: Half, pattern: &str, order: u64, threads: u64) -> Vec<Sample> {
    samples(rows.alloc.iter().filter(|row| is(row, (pattern, order, threads))), half, gib)
}

/// Nanoseconds to allocate on a large machine, by one thread.
fn large(rows: &Rows, pattern: &str, order: u64) -> Vec<Sample> {
    let is = |row: &&Alloc| row.managed_gib == LARGE_GIB && is(row, (pattern, order, 1));
    samples(rows.alloc.iter().filter(is), get, gib)
}

targets! { TARGETS:
    Allocation, COMMAND, "order-0-get", "4 KiB: get, in bulk", <= 6.0 "ns", "LLFree 25 ns",
        |rows| ns(rows, get, "bulk", 0, 1);
    Allocation, COMMAND, "order-0-put", "4 KiB: put, in bulk", <= 8.0 "ns", "LLFree 24 ns",
        |rows| ns(rows, put, "bulk", 0, 1);
    Allocation, COMMAND, "order-0-pair", "4 KiB: get and put at once", <= 8.0 "ns", "LLFree 45 ns",
        |rows| ns(rows, get, "pair", 0, 1);
    Allocation, COMMAND, "order-0-random", "4 KiB: put in random order",
        <= 14.0 "ns", "LLFree 30 ns", |rows| ns(rows, put, "random", 0, 1);
    Allocation, COMMAND, "order-0-random-2", "4 KiB: put in random order, 2 threads",
        <= 20.0 "ns", "LLFree 30 ns", |rows| ns(rows, put, "random", 0, 2);
    Allocation, COMMAND, "one-left", "4 KiB: get when every block has one free page, 1 TiB",
        <= 25.0 "ns", "LLFree 81..93 ns", |rows| large(rows, "one-left", 0);
    Allocation, COMMAND, "order-3-get", "32 KiB: get", <= 30.0 "ns", "LLFree 27 ns",
        |rows| ns(rows, get, "bulk", 3, 1);
    Allocation, COMMAND, "order-3-pair", "32 KiB: get and put at once", <= 45.0 "ns", "LLFree",
        |rows| ns(rows, get, "pair", 3, 1);
    Allocation, COMMAND, "order-8-get", "1 MiB: get", <= 30.0 "ns", "LLFree 82 ns",
        |rows| ns(rows, get, "bulk", 8, 1);
    Allocation, COMMAND, "order-8-pair", "1 MiB: get and put at once", <= 45.0 "ns", "LLFree",
        |rows| ns(rows, get, "pair", 8, 1);
    Allocation, COMMAND, "order-9-get", "2 MiB: get, 8 GiB to 1 TiB",
        <= 10.0 "ns", "LLFree 46..1783 ns", |rows| ns(rows, get, "bulk", 9, 1);
    Allocation, COMMAND, "order-9-put", "2 MiB: put, 8 GiB to 1 TiB", <= 12.0 "ns", "LLFree",
        |rows| ns(rows, put, "bulk", 9, 1);
    Allocation, COMMAND, "order-9-random", "2 MiB: put in random order, 8 GiB to 1 TiB",
        <= 20.0 "ns", "LLFree", |rows| ns(rows, put, "random", 9, 1);
    Allocation, COMMAND, "order-18", "1 GiB: get", <= 40.0 "ns", "LLFree 2800 ns",
        |rows| ns(rows, get, "bulk", 18, 1);
    Allocation, COMMAND, "refused", "A request that is refused, memory full, 1 TiB",
        <= 200.0 "ns", "an absolute limit",
        |rows| [0, 9].into_iter().flat_map(|order| large(rows, "full", order)).collect();
    Allocation, COMMAND, "two-threads", "Cached orders: two threads over one, per operation",
        <= 1.5 "x", "one thread", two_threads;
    Allocation, COMMAND, "faster-than-peers",
        "Every row: time over that of the faster of two Rust allocators",
        <= 1.0 "x", "buddy_system_allocator, frame-alloc", over_peers;
}

/// What each half of a row is called.
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

/// Each operation that a row has, against each peer's same row.
fn over_peers(rows: &Rows) -> Vec<Sample> {
    let of = |name: &'static str| rows.alloc.iter().filter(move |row| row.allocator == name);
    let mut samples = Vec::new();
    for peer in PEERS {
        for (half, word) in HALVES {
            let key = |row: &Alloc| (row.place(), row.pattern.clone(), row.threads);
            let place = |row: &Alloc| {
                words(&[word, &row.place(), &row.pattern, &threads(row.threads), peer])
            };
            let ours = of(OURS).filter(|row| get(row).is_some());
            samples.extend(over(ours, of(peer), key, half, place));
        }
    }
    samples
}

impl Alloc {
    /// The machine and the order.
    fn place(&self) -> String {
        format!("{} GiB, order {}", self.managed_gib, self.order)
    }
}
