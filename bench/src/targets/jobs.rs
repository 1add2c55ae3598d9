//! Targets of parallel jobs.

use super::Sample;
use super::sample::{over, samples, words};
use crate::rows::{Jobs, Rows};
use framewright_cli::grid::counted;
use std::collections::HashSet;

/// A job that takes one thread less than this is small.
const SMALL_SECONDS: f64 = 20e-6;
/// A job that takes one thread more than this is large.
const LARGE_SECONDS: f64 = 1e-3;

targets! { TARGETS:
    Jobs, "jobs", "jobs-small", "Jobs below 20 us, one after the other: time over a plain loop's",
        <= 1.05 "x", "serial",
        |rows| {
            let rows = of(rows, |row| row.case != "two-empty" && !is_busy(row));
            let small = by(&rows, SERIAL).filter(|row| seconds(row) < Some(SMALL_SECONDS));
            let small: Vec<&Jobs> = small.filter(|row| seconds(row).is_some()).collect();
            let jobs: HashSet<_> = small.iter().map(|row| row.job()).collect();
            let ours = by(&rows, OURS).filter(|row| jobs.contains(&row.job())).collect();
            compared(ours, |row| row.serial_ratio.middle, small)
        };
    Jobs, "jobs", "jobs-uniform", "Large even jobs: rayon's time over ours", >= 0.98 "x", "rayon",
        |rows| against_rayon(rows, &["uniform"]);
    Jobs, "jobs", "jobs-skewed", "Large uneven jobs: rayon's time over ours", >= 1.0 "x", "rayon",
        |rows| against_rayon(rows, &["one-heavy", "ramp"]);
    Jobs, "jobs", "jobs-empty", "A job of two empty units on two threads: time over rayon's",
        <= 0.5 "x", "rayon",
        |rows| {
            let rows = of(rows, |row| row.case == "two-empty");
            let samples = over_ours(&rows);
            // The inverse of a value that is no time is no time either.
            let of = |value: f64| if value > 0.0 { 1.0 / value } else { f64::NAN };
            let inverse = |sample: Sample| Sample { value: of(sample.value), ..sample };
            samples.into_iter().map(inverse).collect()
        };
    Jobs, "jobs", "jobs-busy", "Next to a process that keeps a CPU busy: time over a plain loop's",
        <= 1.0 "x", "serial",
        |rows| {
            let rows = of(rows, is_busy);
            let (ours, serial) = (by(&rows, OURS).collect(), by(&rows, SERIAL).collect());
            compared(ours, |row| row.serial_ratio.middle, serial)
        };
}

const OURS: &str = "framewright";
const SERIAL: &str = "serial";

impl Jobs {
    /// The key that tells jobs apart.
    pub fn job(&self) -> (&str, u64, u64) {
        (&self.case, self.units, self.unit_ns)
    }
}

fn of(rows: &Rows, is: impl Fn(&Jobs) -> bool) -> Vec<&Jobs> {
    rows.jobs.iter().filter(|row| is(row)).collect()
}

/// The rows of an engine.
fn by<'a>(rows: &[&'a Jobs], engine: &str) -> impl Iterator<Item = &'a Jobs> {
    rows.iter().copied().filter(move |row| row.engine == engine)
}

fn is_busy(row: &Jobs) -> bool {
    row.case.starts_with("busy")
}

fn seconds(row: &Jobs) -> Option<f64> {
    row.seconds.middle
}

/// The time of `rows` over that of `others`, which are the same jobs by another engine. If rows
/// have it, this is the median of the ratios of neighbouring runs.
fn compared(rows: Vec<&Jobs>, ratio: fn(&Jobs) -> Option<f64>, others: Vec<&Jobs>) -> Vec<Sample> {
    let place = |row: &Jobs| {
        words(&[&row.case, &counted(row.units, "unit"), &format!("{} ns each", row.unit_ns)])
    };
    let of_rounds = samples(rows.iter().copied(), ratio, place);
    if of_rounds.is_empty() { over(rows, others, Jobs::job, seconds, place) } else { of_rounds }
}

/// Rayon's time over ours.
fn over_ours(rows: &[&Jobs]) -> Vec<Sample> {
    let (rayon, ours) = (by(rows, "rayon").collect(), by(rows, OURS).collect());
    compared(rayon, |row| row.framewright_ratio.middle, ours)
}

/// Samples of jobs that are large for one thread.
fn against_rayon(rows: &Rows, cases: &[&str]) -> Vec<Sample> {
    let rows = of(rows, |row| cases.contains(&row.case.as_str()));
    let long = by(&rows, SERIAL).filter(|row| seconds(row) > Some(LARGE_SECONDS));
    let long: HashSet<_> = long.map(Jobs::job).collect();
    let large: Vec<&Jobs> = rows.into_iter().filter(|row| long.contains(&row.job())).collect();
    over_ours(&large)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn ratios_of_neighbouring_runs_go_before_those_of_medians() {
        let row = |engine: &str, seconds: f64| {
            json!({ "bench": "jobs", "case": "uniform",
            "engine": engine, "units": 7, "unit_ns": 1, "seconds": seconds })
        };
        let values = |rows: &[Value], id: &str| -> Vec<f64> {
            let target = TARGETS.iter().find(|target| target.id == id).expect("there is one");
            (target.measure)(&Rows::of(rows)).iter().map(|sample| sample.value).collect()
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
        rows[0]["seconds"] = json!(0.0);
        assert!(values(&rows, "jobs-empty")[0].is_nan(), "it is not left out");
        rows[1]["framewright_ratio"] = json!(4.0);
        assert_eq!(values(&rows, "jobs-empty"), [0.25]);
    }
}
