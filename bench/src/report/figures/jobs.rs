//! Parallel jobs beside other ways to run a loop.

use super::super::svg::{Bars, Limit, Mark, Shape, Unit};
use super::{Group, Section, WIDE, number, text, texts, whole};
use crate::targets::{Rows, key};
use serde_json::Value;
use std::collections::HashMap;

const SAME: [&str; 3] = ["case", "units", "unit_ns"];
/// Engines that are shown, ours first.
const ENGINES: [&str; 5] = ["framewright", "rayon", "scoped", "rayon-inside", "framewright-new"];

pub(super) fn section(rows: &Rows<'_>) -> Section {
    let rows = rows.bench("jobs");
    let known = texts(&rows, "engine");
    let engines: Vec<String> = ENGINES
        .iter()
        .filter(|name| known.iter().any(|known| known == *name))
        .map(|name| (*name).to_owned())
        .collect();
    let mut lines: Vec<(f64, String, Vec<Option<Mark>>)> = Vec::new();
    let by_engine: Vec<_> =
        engines.iter().map(|engine| rows.is("engine", engine.as_str()).by(&SAME)).collect();
    for serial in rows.is("engine", "serial").iter() {
        let Some(time) = number(serial, "seconds").filter(|&time| time > 0.0) else { continue };
        let job = key(serial, &SAME);
        let of = |jobs: &HashMap<String, &Value>| {
            let mark = jobs.get(&job).and_then(|row| super::mark(row, "seconds", 1.0 / time));
            // What is far away would push everything else together.
            mark.filter(|mark| mark.value <= FARTHEST)
        };
        lines.push((time, name(serial), by_engine.iter().map(of).collect()));
    }
    lines.sort_by(|one, other| one.0.total_cmp(&other.0));
    let plot = Bars {
        title: "Time over that of a plain loop on one CPU, short jobs first".into(),
        unit: Unit::Ratio,
        shape: Shape::Dots,
        is_log: true,
        series: engines.clone(),
        rows: lines.into_iter().map(|(_, name, marks)| (name, marks)).collect(),
        limits: vec![Limit::all(1.0, "")],
        first_sign: 0,
        width: WIDE,
    };
    let plots = if plot.rows.is_empty() { Vec::new() } else { vec![plot.draw()] };
    Section {
        id: "jobs",
        title: "Parallel jobs",
        lead: format!(
            "Left of the line a job is faster than a loop, right of it slower. Marks beyond \
             {FARTHEST:.0} times are left out; they are in the table."
        ),
        benches: &["jobs"],
        groups: vec![Group::wide(engines, plots)],
    }
}

/// Ratios that are drawn at most.
const FARTHEST: f64 = 300.0;

/// `uniform, 10^5 of 1 ns`, and how long a loop takes.
fn name(row: &Value) -> String {
    let units = whole(row, "units").unwrap_or(0);
    let shown = if units >= 1000 && 10_u64.checked_pow(units.ilog10()) == Some(units) {
        format!("10^{}", units.ilog10())
    } else {
        units.to_string()
    };
    let time = Unit::Time.value(number(row, "seconds").unwrap_or(0.0));
    match whole(row, "unit_ns") {
        Some(ns) if ns > 0 => format!("{}, {shown} of {ns} ns \u{b7} {time}", text(row, "case")),
        _ => format!("{}, {shown} \u{b7} {time}", text(row, "case")),
    }
}
