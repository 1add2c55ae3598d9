//! `framewright report`: results and snapshots as one page that needs nothing but itself.

mod figures;
mod html;
mod input;
mod memory;
mod page;
mod pictures;
mod ratios;
mod svg;
mod table;

use crate::args::Report;
use crate::error::{self, Error};
use crate::file::{self, Kind};
use crate::output::Output;
use crate::targets;
use memory::Detail;

/// The largest page.
const MOST_BYTES: usize = 2 << 20;

/// Makes the page.
///
/// # Errors
/// No files, files that are no results, a page that would be too large, and one that cannot be
/// written. Then there is no page, or the one that was there before.
pub fn run(report: &Report) -> Result<(), Error> {
    if report.results.is_empty() && report.snapshot.is_empty() {
        return Err(Error::Usage(
            "no results given; `framewright bench alloc --json > alloc.json` makes some, `framewright boot --snapshot memory.json` a map of memory".into(),
        ));
    }
    if report.text {
        let input = input::read(&report.results, &[])?;
        let mut output = Output::new();
        for file in &input.files {
            if let Some(busy) = &file.busy {
                output
                    .line(&output.style().bold(&format!("BUSY MACHINE: {}, {busy}", file.name)))?;
                output.line("")?;
            }
        }
        let lines = targets::table(&targets::evaluate(&input.rows), output.style());
        return lines.iter().try_for_each(|line| output.line(line));
    }
    file::check("--output", &report.output)?;
    let input = input::read(&report.results, &report.snapshot)?;
    file::claim("--output", &report.output, Kind::Page)?;
    let pictures =
        report.pictures.as_deref().map(|folder| pictures::draw(folder, &input)).transpose()?;
    let mut page = page::page(&input, Detail::Runs);
    if page.len() > MOST_BYTES {
        page = page::page(&input, Detail::Fields);
        error::note(
            "the maps of memory say nothing about single runs: the page would be larger than 2 MiB",
        );
    }
    if page.len() > MOST_BYTES {
        return Err(Error::Usage(format!(
            "the page would have {} KiB, 2048 at most are sensible: give fewer files",
            page.len() >> 10
        )));
    }
    file::replace(&report.output, page.as_bytes())?;
    pictures.map_or(Ok(()), |pictures| pictures.write())
}
