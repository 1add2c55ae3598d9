//! Allocation: beside other allocators, and as memory grows; and what is left whole after long use.

use super::super::svg::{Bars, Line, Lines, MOST_SERIES, Mark, Picture, Shape, Unit};
use super::{
    Group, NARROW, SIGNS, Section, counted, mark, number, run_size, text, texts, whole, wholes,
};
use crate::targets::Rows;

const OURS: &str = "framewright";
const NS: f64 = 1e-9;
const PANELS: [(&str, &str, &str); 4] = [
    ("bulk", "alloc_ns", "Allocate, in bulk"),
    ("bulk", "free_ns", "Free, in bulk"),
    ("random", "free_ns", "Free, in random order"),
    ("pair", "alloc_ns", "Allocate and free at once"),
];

pub(super) fn section(rows: &Rows<'_>) -> Section {
    let (fragment, rows) = (rows.bench("fragment"), rows.bench("alloc"));
    let least = wholes(&rows, "managed_gib").first().copied().unwrap_or(0);
    let small = rows.is("managed_gib", least);
    let threads = wholes(&small, "threads");
    let mut groups: Vec<Group> = Vec::new();
    let mut others = [grows(&rows), whole_blocks(&fragment)].into_iter();
    for &threads in [threads.first(), threads.last().filter(|last| threads.first() != Some(last))]
        .iter()
        .flatten()
    {
        let rows = small.is("threads", *threads);
        let allocators = allocators(&rows);
        let mut plots: Vec<Picture> = PANELS
            .iter()
            .filter_map(|panel| by_order(&rows, &allocators, *panel, *threads))
            .collect();
        plots.extend(edges(&rows, &allocators, *threads));
        // They fill the rows of the page.
        plots.extend(others.next().into_iter().flatten());
        groups.push(Group::new(allocators.clone(), plots));
    }
    groups.push(Group::new(Vec::new(), others.flatten().collect()));
    Section {
        id: "allocation",
        title: "Allocation",
        lead: format!(
            "Time for one operation by size of the run, beside two other allocators in Rust, \
             {least} GiB managed. Logarithmic: a grid line is a factor; \
             thin bars are the spread. The numbers at the right are ours."
        ),
        benches: &["alloc", "traffic", "fragment"],
        groups,
    }
}

/// Ours first.
fn allocators(rows: &Rows<'_>) -> Vec<String> {
    let mut allocators = texts(rows, "allocator");
    allocators.sort_by_key(|name| name != OURS);
    allocators.truncate(SIGNS);
    allocators
}

fn by_order(
    rows: &Rows<'_>,
    allocators: &[String],
    (pattern, field, title): (&str, &str, &str),
    threads: u64,
) -> Option<Picture> {
    let rows = rows.is("pattern", pattern);
    let lines: Vec<(String, Vec<Option<Mark>>)> = wholes(&rows, "order")
        .into_iter()
        .map(|order| {
            let rows = rows.is("order", order);
            let of = |name: &String| {
                let row = rows.is("allocator", name.as_str());
                row.iter().next().and_then(|row| mark(row, field, NS))
            };
            (run_size(order), allocators.iter().map(of).collect::<Vec<_>>())
        })
        .filter(|(_, marks)| marks.iter().any(Option::is_some))
        .collect();
    plot(format!("{title}, {}", counted(threads, "thread")), allocators, lines)
}

/// What happens seldom and must not be slow.
fn edges(rows: &Rows<'_>, allocators: &[String], threads: u64) -> Option<Picture> {
    let row = |pattern: &str, order: u64, name: &str| {
        let of = |allocator: &String| {
            let row =
                rows.is("pattern", pattern).is("order", order).is("allocator", allocator.as_str());
            row.iter().next().and_then(|row| mark(row, "alloc_ns", NS))
        };
        (name.to_owned(), allocators.iter().map(of).collect::<Vec<_>>())
    };
    let lines = vec![row("one-left", 0, "one page left"), row("full", 0, "refused")];
    let lines: Vec<_> =
        lines.into_iter().filter(|(_, marks)| marks.iter().any(Option::is_some)).collect();
    plot(format!("Nearly full and full, {}", counted(threads, "thread")), allocators, lines)
}

fn plot(
    title: String,
    series: &[String],
    rows: Vec<(String, Vec<Option<Mark>>)>,
) -> Option<Picture> {
    let bars = Bars {
        title,
        unit: Unit::Time,
        shape: Shape::Dots,
        is_log: true,
        series: series.to_vec(),
        rows,
        limits: Vec::new(),
        first_sign: 0,
        width: NARROW,
    };
    (!bars.rows.is_empty()).then(|| bars.draw())
}

/// Ours by the size of the machine.
fn grows(rows: &Rows<'_>) -> Vec<Picture> {
    let rows = rows.is("allocator", OURS).is("threads", 1);
    if wholes(&rows, "managed_gib").len() < 2 {
        return Vec::new();
    }
    let mut lines = Vec::new();
    for (pattern, field, order, name) in [
        ("bulk", "alloc_ns", 0, "4 KiB, get"),
        ("bulk", "free_ns", 0, "4 KiB, put"),
        ("bulk", "alloc_ns", 9, "2 MiB, get"),
        ("bulk", "free_ns", 9, "2 MiB, put"),
        ("pair", "alloc_ns", 18, "1 GiB, both"),
    ] {
        let rows = rows.is("pattern", pattern).is("order", order);
        let mut points: Vec<(f64, f64)> = rows
            .iter()
            .filter_map(|row| Some((number(row, "managed_gib")?, number(row, field)? * NS)))
            .collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        if points.len() > 1 {
            lines.push(Line { name: name.into(), points, series: SIGNS + lines.len() });
        }
    }
    if lines.is_empty() {
        return Vec::new();
    }
    let plot = Lines {
        title: "Ours as memory grows, 1 thread".into(),
        below: ("GiB managed".into(), Unit::Number),
        side: Unit::Time,
        is_log: true,
        has_signs: true,
        lines,
        ideal: None,
        width: NARROW,
        height: 240.0,
    };
    vec![plot.draw()]
}

fn whole_blocks(rows: &Rows<'_>) -> Vec<Picture> {
    let mut lines: Vec<(String, Vec<Option<Mark>>)> = rows
        .iter()
        .filter_map(|row| {
            let name = text(row, "allocator").replace("buddy_system_allocator", "buddy_system");
            Some((name, vec![Some(mark(row, "free_in_whole_blocks_percent", 1.0)?)]))
        })
        .collect();
    lines.sort_by_key(|(name, _)| name != OURS);
    let Some(first) = rows.iter().next() else { return Vec::new() };
    let plot = Bars {
        title: format!(
            "Free memory that is in whole 2 MiB blocks, {} GiB",
            whole(first, "managed_gib").unwrap_or(0)
        ),
        unit: Unit::Percent,
        shape: Shape::Bars,
        is_log: false,
        series: vec!["whole".into()],
        rows: lines,
        limits: Vec::new(),
        first_sign: MOST_SERIES - 1,
        width: NARROW,
    };
    vec![plot.draw()]
}
