//! `framewright-bench hugepages` in the reference guest: rows are complete and plausible.

#[path = "../../cli/tests/common/mod.rs"]
mod common;

use common::{finish, program};

#[test]
fn a_quick_bench_of_pools_has_all_rows() {
    let report = finish(program().args(["hugepages", "--on", "qemu", "--quick", "--json"])).json();
    let rows = report["rows"].as_array().expect("rows");
    let how: Vec<_> =
        rows.iter().map(|row| (row["reclaim"].as_str(), row["restore"].as_str())).collect();
    assert_eq!(
        how,
        [(Some("off"), Some("none")), (Some("on"), Some("lazy")), (Some("on"), Some("eager"))]
    );
    for row in rows {
        assert!(row["on"] == "qemu" && row["pages"] == 256 && row["size_kb"] == 2048, "{row}");
        assert!(
            row["fill_ms"].as_f64() > Some(0.0) && row["empty_ms"].as_f64() > Some(0.0),
            "{row}"
        );
        let (flushes, saved) =
            (row["flushes"].as_u64(), row["saved_bytes"].as_u64().expect("a number"));
        assert!(row["ipis"].is_u64(), "{row}");
        if row["reclaim"] == "off" {
            assert!(flushes == Some(0) && saved == 0, "{row}");
        } else {
            for ratio in ["reclaim_ratio", "empty_reclaim_ratio"] {
                assert_eq!(row[ratio].is_number(), row["restore"] == "lazy", "{ratio}: {row}");
            }
            // HVO saves 32 KiB for each page, less page tables.
            assert!(flushes > Some(0) && (7 << 20..=8 << 20).contains(&saved), "{row}");
        }
    }
}
