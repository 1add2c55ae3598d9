//! `framewright-bench alloc` and `framewright-bench fragment`: rows are complete and plausible.
//! Speed is not judged here: the build may be a slow one.

#[path = "../../cli/tests/common/mod.rs"]
mod common;

use common::run;
use serde_json::Value;

const ALLOCATORS: [&str; 3] = ["framewright", "buddy_system_allocator", "frame-alloc"];
/// Ours once more, nothing shared by two threads.
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
    let report = run(&["alloc", "--quick", "--json"]).json();
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
        // How far CPUs are apart is a matter of several.
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
    for (call, orders) in [("request", &[0, 3, 9][..]), ("odd", &[2, 9])] {
        for &order in orders {
            for kind in ["bulk", "random", "pair"] {
                assert!(have(ALLOCATORS[0], 8, order, &format!("{call} {kind}")), "{call} {order}");
            }
        }
    }
    // A request that several CPUs make at once may be refused by mistake, so that a row with more
    // threads may be missing.
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
    let outcome = run(&["alloc", "--quick"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    for word in [
        "8 GiB managed",
        "64 GiB managed",
        "1024 GiB managed",
        "best peer / ours",
        "over apart",
        "one-left",
        "Left out: bulk",
    ] {
        assert!(outcome.stdout.contains(word), "{word} in\n{}", outcome.stdout);
    }
}

#[test]
fn fragment_tells_how_much_is_whole() {
    let report = run(&["fragment", "--quick", "--json"]).json();
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
    // Both ways of counting see the same blocks; a page that never was free makes them differ a
    // little.
    let [by_pages, own] =
        ["free_in_whole_blocks_percent", "own_count_percent"].map(|name| rows[0][name].as_f64());
    assert!(
        by_pages.zip(own).is_some_and(|(by_pages, own)| (by_pages - own).abs() < 1.0),
        "{}",
        rows[0]
    );
}
