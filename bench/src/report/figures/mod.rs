//! Which rows become which plots. Rows that no module here knows are shown only in a table.

pub mod alloc;
pub mod bring_up;
pub mod compare;
pub mod hugepages;
pub mod init;
pub mod jobs;
pub mod model;
pub mod reporting;
pub mod scaling;
pub mod traffic;

use super::svg::{Bars, Mark, Picture, Shape, Unit};
use crate::rows::{Rows, Spread};
use framewright_cli::grid::counted;
use std::collections::BTreeSet;

/// A section of the page about one or a few tables.
pub struct Section {
    /// The section's name in links.
    pub id: &'static str,
    /// The section's title.
    pub title: &'static str,
    /// What to look at, in a sentence or two.
    pub lead: String,
    /// The tables that the section shows.
    pub benches: &'static [&'static str],
    /// The plots, in groups with one legend each.
    pub groups: Vec<Group>,
}

/// Plots with the same series.
pub struct Group {
    /// The names of the series; empty if plots name their curves.
    pub series: Vec<String>,
    /// The sign of the first series.
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

    /// Begins with this sign, if earlier ones mean something else in the section.
    fn beginning_at(self, first_sign: usize) -> Self {
        Self { first_sign, ..self }
    }
}

/// A function that makes a module's section.
pub type Make = fn(&Rows) -> Section;

/// The most allocators and engines of one plot that are told apart.
const SIGNS: usize = 6;

/// The width of a plot that has neighbours.
const NARROW: f64 = 400.0;
/// The width of a plot that has none.
const WIDE: f64 = 820.0;

/// A mark for a measurement with its spread, times `scale`.
fn mark(spread: Spread, scale: f64) -> Option<Mark> {
    let ends = spread.least.zip(spread.most);
    let spread_of = ends.map(|(least, most)| (least * scale, most * scale));
    Some(Mark { value: spread.middle? * scale, spread: spread_of })
}

/// A mark for a measurement without a spread.
fn point(value: f64) -> Option<Mark> {
    Some(Mark { value, spread: None })
}

/// The name of a row, and a mark for each series.
type Line = (String, Vec<Option<Mark>>);

/// Dots in rows on a logarithmic axis, without limits; no row means no plot.
fn dots(title: impl Into<String>, unit: Unit, series: &[String], rows: Vec<Line>) -> Bars {
    Bars {
        title: title.into(),
        unit,
        shape: Shape::Dots,
        is_log: true,
        series: series.to_vec(),
        rows,
        limits: Vec::new(),
        first_sign: 0,
        width: NARROW,
    }
}

/// The picture of a plot, unless it has no rows.
fn drawn(plot: &Bars) -> Option<Picture> {
    (!plot.rows.is_empty()).then(|| plot.draw())
}

/// The rows that have at least one mark.
fn marked(mut rows: Vec<Line>) -> Vec<Line> {
    rows.retain(|(_, marks)| marks.iter().any(Option::is_some));
    rows
}

/// The names of series as owned strings.
fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// The most kinds of rows that a plot tells apart; the others are only in the table.
const MOST_KINDS: usize = 64;

/// The first distinct words, in order of appearance.
fn texts<'a>(words: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for word in words {
        if !word.is_empty() && !found.contains(word) {
            found.push(word.clone());
        }
        if found.len() == MOST_KINDS {
            break;
        }
    }
    found
}

/// The least distinct numbers, ascending.
fn wholes(numbers: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let found: BTreeSet<u64> = numbers.into_iter().collect();
    found.into_iter().take(MOST_KINDS).collect()
}

/// The size of a run of 4 KiB pages.
fn run_size(order: u64) -> String {
    framewright_cli::grid::size(4096 << order.min(40)).replace(".00", "").replace(".0 ", " ")
}
