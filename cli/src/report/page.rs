//! The page.

use super::figures::{Section, sections};
use super::html::{Escaped, put};
use super::input::{Input, Note};
use super::memory::{self, Detail};
use super::svg::legend;
use super::{ratios, table};
use crate::file::PAGE_MARK;
use crate::targets;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

const STYLE: &str =
    concat!(include_str!("colours.css"), include_str!("plot.css"), include_str!("style.css"));
const SCRIPT: &str = include_str!("script.js");
/// Nothing is fetched from anywhere, whatever is in the files.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:";

/// Tables without a part of their own that are shown.
const MOST_OTHERS: usize = 64;

/// All of it.
pub fn page(input: &Input, detail: Detail) -> String {
    let sections = sections(&input.rows);
    let has_rows = !input.rows.is_empty();
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">{PAGE_MARK}<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\
         <link rel=\"icon\" href=\"data:,\"><title>Framewright: results</title><style>{STYLE}</style></head><body>{}",
        memory::PATTERNS
    );
    head(&mut out, input);
    navigation(&mut out, &sections, input);
    out.push_str("<main>");
    if has_rows {
        out.push_str(&ratios::section(&targets::evaluate(&input.rows)));
    }
    for section in &sections {
        part(&mut out, section, input);
    }
    others(&mut out, &sections, input);
    if !input.snapshots.is_empty() {
        out.push_str("<section id=\"memory\"><h2>Physical memory</h2>");
        for (name, snapshot) in &input.snapshots {
            out.push_str(&memory::map(name, snapshot, detail));
        }
        out.push_str("</section>");
    }
    files(&mut out, input);
    put!(
        out,
        "</main><div id=\"tip\" role=\"status\" hidden></div><script>{SCRIPT}</script></body></html>\n"
    );
    out
}

fn head(out: &mut String, input: &Input) {
    out.push_str(
        "<header><h1>Framewright</h1><p class=\"sub\">A physical memory manager, measured</p>",
    );
    // What all files agree in, once.
    let mut facts: Vec<&(String, String)> = Vec::new();
    for file in &input.files {
        for fact in &file.facts {
            let is_known = facts.iter().any(|(name, _)| *name == fact.0);
            let agree = input.files.iter().all(|file| {
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
    for file in &input.files {
        if let Some(busy) = &file.busy {
            put!(
                out,
                "<p class=\"busy\" role=\"alert\"><b>Measured on a busy machine:</b> {}, {}. Times, ratios and outcomes below may say \
                 more about the others than about the memory manager.</p>",
                Escaped(&file.name),
                Escaped(busy)
            );
        }
    }
    out.push_str("</header>");
}

fn navigation(out: &mut String, sections: &[Section], input: &Input) {
    out.push_str("<nav aria-label=\"Parts\"><ul>");
    let mut link =
        |id: &str, title: &str| put!(out, "<li><a href=\"#{id}\">{}</a></li>", Escaped(title));
    if !input.rows.is_empty() {
        link("limits", "Limits");
    }
    sections.iter().for_each(|section| link(section.id, section.title));
    if !unknown(sections, input).is_empty() {
        link("others", "Others");
    }
    if !input.snapshots.is_empty() {
        link("memory", "Physical memory");
    }
    link("files", "Files");
    out.push_str("</ul></nav>");
}

fn rows_of<'a>(input: &'a Input, bench: &str) -> Vec<&'a Value> {
    input.rows.iter().filter(|row| row["bench"] == bench).collect()
}

fn part(out: &mut String, section: &Section, input: &Input) {
    put!(
        out,
        "<section id=\"{}\"><h2>{}</h2><p class=\"lead\">{}</p>",
        section.id,
        Escaped(section.title),
        Escaped(&section.lead)
    );
    for group in &section.groups {
        out.push_str("<div class=\"group\">");
        if group.series.len() > 1 {
            out.push_str(&legend(&group.series, group.first_sign));
        }
        put!(out, "<div class=\"plots{}\">", if group.is_wide { " wide" } else { "" });
        for plot in &group.plots {
            put!(out, "<figure>{}</figure>", plot.inline());
        }
        out.push_str("</div></div>");
    }
    for bench in section.benches {
        details(out, bench, input);
    }
    out.push_str("</section>");
}

/// The rows of a table and how they were measured, for who wants to know.
fn details(out: &mut String, bench: &str, input: &Input) {
    let rows = rows_of(input, bench);
    if rows.is_empty() {
        return;
    }
    put!(
        out,
        "<details><summary>Table: {} <small>{} row{}</small></summary>{}",
        Escaped(bench),
        rows.len(),
        if rows.len() == 1 { "" } else { "s" },
        table::table(&rows)
    );
    for note in input.notes.iter().filter(|note| note.bench == bench) {
        how(out, note);
    }
    out.push_str("</details>");
}

fn how(out: &mut String, note: &Note) {
    if !note.timed.is_empty() {
        put!(out, "<p class=\"how\">How: {}.</p>", Escaped(note.timed.trim_end_matches('.')));
    }
    for reason in &note.left_out {
        put!(out, "<p class=\"how\">Left out: {}.</p>", Escaped(reason));
    }
}

/// Tables that no part shows, with their rows, in the order in which they come.
fn unknown<'a>(sections: &[Section], input: &'a Input) -> Vec<(&'a str, Vec<&'a Value>)> {
    let known: HashSet<&str> = sections
        .iter()
        .flat_map(|section| section.benches.iter().copied())
        .chain(["run"])
        .collect();
    let mut tables: Vec<(&str, Vec<&Value>)> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    for row in &input.rows {
        let Some(name) = row["bench"].as_str().filter(|name| !known.contains(name)) else {
            continue;
        };
        let place = *places.entry(name).or_insert_with(|| {
            tables.push((name, Vec::new()));
            tables.len() - 1
        });
        tables[place].1.push(row);
    }
    tables
}

fn others(out: &mut String, sections: &[Section], input: &Input) {
    let tables = unknown(sections, input);
    if tables.is_empty() {
        return;
    }
    out.push_str("<section id=\"others\"><h2>Others</h2>");
    for (name, rows) in tables.iter().take(MOST_OTHERS) {
        put!(out, "<h3>{}</h3>{}", Escaped(name), table::table(rows));
        input.notes.iter().filter(|note| note.bench == *name).for_each(|note| how(out, note));
    }
    if let more @ 1.. = tables.len().saturating_sub(MOST_OTHERS) {
        put!(out, "<p class=\"how\">{more} more tables are in the files.</p>");
    }
    out.push_str("</section>");
}

fn files(out: &mut String, input: &Input) {
    out.push_str("<section id=\"files\"><h2>Files</h2><ul class=\"files\">");
    for file in &input.files {
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
    out.push_str("</ul>");
    if input.replaced != 0 {
        put!(
            out,
            "<p class=\"how\">{} rows of earlier files measured the same as rows of later ones, which count.</p>",
            input.replaced
        );
    }
    put!(
        out,
        "<p class=\"how\">Made by framewright {} report.</p></section>",
        env!("CARGO_PKG_VERSION")
    );
}
