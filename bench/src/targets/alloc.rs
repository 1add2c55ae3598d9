//! Allocation.

use super::rows::{number, text, whole};
use super::{Measure, Rows, Sample, Target, at_most};

const AREA: &str = "Allocation";
const COMMAND: &str = "alloc";
const PEERS: [&str; 2] = ["buddy_system_allocator", "frame-alloc"];
/// What tells rows of one allocator apart.
const SAME: &[&str] = &["managed_gib", "order", "pattern", "threads"];

/// Nanoseconds of one kind of operation, on machines of all sizes.
fn ns(rows: &Rows<'_>, field: &str, pattern: &str, order: u64, threads: u64) -> Vec<Sample> {
    let rows = rows.bench("alloc").is("allocator", "framewright").is("pattern", pattern);
    rows.is("order", order).is("threads", threads).samples(field, 1.0, &["managed_gib"])
}

const fn limit(
    id: &'static str,
    what: &'static str,
    wanted: f64,
    against: &'static str,
    measure: Measure,
) -> Target {
    at_most(AREA, id, what, (wanted, "ns"), (against, COMMAND), measure)
}

pub(super) const TARGETS: &[Target] = &[
    limit("order-0-get", "4 KiB: get, in bulk", 6.0, "LLFree 25 ns", |rows| {
        ns(rows, "alloc_ns", "bulk", 0, 1)
    }),
    limit("order-0-put", "4 KiB: put, in bulk", 8.0, "LLFree 24 ns", |rows| {
        ns(rows, "free_ns", "bulk", 0, 1)
    }),
    limit("order-0-pair", "4 KiB: get and put at once", 8.0, "LLFree 45 ns", |rows| {
        ns(rows, "alloc_ns", "pair", 0, 1)
    }),
    limit("order-0-random", "4 KiB: put in random order", 14.0, "LLFree 30 ns", |rows| {
        ns(rows, "free_ns", "random", 0, 1)
    }),
    limit(
        "order-0-random-2",
        "4 KiB: put in random order, 2 threads",
        20.0,
        "LLFree 30 ns",
        |rows| ns(rows, "free_ns", "random", 0, 2),
    ),
    limit(
        "one-left",
        "4 KiB: get when every block has one free page, 1 TiB",
        25.0,
        "LLFree 81..93 ns",
        |rows| {
            let rows = rows.is("managed_gib", 1024);
            ns(&rows, "alloc_ns", "one-left", 0, 1)
        },
    ),
    limit("order-3-get", "32 KiB: get", 30.0, "LLFree 27 ns", |rows| {
        ns(rows, "alloc_ns", "bulk", 3, 1)
    }),
    limit("order-3-pair", "32 KiB: get and put at once", 45.0, "LLFree", |rows| {
        ns(rows, "alloc_ns", "pair", 3, 1)
    }),
    limit("order-8-get", "1 MiB: get", 30.0, "LLFree 82 ns", |rows| {
        ns(rows, "alloc_ns", "bulk", 8, 1)
    }),
    limit("order-8-pair", "1 MiB: get and put at once", 45.0, "LLFree", |rows| {
        ns(rows, "alloc_ns", "pair", 8, 1)
    }),
    limit("order-9-get", "2 MiB: get, 8 GiB to 1 TiB", 10.0, "LLFree 46..1783 ns", |rows| {
        ns(rows, "alloc_ns", "bulk", 9, 1)
    }),
    limit("order-9-put", "2 MiB: put, 8 GiB to 1 TiB", 12.0, "LLFree", |rows| {
        ns(rows, "free_ns", "bulk", 9, 1)
    }),
    limit("order-9-random", "2 MiB: put in random order, 8 GiB to 1 TiB", 20.0, "LLFree", |rows| {
        ns(rows, "free_ns", "random", 9, 1)
    }),
    limit("order-18", "1 GiB: get", 40.0, "LLFree 2800 ns", |rows| {
        ns(rows, "alloc_ns", "bulk", 18, 1)
    }),
    limit(
        "refused",
        "A request that is refused, memory full, 1 TiB",
        200.0,
        "an absolute limit",
        |rows| {
            let rows = rows.is("managed_gib", 1024);
            [0, 9].into_iter().flat_map(|order| ns(&rows, "alloc_ns", "full", order, 1)).collect()
        },
    ),
    at_most(
        AREA,
        "two-threads",
        "Cached orders: two threads over one, per operation",
        (1.5, "x"),
        ("one thread", COMMAND),
        two_threads,
    ),
    at_most(
        AREA,
        "faster-than-peers",
        "Every row: time over that of the faster of two Rust allocators",
        (1.0, "x"),
        ("buddy_system_allocator, frame-alloc", COMMAND),
        over_peers,
    ),
];

/// Get, put and pair of orders that CPUs cache, two threads over one.
fn two_threads(rows: &Rows<'_>) -> Vec<Sample> {
    let ours = rows.bench("alloc").is("allocator", "framewright");
    let ours = ours.filter(|row| {
        matches!(whole(row, "order"), Some(0..=3 | 9))
            && matches!(text(row, "pattern"), "bulk" | "pair")
    });
    let (one, two) = (ours.is("threads", 1), ours.is("threads", 2));
    let same = &SAME[..3];
    let mut samples = Vec::new();
    for (field, word) in [("alloc_ns", "get"), ("free_ns", "put")] {
        for sample in two.over(&one, field, same, same) {
            samples.push(Sample { place: format!("{word}, {}", sample.place), ..sample });
        }
    }
    samples
}

/// Each operation that a row has, against each peer's same row.
fn over_peers(rows: &Rows<'_>) -> Vec<Sample> {
    let rows = rows.bench("alloc");
    let ours = rows.is("allocator", "framewright").filter(|row| number(row, "alloc_ns").is_some());
    let mut samples = Vec::new();
    for peer in PEERS {
        for (field, word) in [("alloc_ns", "get"), ("free_ns", "put")] {
            for sample in ours.over(&rows.is("allocator", peer), field, SAME, SAME) {
                samples
                    .push(Sample { place: format!("{word}, {}, {peer}", sample.place), ..sample });
            }
        }
    }
    samples
}
