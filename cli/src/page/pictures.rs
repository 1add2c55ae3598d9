//! Plots and maps as separate SVG files, for use in documents.

use super::html::{Escaped, put};
use super::memory;
use super::svg::{Anchor, Picture, Short, Svg};
use crate::error::Error;
use crate::file::{self, Kind, PICTURE_MARK};
use crate::snapshot::Snapshot;
use std::fs;
use std::path::{Path, PathBuf};

/// The parts of a page's style that plots need.
const STYLE: &str = concat!(include_str!("colours.css"), include_str!("plot.css"));
/// The margin around a picture.
const MARGIN: f64 = 14.0;
/// The height of a legend.
const LEGEND: f64 = 26.0;
/// The approximate width of a character in a legend.
const CHARACTER: f64 = 6.6;

/// Pictures that are drawn but not yet written.
pub struct Pictures<'a> {
    folder: &'a Path,
    files: Vec<(PathBuf, String)>,
}

impl<'a> Pictures<'a> {
    /// Starts without any pictures; files will go to `folder`.
    pub fn new(folder: &'a Path) -> Self {
        Self { folder, files: Vec::new() }
    }

    /// Adds a plot with the names of its series and the number of the first one's sign.
    pub fn add(&mut self, name: &str, series: (&[String], usize), plot: &Picture) {
        self.files.push((self.folder.join(format!("{name}.svg")), alone(series, plot)));
    }

    /// Adds a map of each snapshot.
    pub fn add_maps(&mut self, snapshots: &[(String, Snapshot)]) {
        for ((_, snapshot), number) in snapshots.iter().zip(1..) {
            self.add(&format!("memory-{number}"), (&[], 0), &memory::picture(snapshot));
        }
    }

    /// Refuses to overwrite a file that is not a picture of ours.
    ///
    /// # Errors
    /// Fails if such a file exists; nothing has been written then.
    pub fn claim(&self) -> Result<(), Error> {
        self.files.iter().try_for_each(|(path, _)| file::claim("--pictures", path, Kind::Picture))
    }

    /// Writes all pictures.
    ///
    /// # Errors
    /// Fails if the folder cannot be made or a file cannot be written; earlier files stay written.
    pub fn write(&self) -> Result<(), Error> {
        fs::create_dir_all(self.folder).map_err(|error| {
            Error::Usage(format!("{}: cannot be created: {error}", self.folder.display()))
        })?;
        self.files.iter().try_for_each(|(path, text)| file::replace(path, text.as_bytes()))
    }
}

/// Renders a picture with its own light and dark colours and the signs of its series above it.
fn alone((series, first_sign): (&[String], usize), plot: &Picture) -> String {
    let has_legend = series.len() > 1;
    let top = MARGIN + if has_legend { LEGEND } else { 0.0 };
    let (width, height) = (plot.width + 2.0 * MARGIN, plot.height + top + MARGIN);
    let mut legend = Svg::new(width, height);
    let mut x = MARGIN + 6.0;
    for (index, name) in series.iter().enumerate().filter(|_| has_legend) {
        legend.sign((first_sign + index, name), (x, MARGIN + 4.0), "");
        legend.text("lb", Anchor::Start, (x + 11.0, MARGIN + 8.0), name);
        x += name.chars().count() as f64 * CHARACTER + 34.0;
    }
    let legend = legend.finish("").body;
    let mut out = String::new();
    let (wide, high) = (Short(width), Short(height));
    put!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" {PICTURE_MARK} width=\"{wide}\" \
         height=\"{high}\" viewBox=\"0 0 {wide} {high}\" role=\"img\" aria-label=\"{}\">",
        Escaped(&plot.label)
    );
    put!(
        out,
        "<style>{STYLE}.back{{fill:var(--bg)}}</style><rect class=\"back\" width=\"{wide}\" \
         height=\"{high}\"/>{legend}"
    );
    put!(
        out,
        "<g transform=\"translate({} {})\">{}</g></svg>\n",
        Short(MARGIN),
        Short(top),
        plot.body
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_stands_alone() {
        let plot = Picture {
            body: "<path d=\"M0 0\"/>".into(),
            width: 100.0,
            height: 50.0,
            label: "a & b".into(),
        };
        let text = alone((&["ours".into(), "<theirs>".into()], 0), &plot);
        assert!(
            text.starts_with("<svg xmlns=")
                && text.contains("viewBox=\"0 0 128 104\"")
                && text.contains("aria-label=\"a &amp; b\"")
        );
        assert!(text.contains("prefers-color-scheme:dark") && text.contains("&lt;theirs&gt;"));
        assert!(
            !alone((&["ours".into()], 0), &plot).contains(">ours<"),
            "one series needs no legend"
        );
    }
}
