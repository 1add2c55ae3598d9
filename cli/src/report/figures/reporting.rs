//! Free page reporting: memory that goes back to the host over time, and what that costs.

use super::super::svg::{Bars, Line, Lines, Mark, Picture, Shape, Unit};
use super::{Group, NARROW, Section, WIDE, counted, mark, number, text, texts, whole};
use crate::targets::{Rows, key};
use serde_json::Value;
use std::collections::HashMap;

/// Points of a curve at most.
const MOST_POINTS: usize = 240;

pub(super) fn section(rows: &Rows<'_>) -> Section {
    Section {
        id: "reporting",
        title: "Page reporting",
        lead: "Memory is dirtied and freed at once; then the host watches how much of it is still there. Below, what those who allocate notice of it.".into(),
        benches: &["reporting", "series", "fault", "shuffle"],
        groups: vec![
            Group::wide(Vec::new(), curves(&rows.bench("series"))),
            Group::new(vec!["half".into(), "95 %".into()], falls(&rows.bench("reporting")).into_iter().collect()),
            faults(&rows.bench("fault")),
        ],
    }
}

/// One plot for everything that was done, one curve for each run.
fn curves(rows: &Rows<'_>) -> Vec<Picture> {
    let mut plots = Vec::new();
    for what in texts(rows, "what") {
        let rows = rows.is("what", what.as_str());
        let mut lines: Vec<Line> = rows.iter().filter_map(curve).collect();
        // Ours first, the quickest of them before others.
        lines.sort_by_key(|line| (line.name.starts_with("Linux"), line.name.ends_with("fixed")));
        for (series, line) in lines.iter_mut().enumerate() {
            line.series = series;
        }
        if lines.is_empty() {
            continue;
        }
        let plot = Lines {
            title: format!("The host\u{2019}s view of the machine\u{2019}s memory: {what}"),
            below: ("time".into(), Unit::Time),
            side: Unit::Gib,
            is_log: false,
            has_signs: false,
            lines,
            ideal: None,
            width: WIDE,
            height: 300.0,
        };
        plots.push(plot.draw());
    }
    plots
}

fn curve(row: &Value) -> Option<Line> {
    let series = |field: &str| -> Option<Vec<f64>> { row.get(field)?.as_array()?.iter().map(Value::as_f64).collect() };
    let points: Vec<(f64, f64)> =
        series("at_seconds")?.into_iter().zip(series("rss_mib")?.into_iter().map(|mib| mib / 1024.0)).collect();
    let each = points.len().div_ceil(MOST_POINTS).max(1);
    let last = points.last().copied();
    let mut kept: Vec<(f64, f64)> = points.iter().copied().step_by(each).collect();
    if kept.last() != last.as_ref() {
        kept.extend(last);
    }
    let system = match text(row, "system") {
        "linux" => "Linux",
        "framewright" => "Framewright",
        other => other,
    };
    let on = if text(row, "on") == "hosted" { "in a process" } else { "" };
    let words = [system, on, text(row, "pace")];
    let name = words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(", ");
    Some(Line { name, points: kept, series: 0 })
}

fn falls(rows: &Rows<'_>) -> Option<Picture> {
    let lines: Vec<(String, Vec<Option<Mark>>)> = rows
        .iter()
        .map(|row| {
            let on = if text(row, "on") == "qemu" { "guest" } else { "process" };
            let dirtied =
                number(row, "dirtied_mib").map_or_else(String::new, |mib| format!(", {}", Unit::Mib.tick(mib)));
            (format!("{on}, {}{dirtied}", text(row, "pace")), vec![mark(row, "t50_s", 1.0), mark(row, "t95_s", 1.0)])
        })
        .filter(|(_, marks)| marks.iter().any(Option::is_some))
        .collect();
    let plot = Bars {
        title: "Until memory is back with the host".into(),
        unit: Unit::Time,
        shape: Shape::Dots,
        is_log: true,
        series: vec!["half".into(), "95 %".into()],
        rows: lines,
        limits: vec![(3.0, "must".into()), (18.0, "Linux".into())],
        width: NARROW,
    };
    (!plot.rows.is_empty()).then(|| plot.draw())
}

fn faults(rows: &Rows<'_>) -> Group {
    let configs: Vec<String> = texts(rows, "config").into_iter().filter(|config| config != "off").collect();
    let mut lines: Vec<(String, Vec<Option<Mark>>)> = Vec::new();
    const SAME: [&str; 3] = ["on", "workload", "cpus"];
    let by_config: Vec<_> = configs.iter().map(|config| rows.is("config", config.as_str()).by(&SAME)).collect();
    for off in rows.is("config", "off").iter() {
        let job = key(off, &SAME);
        let of = |of: &HashMap<String, &Value>| {
            let percent = |ratio: f64| (ratio - 1.0) * 100.0;
            of.get(&job).and_then(|row| {
                let ends = number(row, "against_off_low").zip(number(row, "against_off_high"));
                let spread = ends.map(|(low, high)| (percent(low), percent(high)));
                Some(Mark { value: percent(number(row, "against_off")?), spread })
            })
        };
        let on = if text(off, "on") == "qemu" { ", guest" } else { "" };
        let name = format!("{}, {}{on}", text(off, "workload"), counted(whole(off, "cpus").unwrap_or(1), "CPU"));
        lines.push((name, by_config.iter().map(of).collect()));
    }
    lines.retain(|(_, marks)| marks.iter().any(Option::is_some));
    let plot = Bars {
        title: "Page faults per CPU second, against reporting off".into(),
        unit: Unit::Percent,
        shape: Shape::Dots,
        is_log: false,
        series: configs.clone(),
        rows: lines,
        limits: vec![(-1.7, "must".into())],
        width: NARROW,
    };
    let plots = if plot.rows.is_empty() { Vec::new() } else { vec![plot.draw()] };
    Group::new(configs, plots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn long_curves_keep_their_shape_and_their_end() {
        let at: Vec<f64> = (0..10_000).map(|index| f64::from(index) * 0.01).collect();
        let rss: Vec<f64> = at.iter().map(|at| 2048.0 - at).collect();
        let row = json!({ "bench": "series", "what": "2 GiB freed", "system": "linux", "pace": "fixed", "at_seconds": at, "rss_mib": rss });
        let line = curve(&row).expect("a curve");
        let last = line.points.last().expect("there are points");
        assert!(
            line.points.len() <= MOST_POINTS + 1
                && (last.0 - 99.99).abs() < 1e-9
                && (last.1 * 1024.0 - 1948.01).abs() < 1e-6
        );
        assert_eq!(line.name, "Linux, fixed");
        assert!(curve(&json!({ "at_seconds": 3 })).is_none());
    }
}
