//! `framewright-bench`: rows are complete and plausible. Speed is not judged here, because the
//! build may be unoptimised.

#[path = "../../cli/tests/common/mod.rs"]
mod common;

use common::run;

#[test]
fn bring_up_measures_every_machine_both_ways() {
    let report = run(&["bring-up", "--quick", "--json"]).json();
    assert_eq!(
        (report["bench"].as_str(), report["repetitions"].as_u64()),
        (Some("bring-up"), Some(3))
    );
    assert!(report["timed"].as_str().is_some_and(|text| text.contains("0xa5")));
    let rows = report["rows"].as_array().expect("rows");
    let which: Vec<_> = rows
        .iter()
        .map(|row| (row["machine"].as_str().unwrap(), row["tables"].as_str().unwrap()))
        .collect();
    let expected = ["8G/1 node", "768G/2 nodes", "24T/16 nodes"]
        .map(|machine| [(machine, "backed"), (machine, "first touch")]);
    assert_eq!(which, expected.concat());
    for (row, gib) in rows.iter().zip([8.0, 8.0, 768.0, 768.0, 24576.0, 24576.0]) {
        let number = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name} in {row}"));
        assert!(
            number("bring_up_us_min") <= number("bring_up_us")
                && number("bring_up_us") <= number("bring_up_us_max")
        );
        assert!(
            number("first_alloc_us") > 0.0 && number("first_alloc_us") <= number("bring_up_us_max")
        );
        assert!(number("managed_gib") > gib * 0.99 && number("managed_gib") <= gib);
        assert!(number("metadata_ratio") > 0.0 && number("metadata_ratio") < 0.001);
        assert_eq!((row["bench"].as_str(), row["threads"].as_u64()), (Some("bring-up"), Some(1)));
    }
}
