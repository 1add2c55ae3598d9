//! Assembles the page.

use super::figures::Section;
use super::input::{Input, Note};
use super::svg::legend;
use super::{ratios, table};
use crate::registry;
use framewright_cli::page::html::{Escaped, put};
use framewright_cli::page::{Page, Part};
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// The most tables without a section of their own that are shown.
const MOST_OTHERS: usize = 64;

/// Assembles the whole page.
pub fn page(input: &Input) -> Page<'_> {
    let sections = registry::sections(&input.known_rows);
    let mut parts = vec![ratios::part(&registry::evaluate(&input.known_rows))];
    parts.extend(sections.iter().map(|section| part(section, input)));
    parts.extend(others(&sections, input));
    let mut remark = String::new();
    if input.replaced != 0 {
        put!(
            remark,
            "<p class=\"how\">{} rows of earlier files measured the same as rows of later ones, \
             which count.</p>",
            input.replaced
        );
    }
    Page { parts, snapshots: &input.snapshots, files: &input.files, remark }
}

fn rows_of<'a>(input: &'a Input, bench: &str) -> Vec<&'a Value> {
    input.rows.iter().filter(|row| row["bench"] == bench).collect()
}

fn part(section: &Section, input: &Input) -> Part {
    let mut out = format!("<p class=\"lead\">{}</p>", Escaped(&section.lead));
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
        details(&mut out, bench, input);
    }
    Part { id: section.id, title: section.title, body: out }
}

/// The rows of a table and how they were measured, in a part that readers can open.
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

/// The tables that no section shows, with their rows, in order of appearance.
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

fn others(sections: &[Section], input: &Input) -> Option<Part> {
    let tables = unknown(sections, input);
    if tables.is_empty() {
        return None;
    }
    let mut out = String::new();
    for (name, rows) in tables.iter().take(MOST_OTHERS) {
        put!(out, "<h3>{}</h3>{}", Escaped(name), table::table(rows));
        input.notes.iter().filter(|note| note.bench == *name).for_each(|note| how(&mut out, note));
    }
    if let more @ 1.. = tables.len().saturating_sub(MOST_OTHERS) {
        put!(out, "<p class=\"how\">{more} more tables are in the files.</p>");
    }
    Some(Part { id: "others", title: "Others", body: out })
}
