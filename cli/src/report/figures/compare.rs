//! The guest beside Linux.

use super::super::svg::{Bars, Mark, Shape, Unit};
use super::{Group, Section, WIDE, mark, number, text};
use crate::targets::Rows;
use serde_json::Value;

pub(super) fn section(rows: &Rows<'_>) -> Section {
    let rows = rows.bench("compare");
    let lines: Vec<(String, Vec<Option<Mark>>)> = rows
        .iter()
        .filter_map(|row| {
            mark(row, "ratio", 1.0).filter(|mark| mark.value > 0.0).map(|mark| (name(row), vec![Some(mark)]))
        })
        .collect();
    let ratios = Bars {
        title: "Linux over ours: how many times less we take".into(),
        unit: Unit::Ratio,
        shape: Shape::Dots,
        is_log: true,
        series: vec!["ratio".into()],
        rows: lines,
        limits: vec![(1.0, "same as Linux".into())],
        width: WIDE,
    };
    let both: Vec<(String, Vec<Option<Mark>>)> = rows
        .iter()
        .filter_map(|row| {
            let (unit, scale) = [("ns", 1e-9), ("us", 1e-6), ("ms", 1e-3), ("seconds", 1.0), ("s", 1.0)]
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
        width: WIDE,
    };
    let draw = |plot: &Bars| if plot.rows.is_empty() { Vec::new() } else { vec![plot.draw()] };
    Section {
        id: "linux",
        title: "Beside Linux",
        lead: "The same virtual machine, booted in turn with Linux and with the reference guest. Right of the line ours takes less.".into(),
        benches: &["compare"],
        groups: vec![Group::wide(Vec::new(), draw(&ratios)), Group::wide(series, draw(&times))],
    }
}

fn name(row: &Value) -> String {
    let reclaim = match text(row, "reclaim") {
        "" => String::new(),
        reclaim => format!("reclaim {reclaim}"),
    };
    let words = [text(row, "what"), text(row, "policy"), reclaim.as_str()];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ")
}
