//! Speed-up by threads.

use super::super::svg::{Line, Lines, Unit};
use super::{Group, NARROW, Section, number, text, texts};
use crate::targets::Rows;

pub(super) fn section(rows: &Rows<'_>) -> Section {
    let rows = rows.bench("scaling");
    let shares =
        rows.iter().any(|row| number(row, "cpus_percent").is_some_and(|percent| percent > 0.0));
    let across = |row: &serde_json::Value| {
        if shares { number(row, "cpus_percent") } else { number(row, "threads") }
    };
    // A curve has one sign in all plots, also where another has too few points to be drawn.
    let mut known: Vec<String> = Vec::new();
    let mut curves = |field: &str, scale: f64| -> Vec<Line> {
        let mut lines = Vec::new();
        for what in texts(&rows, "what") {
            for on in texts_or_none(&rows, "on") {
                let rows = rows.is("what", what.as_str()).filter(|row| text(row, "on") == on);
                let mut points: Vec<(f64, f64)> = rows
                    .iter()
                    .filter_map(|row| Some((across(row)?, number(row, field)? * scale)))
                    .collect();
                points.sort_by(|one, other| one.0.total_cmp(&other.0));
                let name = if on.is_empty() { what.clone() } else { format!("{what}, {on}") };
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
        plot("Speed-up over no helper", Unit::Ratio, curves("speedup_ratio", 1.0)),
        plot("Initialisation", Unit::Time, curves("init_ms", 1e-3)),
        plot("Boot, all of it", Unit::Time, curves("boot_ms", 1e-3)),
    ];
    Section {
        id: "scaling",
        title: "Scaling",
        lead: "Boot and initialisation by threads, as the source works present them.".into(),
        benches: &["scaling"],
        groups: vec![Group::new(Vec::new(), plots.into_iter().flatten().collect())],
    }
}

/// The values of a text field, or one that is empty where no row has it.
fn texts_or_none(rows: &Rows<'_>, field: &str) -> Vec<String> {
    let found = texts(rows, field);
    if found.is_empty() { vec![String::new()] } else { found }
}
