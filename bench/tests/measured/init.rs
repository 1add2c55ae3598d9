//! `init`: rows are complete and plausible.

use crate::section;
use serde_json::Value;

#[test]
fn every_policy_is_measured_beside_its_limit() {
    let report = section("init");
    assert_eq!(report["bench"], "init");
    assert!(report["timed"].as_str().is_some_and(|text| text.contains("movnti")));
    let all = report["rows"].as_array().expect("rows");
    let (rows, stores): (Vec<&Value>, Vec<&Value>) =
        all.iter().partition(|row| row["bench"] == "init");
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
    for row in &rows {
        let number = |name: &str| row[name].as_f64();
        assert_eq!(number("bytes"), number("pages").map(|pages| pages * 64.0), "{row}");
        assert!(
            number("seconds_min") <= number("seconds")
                && number("seconds") <= number("seconds_max"),
            "{row}"
        );
        let limited = matches!(row["policy"].as_str(), Some("eager" | "deferred"));
        assert_eq!(number("limit_ratio") > Some(0.0), limited, "{row}");
        // 8 GiB, less frame 0 and the library's own tables.
        assert!(
            !limited
                || number("pages")
                    .is_some_and(|pages| (2_090_000.0..=2_097_152.0).contains(&pages)),
            "{row}"
        );
    }
    every_store_is_there(&stores);
}

fn every_store_is_there(rows: &[&Value]) {
    for threads in 1..=std::thread::available_parallelism().map_or(1, usize::from).min(2) {
        for init in ["zero", "template"] {
            let is = |row: &&&Value| row["threads"] == threads && row["init"] == init;
            let of: Vec<&&Value> = rows.iter().filter(is).collect();
            assert!(of.len() >= 2, "{init} {threads}");
            assert_eq!(of.iter().filter(|row| row["chosen"] == 1).count(), 1, "{init} {threads}");
            let best = of.iter().filter(|row| row["best_ratio"].as_f64() == Some(1.0));
            assert!(best.count() >= 1, "{init} {threads}");
            let ratio = |row: &Value| row["best_ratio"].as_f64().unwrap_or(0.0);
            assert!(of.iter().all(|row| (0.0..=1.0).contains(&ratio(row)) && ratio(row) > 0.0));
            for row in of {
                assert!(row["seconds_min"].as_f64() <= row["seconds"].as_f64(), "{row}");
                assert!(row["bytes"].as_u64() == Some(128 << 20), "{row}");
            }
        }
    }
}
