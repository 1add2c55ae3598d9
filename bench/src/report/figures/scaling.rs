//! Speed-up by threads.

use super::super::svg::{Line, Lines, Unit};
use super::{Group, NARROW, Section, texts};
use crate::rows::{Rows, Scaling};
use crate::targets::words;

pub fn section(rows: &Rows) -> Section {
    let rows = &rows.scaling;
    let shares = rows.iter().any(|row| row.cpus_percent.get() > Some(0.0));
    let across = |row: &Scaling| {
        if shares { row.cpus_percent.get() } else { Some(row.threads as f64) }
    };
    // Files of earlier versions do not say how much memory a machine had.
    let place = |row: &Scaling| match row.managed_gib {
        0 => row.on.clone(),
        gib => words(&[&row.on, &format!("{gib} GiB")]),
    };
    let all: Vec<String> = rows.iter().map(place).collect();
    let mut places = texts(all.iter());
    if places.is_empty() {
        places.push(String::new());
    }
    // A curve has one sign in all plots, even if it has too few points to be drawn in some.
    let mut known: Vec<String> = Vec::new();
    let mut curves = |value: fn(&Scaling) -> Option<f64>, scale: f64| -> Vec<Line> {
        let mut lines = Vec::new();
        for what in texts(rows.iter().map(|row| &row.what)) {
            for on in &places {
                let rows = rows.iter().filter(|row| row.what == what && place(row) == *on);
                let mut points: Vec<(f64, f64)> =
                    rows.filter_map(|row| Some((across(row)?, value(row)? * scale))).collect();
                points.sort_by(|one, other| one.0.total_cmp(&other.0));
                let name = words(&[&what, on]);
                if points.len() > 1 {
                    let series =
                        known.iter().position(|other| *other == name).unwrap_or(known.len());
                    if series == known.len() {
                        known.push(name.clone());
                    }
                    lines.push(Line { name, points, series });
                }
            }
        }
        lines
    };
    let below = if shares {
        ("share of a node\u{2019}s CPUs", Unit::Percent)
    } else {
        ("threads", Unit::Number)
    };
    let plot = |title: &str, side: Unit, lines: Vec<Line>| {
        (!lines.is_empty()).then(|| {
            Lines {
                title: title.into(),
                below: (below.0.into(), below.1),
                side,
                is_log: false,
                has_signs: true,
                lines,
                ideal: None,
                width: NARROW,
                height: 260.0,
            }
            .draw()
        })
    };
    let plots = [
        plot("Speed-up over no helper", Unit::Ratio, curves(|row| row.speedup_ratio.middle, 1.0)),
        plot("Initialisation", Unit::Time, curves(|row| row.init_ms.middle, 1e-3)),
        plot("Boot, all of it", Unit::Time, curves(|row| row.boot_ms.middle, 1e-3)),
    ];
    Section {
        id: "scaling",
        title: "Scaling",
        lead: "Boot and initialisation by threads, as the source works present them.".into(),
        benches: &["scaling"],
        groups: vec![Group::new(Vec::new(), plots.into_iter().flatten().collect())],
    }
}
