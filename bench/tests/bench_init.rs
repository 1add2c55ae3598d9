//! `framewright-bench init`: rows are complete and plausible. Speed is not judged here: the build
//! may be a slow one.

#[path = "../../cli/tests/common/mod.rs"]
mod common;

use common::run;

#[test]
fn every_policy_is_measured_beside_its_limit() {
    let report = run(&["init", "--quick", "--json"]).json();
    assert_eq!(report["bench"], "init");
    assert!(report["timed"].as_str().is_some_and(|text| text.contains("movnti")));
    let rows = report["rows"].as_array().expect("rows");
    let has = |policy: &str, init: &str, first_touch: bool| {
        rows.iter().any(|row| {
            row["policy"] == policy && row["init"] == init && row["first_touch"] == first_touch
        })
    };
    for policy in ["eager", "deferred"] {
        assert!(
            has(policy, "zero", false)
                && has(policy, "template", false)
                && has(policy, "zero", true),
            "{policy}"
        );
    }
    assert!(has("on-demand", "zero", false) && has("growth", "zero", false));
    for row in rows {
        let number = |name: &str| row[name].as_f64();
        assert_eq!(number("bytes"), number("pages").map(|pages| pages * 64.0), "{row}");
        assert!(
            number("seconds_min") <= number("seconds")
                && number("seconds") <= number("seconds_max"),
            "{row}"
        );
        let limited = matches!(row["policy"].as_str(), Some("eager" | "deferred"));
        assert_eq!(number("limit_ratio") > Some(0.0), limited, "{row}");
        // 8 GiB, but for frame 0 and the library's own tables.
        assert!(
            !limited
                || number("pages")
                    .is_some_and(|pages| (2_090_000.0..=2_097_152.0).contains(&pages)),
            "{row}"
        );
    }
}
