//! Documents: their total size, their width, and whether links and file names in them lead
//! anywhere.
//!
//! Documents in `docs/log` are history; only their links are checked. Tables, code and links may be
//! wider than a line.

use crate::workspace;
use std::path::Path;
use std::{fs, io};

/// The most bytes that all documents outside of `docs/log` may have together.
const SIZE_LIMIT: usize = 120_000;
/// The most characters in a line.
const WIDTH_LIMIT: usize = 100;

/// Folders of the source tree, with which file names begin.
const FOLDERS: [&str; 10] = [
    "adopters",
    "bench",
    "cli",
    "crates",
    "docs",
    "examples",
    "guest",
    "linux-init",
    "machines",
    "xtask",
];

/// Broken rules, one line each.
///
/// # Errors
/// The errors of reading the files.
pub fn inspect(root: &Path) -> io::Result<Vec<String>> {
    let mut findings = Vec::new();
    let mut size = 0;
    let sources = workspace::files(root, ".rs")?;
    for path in workspace::files(root, ".md")? {
        let text = fs::read_to_string(&path)?;
        let shown = workspace::shown(&path);
        let folder = path.parent().unwrap_or(root);
        let mut found = links(&text, &|link| folder.join(link).exists());
        found.extend(widths(&text));
        if !shown.starts_with("docs/log/") {
            size += text.len();
            // A source file may be named by the end of its path.
            let exists = |name: &str| {
                root.join(name).exists() || sources.iter().any(|path| path.ends_with(name))
            };
            found.extend(paths(&text, &exists));
        }
        findings.extend(found.into_iter().map(|(line, what)| format!("{shown}:{line}: {what}")));
    }
    findings.extend(size_finding(size));
    Ok(findings)
}

fn size_finding(size: usize) -> Option<String> {
    (size > SIZE_LIMIT)
        .then(|| format!("documents have {size} bytes without docs/log: the limit is {SIZE_LIMIT}"))
}

/// Finds lines of prose that are too wide.
fn widths(text: &str) -> Vec<(usize, String)> {
    let wide = |line: &str| {
        line.chars().count() > WIDTH_LIMIT && !line.starts_with('|') && !line.contains("](")
    };
    prose(text)
        .filter(|(_, line)| wide(line))
        .map(|(number, line)| {
            (number, format!("{} columns: the limit is {WIDTH_LIMIT}", line.chars().count()))
        })
        .collect()
}

/// Finds links to files that do not exist.
fn links(text: &str, exists: &dyn Fn(&str) -> bool) -> Vec<(usize, String)> {
    let mut findings = Vec::new();
    for (number, line) in prose(text) {
        for (at, _) in line.match_indices("](") {
            let link = line[at + 2..].split([')', ' ']).next().unwrap_or("");
            let file = link.split('#').next().unwrap_or("");
            // A crate's documentation also links to its items.
            if !file.is_empty() && !file.contains("::") && !file.contains("://") && !exists(file) {
                findings.push((number, format!("`{file}` is not there")));
            }
        }
    }
    findings
}

/// Finds files and folders of the source tree that are named in backticks and do not exist.
fn paths(text: &str, exists: &dyn Fn(&str) -> bool) -> Vec<(usize, String)> {
    let mut findings = Vec::new();
    for (number, line) in prose(text) {
        // Every second part of a line is inside backticks.
        for name in line.split('`').skip(1).step_by(2) {
            let is_ours = FOLDERS
                .iter()
                .any(|folder| name.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/')))
                || name.ends_with(".rs");
            let is_pattern = name.contains(|c: char| " *{<".contains(c) || c.is_ascii_uppercase());
            if is_ours && !is_pattern && !exists(name) {
                findings.push((number, format!("`{name}` is not there")));
            }
        }
    }
    findings
}

/// The lines outside of code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
            return None;
        }
        (!is_code).then_some((index + 1, line))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_prose_is_found_and_tables_code_and_links_are_not() {
        let wide = "x".repeat(WIDTH_LIMIT + 1);
        let text = format!("{wide}\n| {wide} |\n```\n{wide}\n```\n[{wide}](a.md)\nshort\n");
        assert_eq!(widths(&text), [(1, "101 columns: the limit is 100".to_owned())]);
    }

    #[test]
    fn links_lead_to_files() {
        let text =
            "[a](here.md) and [b](gone.md#part) [c](https://x.y) [d](#part)\n```\n[e](no)\n```\n";
        let found = links(text, &|link| link == "here.md");
        assert_eq!(found, [(1, "`gone.md` is not there".to_owned())]);
    }

    #[test]
    fn names_of_files_are_those_of_files() {
        let text =
            "`docs/here.rs` and `docs/gone.md`, `docs/*.md`, `gone.rs`, `other/x`, docs/gone\n";
        let found = paths(text, &|path| path == "docs/here.rs");
        let gone = |name: &str| (1, format!("`{name}` is not there"));
        assert_eq!(found, [gone("docs/gone.md"), gone("gone.rs")]);
    }

    #[test]
    fn size_is_limited() {
        assert!(size_finding(SIZE_LIMIT).is_none());
        assert!(size_finding(SIZE_LIMIT + 1).is_some());
    }
}
