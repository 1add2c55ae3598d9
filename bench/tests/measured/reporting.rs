//! `reporting`: rows are complete and plausible.

use crate::section;

#[test]
fn the_benchmark_has_all_rows() {
    let report = section("reporting on hosted");
    assert_eq!(report["bench"], "reporting");
    let rows = report["rows"].as_array().expect("rows");
    let of = |bench: &str| rows.iter().filter(|row| row["bench"] == bench).collect::<Vec<_>>();
    let (falls, series, faults) = (of("reporting"), of("series"), of("fault"));
    for row in &series {
        let numbers = |name: &str| row[name].as_array().map_or(0, Vec::len);
        assert!(numbers("at_seconds") > 2 && numbers("at_seconds") == numbers("rss_mib"), "{row}");
        assert_eq!((&row["system"], &row["on"]), (&"framewright".into(), &"hosted".into()));
    }
    assert_eq!(series.len(), falls.len());
    assert!(!falls.is_empty());
    for row in falls {
        let number = |name: &str| row[name].as_f64();
        assert_eq!((&row["on"], number("dirtied_mib")), (&"hosted".into(), Some(512.0)), "{row}");
        assert!(number("t50_s") > Some(0.0) && number("t95_s") >= number("t50_s"), "{row}");
        assert!(
            number("left_mib").is_some_and(|left| left < 16.0)
                && number("reported_twice") == Some(0.0),
            "{row}"
        );
    }
    for workload in ["page_fault1", "page_fault2"] {
        for config in ["off", "on", "on+shuffle", "madv_free"] {
            let of =
                |row: &&&serde_json::Value| row["workload"] == workload && row["config"] == config;
            let row = faults.iter().find(of).unwrap_or_else(|| panic!("{workload} {config}"));
            let number = |name: &str| row[name].as_f64();
            assert!(
                number("iterations_per_s") > Some(0.0) && number("deviation").is_some(),
                "{row}"
            );
            assert!(number("against_off_low") <= number("against_off"), "{row}");
            assert!(config != "off" || number("against_off") == Some(1.0), "{row}");
        }
    }
}
