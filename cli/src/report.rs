//! `framewright report`: makes one self-contained page from snapshots of memory.

use crate::args::Report;
use crate::error::Error;
use crate::file::{self, Kind};
use crate::page::Page;
use crate::page::files::{self, FileInfo};
use crate::page::pictures::Pictures;
use crate::snapshot::Snapshot;
use std::path::Path;

/// Makes the page.
///
/// # Errors
/// Fails if there are no files or some are no snapshots, if the page would be too large, or if it
/// cannot be written. Any page that was there before is then unchanged.
pub fn run(report: &Report) -> Result<(), Error> {
    let paths = || report.snapshots.iter().chain(&report.snapshot);
    if paths().next().is_none() {
        return Err(Error::Usage(
            "no snapshot given; `framewright boot --snapshot memory.json` makes one".into(),
        ));
    }
    file::check("--output", &report.output)?;
    let (mut snapshots, mut infos) = (Vec::new(), Vec::new());
    for path in paths() {
        let bad = |why: String| Error::Usage(format!("{}: {why}", path.display()));
        let (info, snapshot) = read(path).map_err(bad)?;
        snapshots.push((info.name.clone(), snapshot));
        infos.push(info);
    }
    file::claim("--output", &report.output, Kind::Page)?;
    let mut pictures = report.pictures.as_deref().map(Pictures::new);
    if let Some(pictures) = &mut pictures {
        pictures.add_maps(&snapshots);
        pictures.claim()?;
    }
    let parts = Vec::new();
    let page = Page { parts, snapshots: &snapshots, files: &infos, remark: String::new() };
    let page = page.fitting()?;
    // Pictures come first: if they cannot be written, the old page stays.
    pictures.map_or(Ok(()), |pictures| pictures.write())?;
    file::replace(&report.output, page.as_bytes())
}

/// Reads a snapshot from a file.
fn read(path: &Path) -> Result<(FileInfo, Snapshot), String> {
    let value = files::load(path)?;
    let object = files::object(&value)?;
    match files::snapshot(object)? {
        Some(snapshot) => {
            let content = "a snapshot of memory".to_owned();
            Ok((FileInfo::of(&files::name(path), content, object), snapshot))
        }
        None if object.contains_key("rows") => {
            Err("holds benchmark results: `framewright-bench report` makes a page of them".into())
        }
        None => Err("has no \"snapshot\": `boot --snapshot` writes files that have one".into()),
    }
}
