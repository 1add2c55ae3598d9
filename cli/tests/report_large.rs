//! Reports of small files that ask for much, and of large files that ask for little. Excess is
//! refused, with its place in the file, before anything is drawn.

mod common;

use common::Scratch;
use common::limited::report;
use serde_json::{Value, json};

fn zone(node: u64, runs: Value) -> Value {
    json!({ "node": node, "zone": "Normal", "present_pages": 1, "managed_pages": 1,
        "free_pages": 1, "runs": runs })
}

fn snapshot(cell_blocks: u64, zones: &[Value]) -> Value {
    json!({ "format": 1, "snapshot": { "cell_blocks": cell_blocks, "zones": zones } })
}

#[test]
fn a_map_of_more_cells_than_can_be_shown_is_refused_with_its_place() {
    let folder = Scratch::new("cells");
    let many: Vec<Value> = (0..200_000_u64).map(|run| json!([run << 10, 1, "F9"])).collect();
    let parts = vec!["F9:1"; 4096].join(",");
    let zones: Vec<Value> = (0..6000).map(|_| zone(0, json!([[0, 1, "F9"]]))).collect();
    for (value, expected) in [
        (
            snapshot(1, &[zone(0, json!([[0, 1_u64 << 31, "F9"]]))]),
            "node 0 zone Normal, run 0: with it there are",
        ),
        (
            snapshot(1 << 63, &[zone(0, json!([[0, 1, "F9"]]))]),
            "cells of 9223372036854775808 blocks in cell_blocks",
        ),
        (snapshot(1, &[zone(0, json!([[1_u64 << 39, 1_u64 << 31, "F9"]]))]), "run 0: it ends at"),
        (snapshot(1, &[zone(0, json!(many))]), "run 65536: with it there are 65537 cells"),
        (snapshot(4096, &[zone(0, json!([[0, 4096, parts]]))]), "a cell has more than 64 uses"),
        (snapshot(1, &zones), "there are 6000 zones"),
        (
            snapshot(1, &[zone(1, json!([[0, 1, "F9"]])), zone(0, json!([[0, 1, "F9"]]))]),
            "node 0 zone Normal: nodes must ascend",
        ),
        (
            snapshot(1, &[zone(9000, json!([[0, 1, "F9"]]))]),
            "node 9000 zone Normal: nodes must ascend",
        ),
    ] {
        let outcome = report(&folder, &value);
        assert_eq!(
            (outcome.code, outcome.stdout.as_str()),
            (Some(2), ""),
            "{expected}: {}",
            outcome.stderr
        );
        assert!(
            outcome.stderr.contains("in.json: snapshot") && outcome.stderr.contains(expected),
            "{}",
            outcome.stderr
        );
        assert!(!folder.path("out.html").exists());
    }
    // Exactly as much as is allowed.
    let outcome = report(&folder, &snapshot(1 << 15, &[zone(0, json!([[0, 1_u64 << 31, "F9"]]))]));
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
}
