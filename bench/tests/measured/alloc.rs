//! `alloc`, `traffic`, `fragment` and `contig`: rows are complete and plausible.

use crate::{section, shown};
use serde_json::Value;

const ALLOCATORS: [&str; 3] = ["framewright", "buddy_system_allocator", "frame-alloc"];
/// Framewright once more, with a manager for each thread and nothing shared.
const APART: &str = "framewright, one for each thread";
const KEYS: [&str; 17] = [
    "bench",
    "allocator",
    "managed_gib",
    "order",
    "pattern",
    "threads",
    "working_set",
    "repetitions",
    "alloc_ns",
    "alloc_ns_min",
    "alloc_ns_max",
    "free_ns",
    "free_ns_min",
    "free_ns_max",
    "line_ns",
    "line_ns_min",
    "line_ns_max",
];

fn names(row: &Value) -> Vec<&str> {
    row.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[test]
fn alloc_measures_every_allocator_in_every_way() {
    let report = section("alloc");
    assert_eq!(
        (report["bench"].as_str(), report["repetitions"].as_u64()),
        (Some("alloc"), Some(3))
    );
    assert!(report["timed"].as_str().is_some_and(|text| text.contains("working set")));
    let rows = report["rows"].as_array().expect("rows");
    for row in rows {
        assert_eq!(names(row), KEYS);
        let number = |name: &str| row[name].as_f64();
        for half in ["alloc_ns", "free_ns"] {
            let [least, middle, most] =
                ["_min", "", "_max"].map(|end| number(&format!("{half}{end}")));
            assert!(least <= middle && middle <= most, "{row}");
        }
        assert!(
            number("alloc_ns").is_some_and(|ns| ns >= 0.0) && number("repetitions") == Some(3.0),
            "{row}"
        );
        let pattern = row["pattern"].as_str().expect("a pattern");
        let kind = pattern.rsplit(' ').next().unwrap_or_default();
        let apart = ["bulk", "random", "one-left"].contains(&kind);
        assert_eq!(row["free_ns"].is_number(), apart, "{row}");
        assert_eq!(number("working_set") > Some(1.0), apart, "{row}");
        // The distance between CPUs needs more than one CPU.
        assert_eq!(
            number("line_ns").is_some_and(|ns| ns > 0.0),
            number("threads") > Some(1.0),
            "{row}"
        );
    }
    let have = |allocator: &str, managed: u64, order: u64, pattern: &str| {
        let threads: Vec<_> = rows
            .iter()
            .filter(|row| row["allocator"] == allocator && row["managed_gib"] == managed)
            .filter(|row| row["order"] == order && row["pattern"] == pattern)
            .map(|row| row["threads"].as_u64().expect("a number"))
            .collect();
        assert!(threads.is_sorted_by(|one, next| one < next), "{threads:?}");
        threads.first() == Some(&1)
    };
    for (call, orders) in [("request", &[0, 2, 3, 9][..]), ("odd", &[2, 9])] {
        for &order in orders {
            for kind in ["bulk", "random", "pair"] {
                assert!(have(ALLOCATORS[0], 8, order, &format!("{call} {kind}")), "{call} {order}");
            }
        }
    }
    for pattern in ["own node pair", "away pair"] {
        assert!(
            [0, 9].into_iter().all(|order| have(ALLOCATORS[0], 8, order, pattern)),
            "{pattern}"
        );
    }
    // A request may fail spuriously when several CPUs allocate at once, so a row with more threads
    // may be missing.
    for (allocator, managed) in
        ALLOCATORS.into_iter().flat_map(|name| [8, 64, 1024].map(|gib| (name, gib)))
    {
        for order in [0, 1, 3, 8, 9, 18] {
            for pattern in ["bulk", "random", "pair"] {
                let expected = pattern == "pair" || order < 18 || managed > 8;
                assert_eq!(
                    have(allocator, managed, order, pattern),
                    expected,
                    "{allocator} {managed} {order} {pattern}"
                );
            }
        }
        for order in [0, 1, 3, 8, 9] {
            for pattern in ["bulk", "random", "pair"] {
                let same = |row: &&Value| {
                    row["managed_gib"] == managed
                        && row["order"] == order
                        && row["pattern"] == pattern
                };
                let of = |name: &str| {
                    rows.iter()
                        .filter(same)
                        .find(|row| row["allocator"] == name && row["threads"] == 2)
                };
                let sets = [of("framewright"), of(APART)]
                    .map(|row| row.map(|row| row["working_set"].as_u64()));
                assert_eq!(sets[0], sets[1], "{managed} {order} {pattern}");
            }
        }
        for (order, pattern) in [(0, "one-left"), (0, "full"), (9, "full")] {
            assert!(
                have(allocator, managed, order, pattern),
                "{allocator} {managed} {order} {pattern}"
            );
        }
    }
}

#[test]
fn alloc_puts_allocators_side_by_side_for_people() {
    let table = shown("alloc");
    for word in [
        "8 GiB managed",
        "64 GiB managed",
        "1024 GiB managed",
        "best peer / ours",
        "over apart",
        "one-left",
        "Left out: bulk",
    ] {
        assert!(table.contains(word), "{word} in\n{table}");
    }
}

#[test]
fn fragment_tells_how_much_is_whole() {
    let report = section("fragment");
    assert_eq!(report["bench"].as_str(), Some("fragment"));
    let rows = report["rows"].as_array().expect("rows");
    assert!(rows.iter().map(|row| row["allocator"].as_str().unwrap()).eq(ALLOCATORS));
    for row in rows {
        assert_eq!(
            names(row),
            [
                "bench",
                "allocator",
                "managed_gib",
                "allocated_percent",
                "allocated_percent_min",
                "allocated_percent_max",
                "free_in_whole_blocks_percent",
                "free_in_whole_blocks_percent_min",
                "free_in_whole_blocks_percent_max",
                "own_count_percent",
                "own_count_percent_min",
                "own_count_percent_max"
            ]
        );
        let percent = |name: &str| row[name].as_f64();
        assert!(
            percent("allocated_percent").is_some_and(|percent| (percent - 10.0).abs() < 0.01),
            "{row}"
        );
        assert!(
            percent("free_in_whole_blocks_percent")
                .is_some_and(|percent| (0.0..=100.0).contains(&percent)),
            "{row}"
        );
    }
    // Both ways of counting see the same blocks; a page that was never free makes them differ a
    // little.
    let [by_pages, own] =
        ["free_in_whole_blocks_percent", "own_count_percent"].map(|name| rows[0][name].as_f64());
    assert!(
        by_pages.zip(own).is_some_and(|(by_pages, own)| (by_pages - own).abs() < 1.0),
        "{}",
        rows[0]
    );
}

/// Traffic, how full memory is, and the orders in use.
const TRAFFIC: [(&str, &str, &[&str]); 7] = [
    ("mixed", "50 %", &["all", "0", "1-3", "4-8", "9"]),
    ("mixed", "80 %", &["all", "0", "1-3", "4-8", "9"]),
    ("mixed", "97 %", &["all", "0", "1-3", "4-8", "9"]),
    ("producer/consumer", "50 %", &["all", "0"]),
    ("producer/consumer, mix", "50 %", &["all", "0", "1-3", "4-8", "9"]),
    ("server", "80 %", &["all", "0", "1-3"]),
    ("boot", "0 %", &["all", "0", "1-3", "4-8", "9"]),
];

#[test]
fn traffic_has_the_slowest_calls_of_every_allocator_and_of_none() {
    let report = section("traffic");
    assert!(report["clock_ns"].as_u64().is_some_and(|ns| ns < 1_000_000));
    let rows = report["rows"].as_array().expect("rows");
    let of = |bench: &str, pattern: &str, full: &str, allocator: &str| {
        let is = |row: &&Value| {
            row["bench"] == bench
                && row["pattern"] == pattern
                && row["full"] == full
                && row["allocator"] == allocator
        };
        rows.iter().filter(is).collect::<Vec<&Value>>()
    };
    let several = rows.iter().any(|row| row["threads"] == 2);
    for (pattern, full, orders) in TRAFFIC {
        if pattern.starts_with("producer") && !several {
            continue;
        }
        let alone = of("traffic", pattern, full, ALLOCATORS[0]);
        let threads: Vec<_> = alone.iter().map(|row| row["threads"].as_u64()).collect();
        let first = if pattern.starts_with("producer") { 2 } else { 1 };
        assert!(threads.first() == Some(&Some(first)) && threads.is_sorted(), "{pattern}");
        for allocator in ALLOCATORS {
            let traffic = of("traffic", pattern, full, allocator);
            assert_eq!(traffic.len(), threads.len(), "{pattern} {full} {allocator}");
            for row in traffic {
                let spread = ["operation_ns_min", "operation_ns", "operation_ns_max"]
                    .map(|name| row[name].as_f64());
                assert!(spread[0].is_some() && spread.is_sorted(), "{row}");
                assert!(row["refused_percent"].as_f64().is_some_and(|it| it <= 100.0), "{row}");
            }
        }
        // The control makes the same calls, and none of them is refused.
        for allocator in ALLOCATORS.into_iter().chain(["array"]) {
            let calls = of("tail", pattern, full, allocator);
            let done = calls.iter().filter(|row| row["operation"] != "refused").count();
            assert_eq!(done, threads.len() * 2 * orders.len(), "{pattern} {allocator}");
            assert!(done == calls.len() || allocator != "array", "{pattern}");
            assert!(calls.iter().all(|row| orders.iter().any(|orders| row["orders"] == *orders)));
            calls.into_iter().for_each(is_a_tail);
        }
    }
    let benches = rows.iter().map(|row| row["bench"].as_str());
    assert!(benches.flatten().is_sorted_by(|one, next| one == next || *next == "tail"));
}

/// Checks that the times of calls ascend; shares that would cover too few calls are left out.
fn is_a_tail(row: &Value) {
    let calls = row["calls"].as_u64().expect("a number");
    let times = ["p50_ns", "p99_ns", "p99_9_ns", "p99_99_ns"].map(|name| row[name].as_u64());
    for (time, least) in times.iter().zip([4, 200, 2000, 20_000]) {
        assert_eq!(time.is_some(), calls >= least, "{row}");
    }
    let known: Vec<u64> = times.into_iter().flatten().chain(row["max_ns"].as_u64()).collect();
    assert!(known.is_sorted() && row["max_ns"].is_u64(), "{row}");
}

#[test]
fn contig_moves_memory_and_says_how_much() {
    let report = section("contig");
    assert_eq!(report["bench"].as_str(), Some("contig"));
    let rows = report["rows"].as_array().expect("rows");
    let moved = [
        "compact",
        "compact, orders 0 to 3",
        "vacate 256 MiB",
        "vacate, a page pinned",
        "vacate, till it is named",
        "get 64 MiB",
        "get 256 MiB",
        "find 64 MiB",
    ];
    let (rows, grades) = rows.split_at(moved.len());
    assert!(rows.iter().map(|row| row["what"].as_str().unwrap()).eq(moved));
    assert_eq!(grades.len(), 8);
    for row in grades {
        assert!(row["what"].as_str().is_some_and(|what| what.starts_with("grades, ")), "{row}");
        assert!(row["plain_ratio"].as_f64() > Some(0.0), "{row}");
    }
    for row in rows {
        assert!(row["call_us"].as_f64() > Some(0.0), "{row}");
    }
    let whole = |row: &Value, when: &str| row[format!("whole_{when}_percent")].as_f64();
    for row in &rows[..2] {
        assert!(whole(row, "before") < whole(row, "after"), "{row}");
    }
    // The pinned page is named while or after others are moved, but before the call ends.
    assert!(rows[4]["call_us_min"].as_f64() <= rows[3]["call_us_max"].as_f64(), "{}", rows[4]);
    assert!(rows[0]["ideal_ratio_min"].as_f64() >= Some(1.0), "{}", rows[0]);
    // All pages of the range, and the part of them that comes before the page that stays.
    assert_eq!(rows[2]["moved_pages"].as_f64(), Some(65536.0), "{}", rows[2]);
    assert!(rows[3]["moved_pages"].as_f64() <= Some(65535.0), "{}", rows[3]);
}
