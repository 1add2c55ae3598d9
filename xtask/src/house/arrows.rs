//! Which crates may know which: checks the manifests against the table in `docs/architecture.md`.

use crate::workspace;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The document whose table has the rules.
const LAW: &str = "docs/architecture.md";
/// The crate that all tests may use, with what it may know.
const TEST_KIT: &str = "framewright-testkit";

/// What each crate may know, by crate name.
type Table = BTreeMap<String, Allowed>;

#[derive(Default, Debug, PartialEq, Eq)]
struct Allowed {
    crates: BTreeSet<String>,
    std: bool,
}

/// Broken rules, one line each.
///
/// # Errors
/// The errors of reading the files.
pub fn inspect(root: &Path, manifests: &[PathBuf]) -> io::Result<Vec<String>> {
    let table = table(&fs::read_to_string(root.join(LAW))?);
    let mut findings = Vec::new();
    if table.is_empty() {
        findings.push(format!("{LAW}: the table of what each crate may know is gone"));
    }
    let manifests = manifests.iter().map(|path| Ok((path, fs::read_to_string(path)?)));
    let manifests: Vec<(&PathBuf, String)> = manifests.collect::<io::Result<_>>()?;
    let ours: BTreeSet<&str> =
        manifests.iter().filter_map(|(_, text)| package_name(text)).collect();
    for (path, text) in &manifests {
        let Some(name) = package_name(text) else { continue };
        let shown = workspace::shown(path);
        // Other projects' kernels, and the layers for them, see only what all users see.
        if path.starts_with(root.join("adopters")) {
            continue;
        }
        // The table names libraries by crate and programs by folder.
        let folder = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        let Some(allowed) = table.get(name).or_else(|| table.get(folder.as_ref())) else {
            findings.push(format!("{shown}: {LAW} does not say what `{name}` may know"));
            continue;
        };
        for (section, dependency) in dependencies(text) {
            let fine = allowed.crates.contains(dependency)
                || section.ends_with("dev-dependencies") && for_tests(&table, dependency);
            if ours.contains(dependency) && !fine {
                findings.push(format!("{shown}: `{name}` may not know `{dependency}` ({LAW})"));
            }
        }
        findings.extend(no_std_findings(path, text, allowed));
    }
    Ok(findings)
}

/// Whether all tests may use a crate: the test kit, and what the test kit may know.
fn for_tests(table: &Table, dependency: &str) -> bool {
    let kit = table.get(TEST_KIT);
    dependency == TEST_KIT || kit.is_some_and(|kit| kit.crates.contains(dependency))
}

/// Checks that libraries without `std` say so, and that no library has a `std` feature: a single
/// user that enables it would break the guest.
fn no_std_findings(manifest: &Path, text: &str, allowed: &Allowed) -> Vec<String> {
    let library = manifest.with_file_name("src").join("lib.rs");
    let Ok(source) = fs::read_to_string(&library) else { return Vec::new() };
    let mut findings = Vec::new();
    if !allowed.std && !source.lines().any(|line| line.trim() == "#![no_std]") {
        findings.push(format!("{}: `#![no_std]` is missing", workspace::shown(&library)));
    }
    if entries(text).any(|(section, key)| section == "features" && key == "std") {
        findings.push(format!("{}: a `std` feature breaks the guest", workspace::shown(manifest)));
    }
    findings
}

/// Reads the rows of the table whose last column is "may know". A crate may also be known through
/// another crate.
fn table(document: &str) -> Table {
    let rows = document
        .lines()
        .skip_while(|line| !(line.starts_with('|') && line.contains("| may know")))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let mut table = Table::new();
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [names, _, known] = cells.as_slice() else { continue };
        let Some(name) = names.split('`').nth(1).map(|name| name.trim_end_matches('/')) else {
            continue;
        };
        // A row about a folder inside a crate does not let the crate itself know any other.
        let (name, known) = name.split_once('/').map_or((name, *known), |(name, _)| (name, ""));
        let allowed = table.entry(name.to_owned()).or_default();
        allowed.std |= names.contains("(std)");
        let known = known.split([',', ' ']).map(|word| word.trim_matches('`'));
        allowed
            .crates
            .extend(known.filter(|word| word.starts_with("framewright")).map(str::to_owned));
    }
    close(&mut table);
    table
}

/// Makes the table transitive.
fn close(table: &mut Table) {
    loop {
        let known = |name: &String| {
            table.get(name).map(|allowed| allowed.crates.clone()).unwrap_or_default()
        };
        let mut further = Vec::new();
        for (name, allowed) in &*table {
            for new in allowed.crates.iter().flat_map(known) {
                if !allowed.crates.contains(&new) {
                    further.push((name.clone(), new));
                }
            }
        }
        if further.is_empty() {
            return;
        }
        for (name, new) in further {
            table.entry(name).or_default().crates.insert(new);
        }
    }
}

fn package_name(manifest: &str) -> Option<&str> {
    let mut lines = manifest.lines().skip_while(|line| line.trim() != "[package]").skip(1);
    let line = lines
        .by_ref()
        .take_while(|line| !line.starts_with('['))
        .find(|line| line.starts_with("name"))?;
    line.split('"').nth(1)
}

/// The dependencies in a manifest, each with its section.
fn dependencies(manifest: &str) -> impl Iterator<Item = (&str, &str)> {
    entries(manifest).filter(|(section, _)| section.ends_with("dependencies"))
}

/// The keys of a manifest, each with its section: as much of TOML as our manifests use.
fn entries(manifest: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut section = "";
    manifest.lines().filter_map(move |line| {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']');
            // `[dependencies.name]` is an entry by itself.
            let (outer, name) = section.rsplit_once('.')?;
            return outer.ends_with("dependencies").then_some((outer, name));
        }
        if line.starts_with('#') {
            return None;
        }
        let key = line.split(['=', '.', ' ']).next().filter(|key| !key.is_empty())?;
        line.contains('=').then_some((section, key.trim_matches('"')))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "\
text
| folder | is | may know |
|---|---|---|
| `framewright/src/a.rs`, `b.rs` | units | nothing |
| `framewright-arch` | tables | framewright |
| `framewright-hosted` (std) | process | framewright |
| `guest/` | kernel | framewright, framewright-arch |
| `cli/` (std) | program | framewright-hosted |

| `other` | table | framewright |
";

    #[test]
    fn the_table_is_read_and_closed() {
        let table = table(DOCUMENT);
        assert_eq!(table.len(), 5);
        assert!(table["framewright"].crates.is_empty() && !table["framewright"].std);
        assert!(table["cli"].std && table["cli"].crates.contains("framewright"));
        assert!(!table["cli"].crates.contains("framewright-arch"));
        assert_eq!(table["guest"].crates.len(), 2);
    }

    #[test]
    fn manifests_are_read() {
        let manifest = "[package]\nname = \"a\"\n[dependencies]\n# c = 1\nb.workspace = true\n\
                        d = { path = \"..\" }\n\
                        [target.'cfg(loom)'.dependencies]\nloom = \"1\"\n[dev-dependencies.e]\n\
                            path = \"\"\n[features]\nstd = []\n";
        assert_eq!(package_name(manifest), Some("a"));
        let names: Vec<_> = dependencies(manifest).map(|(_, name)| name).collect();
        assert_eq!(names, ["b", "d", "loom", "e"]);
        assert!(entries(manifest).any(|entry| entry == ("features", "std")));
    }

    #[test]
    fn this_source_tree_has_its_law() {
        let text = fs::read_to_string(workspace::root().join(LAW)).expect("the document is there");
        let table = table(&text);
        assert!(table["guest"].crates.contains("framewright-arch"));
        assert!(for_tests(&table, TEST_KIT) && for_tests(&table, "framewright-workload"));
        assert!(!for_tests(&table, "framewright-shell"));
    }
}
