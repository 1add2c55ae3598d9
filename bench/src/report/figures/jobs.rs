//! Parallel jobs beside other ways to run a loop.

use super::super::svg::{Bars, Limit, Unit};
use super::{Group, Line, Section, WIDE, dots, drawn, mark, texts};
use crate::rows::{Jobs, Rows};
use std::collections::HashMap;

/// The engines that are shown, ours first.
const ENGINES: [&str; 5] = ["framewright", "rayon", "scoped", "rayon-inside", "framewright-new"];

pub fn section(rows: &Rows) -> Section {
    let known = texts(rows.jobs.iter().map(|row| &row.engine));
    let engines: Vec<String> = ENGINES
        .iter()
        .filter(|name| known.iter().any(|known| known == *name))
        .map(|name| (*name).to_owned())
        .collect();
    let by = |engine| by(&rows.jobs, engine);
    let by_engine: Vec<HashMap<_, &Jobs>> =
        engines.iter().map(|engine| by(engine).map(|row| (row.job(), row)).collect()).collect();
    let mut lines: Vec<(f64, Line)> = Vec::new();
    for serial in by("serial") {
        let Some(time) = serial.seconds.middle.filter(|&time| time > 0.0) else { continue };
        let of = |jobs: &HashMap<_, &Jobs>| {
            let mark = jobs.get(&serial.job()).and_then(|row| mark(row.seconds, 1.0 / time));
            // A point that is far away would push all others together.
            mark.filter(|mark| mark.value <= FARTHEST)
        };
        lines.push((time, (name(serial), by_engine.iter().map(of).collect())));
    }
    lines.sort_by(|one, other| one.0.total_cmp(&other.0));
    let plot = Bars {
        limits: vec![Limit::all(1.0, "")],
        width: WIDE,
        ..dots(
            "Time over that of a plain loop on one CPU, short jobs first",
            Unit::Ratio,
            &engines,
            lines.into_iter().map(|(_, line)| line).collect(),
        )
    };
    Section {
        id: "jobs",
        title: "Parallel jobs",
        lead: format!(
            "Left of the line a job is faster than a loop, right of it slower. Marks beyond \
             {FARTHEST:.0} times are left out; they are in the table."
        ),
        benches: &["jobs"],
        groups: vec![Group::wide(engines, drawn(&plot).into_iter().collect())],
    }
}

fn by<'a>(rows: &'a [Jobs], engine: &'a str) -> impl Iterator<Item = &'a Jobs> {
    rows.iter().filter(move |row| row.engine == engine)
}

/// The greatest ratio that is drawn.
const FARTHEST: f64 = 300.0;

/// Names a job, such as `uniform, 10^5 of 1 ns`, with the time of a plain loop.
fn name(row: &Jobs) -> String {
    let units = row.units;
    let shown = if units >= 1000 && 10_u64.checked_pow(units.ilog10()) == Some(units) {
        format!("10^{}", units.ilog10())
    } else {
        units.to_string()
    };
    let time = Unit::Time.value(row.seconds.middle.unwrap_or(0.0));
    let each = if row.unit_ns > 0 { format!(" of {} ns", row.unit_ns) } else { String::new() };
    format!("{}, {shown}{each} \u{b7} {time}", row.case)
}
