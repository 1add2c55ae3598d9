//! `jobs`: rows are complete and plausible.

use crate::{section, shown};
use serde_json::Value;

const KEYS: [&str; 16] = [
    "bench",
    "case",
    "engine",
    "units",
    "unit_ns",
    "threads",
    "repetitions",
    "seconds",
    "seconds_min",
    "seconds_max",
    "serial_ratio",
    "serial_ratio_low",
    "serial_ratio_high",
    "framewright_ratio",
    "framewright_ratio_low",
    "framewright_ratio_high",
];
const ENGINES: [&str; 4] = ["serial", "framewright", "rayon", "scoped"];

#[test]
fn jobs_are_measured_with_every_engine() {
    let report = section("jobs");
    assert_eq!(report["bench"], "jobs");
    assert!(report["timed"].as_str().is_some_and(|text| text.contains("rayon-inside")));
    assert!(report["priority"].as_str().is_some_and(|text| text.starts_with("helpers run at")));
    // What is not measured is named, with the reason.
    assert!(
        report["left_out"][0].as_str().is_some_and(|text| text.contains("1e9 units of 100 ns"))
    );
    let rows = report["rows"].as_array().expect("rows");
    for row in rows {
        let names: Vec<&str> =
            row.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(names, KEYS);
        let number = |name: &str| row[name].as_f64();
        assert!(
            number("seconds_min") <= number("seconds")
                && number("seconds") <= number("seconds_max"),
            "{row}"
        );
        assert!(number("seconds_min") > Some(0.0) && number("threads") >= Some(1.0), "{row}");
        assert!(
            row["engine"] != "serial" || row["threads"] == 1 && row["serial_ratio"] == 1.0,
            "{row}"
        );
        assert!(row["engine"] != "framewright" || row["framewright_ratio"] == 1.0, "{row}");
        for ratio in ["serial_ratio", "framewright_ratio"] {
            let [middle, low, high] =
                ["", "_low", "_high"].map(|end| number(&format!("{ratio}{end}")));
            assert!(low > Some(0.0) && low <= middle && middle <= high, "{row}");
        }
    }
    let key = |row: &Value| ["case", "units", "unit_ns"].map(|name| row[name].to_string());
    let of = |engine: &str| {
        rows.iter().filter(|row| row["engine"] == engine).map(key).collect::<Vec<_>>()
    };
    for engine in ENGINES {
        assert_eq!(of(engine), of("serial"), "{engine}");
    }
    for engine in ["rayon-inside", "framewright-new"] {
        assert!(
            of(engine).iter().all(|case| of("serial").contains(case)) && !of(engine).is_empty(),
            "{engine}"
        );
    }
    for case in ["two-empty", "uniform", "apart", "one-heavy", "ramp", "memory", "busy-uniform"] {
        assert!(rows.iter().any(|row| row["case"] == case), "{case}");
    }
}

#[test]
fn jobs_are_put_side_by_side_for_people() {
    let table = shown("jobs");
    for word in
        ["two-empty", "busy-uniform", "serial / ours", "rayon / ours", "Left out", "helpers run at"]
    {
        assert!(table.contains(word), "{word} in\n{table}");
    }
}
