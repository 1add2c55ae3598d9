//! The program itself, and its model.

use super::rows::text;
use super::{Rows, Sample, Target, at_most};

const AREA: &str = "Program and model";

pub(super) const TARGETS: &[Target] = &[
    at_most(
        AREA,
        "bench-all-quick",
        "bench all --quick on 2 CPUs",
        (180.0, "s"),
        ("an absolute limit", "all --quick"),
        |rows| runs(rows, &["bench all --quick"]),
    ),
    at_most(
        AREA,
        "compare-linux",
        "compare linux, emulated",
        (600.0, "s"),
        ("an absolute limit", "compare linux"),
        |rows| runs(rows, &["compare linux", "compare linux --quick"]),
    ),
    at_most(
        AREA,
        "model-error",
        "Model: error against what is measured here",
        (25.0, "%"),
        ("measured", "all"),
        |rows| {
            // Other machines' published times are shown, but were not measured here.
            let rows = rows.bench("model").is("source", "here");
            let samples = rows.samples("error_percent", 1.0, &["what", "machine"]);
            samples
                .into_iter()
                .map(|sample| Sample { value: sample.value.abs(), ..sample })
                .collect()
        },
    ),
];

/// How long whole runs took: rows that readers of files add, see `report::input`.
fn runs(rows: &Rows<'_>, commands: &[&str]) -> Vec<Sample> {
    let rows = rows.bench("run").filter(|row| commands.contains(&text(row, "command")));
    rows.samples("run_seconds", 1.0, &["command"])
}
