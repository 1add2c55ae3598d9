//! House rules that neither the compiler nor clippy checks.
//!
//! * Every source file says in a `//!` header what it is for, is small enough to be read at one go,
//!   and has no line over 100 columns, text in quotes included.
//! * Nothing is left unfinished.
//! * Comments name the thing that they are about, and cite no text that is not in the source tree.
//! * `unsafe` is explained where it stands.
//! * Orders of memory are explained in the file that uses them.
//! * Crates know only what `docs/architecture.md` says they may; modules of the core know only
//!   those below them, and files form no circles.
//! * Documents are short, have no long lines, and their links lead somewhere.

mod arrows;
mod documents;
mod modules;
mod orders;

use crate::rust::source;
use crate::workspace;
use std::path::Path;
use std::{fs, io};

/// A file with more lines than this has more than one idea.
const LINE_LIMIT: usize = 600;

/// The most columns of a line of code.
const WIDTH_LIMIT: usize = 100;

/// Words that may not begin a comment: rendered documentation does not show what they refer to.
const RIDDLES: [&str; 4] = ["The same", "Likewise", "Same as", "As above"];
/// Names of documents that are not in the source tree. They are put together like the words below.
const ABSENT_TEXTS: [&str; 2] = [concat!("SP", "EC"), concat!("DES", "IGN")];

/// Words that mark unfinished work. They are put together here so that this file does not contain
/// them.
const UNFINISHED_IN_CODE: [&str; 2] = [concat!("to", "do!"), concat!("unimple", "mented!")];
const UNFINISHED_IN_COMMENTS: [&str; 4] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("X", "XX"), concat!("HA", "CK")];

/// What was inspected and what was found.
pub struct Report {
    /// The number of source files.
    pub files: usize,
    /// The number of manifests.
    pub crates: usize,
    /// One line for each broken rule.
    pub findings: Vec<String>,
}

/// Inspects the whole source tree.
///
/// # Errors
/// The errors of reading it.
pub fn inspect(root: &Path) -> io::Result<Report> {
    let mut findings = Vec::new();
    let files = workspace::files(root, ".rs")?;
    for path in &files {
        let text = fs::read_to_string(path)?;
        let shown = workspace::shown(path).to_string();
        let found = inspect_file(&text).into_iter().chain(orders::inspect(&shown, &text));
        let found = found.chain(widths(&text)).chain(comments(&text));
        findings.extend(found.map(|(line, rule)| format!("{shown}:{line}: {rule}")));
    }
    let manifests = workspace::files(root, "Cargo.toml")?;
    findings.extend(arrows::inspect(root, &manifests)?);
    findings.extend(modules::inspect(root)?);
    findings.extend(documents::inspect(root)?);
    Ok(Report { files: files.len(), crates: manifests.len().saturating_sub(1), findings })
}

/// Comments that leave their reader guessing, with line numbers.
fn comments(text: &str) -> Vec<(usize, String)> {
    let mut findings = Vec::new();
    // The comment marker of the paragraph that continues.
    let mut before = None;
    for (index, line) in text.lines().enumerate() {
        let comment = line.find("//").map_or("", |at| &line[at..]);
        if let Some(text) = ABSENT_TEXTS.iter().find(|text| has_word(comment, text)) {
            findings.push((
                index + 1,
                format!("`{text}` is not in the source tree: cite Linux, a paper, or docs/"),
            ));
        }
        let line = line.trim();
        let mark = ["///", "//!"].into_iter().find(|mark| line.starts_with(mark));
        let words = mark.map_or("", |mark| line[mark.len()..].trim_start());
        let riddle = RIDDLES.iter().find(|riddle| words.starts_with(**riddle));
        if let Some(riddle) = riddle.filter(|_| mark != before) {
            findings.push((index + 1, format!("\"{riddle}\": say the noun")));
        }
        before = mark.filter(|_| !words.is_empty());
    }
    findings
}

/// Lines that are too wide, with line numbers.
fn widths(text: &str) -> Vec<(usize, String)> {
    let columns = text.lines().enumerate().map(|(index, line)| (index + 1, line.chars().count()));
    columns
        .filter(|(_, columns)| *columns > WIDTH_LIMIT)
        .map(|(line, columns)| (line, format!("{columns} columns: the limit is {WIDTH_LIMIT}")))
        .collect()
}

/// The broken rules of one file, with line numbers.
fn inspect_file(text: &str) -> Vec<(usize, String)> {
    let mut findings = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    if !lines
        .iter()
        .find(|line| !line.trim().is_empty())
        .is_some_and(|line| line.starts_with("//!"))
    {
        findings.push((1, "the file does not begin with a `//!` header".to_owned()));
    }
    if lines.len() > LINE_LIMIT {
        findings.push((lines.len(), format!("{} lines: the limit is {LINE_LIMIT}", lines.len())));
    }
    let code = source::code(text);
    for (index, (line, code)) in lines.iter().zip(code.lines()).enumerate() {
        let comment = line.find("//").map_or("", |at| &line[at..]);
        let unfinished = UNFINISHED_IN_CODE.iter().find(|mark| code.contains(**mark));
        let unfinished = unfinished
            .or_else(|| UNFINISHED_IN_COMMENTS.iter().find(|mark| has_word(comment, mark)));
        if let Some(mark) = unfinished {
            findings.push((index + 1, format!("unfinished: `{mark}`")));
        }
        if opens_unsafe(code) && !is_explained(&lines, index) {
            findings.push((
                index + 1,
                "`unsafe` without a `// SAFETY:` comment right above".to_owned(),
            ));
        }
    }
    findings
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == word)
}

/// Whether the line has an unsafe block or implementation. Functions and traits state their
/// conditions in a `# Safety` section, which clippy requires.
fn opens_unsafe(code: &str) -> bool {
    code.match_indices("unsafe").any(|(at, word)| {
        let rest = code[at + word.len()..].trim_start();
        rest.starts_with('{')
            || rest.strip_prefix("impl").is_some_and(|rest| rest.starts_with([' ', '<']))
    })
}

/// Walks up from an unsafe line, over attributes and the lines of its statement, to the comment
/// above.
fn is_explained(lines: &[&str], index: usize) -> bool {
    for line in lines[..index].iter().rev().map(|line| line.trim()) {
        if line.starts_with("//") {
            if line.contains("SAFETY:") {
                return true;
            }
        } else if !line.starts_with("#[") && (line.is_empty() || line.ends_with([';', '{', '}'])) {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Vec<String> {
        inspect_file(text).into_iter().map(|(line, rule)| format!("{line}: {rule}")).collect()
    }

    #[test]
    fn a_header_is_needed_and_length_is_limited() {
        assert!(rules("//! Header.\nfn f() {}\n").is_empty());
        assert_eq!(rules("fn f() {}\n").len(), 1);
        assert!(
            rules(&format!("//! Header.\n{}", "\n".repeat(LINE_LIMIT)))[0]
                .contains("the limit is 600")
        );
    }

    #[test]
    fn width_is_limited_in_columns_and_not_in_bytes() {
        let text = format!("{}\n{}\n", "\u{b5}".repeat(WIDTH_LIMIT), "x".repeat(WIDTH_LIMIT + 1));
        assert_eq!(widths(&text), [(2, "101 columns: the limit is 100".to_owned())]);
    }

    #[test]
    fn comments_name_what_they_speak_of() {
        let text = concat!(
            "//! H.\n/// The same.\nfn f() {}\n/// F again,\n/// The same way.\n",
            "// (SP",
            "EC 1.2)\nlet s = \"SP",
            "EC\";\n"
        );
        assert_eq!(comments(text).iter().map(|(line, _)| *line).collect::<Vec<_>>(), [2, 6]);
    }

    #[test]
    fn unsafe_needs_its_reason() {
        let bare = concat!("//! H.\nfn f() {\n    uns", "afe { g() }\n}\n");
        assert_eq!(rules(bare), ["3: `unsafe` without a `// SAFETY:` comment right above"]);
        for explained in [
            concat!("//! H.\n// SAFETY: one\n// and two.\n#[inline]\nuns", "afe impl X for Y {}\n"),
            concat!("//! H.\n// SAFETY: fine.\nlet x =\n    uns", "afe { g() };\n"),
            concat!(
                "//! H.\n// uns",
                "afe { }\nlet x = \"uns",
                "afe { }\";\n/// # Safety\nuns",
                "afe fn f() {}\n"
            ),
        ] {
            assert!(rules(explained).is_empty(), "{:?}", rules(explained));
        }
        let far = concat!("//! H.\n// SAFETY: of another.\nf();\nuns", "afe { g() };\n");
        assert_eq!(rules(far).len(), 1);
    }

    #[test]
    fn unfinished_code_is_found_and_words_about_it_in_strings_are_not() {
        let text = concat!(
            "//! H.\nfn f() { to",
            "do!() }\n// TO",
            "DO later\nlet s = \"unimple",
            "mented!\";\n"
        );
        assert_eq!(rules(text).len(), 2);
    }
}
