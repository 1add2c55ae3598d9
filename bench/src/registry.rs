//! All benchmarks, for readers of results: how the rows of each become tables and figures, and the
//! targets that they must reach.
//!
//! A benchmark's measurements are rows of its tables (`rows`), which everything here reads. Only
//! the command line knows how to run it, as each benchmark has its own options.

use crate::bench::section::Tables;
use crate::bench::{
    alloc, bring_up, contig, fragment, hotplug, hugepages, init, jobs, longest, reporting, scaling,
};
use crate::bench::{simulate, traffic};
use crate::model;
use crate::report::figures::{self, Make, Section};
use crate::rows::Rows;
use crate::targets::{self, Outcome, Target};

/// One benchmark.
pub struct Bench {
    /// The benchmark's name, which is that of the table to which most of its rows belong.
    name: &'static str,
    /// How its rows become tables for people.
    tables: Tables,
    /// Its section of the page; some benchmarks share one.
    figures: Option<Make>,
    /// The targets that it must reach.
    targets: &'static [Target],
}

const fn bench(
    name: &'static str,
    tables: Tables,
    figures: Option<Make>,
    targets: &'static [Target],
) -> Bench {
    Bench { name, tables, figures, targets }
}

/// All benchmarks, in the order of the page.
const ALL: [Bench; 16] = [
    bench("compare", none, Some(figures::compare::section), targets::guest::TARGETS),
    bench("alloc", alloc::tables, Some(figures::alloc::section), targets::alloc::TARGETS),
    bench("traffic", traffic::tables, Some(figures::traffic::section), targets::traffic::TARGETS),
    bench("simulate", simulate::tables, None, targets::simulate::TARGETS),
    bench("longest", longest::tables, None, &[]),
    bench("fragment", fragment::tables, None, &[]),
    bench("contig", contig::tables, None, targets::contig::TARGETS),
    bench("hotplug", hotplug::tables, None, targets::hotplug::TARGETS),
    bench("bring-up", bring_up::tables, Some(figures::bring_up::section), targets::init::BRING_UP),
    bench("init", init::tables, Some(figures::init::section), targets::init::MAP),
    bench("scaling", scaling::tables, Some(figures::scaling::section), &[]),
    bench("jobs", jobs::tables, Some(figures::jobs::section), targets::jobs::TARGETS),
    bench(
        "hugepages",
        hugepages::tables,
        Some(figures::hugepages::section),
        targets::hugepages::TARGETS,
    ),
    bench(
        "reporting",
        reporting::tables,
        Some(figures::reporting::section),
        targets::reporting::TARGETS,
    ),
    bench("model", model::tables, Some(figures::model::section), &[]),
    // Rows that the reader of files adds.
    bench("run", none, None, targets::program::TARGETS),
];

/// No tables: those of a comparison need more than its rows.
fn none(_: &Rows) -> Vec<crate::bench::section::Table> {
    Vec::new()
}

/// How the rows of a benchmark become tables; an unknown benchmark has none.
pub fn tables(bench: &str) -> Tables {
    ALL.iter().find(|known| known.name == bench).map_or(none, |known| known.tables)
}

/// The sections of the page that have rows.
pub fn sections(rows: &Rows) -> Vec<Section> {
    let has_rows = |section: &Section| section.benches.iter().any(|bench| rows.has(bench));
    let made = ALL.iter().filter_map(|bench| Some(bench.figures?(rows)));
    let mut sections: Vec<Section> = made.filter(has_rows).collect();
    for section in &mut sections {
        section.groups.retain(|group| !group.plots.is_empty());
    }
    sections
}

/// All targets, area by area.
pub fn targets() -> Vec<&'static Target> {
    let mut all: Vec<&Target> = ALL.iter().flat_map(|bench| bench.targets).collect();
    all.sort_by_key(|target| target.area);
    all
}

/// Judges each target by rows of results.
pub fn evaluate(rows: &Rows) -> Vec<Outcome> {
    targets().into_iter().map(|target| targets::outcome(target, rows)).collect()
}
