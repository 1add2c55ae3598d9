//! `hugepages`: rows are complete and plausible.

use crate::{section, shown};

const KEYS: [&str; 36] = [
    "bench",
    "on",
    "policy",
    "tables",
    "size_kb",
    "pages",
    "reclaim",
    "restore",
    "threads",
    "fill_ms",
    "fill_ms_min",
    "fill_ms_max",
    "empty_ms",
    "empty_ms_min",
    "empty_ms_max",
    "serial_ratio",
    "serial_ratio_min",
    "serial_ratio_max",
    "empty_serial_ratio",
    "empty_serial_ratio_min",
    "empty_serial_ratio_max",
    "madvise_ms",
    "madvise_ms_min",
    "madvise_ms_max",
    "madvise_ratio",
    "madvise_ratio_min",
    "madvise_ratio_max",
    "reclaim_ratio",
    "reclaim_ratio_min",
    "reclaim_ratio_max",
    "empty_reclaim_ratio",
    "empty_reclaim_ratio_min",
    "empty_reclaim_ratio_max",
    "flushes",
    "ipis",
    "saved_bytes",
];

#[test]
fn pools_are_filled_and_emptied() {
    let report = section("hugepages on hosted");
    assert_eq!(
        (report["bench"].as_str(), report["repetitions"].as_u64()),
        (Some("hugepages"), Some(3))
    );
    let rows = report["rows"].as_array().expect("rows");
    for row in rows {
        let names: Vec<&str> =
            row.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(names, KEYS);
        assert!(
            row["fill_ms"].as_f64() > Some(0.0) && row["empty_ms"].as_f64() > Some(0.0),
            "{row}"
        );
        assert!(row["bench"] == "hugepages" && row["on"] == "hosted", "{row}");
        for name in ["fill_ms", "empty_ms", "serial_ratio", "madvise_ms", "madvise_ratio"] {
            let [least, middle, most] =
                [format!("{name}_min"), name.to_owned(), format!("{name}_max")]
                    .map(|name| row[name].as_f64());
            assert!(
                least <= middle && middle <= most && (least > Some(0.0) || middle.is_none()),
                "{name}: {row}"
            );
        }
        // Each ratio appears where it is meaningful.
        let (off, alone) = (row["reclaim"] == "off", row["threads"] == 1);
        for ratio in ["serial_ratio", "empty_serial_ratio"] {
            assert_eq!(row[ratio].is_null(), !off || alone, "{ratio}: {row}");
        }
        assert_eq!(row["madvise_ratio"].is_null(), off, "{row}");
        let blocks = row["pages"].as_i64().unwrap() * row["size_kb"].as_i64().unwrap() / 2048;
        let saved = row["saved_bytes"].as_i64().unwrap();
        if row["reclaim"] == "off" {
            assert!(row["flushes"] == 0 && saved == 0 && row["restore"] == "none", "{row}");
        } else {
            // HVO saves 32 KiB for each block; the page tables of the hosted vmemmap are the
            // system's.
            assert!(
                row["flushes"].as_u64() > Some(0) && saved > 0 && saved <= blocks << 15,
                "{row}"
            );
        }
    }
    let alone = rows.iter().filter(|row| {
        row["threads"] == 1 && row["tables"] == "backed" && row["policy"] == "on-demand"
    });
    let what: Vec<_> = alone
        .map(|row| (row["size_kb"].as_u64().unwrap(), row["pages"].as_u64().unwrap()))
        .collect();
    let two_mib = [1, 8, 64, 1000, 10_000].map(|pages| (2048, pages));
    let one_gib = [1, 8].map(|pages| (1 << 20, pages));
    assert_eq!(what, [&two_mib[..], &one_gib[..]].concat());
    assert_eq!(rows[0]["tables"], "first touch");
    for restore in ["none", "lazy", "eager"] {
        assert!(
            rows.iter().any(|row| row["restore"] == restore && row["policy"] == "eager"),
            "{restore}"
        );
    }
}

#[test]
fn people_see_a_table() {
    let table = shown("hugepages on hosted");
    for word in
        ["page size", "empty a page", "2048 kB", "1048576 kB", "first touch", "64 GiB managed"]
    {
        assert!(table.contains(word), "{word} in\n{table}");
    }
}
