//! Allocation: beside other allocators, and as memory grows; and whole blocks left after long use.

use super::super::svg::{self, Bars, Lines, MOST_SERIES, Picture, Shape, Unit};
use super::{
    Group, Line, NARROW, SIGNS, Section, counted, dots, drawn, mark, marked, run_size, texts,
    wholes,
};
use crate::rows::{Alloc, Fragment, Rows, Spread};

const OURS: &str = "framewright";
const NS: f64 = 1e-9;

/// Which value of a row is shown.
type Half = fn(&Alloc) -> Spread;

const GET: Half = |row| row.alloc_ns;
const PUT: Half = |row| row.free_ns;
const PANELS: [(&str, Half, &str); 4] = [
    ("bulk", GET, "Allocate, in bulk"),
    ("bulk", PUT, "Free, in bulk"),
    ("random", PUT, "Free, in random order"),
    ("pair", GET, "Allocate and free at once"),
];

pub fn section(rows: &Rows) -> Section {
    let least = rows.alloc.iter().map(|row| row.managed_gib).min().unwrap_or(0);
    let small = || rows.alloc.iter().filter(|row| row.managed_gib == least);
    let threads = wholes(small().map(|row| row.threads));
    let mut groups: Vec<Group> = Vec::new();
    let mut others = [grows(&rows.alloc), whole_blocks(&rows.fragment)].into_iter();
    for &threads in [threads.first(), threads.last().filter(|last| threads.first() != Some(last))]
        .iter()
        .flatten()
    {
        let rows: Vec<&Alloc> = small().filter(|row| row.threads == *threads).collect();
        // Our allocator comes first.
        let mut allocators = texts(rows.iter().map(|row| &row.allocator));
        allocators.sort_by_key(|name| name != OURS);
        allocators.truncate(SIGNS);
        let plot = |title: &str, lines: Vec<Line>| {
            let title = format!("{title}, {}", counted(*threads, "thread"));
            drawn(&dots(title, Unit::Time, &allocators, marked(lines)))
        };
        let line = |name: String, is: &dyn Fn(&Alloc) -> bool, half: Half| {
            let of = |allocator: &String| {
                let mut rows = rows.iter().filter(|row| row.allocator == *allocator && is(row));
                rows.next().and_then(|row| mark(half(row), NS))
            };
            (name, allocators.iter().map(of).collect())
        };
        let by_order = |&(pattern, half, title): &(&str, Half, &str)| {
            let rows = rows.iter().filter(|row| row.pattern == pattern);
            let lines = wholes(rows.map(|row| row.order)).into_iter().map(|order| {
                let is = |row: &Alloc| row.pattern == pattern && row.order == order;
                line(run_size(order), &is, half)
            });
            plot(title, lines.collect())
        };
        let mut plots: Vec<Picture> = PANELS.iter().filter_map(by_order).collect();
        // Cases that are rare and must not be slow.
        let edges = [("one-left", "one page left"), ("full", "refused")].map(|(pattern, name)| {
            line(name.into(), &|row| row.pattern == pattern && row.order == 0, GET)
        });
        plots.extend(plot("Nearly full and full", edges.into()));
        // These plots fill the remaining row of the page.
        plots.extend(others.next().flatten());
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
        benches: &["alloc", "fragment"],
        groups,
    }
}

/// Our times by the size of the machine.
fn grows(rows: &[Alloc]) -> Option<Picture> {
    let ours = || rows.iter().filter(|row| row.allocator == OURS && row.threads == 1);
    if wholes(ours().map(|row| row.managed_gib)).len() < 2 {
        return None;
    }
    let mut lines = Vec::new();
    for (pattern, half, order, name) in [
        ("bulk", GET, 0, "4 KiB, get"),
        ("bulk", PUT, 0, "4 KiB, put"),
        ("bulk", GET, 9, "2 MiB, get"),
        ("bulk", PUT, 9, "2 MiB, put"),
        ("pair", GET, 18, "1 GiB, both"),
    ] {
        let mut points: Vec<(f64, f64)> = ours()
            .filter(|row| row.pattern == pattern && row.order == order)
            .filter_map(|row| Some((row.managed_gib as f64, half(row).middle? * NS)))
            .collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        if points.len() > 1 {
            lines.push(svg::Line { name: name.into(), points, series: SIGNS + lines.len() });
        }
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
    (!plot.lines.is_empty()).then(|| plot.draw())
}

fn whole_blocks(rows: &[Fragment]) -> Option<Picture> {
    let mut lines: Vec<Line> = rows
        .iter()
        .filter_map(|row| {
            let name = row.allocator.replace("buddy_system_allocator", "buddy_system");
            Some((name, vec![Some(mark(row.free_in_whole_blocks_percent, 1.0)?)]))
        })
        .collect();
    lines.sort_by_key(|(name, _)| name != OURS);
    let gib = rows.first()?.managed_gib;
    let plot = Bars {
        shape: Shape::Bars,
        is_log: false,
        first_sign: MOST_SERIES - 1,
        ..dots(
            format!("Free memory that is in whole 2 MiB blocks, {gib} GiB"),
            Unit::Percent,
            &["whole".into()],
            lines,
        )
    };
    Some(plot.draw())
}
