//! A self-contained HTML page: its frame, its memory maps, and the tools that draw its pictures.
//!
//! `framewright report` makes pages from snapshots, `framewright-bench report` from results and
//! snapshots. Everything that comes from a file passes through [`html::Escaped`], and a page's
//! policy forbids it to load anything.

pub mod files;
mod grades;
pub mod html;
pub mod memory;
pub mod pictures;
pub mod svg;

use crate::error::{self, Error};
use crate::file::PAGE_MARK;
use crate::snapshot::Snapshot;
use files::FileInfo;
use html::{Escaped, put};
use memory::Detail;

const STYLE: &str =
    concat!(include_str!("colours.css"), include_str!("plot.css"), include_str!("style.css"));
const SCRIPT: &str = include_str!("script.js");
/// Forbids the page to fetch anything, whatever is in the files.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";
/// The largest size of a page, in bytes.
const MOST_BYTES: usize = 2 << 20;

/// A section of a page.
pub struct Part {
    /// The section's name in links.
    pub id: &'static str,
    /// The section's title.
    pub title: &'static str,
    /// The HTML below the title.
    pub body: String,
}

/// A page of `parts` and of maps of `snapshots`.
pub struct Page<'a> {
    /// The sections before the maps.
    pub parts: Vec<Part>,
    /// The snapshots to draw, each with the name of its file.
    pub snapshots: &'a [(String, Snapshot)],
    /// The files that the page is about.
    pub files: &'a [FileInfo],
    /// Further remarks about the files, as HTML.
    pub remark: String,
}

impl Page<'_> {
    /// Renders the page with as much detail on the maps as its size limit allows.
    ///
    /// # Errors
    /// Fails if the page would be too large even with the least detail.
    pub fn fitting(&self) -> Result<String, Error> {
        let mut page = self.render(Detail::Runs);
        if page.len() > MOST_BYTES {
            page = self.render(Detail::Fields);
            error::note(
                "the memory maps leave out details of single runs, so that the page stays below 2 \
                 MiB",
            );
        }
        if page.len() > MOST_BYTES {
            return Err(Error::Usage(format!(
                "the page would have {} KiB, but the limit is 2048: give fewer files",
                page.len() >> 10
            )));
        }
        Ok(page)
    }

    fn render(&self, detail: Detail) -> String {
        let mut out = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">{PAGE_MARK}\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <meta name=\"color-scheme\" content=\"light dark\">\
             <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\
             <link rel=\"icon\" href=\"data:,\"><title>Framewright: results</title>\
             <style>{STYLE}</style></head><body>{}",
            memory::PATTERNS
        );
        self.head(&mut out);
        self.navigation(&mut out);
        out.push_str("<main>");
        for Part { id, title, body } in &self.parts {
            put!(out, "<section id=\"{id}\"><h2>{}</h2>{body}</section>", Escaped(title));
        }
        if !self.snapshots.is_empty() {
            out.push_str("<section id=\"memory\"><h2>Physical memory</h2>");
            for (name, snapshot) in self.snapshots {
                out.push_str(&memory::map(name, snapshot, detail));
            }
            out.push_str("</section>");
        }
        self.list_files(&mut out);
        put!(
            out,
            "</main><div id=\"tip\" role=\"status\" hidden></div><script>{SCRIPT}</script>\
             </body></html>\n"
        );
        out
    }

    fn head(&self, out: &mut String) {
        out.push_str(
            "<header><h1>Framewright</h1>\
             <p class=\"sub\">A physical memory manager, measured</p>",
        );
        // List facts that all files agree on only once.
        let mut facts: Vec<&(String, String)> = Vec::new();
        for file in self.files {
            for fact in &file.facts {
                let is_known = facts.iter().any(|(name, _)| *name == fact.0);
                let agree = self.files.iter().all(|file| {
                    file.facts.iter().all(|(name, value)| *name != fact.0 || *value == fact.1)
                });
                if !is_known && agree && fact.0 != "command" {
                    facts.push(fact);
                }
            }
        }
        if !facts.is_empty() {
            out.push_str("<dl class=\"facts\">");
            for (name, value) in facts {
                put!(out, "<div><dt>{}</dt><dd>{}</dd></div>", Escaped(name), Escaped(value));
            }
            out.push_str("</dl>");
        }
        for file in self.files {
            if let Some(busy) = &file.busy {
                put!(
                    out,
                    "<p class=\"busy\" role=\"alert\"><b>Measured on a busy machine:</b> {}, {}. \
                     Times, ratios and outcomes below may say more about those tasks than about \
                     the memory manager.</p>",
                    Escaped(&file.name),
                    Escaped(busy)
                );
            }
        }
        out.push_str("</header>");
    }

    fn navigation(&self, out: &mut String) {
        out.push_str("<nav aria-label=\"Parts\"><ul>");
        let mut link =
            |id: &str, title: &str| put!(out, "<li><a href=\"#{id}\">{}</a></li>", Escaped(title));
        self.parts.iter().for_each(|part| link(part.id, part.title));
        if !self.snapshots.is_empty() {
            link("memory", "Physical memory");
        }
        link("files", "Files");
        out.push_str("</ul></nav>");
    }

    fn list_files(&self, out: &mut String) {
        out.push_str("<section id=\"files\"><h2>Files</h2><ul class=\"files\">");
        for file in self.files {
            let facts: Vec<String> =
                file.facts.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            put!(
                out,
                "<li><b>{}</b> {}<br><small>{}</small></li>",
                Escaped(&file.name),
                Escaped(&file.content),
                Escaped(&facts.join(" \u{b7} "))
            );
        }
        put!(
            out,
            "</ul>{}<p class=\"how\">Made by {} {} report.</p></section>",
            self.remark,
            error::program(),
            env!("CARGO_PKG_VERSION")
        );
    }
}
