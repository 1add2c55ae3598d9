//! Which rows become which plots. What no module here knows is shown as a table alone.

mod alloc;
mod bring_up;
mod compare;
mod hugepages;
mod init;
mod jobs;
mod model;
mod reporting;
mod scaling;

use super::svg::{Mark, Picture};
use crate::targets::{Rows, number, text, whole};
use framewright_cli::grid::counted;
use serde_json::Value;
use std::collections::BTreeSet;

/// A part of the page about one or a few tables.
pub struct Section {
    /// Its name in links.
    pub id: &'static str,
    /// Its title.
    pub title: &'static str,
    /// What to look at, in a sentence or two.
    pub lead: String,
    /// The tables that it shows.
    pub benches: &'static [&'static str],
    /// Plots, in groups with one legend each.
    pub groups: Vec<Group>,
}

/// Plots with the same series.
pub struct Group {
    /// Names of the series; none where plots name their curves.
    pub series: Vec<String>,
    /// The sign of the first of them.
    pub first_sign: usize,
    /// The pictures.
    pub plots: Vec<Picture>,
    /// Whether a picture takes the whole width.
    pub is_wide: bool,
}

impl Group {
    fn new(series: Vec<String>, plots: Vec<Picture>) -> Self {
        Self { series, first_sign: 0, plots, is_wide: false }
    }

    fn wide(series: Vec<String>, plots: Vec<Picture>) -> Self {
        Self { series, first_sign: 0, plots, is_wide: true }
    }

    /// With signs from this one on, where those before it mean something else in the section.
    fn beginning_at(self, first_sign: usize) -> Self {
        Self { first_sign, ..self }
    }
}

/// A module's part.
type Make = fn(&Rows<'_>) -> Section;

/// All parts, in the order of the page.
const ALL: [Make; 9] = [
    compare::section,
    alloc::section,
    bring_up::section,
    init::section,
    scaling::section,
    jobs::section,
    hugepages::section,
    reporting::section,
    model::section,
];

/// The parts that have rows.
pub fn sections(rows: &[Value]) -> Vec<Section> {
    let rows = Rows::new(rows);
    let has_rows = |section: &Section| {
        section.benches.iter().any(|bench| rows.bench(bench).iter().next().is_some())
    };
    let mut sections: Vec<Section> = ALL.iter().map(|make| make(&rows)).filter(has_rows).collect();
    for section in &mut sections {
        section.groups.retain(|group| !group.plots.is_empty());
    }
    sections
}

/// Allocators and engines of one plot that are told apart.
const SIGNS: usize = 6;

/// Width of a plot that has neighbours.
const NARROW: f64 = 400.0;
/// Width of a plot that has none.
const WIDE: f64 = 820.0;

/// A measured field with its spread, times `scale`.
fn mark(row: &Value, field: &str, scale: f64) -> Option<Mark> {
    let end = |which: &str| number(row, &format!("{field}_{which}")).map(|value| value * scale);
    Some(Mark { value: number(row, field)? * scale, spread: end("min").zip(end("max")) })
}

/// Kinds of rows that a plot tells apart at most; a table has the others.
const MOST_KINDS: usize = 64;

/// The first different values of a text field, in the order in which they come.
fn texts(rows: &Rows<'_>, field: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for row in rows.iter() {
        let value = text(row, field);
        if !value.is_empty() && !found.iter().any(|known| known == value) {
            found.push(value.to_owned());
        }
        if found.len() == MOST_KINDS {
            break;
        }
    }
    found
}

/// The least different values of a whole field, ascending.
fn wholes(rows: &Rows<'_>, field: &str) -> Vec<u64> {
    let found: BTreeSet<u64> = rows.iter().filter_map(|row| whole(row, field)).collect();
    found.into_iter().take(MOST_KINDS).collect()
}

/// The size of a run of pages of 4 KiB.
fn run_size(order: u64) -> String {
    framewright_cli::grid::size(4096 << order.min(40)).replace(".00", "").replace(".0 ", " ")
}
