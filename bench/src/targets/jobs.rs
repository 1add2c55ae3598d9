//! Parallel jobs.

use super::Comparison::{AtLeast, AtMost};
use super::rows::{key, number, text};
use super::{Comparison, Measure, Rows, Sample, Target};
use serde_json::Value;

/// What tells jobs apart.
const SAME: &[&str] = &["case", "units", "unit_ns"];
/// A job that takes one thread less than this is small.
const SMALL_SECONDS: f64 = 20e-6;
/// A job that takes one thread more than this is large.
const LARGE_SECONDS: f64 = 1e-3;

const fn ratio(
    id: &'static str,
    what: &'static str,
    (comparison, wanted): (Comparison, f64),
    against: &'static str,
    measure: Measure,
) -> Target {
    Target {
        id,
        area: "Jobs",
        what,
        comparison,
        wanted,
        unit: "x",
        against,
        measure,
        command: "jobs",
        limit: None,
    }
}

pub(super) const TARGETS: &[Target] = &[
    ratio(
        "jobs-small",
        "Jobs below 20 us, one after the other: time over a plain loop's",
        (AtMost, 1.05),
        "serial",
        |rows| {
            let rows = rows
                .bench("jobs")
                .filter(|row| case(row) != "two-empty" && !case(row).starts_with("busy"));
            let small = rows
                .is("engine", "serial")
                .filter(|row| seconds(row).is_some_and(|time| time < SMALL_SECONDS));
            let jobs = small.by(SAME);
            over(
                &ours(&rows).filter(|row| jobs.contains_key(&key(row, SAME))),
                "serial_ratio",
                &small,
            )
        },
    ),
    ratio(
        "jobs-uniform",
        "Large even jobs: rayon's time over ours",
        (AtLeast, 0.98),
        "rayon",
        |rows| against_rayon(&rows.filter(|row| case(row) == "uniform")),
    ),
    ratio(
        "jobs-skewed",
        "Large uneven jobs: rayon's time over ours",
        (AtLeast, 1.0),
        "rayon",
        |rows| against_rayon(&rows.filter(|row| matches!(case(row), "one-heavy" | "ramp"))),
    ),
    ratio(
        "jobs-empty",
        "A job of two empty units on two threads: time over rayon's",
        (AtMost, 0.5),
        "rayon",
        |rows| {
            let rows = rows.bench("jobs").is("case", "two-empty");
            let samples = over(&rows.is("engine", "rayon"), "framewright_ratio", &ours(&rows));
            let inverse = |sample: Sample| Sample { value: 1.0 / sample.value, ..sample };
            samples.into_iter().filter(|sample| sample.value > 0.0).map(inverse).collect()
        },
    ),
    ratio(
        "jobs-busy",
        "Next to a process that keeps a CPU busy: time over a plain loop's",
        (AtMost, 1.0),
        "serial",
        |rows| {
            let rows = rows.bench("jobs").filter(|row| case(row).starts_with("busy"));
            over(&ours(&rows), "serial_ratio", &rows.is("engine", "serial"))
        },
    ),
];

/// The time of `rows` over that of `others`, the same jobs by another engine: the middle of the
/// ratios of neighbouring runs, where rows have it in `field`.
fn over(rows: &Rows<'_>, field: &str, others: &Rows<'_>) -> Vec<Sample> {
    let samples = rows.samples(field, 1.0, SAME);
    if samples.is_empty() { rows.over(others, "seconds", SAME, SAME) } else { samples }
}

fn case(row: &Value) -> &str {
    text(row, "case")
}

fn seconds(row: &Value) -> Option<f64> {
    number(row, "seconds")
}

fn ours<'a>(rows: &Rows<'a>) -> Rows<'a> {
    rows.is("engine", "framewright")
}

/// Of jobs that are large for one thread.
fn against_rayon(rows: &Rows<'_>) -> Vec<Sample> {
    let rows = rows.bench("jobs");
    let long = |row: &Value| seconds(row).is_some_and(|time| time > LARGE_SECONDS);
    let serial = rows.is("engine", "serial").filter(long).by(SAME);
    let large = rows.filter(|row| serial.contains_key(&key(row, SAME)));
    over(&large.is("engine", "rayon"), "framewright_ratio", &ours(&large))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ratios_of_neighbouring_runs_go_before_those_of_medians() {
        let row = |engine: &str, seconds: f64| {
            json!({ "bench": "jobs", "case": "uniform",
            "engine": engine, "units": 7, "unit_ns": 1, "seconds": seconds })
        };
        let values = |rows: &[Value], id: &str| -> Vec<f64> {
            let target = TARGETS.iter().find(|target| target.id == id).expect("there is one");
            (target.measure)(&Rows::new(rows)).iter().map(|sample| sample.value).collect()
        };
        let mut rows = [row("serial", 0.25), row("framewright", 0.125), row("rayon", 0.1875)];
        assert_eq!(values(&rows, "jobs-uniform"), [1.5]);
        rows[2]["framewright_ratio"] = json!(1.25);
        assert_eq!(values(&rows, "jobs-uniform"), [1.25]);
        // Of small jobs.
        assert!(values(&rows, "jobs-small").is_empty());
        let mut rows = [row("serial", 2e-6), row("framewright", 4e-6)];
        assert_eq!(values(&rows, "jobs-small"), [2.0]);
        rows[1]["serial_ratio"] = json!(1.75);
        assert_eq!(values(&rows, "jobs-small"), [1.75]);
        // The other way round.
        let mut rows = [row("framewright", 1.0), row("rayon", 8.0)];
        rows.iter_mut().for_each(|row| row["case"] = json!("two-empty"));
        assert_eq!(values(&rows, "jobs-empty"), [0.125]);
        rows[1]["framewright_ratio"] = json!(4.0);
        assert_eq!(values(&rows, "jobs-empty"), [0.25]);
    }
}
