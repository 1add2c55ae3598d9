//! The memory map against the limit of the machine's write path.

use super::super::svg::{Bars, Limit, Shape, Unit};
use super::{Group, NARROW, Section, counted, mark, text, whole};
use crate::targets::Rows;
use serde_json::Value;

pub(super) fn section(rows: &Rows<'_>) -> Section {
    let rows = rows.bench("init");
    let has_limit = rows.filter(|row| row.get("limit_ratio").is_some_and(Value::is_number));
    let name = |row: &Value| {
        format!(
            "{}, {}, {}",
            text(row, "policy"),
            text(row, "init"),
            whole(row, "threads").unwrap_or(1)
        )
    };
    let plot = |title: &str, first_touch: bool| {
        let rows = has_limit.is("first_touch", first_touch);
        let lines: Vec<_> =
            rows.iter().map(|row| (name(row), vec![mark(row, "limit_ratio", 1.0)])).collect();
        (!lines.is_empty()).then(|| {
            Bars {
                title: title.into(),
                unit: Unit::Ratio,
                shape: Shape::Bars,
                is_log: false,
                series: vec!["speed".into()],
                rows: lines,
                // What is demanded is demanded of memory that is backed.
                limits: if first_touch { Vec::new() } else { vec![Limit::all(0.9, "must")] },
                // The first two are times.
                first_sign: 2,
                width: NARROW,
            }
            .draw()
        })
    };
    let times = |first_touch: bool| {
        let rows = has_limit.is("first_touch", first_touch);
        let lines: Vec<_> = rows
            .iter()
            .map(|row| {
                (name(row), vec![mark(row, "seconds", 1.0), mark(row, "limit_seconds", 1.0)])
            })
            .collect();
        (!lines.is_empty()).then(|| {
            Bars {
                title: if first_touch {
                    "Time, memory never touched"
                } else {
                    "Time, memory backed and dirty"
                }
                .into(),
                unit: Unit::Time,
                shape: Shape::Dots,
                is_log: true,
                series: vec!["memory map".into(), "plain fill".into()],
                rows: lines,
                limits: Vec::new(),
                first_sign: 0,
                width: NARROW,
            }
            .draw()
        })
    };
    let threads = rows.iter().filter_map(|row| whole(row, "threads")).max().unwrap_or(1);
    Section {
        id: "memory-map",
        title: "The memory map",
        lead: format!(
            "Speed of writing all page descriptors, as a share of the best plain fill of the same \
             bytes with the same threads (up to {}); 1 is the \
             machine's own limit. Policy, first value, threads.",
            counted(threads, "thread")
        ),
        benches: &["init"],
        groups: vec![
            Group::new(
                Vec::new(),
                [
                    plot("Memory backed and dirty: speed of a plain fill", false),
                    plot("First touch: speed of a plain fill", true),
                ]
                .into_iter()
                .flatten()
                .collect(),
            ),
            Group::new(
                vec!["memory map".into(), "plain fill".into()],
                [times(false), times(true)].into_iter().flatten().collect(),
            ),
        ],
    }
}
