//! Traffic like that of real machines: the cost of an operation, and the slowest calls.

use super::super::svg::{Bars, Picture, Unit};
use super::{
    Group, Line, SIGNS, Section, WIDE, counted, dots, drawn, mark, marked, point, texts, wholes,
};
use crate::rows::{Measured, Rows, Tail, Traffic};
use crate::targets::words;

const OURS: &str = "framewright";
const NS: f64 = 1e-9;

/// A share of the calls, and their longest time.
type Share = (&'static str, fn(&Tail) -> &Measured<u64>);

const SHARES: [Share; 5] = [
    ("p50", |row| &row.p50_ns),
    ("p99", |row| &row.p99_ns),
    ("p99.9", |row| &row.p99_9_ns),
    ("p99.99", |row| &row.p99_99_ns),
    ("max", |row| &row.max_ns),
];

pub fn section(rows: &Rows) -> Section {
    // Our allocator comes first; the limit, which has only calls, comes last.
    let known = rows.traffic.iter().map(|row| &row.allocator);
    let mut allocators = texts(known.chain(rows.tail.iter().map(|row| &row.allocator)));
    allocators.sort_by_key(|name| name != OURS);
    allocators.truncate(SIGNS);
    let timed =
        allocators.iter().filter(|name| rows.traffic.iter().any(|row| row.allocator == **name));
    let timed: Vec<String> = timed.cloned().collect();
    let operations = operations(&rows.traffic, &timed);
    let calls = calls(&rows.tail, &allocators);
    Section {
        id: "traffic",
        title: "Traffic",
        lead:
            "Recorded traces of four kinds, replayed on each allocator: what an operation takes, \
             and the slowest calls, where NN % of the calls take at most pNN. The array is the \
             limit; what the host takes away shows in its longest calls, too."
                .into(),
        benches: &["traffic", "tail"],
        groups: vec![
            Group::wide(short(&timed), operations.into_iter().collect()),
            Group::new(short(&allocators), calls),
        ],
    }
}

/// Short names for legends, which have little room.
fn short(allocators: &[String]) -> Vec<String> {
    let short = |name: &String| name.replace("buddy_system_allocator", "buddy_system");
    allocators.iter().map(short).collect()
}

/// The traces by the cost of an operation.
fn operations(rows: &[Traffic], allocators: &[String]) -> Option<Picture> {
    let named: Vec<(String, &Traffic)> = rows
        .iter()
        .map(|row| (words(&[&row.pattern, &row.full, &counted(row.threads, "thread")]), row))
        .collect();
    let lines = texts(named.iter().map(|(name, _)| name)).into_iter().map(|name| {
        let of = |allocator: &String| {
            let mut rows = named.iter().filter(|(other, _)| *other == name);
            let (_, row) = rows.find(|(_, row)| row.allocator == *allocator)?;
            mark(row.operation_ns, NS)
        };
        let marks = allocators.iter().map(of).collect();
        (name, marks)
    });
    let lines = marked(lines.collect());
    let plot = dots("An operation", Unit::Time, &short(allocators), lines);
    drawn(&Bars { width: WIDE, ..plot })
}

/// Calls of all orders, with a plot for each trace and kind of call; of each trace, only the runs
/// with the most threads.
fn calls(rows: &[Tail], allocators: &[String]) -> Vec<Picture> {
    let named: Vec<(String, &Tail)> = rows
        .iter()
        .filter(|row| row.orders == "all")
        .map(|row| (words(&[&row.pattern, &format!("{} full", row.full)]), row))
        .collect();
    let mut plots = Vec::new();
    for name in texts(named.iter().map(|(name, _)| name)) {
        let rows = named.iter().filter(|(other, _)| *other == name).map(|(_, row)| *row);
        let rows: Vec<&Tail> = rows.collect();
        let threads = wholes(rows.iter().map(|row| row.threads)).pop().unwrap_or(0);
        for operation in ["get", "put"] {
            let of = |allocator: &String| {
                let mut rows = rows.iter().filter(|row| row.threads == threads);
                rows.find(|row| row.allocator == *allocator && row.operation == operation)
            };
            let found: Vec<Option<&&Tail>> = allocators.iter().map(of).collect();
            let lines = SHARES.iter().map(|(share, of)| {
                let time = |row: &&Tail| point(of(row).get()? as f64 * NS);
                ((*share).to_owned(), found.iter().map(|row| row.and_then(time)).collect())
            });
            let lines: Vec<Line> = marked(lines.collect());
            let title = format!("{operation}: {name}, {}", counted(threads, "thread"));
            plots.extend(drawn(&dots(title, Unit::Time, &short(allocators), lines)));
        }
    }
    plots
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_trace_has_plots_of_the_most_threads_alone() {
        let mut rows = Vec::new();
        for allocator in ["a", "array", OURS] {
            for threads in [1, 2] {
                rows.push(json!({ "bench": "traffic", "allocator": allocator, "pattern": "mixed",
                    "full": "50 %", "threads": threads, "operation_ns": 20.0 }));
                rows.push(json!({ "bench": "tail", "allocator": allocator, "pattern": "mixed",
                    "full": "50 %", "threads": threads, "operation": "get", "orders": "all",
                    "p50_ns": 0, "p99_ns": 300 * threads, "max_ns": 5_000_000 }));
            }
        }
        let section = section(&Rows::of(&rows));
        assert_eq!(section.groups[1].series, [OURS, "a", "array"]);
        let plots: Vec<String> =
            section.groups.iter().flat_map(|group| &group.plots).map(Picture::inline).collect();
        assert_eq!(plots.len(), 2);
        assert!(plots[0].contains("mixed, 50 %, 1 thread, a: 20.0 ns"), "{}", plots[0]);
        assert!(plots[1].contains("get: mixed, 50 % full, 2 threads"));
        assert!(plots[1].contains("p99, framewright: 600 ns") && !plots[1].contains("p99.9"));
        assert!(plots[1].contains("max, array: 5.00 ms") && !plots[1].contains("NaN"));
    }
}
