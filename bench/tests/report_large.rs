//! Reports of small files that ask for much, and of large files that ask for little. Excess is
//! refused, with its place in the file, before anything is drawn.

#[path = "../../cli/tests/common/mod.rs"]
mod common;

use common::Scratch;
use common::limited::report;
use serde_json::{Value, json};
use std::fs;

#[test]
fn results_of_many_kinds_take_time_in_step_with_their_number() {
    const MANY: u64 = 50_000;
    let folder = Scratch::new("kinds");
    let rows = |make: &dyn Fn(u64) -> Value| (0..MANY).map(make).collect::<Vec<Value>>();
    let alloc = |field: &str, of: u64| {
        let mut row = json!({ "bench": "alloc", "allocator": "framewright", "managed_gib": 8,
            "order": of, "pattern": "bulk", "threads": 1, "alloc_ns": 1 });
        row[field] = if field == "order" { of.into() } else { format!("{of}").into() };
        row
    };
    for value in [
        json!({ "rows": rows(&|of| json!({ "bench": format!("b{of}"), "x_ns": 1 })) }),
        json!({ "rows": rows(&|of| json!({ "bench": "b", format!("f{of}"): 1 })) }),
        json!({ "rows": rows(&|of| json!({ "bench": "b", "kind": of, "x_ns": 1 })) }),
        json!({ "rows": rows(&|of| alloc("allocator", of)) }),
        json!({ "rows": rows(&|of| alloc("order", of)) }),
        json!({ "rows": rows(&|of| json!({ "bench": "jobs", "case": "uniform",
            "engine": if of % 2 == 0 { "serial" } else { "framewright" }, "units": of / 2,
            "unit_ns": 1, "seconds": 1 })) }),
        json!({ "rows": rows(&|of| json!({ "bench": "fault", "config": if of % 2 == 0 {
            "off" } else { "on" }, "on": "hosted", "workload": "w", "cpus": of / 2,
            "against_off": 1 })) }),
        json!({ "rows": [{ "bench": "b", "x_ns": 1 }], "sections": rows(&|of| json!({
            "bench": format!("s{of}"), "timed": "t" })) }),
    ] {
        let outcome = report(&folder, &value);
        // A page that would be too large is refused early.
        let is_refused = outcome.code == Some(2) && outcome.stderr.contains("the limit is 2048");
        assert!(outcome.code == Some(0) || is_refused, "{:?}: {}", outcome.code, outcome.stderr);
    }
    // Unknown tables are cut, and the report says so.
    let tables: Vec<Value> =
        (0..70).map(|of| json!({ "bench": format!("b{of}"), "x_ns": 1 })).collect();
    assert_eq!(report(&folder, &json!({ "rows": tables })).code, Some(0));
    let page = fs::read_to_string(folder.path("out.html")).expect("it was written");
    assert!(page.contains("6 more tables are in the files") && page.matches("<h3>").count() == 64);
}
