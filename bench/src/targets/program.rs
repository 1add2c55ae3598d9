//! Targets of the program itself and of its model.

use super::Sample;
use super::sample::{samples, words};
use crate::rows::{Model, Rows};

targets! { TARGETS:
    Program, "all --quick", "bench-all-quick", "bench all --quick on 2 CPUs",
        <= 180.0 "s", "an absolute limit", |rows| runs(rows, &["bench all --quick"]);
    Program, "compare linux", "compare-linux", "compare linux, emulated",
        <= 600.0 "s", "an absolute limit",
        |rows| runs(rows, &["compare linux", "compare linux --quick"]);
    Program, "all", "model-error", "Model: error against what is measured here",
        <= 25.0 "%", "measured",
        |rows| {
            // Published times of other machines are shown, but were not measured here.
            let here = rows.model.iter().filter(|row| row.source == "here");
            // A row without an error stands for rows that could not be measured.
            let error = |row: &Model| Some(row.error_percent.0.get().map_or(f64::NAN, f64::abs));
            samples(here, error, |row| words(&[&row.what, &row.machine]))
        };
}

/// How long whole runs took, from rows that the reader of files adds, see `report::input`.
fn runs(rows: &Rows, commands: &[&str]) -> Vec<Sample> {
    let runs = rows.run.iter().filter(|row| commands.contains(&row.command.as_str()));
    samples(runs, |row| row.run_seconds.get(), |row| row.command.clone())
}
