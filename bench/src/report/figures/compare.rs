//! The guest compared with Linux.

use super::super::svg::{Bars, Limit, Mark, Unit as Axis};
use super::{Group, Line, Section, WIDE, counted, dots, drawn, mark, names};
use crate::rows::{Compare, Rows, Unit};
use crate::targets::words;

pub fn section(rows: &Rows) -> Section {
    let rows = || rows.compare.iter().filter(|row| is_comparable(row));
    let lines: Vec<Line> =
        rows().filter_map(|row| Some((name(row), vec![Some(speed_up(row)?)]))).collect();
    let ratios = Bars {
        limits: vec![Limit::all(1.0, "same as Linux")],
        // The first two signs stand for the times of both systems.
        first_sign: 2,
        width: WIDE,
        ..dots("Speed-up over Linux", Axis::Ratio, &["ratio".into()], lines)
    };
    let both = |row: &Compare| {
        let scale = seconds(row.both.unit?)?;
        let marks = vec![mark(row.both.ours, scale), mark(row.both.linux, scale)];
        row.both.linux.middle.map(|_| (name(row), marks))
    };
    let series = names(&["framewright", "Linux"]);
    let times = Bars {
        width: WIDE,
        ..dots("Times", Axis::Time, &series, rows().filter_map(both).collect())
    };
    Section {
        id: "linux",
        title: "Beside Linux",
        lead: "The same virtual machine, booted in turn with Linux and with the reference guest. \
            Right of the line ours takes less. What is not the same path in both, such as page \
            faults, is in the table alone."
            .into(),
        benches: &["compare"],
        groups: vec![
            Group::wide(Vec::new(), drawn(&ratios).into_iter().collect()),
            Group::wide(series, drawn(&times).into_iter().collect()),
        ],
    }
}

/// The length of a unit of time, in seconds.
fn seconds(unit: Unit) -> Option<f64> {
    match unit {
        Unit::Milliseconds => Some(1e-3),
        Unit::Seconds => Some(1.0),
        _ => None,
    }
}

/// Whether both systems do the same thing. Page faults and allocations differ, even if a file of an
/// earlier version does not say so.
fn is_comparable(row: &Compare) -> bool {
    row.comparable != Some(false) && !row.what.starts_with("page_fault")
}

/// How much faster or smaller ours is: for times and metadata Linux's value over ours, for rates
/// ours over Linux's. `None` for values that are neither good nor bad.
fn speed_up(row: &Compare) -> Option<Mark> {
    row.both.linux.middle?;
    let ratio = mark(row.ratio, 1.0).filter(|mark| mark.value > 0.0)?;
    match row.both.unit? {
        Unit::Milliseconds | Unit::Seconds => Some(ratio),
        Unit::Bytes => row.what.contains("metadata").then_some(ratio),
        Unit::Mebibytes | Unit::Pages | Unit::Percent | Unit::Requests => None,
        Unit::IterationsPerSecond => {
            let spread = ratio.spread.filter(|(least, _)| *least > 0.0);
            let spread = spread.map(|(least, most)| (1.0 / most, 1.0 / least));
            Some(Mark { value: 1.0 / ratio.value, spread })
        }
    }
}

fn name(row: &Compare) -> String {
    let word = |word: &Option<String>| word.clone().unwrap_or_default();
    let reclaim = row.reclaim.as_ref().map_or_else(String::new, |word| format!("HVO {word}"));
    let cpus = row.cpus_used.map_or_else(String::new, |cpus| counted(cpus, "CPU"));
    let (when, policy, pace) = (word(&row.when), word(&row.policy), word(&row.pace));
    words(&[&row.what, &when, &policy, &pace, &cpus, &reclaim])
}
