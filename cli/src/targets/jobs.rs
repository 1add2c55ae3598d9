//! Parallel jobs.

use super::Comparison::{AtLeast, AtMost};
use super::rows::{number, text};
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
    Target { id, area: "Jobs", what, comparison, wanted, unit: "x", against, measure, command: "bench jobs" }
}

pub(super) const TARGETS: &[Target] = &[
    ratio("jobs-small", "Jobs below 20 us: time over a plain loop's", (AtMost, 1.05), "serial", |rows| {
        let rows = rows.bench("jobs").filter(|row| case(row) != "two-empty" && !case(row).starts_with("busy"));
        let small = rows.is("engine", "serial").filter(|row| seconds(row).is_some_and(|time| time < SMALL_SECONDS));
        ours(&rows).over(&small, "seconds", SAME, SAME)
    }),
    ratio("jobs-uniform", "Large even jobs: rayon's time over ours", (AtLeast, 0.98), "rayon", |rows| {
        against_rayon(&rows.filter(|row| case(row) == "uniform"))
    }),
    ratio("jobs-skewed", "Large uneven jobs: rayon's time over ours", (AtLeast, 1.0), "rayon", |rows| {
        against_rayon(&rows.filter(|row| matches!(case(row), "one-heavy" | "ramp")))
    }),
    ratio("jobs-empty", "A job of two empty units on two threads: time over rayon's", (AtMost, 0.5), "rayon", |rows| {
        let rows = rows.bench("jobs").is("case", "two-empty");
        ours(&rows).over(&rows.is("engine", "rayon"), "seconds", SAME, &["case"])
    }),
    ratio(
        "jobs-busy",
        "Next to a process that keeps a CPU busy: time over a plain loop's",
        (AtMost, 1.0),
        "serial",
        |rows| {
            let rows = rows.bench("jobs").filter(|row| case(row).starts_with("busy"));
            ours(&rows).over(&rows.is("engine", "serial"), "seconds", SAME, SAME)
        },
    ),
];

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
    let serial = rows.is("engine", "serial");
    let is_large = |row: &Value| {
        let same = serial.filter(|other| SAME.iter().all(|name| row.get(*name) == other.get(*name)));
        same.iter().any(|row| seconds(row).is_some_and(|time| time > LARGE_SECONDS))
    };
    let large = rows.filter(is_large);
    large.is("engine", "rayon").over(&ours(&large), "seconds", SAME, SAME)
}
