//! Free page reporting: memory that goes back to the host over time, and what that costs.

use super::super::svg::{Bars, Limit, Line, Lines, MOST_SERIES, Mark, Picture, Shape, Unit};
use super::{Group, NARROW, Section, WIDE, counted, mark, number, text, texts, whole};
use crate::targets::{Rows, key, linux_seconds};
use serde_json::Value;
use std::collections::HashMap;

/// Curves that are told apart; with the other signs of the section they are as many as there are.
const MOST_CURVES: usize = 6;
/// Points of a curve at most.
const MOST_POINTS: usize = 240;

/// What each half of the memory of a machine of 4 GiB is: the size that limits speak of.
const JUDGED_MIB: f64 = 2048.0;
/// What Linux takes elsewhere until 95 % of that are back, where nobody measured it.
const LINUX_SECONDS: f64 = 18.0;

pub(super) fn section(rows: &Rows<'_>) -> Section {
    let (curves, known) = curves(&rows.bench("series"));
    let shares = [HALF, MOST].map(ToOwned::to_owned).to_vec();
    let first = known + shares.len();
    Section {
        id: "reporting",
        title: "Page reporting",
        lead: "Memory is dirtied and freed at once; then the host watches how much of it is still \
            there. Below, what those who allocate notice of it."
            .into(),
        benches: &["reporting", "series", "fault", "shuffle"],
        groups: vec![
            Group::wide(Vec::new(), curves),
            Group::new(shares, falls(rows, known).into_iter().collect()).beginning_at(known),
            faults(&rows.bench("fault"), first),
        ],
    }
}

/// Shares of what was freed.
const HALF: &str = "half";
const MOST: &str = "95 %";

/// One plot for everything that was done, one curve for each run; and how many curves are told
/// apart, as a curve looks alike in all plots.
fn curves(rows: &Rows<'_>) -> (Vec<Picture>, usize) {
    let mut plots = Vec::new();
    // Ours first, the quickest of them before others.
    let mut known: Vec<String> = rows.iter().filter_map(curve).map(|line| line.name).collect();
    let order = |name: &String| (name.starts_with("Linux"), name.ends_with("fixed"), name.clone());
    known.sort_by_key(order);
    known.dedup();
    known.truncate(MOST_CURVES);
    for what in texts(rows, "what") {
        let rows = rows.is("what", what.as_str());
        let mut lines: Vec<Line> = rows.iter().filter_map(curve).collect();
        lines.retain(|line| known.contains(&line.name));
        lines.sort_by_key(|line| order(&line.name));
        for line in &mut lines {
            line.series = known.iter().position(|name| *name == line.name).unwrap_or(0);
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
    (plots, known.len())
}

fn curve(row: &Value) -> Option<Line> {
    let series = |field: &str| -> Option<Vec<f64>> {
        row.get(field)?.as_array()?.iter().map(Value::as_f64).collect()
    };
    let points: Vec<(f64, f64)> = series("at_seconds")?
        .into_iter()
        .zip(series("rss_mib")?.into_iter().map(|mib| mib / 1024.0))
        .collect();
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

fn falls(rows: &Rows<'_>, first_sign: usize) -> Option<Picture> {
    struct Fall {
        is_judged: bool,
        is_adaptive: bool,
        line: (String, Vec<Option<Mark>>),
    }
    let reporting = rows.bench("reporting");
    let mut falls: Vec<Fall> = reporting
        .iter()
        .map(|row| {
            let is_guest = text(row, "on") == "qemu";
            let on = if is_guest { "guest" } else { "process" };
            let mib = number(row, "dirtied_mib");
            let dirtied = mib.map_or_else(String::new, |mib| format!(", {}", Unit::Mib.tick(mib)));
            let marks = vec![mark(row, "t50_s", 1.0), mark(row, "t95_s", 1.0)];
            Fall {
                is_judged: is_guest && mib == Some(JUDGED_MIB),
                is_adaptive: text(row, "pace") == "adaptive",
                line: (format!("{on}, {}{dirtied}", text(row, "pace")), marks),
            }
        })
        .filter(|fall| fall.line.1.iter().any(Option::is_some))
        .collect();
    // What limits speak of comes first.
    falls.sort_by_key(|fall| (!fall.is_judged, !fall.is_adaptive));
    let judged = falls.iter().filter(|fall| fall.is_judged).count();
    let quick = falls.iter().filter(|fall| fall.is_judged && fall.is_adaptive).count();
    let (linux, meaning) = linux_seconds(rows)
        .map_or((LINUX_SECONDS, "Linux, elsewhere".to_owned()), |seconds| {
            (seconds, "Linux".to_owned())
        });
    let mut limits = vec![
        Limit { value: 3.0, meaning: "must".into(), rows: 0..quick },
        Limit { value: linux, meaning, rows: 0..judged },
    ];
    limits.retain(|limit| !limit.rows.is_empty());
    let plot = Bars {
        title: "Until memory is back with the host".into(),
        unit: Unit::Time,
        shape: Shape::Dots,
        is_log: true,
        series: vec![HALF.into(), MOST.into()],
        rows: falls.into_iter().map(|fall| fall.line).collect(),
        limits,
        first_sign,
        width: NARROW,
    };
    (!plot.rows.is_empty()).then(|| plot.draw())
}

fn faults(rows: &Rows<'_>, first_sign: usize) -> Group {
    let mut configs: Vec<String> =
        texts(rows, "config").into_iter().filter(|config| config != "off").collect();
    // The first has its number beside it: what reporting costs, and not the benchmark's own error.
    configs.sort_by_key(|config| (config != "on", config == AGAIN));
    configs.truncate(MOST_SERIES - first_sign);
    let mut lines: Vec<(String, Vec<Option<Mark>>)> = Vec::new();
    const SAME: [&str; 3] = ["on", "workload", "cpus"];
    let by_config: Vec<_> =
        configs.iter().map(|config| rows.is("config", config.as_str()).by(&SAME)).collect();
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
        let on = if text(off, "on") == "qemu" { GUEST } else { "" };
        let name = format!(
            "{}, {}{on}",
            text(off, "workload"),
            counted(whole(off, "cpus").unwrap_or(1), "CPU")
        );
        lines.push((name, by_config.iter().map(of).collect()));
    }
    lines.retain(|(_, marks)| marks.iter().any(Option::is_some));
    // The limit is one for processes.
    lines.sort_by_key(|(name, _)| name.ends_with(GUEST));
    let judged = lines.iter().filter(|(name, _)| !name.ends_with(GUEST)).count();
    let must = Limit { value: -1.7, meaning: "must".into(), rows: 0..judged };
    let plot = Bars {
        title: "Page faults per CPU second, against reporting off".into(),
        unit: Unit::Percent,
        shape: Shape::Dots,
        is_log: false,
        series: configs.clone(),
        rows: lines,
        limits: Some(must).filter(|must| !must.rows.is_empty()).into_iter().collect(),
        first_sign,
        width: NARROW,
    };
    let plots = if plot.rows.is_empty() { Vec::new() } else { vec![plot.draw()] };
    Group::new(configs, plots).beginning_at(first_sign)
}

/// What a row of a guest ends with.
const GUEST: &str = ", guest";
/// What the benchmark calls a second run without reporting.
const AGAIN: &str = "off, again";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn long_curves_keep_their_shape_and_their_end() {
        let at: Vec<f64> = (0..10_000).map(|index| f64::from(index) * 0.01).collect();
        let rss: Vec<f64> = at.iter().map(|at| 2048.0 - at).collect();
        let row = json!({ "bench": "series", "what": "2 GiB \
            freed", "system": "linux", "pace": "fixed", "at_seconds": at, "rss_mib": rss });
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
