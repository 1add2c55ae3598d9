//! The guest beside Linux.

use super::super::svg::{Bars, Limit, Mark, Shape, Unit};
use super::{Group, Section, WIDE, mark, number, text};
use crate::targets::Rows;
use serde_json::Value;

/// Units of times, in seconds.
const UNITS: [(&str, f64); 2] = [("ms", 1e-3), ("seconds", 1.0)];

pub(super) fn section(rows: &Rows<'_>) -> Section {
    let rows = rows.bench("compare").filter(is_comparable);
    let lines: Vec<(String, Vec<Option<Mark>>)> =
        rows.iter().filter_map(|row| Some((name(row), vec![Some(times_less(row)?)]))).collect();
    let ratios = Bars {
        title: "Speed-up over Linux".into(),
        unit: Unit::Ratio,
        shape: Shape::Dots,
        is_log: true,
        series: vec!["ratio".into()],
        rows: lines,
        limits: vec![Limit::all(1.0, "same as Linux")],
        // The first two are both systems' times.
        first_sign: 2,
        width: WIDE,
    };
    let both: Vec<(String, Vec<Option<Mark>>)> = rows
        .iter()
        .filter_map(|row| {
            let (unit, scale) = UNITS
                .into_iter()
                .find(|(unit, _)| number(row, &format!("linux_{unit}")).is_some())?;
            let of = |system: &str| mark(row, &format!("{system}_{unit}"), scale);
            Some((name(row), vec![of("ours"), of("linux")]))
        })
        .collect();
    let series = vec!["framewright".to_owned(), "Linux".to_owned()];
    let times = Bars {
        title: "Times".into(),
        unit: Unit::Time,
        shape: Shape::Dots,
        is_log: true,
        series: series.clone(),
        rows: both,
        limits: Vec::new(),
        first_sign: 0,
        width: WIDE,
    };
    let draw = |plot: &Bars| if plot.rows.is_empty() { Vec::new() } else { vec![plot.draw()] };
    Section {
        id: "linux",
        title: "Beside Linux",
        lead: "The same virtual machine, booted in turn with Linux and with the reference guest. \
            Right of the line ours takes less. What is not the same path in both, such as page \
            faults, is in the table alone."
            .into(),
        benches: &["compare"],
        groups: vec![Group::wide(Vec::new(), draw(&ratios)), Group::wide(series, draw(&times))],
    }
}

/// Whether both do the same: page faults are no allocations, also where a file of earlier versions
/// does not say so.
fn is_comparable(row: &Value) -> bool {
    row.get("comparable") != Some(&Value::Bool(false))
        && !text(row, "what").starts_with("page_fault")
}

/// How many times less ours takes: of times and metadata Linux's over ours, of rates ours over
/// Linux's. Nothing for what is neither good nor bad.
fn times_less(row: &Value) -> Option<Mark> {
    let has = |unit: &str| number(row, &format!("linux_{unit}")).is_some();
    let ratio = mark(row, "ratio", 1.0).filter(|mark| mark.value > 0.0)?;
    if UNITS.iter().any(|(unit, _)| has(unit))
        || has("bytes") && text(row, "what").contains("metadata")
    {
        return Some(ratio);
    }
    let spread = ratio
        .spread
        .filter(|(least, _)| *least > 0.0)
        .map(|(least, most)| (1.0 / most, 1.0 / least));
    has("iterations_per_s").then_some(Mark { value: 1.0 / ratio.value, spread })
}

fn name(row: &Value) -> String {
    let reclaim = match text(row, "reclaim") {
        "" => String::new(),
        reclaim => format!("reclaim {reclaim}"),
    };
    let cpus =
        super::whole(row, "cpus_used").map_or_else(String::new, |cpus| super::counted(cpus, "CPU"));
    let words = [
        text(row, "what"),
        text(row, "when"),
        text(row, "policy"),
        text(row, "pace"),
        cpus.as_str(),
        reclaim.as_str(),
    ];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ")
}
