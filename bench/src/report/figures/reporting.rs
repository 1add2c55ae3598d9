//! Free page reporting: memory that goes back to the host over time, and its cost.

use super::super::svg::{self, Bars, Limit, Lines, MOST_SERIES, Mark, Picture, Unit};
use super::{Group, Line, Section, WIDE, counted, dots, drawn, mark, marked, names, texts};
use crate::rows::{Course, Fault, Rows};
use crate::targets::{is_two_gib, linux_seconds, words};
use std::collections::HashMap;

/// The most curves that are told apart; with the section's other signs, they use up all signs.
const MOST_CURVES: usize = 6;
/// The most points of a curve.
const MOST_POINTS: usize = 240;

/// How long Linux takes elsewhere until 95 % are back, if it was not measured here.
const LINUX_SECONDS: f64 = 18.0;

pub fn section(rows: &Rows) -> Section {
    let (curves, known) = curves(&rows.series);
    let shares = names(&[HALF, MOST]);
    let first = known + shares.len();
    Section {
        id: "reporting",
        title: "Page reporting",
        lead: "Memory is dirtied and freed at once; then the host watches how much of it is still \
               there. Below: what it costs those who allocate."
            .into(),
        benches: &["reporting", "series", "fault", "shuffle"],
        groups: vec![
            Group::wide(Vec::new(), curves),
            Group::new(shares, falls(rows, known).into_iter().collect()).beginning_at(known),
            faults(&rows.fault, first),
        ],
    }
}

/// Shares of the freed memory.
const HALF: &str = "half";
const MOST: &str = "95 %";

/// Draws one plot for each scenario, with one curve for each run. Also returns how many curves are
/// told apart, as a curve looks alike in all plots.
fn curves(rows: &[Course]) -> (Vec<Picture>, usize) {
    let mut plots = Vec::new();
    // Our runs come first, the quickest of them in front.
    let mut known: Vec<String> = rows.iter().filter_map(curve).map(|line| line.name).collect();
    let order = |name: &String| (name.starts_with("Linux"), name.ends_with("fixed"), name.clone());
    known.sort_by_key(order);
    known.dedup();
    known.truncate(MOST_CURVES);
    for what in texts(rows.iter().map(|row| &row.what)) {
        let rows = rows.iter().filter(|row| row.what == what);
        let mut lines: Vec<svg::Line> = rows.filter_map(curve).collect();
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

fn curve(row: &Course) -> Option<svg::Line> {
    let gib = row.rss_mib.0.iter().flatten().map(|mib| mib / 1024.0);
    let points: Vec<(f64, f64)> = row.at_seconds.0.iter().flatten().copied().zip(gib).collect();
    if points.is_empty() {
        return None;
    }
    let each = points.len().div_ceil(MOST_POINTS).max(1);
    let last = points.last().copied();
    let mut kept: Vec<(f64, f64)> = points.iter().copied().step_by(each).collect();
    if kept.last() != last.as_ref() {
        kept.extend(last);
    }
    let system = match row.system.as_str() {
        "linux" => "Linux",
        "framewright" => "Framewright",
        other => other,
    };
    let on = if row.on == "hosted" { "in a process" } else { "" };
    let name = words(&[system, on, &row.pace]);
    Some(svg::Line { name, points: kept, series: 0 })
}

fn falls(rows: &Rows, first_sign: usize) -> Option<Picture> {
    struct Fall {
        is_judged: bool,
        is_adaptive: bool,
        line: Line,
    }
    let mut falls: Vec<Fall> = rows
        .reporting
        .iter()
        .map(|row| {
            let is_guest = row.on == "qemu";
            let on = if is_guest { "guest" } else { "process" };
            let mib = row.dirtied_mib.as_ref();
            let dirtied =
                mib.map_or_else(String::new, |mib| format!(", {}", Unit::Mib.tick(mib.get())));
            let marks = vec![mark(row.t50_s, 1.0), mark(row.t95_s, 1.0)];
            Fall {
                is_judged: is_guest && is_two_gib(mib),
                is_adaptive: row.pace == "adaptive",
                line: (format!("{on}, {}{dirtied}", row.pace), marks),
            }
        })
        .filter(|fall| fall.line.1.iter().any(Option::is_some))
        .collect();
    // Rows that a limit is for come first.
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
    let lines = falls.into_iter().map(|fall| fall.line).collect();
    drawn(&Bars {
        limits,
        first_sign,
        ..dots("Until memory is back with the host", Unit::Time, &names(&[HALF, MOST]), lines)
    })
}

fn faults(rows: &[Fault], first_sign: usize) -> Group {
    let mut configs = texts(rows.iter().map(|row| &row.config));
    configs.retain(|config| config != OFF);
    // The number beside the plot is that of the first: the cost of reporting, not the benchmark's
    // own error.
    configs.sort_by_key(|config| (config != "on", config == AGAIN));
    configs.truncate(MOST_SERIES - first_sign);
    let job = |row: &Fault| (row.on.clone(), row.workload.clone(), row.cpus);
    let by = |config| by(rows, config);
    let by_config: Vec<HashMap<_, &Fault>> =
        configs.iter().map(|config| by(config).map(|row| (job(row), row)).collect()).collect();
    let lines = by(OFF).map(|off| {
        let percent = |ratio: f64| (ratio - 1.0) * 100.0;
        let of = |rows: &HashMap<_, &Fault>| {
            let ratio = rows.get(&job(off))?.against_off;
            let ends = ratio.low.zip(ratio.high);
            let spread = ends.map(|(low, high)| (percent(low), percent(high)));
            Some(Mark { value: percent(ratio.middle?), spread })
        };
        let on = if off.on == "qemu" { GUEST } else { "" };
        let name = format!("{}, {}{on}", off.workload, counted(off.cpus.max(1), "CPU"));
        (name, by_config.iter().map(of).collect())
    });
    let mut lines: Vec<Line> = marked(lines.collect());
    // Rows of processes come first, as the limit is for them.
    lines.sort_by_key(|(name, _)| name.ends_with(GUEST));
    let judged = lines.iter().filter(|(name, _)| !name.ends_with(GUEST)).count();
    let must = Limit { value: -1.7, meaning: "must".into(), rows: 0..judged };
    let title = "Page faults per CPU second, against reporting off";
    let plot = Bars {
        is_log: false,
        limits: Some(must).filter(|must| !must.rows.is_empty()).into_iter().collect(),
        first_sign,
        ..dots(title, Unit::Percent, &configs, lines)
    };
    Group::new(configs, drawn(&plot).into_iter().collect()).beginning_at(first_sign)
}

fn by<'a>(rows: &'a [Fault], config: &'a str) -> impl Iterator<Item = &'a Fault> {
    rows.iter().filter(move |row| row.config == config)
}

/// The configuration without reporting.
const OFF: &str = "off";
/// The suffix of a guest's rows.
const GUEST: &str = ", guest";
/// The benchmark's name for a second run without reporting.
const AGAIN: &str = "off, again";

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[test]
    fn long_curves_keep_their_shape_and_their_end() {
        let at: Vec<f64> = (0..10_000).map(|index| f64::from(index) * 0.01).collect();
        let rss: Vec<f64> = at.iter().map(|at| 2048.0 - at).collect();
        let course = |row: Value| Rows::of(&[row]).series.remove(0);
        let row = json!({ "bench": "series", "what": "2 GiB \
            freed", "system": "linux", "pace": "fixed", "at_seconds": at, "rss_mib": rss });
        let line = curve(&course(row)).expect("a curve");
        let last = line.points.last().expect("there are points");
        assert!(
            line.points.len() <= MOST_POINTS + 1
                && (last.0 - 99.99).abs() < 1e-9
                && (last.1 * 1024.0 - 1948.01).abs() < 1e-6
        );
        assert_eq!(line.name, "Linux, fixed");
        assert!(curve(&course(json!({ "bench": "series", "at_seconds": 3 }))).is_none());
    }
}
