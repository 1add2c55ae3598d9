//! Shows rows of results as a table, whatever they are about.

use super::svg::three;
use framewright_cli::page::html::{Escaped, put};
use serde_json::Value;
use std::collections::HashSet;

/// The most rows that are shown; the others are in the file.
const MOST_ROWS: usize = 400;
/// The most columns that are shown.
const MOST_COLUMNS: usize = 120;
/// The longest text of a cell, in characters.
const MOST_TEXT: usize = 80;

/// A table of all fields of `rows`. Spreads are shown with their values.
pub fn table(rows: &[&Value]) -> String {
    let mut columns: Vec<&str> = Vec::new();
    let mut all: HashSet<&str> = HashSet::from(["bench"]);
    for row in rows {
        let names = row.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        columns.extend(names.filter(|name| all.insert(name)));
    }
    let more = columns.len().saturating_sub(MOST_COLUMNS);
    columns.truncate(MOST_COLUMNS);
    columns.retain(|name| {
        let base = ["_min", "_max", "_low", "_high"].iter().find_map(|end| name.strip_suffix(end));
        base.is_none_or(|base| !all.contains(base))
    });
    let mut out = String::from("<div class=\"scroll\"><table class=\"rows\"><thead><tr>");
    let is_number = |name: &str| {
        rows.iter()
            .all(|row| row.get(name).is_none_or(|value| value.is_number() || value.is_null()))
    };
    let columns: Vec<(&str, &str)> = columns
        .into_iter()
        .map(|name| (name, if is_number(name) { " class=\"n\"" } else { "" }))
        .collect();
    for (name, class) in &columns {
        put!(out, "<th scope=\"col\"{class}>{}</th>", Escaped(&name.replace('_', " ")));
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows.iter().take(MOST_ROWS) {
        out.push_str("<tr>");
        for (name, class) in &columns {
            put!(out, "<td{class}>{}</td>", Escaped(&cell(row, name)));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
    if rows.len() > MOST_ROWS {
        put!(
            out,
            "<p class=\"how\">The first {MOST_ROWS} of {} rows; all of them are in the file.</p>",
            rows.len()
        );
    }
    if more != 0 {
        put!(out, "<p class=\"how\">{more} more columns are in the file.</p>");
    }
    out
}

fn cell(row: &Value, name: &str) -> String {
    let shown = value(row.get(name));
    // An interval says more than the extremes of single runs.
    let end = |one: &str, other: &str| {
        let end = |which: &str| row.get(format!("{name}_{which}")).and_then(Value::as_f64);
        end(one).or_else(|| end(other))
    };
    match (end("low", "min"), end("high", "max")) {
        (Some(least), Some(most)) if least < most => {
            format!("{shown} ({}\u{2009}\u{2013}\u{2009}{})", three(least), three(most))
        }
        _ => shown,
    }
}

fn value(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "\u{2013}".into(),
        Some(Value::String(text)) if text.chars().count() > MOST_TEXT => {
            text.chars().take(MOST_TEXT).chain(['\u{2026}']).collect()
        }
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(is)) => if *is { "yes" } else { "no" }.into(),
        Some(Value::Number(number)) => match (number.as_u64(), number.as_f64()) {
            (Some(whole), _) => whole.to_string(),
            (None, Some(number)) => three(number),
            (None, None) => number.to_string(),
        },
        Some(Value::Array(values)) => format!("{} values", values.len()),
        Some(Value::Object(_)) => "\u{2026}".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn spreads_stand_with_their_values_and_everything_is_escaped() {
        let row = json!({ "bench": "new", "what<": "<script>", "x_ns": 2.0, "x_ns_min": 1.5,
            "x_ns_max": 2.5, "only_min": 3, "both": 5.0, "both_min": 1.0, "both_max": 9.0,
            "both_low": 4.5, "both_high": 6.0,
                          "at_seconds": [1, 2], "none": null, "on": true });
        let text = table(&[&row]);
        assert!(
            text.contains("&lt;script&gt;")
                && text.contains("what&lt;")
                && !text.contains("<script")
        );
        assert!(
            text.contains("2.00 (1.50\u{2009}\u{2013}\u{2009}2.50)") && text.contains("only min")
        );
        assert!(text.contains("5.00 (4.50\u{2009}\u{2013}\u{2009}6.00)"), "{text}");
        assert!(
            text.contains(">2 values<") && text.contains(">\u{2013}<") && text.contains(">yes<")
        );
    }

    #[test]
    fn long_tables_say_that_they_are_cut() {
        let rows: Vec<Value> =
            (0..500).map(|number| json!({ "bench": "a", "n": number })).collect();
        let text = table(&rows.iter().collect::<Vec<_>>());
        assert!(text.contains("The first 400 of 500 rows") && text.matches("<tr>").count() == 401);
    }
}
