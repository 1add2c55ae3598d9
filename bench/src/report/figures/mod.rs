//! Which rows become which plots. What no module here knows is shown as a table alone.

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
pub type Make = fn(&Rows) -> Section;

/// Allocators and engines of one plot that are told apart.
const SIGNS: usize = 6;

/// Width of a plot that has neighbours.
const NARROW: f64 = 400.0;
/// Width of a plot that has none.
const WIDE: f64 = 820.0;

/// Something measured with its spread, times `scale`.
fn mark(spread: Spread, scale: f64) -> Option<Mark> {
    let ends = spread.least.zip(spread.most);
    let spread_of = ends.map(|(least, most)| (least * scale, most * scale));
    Some(Mark { value: spread.middle? * scale, spread: spread_of })
}

/// Something measured without a spread.
fn point(value: f64) -> Option<Mark> {
    Some(Mark { value, spread: None })
}

/// The names of rows, and a mark of each series.
type Line = (String, Vec<Option<Mark>>);

/// Dots in rows, on a logarithmic axis, all without a limit; nothing where no row has a mark.
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

/// The picture of a plot that has rows.
fn drawn(plot: &Bars) -> Option<Picture> {
    (!plot.rows.is_empty()).then(|| plot.draw())
}

/// The rows with a mark at least.
fn marked(mut rows: Vec<Line>) -> Vec<Line> {
    rows.retain(|(_, marks)| marks.iter().any(Option::is_some));
    rows
}

/// Names of series that own nothing.
fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Kinds of rows that a plot tells apart at most; a table has the others.
const MOST_KINDS: usize = 64;

/// The first different words, in the order in which they come.
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

/// The least different numbers, ascending.
fn wholes(numbers: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let found: BTreeSet<u64> = numbers.into_iter().collect();
    found.into_iter().take(MOST_KINDS).collect()
}

/// The size of a run of pages of 4 KiB.
fn run_size(order: u64) -> String {
    framewright_cli::grid::size(4096 << order.min(40)).replace(".00", "").replace(".0 ", " ")
}
