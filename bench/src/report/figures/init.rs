//! The time of the memory map against the limit of the machine's write path.

use super::super::svg::{Bars, Limit, Shape, Unit};
use super::{Group, Line, Section, counted, dots, drawn, mark, names};
use crate::rows::{Init, InitLimit, Rows};

pub fn section(rows: &Rows) -> Section {
    let rows = &rows.init;
    // The rows that have a limit.
    let lines = |is_first_touch: bool, marks: &dyn Fn(&Init, &InitLimit) -> Line| -> Vec<Line> {
        let rows = rows.iter().filter(|row| row.first_touch == is_first_touch);
        let limited = rows.filter_map(|row| Some((row, row.limit.as_ref()?)));
        limited
            .filter(|(_, limit)| limit.limit_ratio.middle.is_some())
            .map(|(row, limit)| marks(row, limit))
            .collect()
    };
    let name = |row: &Init| format!("{}, {}, {}", row.policy, row.init, row.threads.max(1));
    let speed = |title: &str, is_first_touch: bool| {
        let lines =
            lines(is_first_touch, &|row, limit| (name(row), vec![mark(limit.limit_ratio, 1.0)]));
        drawn(&Bars {
            shape: Shape::Bars,
            is_log: false,
            // The requirement is for memory that is backed.
            limits: if is_first_touch { Vec::new() } else { vec![Limit::all(0.9, "must")] },
            // The first two signs stand for times.
            first_sign: 2,
            ..dots(title, Unit::Ratio, &["speed".into()], lines)
        })
    };
    let series = names(&["memory map", "plain fill"]);
    let times = |title: &str, is_first_touch: bool| {
        let lines = lines(is_first_touch, &|row, limit| {
            (name(row), vec![mark(row.seconds, 1.0), mark(limit.limit_seconds, 1.0)])
        });
        drawn(&dots(title, Unit::Time, &series, lines))
    };
    let speeds = [
        speed("Memory backed and dirty: speed of a plain fill", false),
        speed("First touch: speed of a plain fill", true),
    ];
    let times =
        [times("Time, memory backed and dirty", false), times("Time, memory never touched", true)];
    let threads = rows.iter().map(|row| row.threads).max().unwrap_or(1);
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
            Group::new(Vec::new(), speeds.into_iter().flatten().collect()),
            Group::new(series, times.into_iter().flatten().collect()),
        ],
    }
}
