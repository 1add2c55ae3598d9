//! `framewright-bench report`: makes one self-contained page from results and snapshots.
//!
//! It is written by hand, because crates made it no smaller. `maud` took 381 lines for the 389 of
//! this module's page, tables and limits, and four crates. `plotters` writes colours where we write
//! classes, which let a picture follow the reader's light or dark mode, and it has no tooltips on
//! points. `tabled` would replace thirty lines of the text tables.

pub mod figures;
mod input;
mod page;
mod ratios;
mod svg;
mod table;

use crate::args::Report;
use crate::registry;
use crate::targets;
use framewright_cli::error::Error;
use framewright_cli::file::{self, Kind};
use framewright_cli::output::Output;
use framewright_cli::page::pictures::Pictures;

/// Makes the page.
///
/// # Errors
/// Fails if there are no files or some are no results, if the page would be too large, or if it
/// cannot be written. Any page that was there before is then unchanged.
pub fn run(report: &Report) -> Result<(), Error> {
    if report.results.is_empty() && report.snapshot.is_empty() {
        return Err(Error::Usage(
            "no results given; `framewright-bench alloc --json > alloc.json` makes some, \
             `framewright boot --snapshot memory.json` a map of memory"
                .into(),
        ));
    }
    if !report.text {
        file::check("--output", &report.output)?;
    }
    let input = input::read(&report.results, &report.snapshot)?;
    if input.rows.is_empty() {
        return Err(Error::Usage(
            "no file has results: `framewright report` makes a page of snapshots alone".into(),
        ));
    }
    if report.text {
        return text(&input);
    }
    file::claim("--output", &report.output, Kind::Page)?;
    let pictures = report.pictures.as_deref().map(|folder| pictures(Pictures::new(folder), &input));
    if let Some(pictures) = &pictures {
        pictures.claim()?;
    }
    let page = page::page(&input).fitting()?;
    // Pictures come first: if they cannot be written, the old page stays.
    pictures.map_or(Ok(()), |pictures| pictures.write())?;
    file::replace(&report.output, page.as_bytes())
}

/// Prints the limits.
fn text(input: &input::Input) -> Result<(), Error> {
    let mut output = Output::new();
    for file in &input.files {
        if let Some(busy) = &file.busy {
            let line = format!("BUSY MACHINE: {}, {busy}", file.name);
            output.line(&output.style().bold(&line))?;
            output.line("")?;
        }
    }
    let lines = targets::table(&registry::evaluate(&input.known_rows), output.style());
    lines.iter().try_for_each(|line| output.line(line))
}

/// Adds each plot of the page as a file of its own, named after its section and its number there,
/// and each map.
fn pictures<'a>(mut pictures: Pictures<'a>, input: &input::Input) -> Pictures<'a> {
    for section in registry::sections(&input.known_rows) {
        let plots = section
            .groups
            .iter()
            .flat_map(|group| group.plots.iter().map(move |plot| (group, plot)));
        for ((group, plot), number) in plots.zip(1..) {
            let series = (group.series.as_slice(), group.first_sign);
            pictures.add(&format!("{}-{number}", section.id), series, plot);
        }
    }
    pictures.add_maps(&input.snapshots);
    pictures
}
