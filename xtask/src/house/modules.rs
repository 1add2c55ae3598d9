//! Which files inside a crate name which: arrows between modules, circles of files.
//!
//! An arrow leads from a file to the file that *defines* what a path in it names, whatever
//! re-exports the path goes through. Only paths that begin with `crate`, `super` or `self` count: a
//! module that names its own children is one thing with them. Re-exports and test modules are left
//! out: the former define nothing, the latter may know everything.

use crate::rust::items::Kind;
use crate::rust::source;
use crate::rust::tree::{Target, Tree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The most files that may form a circle.
const CIRCLE_LIMIT: usize = 2;

/// The beginnings of paths that lead to other parts of the crate.
const ROOTS: [&str; 3] = ["crate", "super", "self"];

/// The rules for a crate.
struct Rules {
    /// The crate's folder of sources.
    folder: &'static str,
    /// The crate's modules from the bottom up: each may name only itself and those before it. Empty
    /// if there is no order.
    order: &'static [&'static str],
    /// Known circles that should be removed: any file of each.
    known: &'static [&'static str],
}

impl Rules {
    /// Rules without an order and without known circles.
    const fn of(folder: &'static str) -> Self {
        Self { folder, order: &[], known: &[] }
    }
}

/// The core's modules from the bottom up.
const CORE: &[&str] = &[
    "units",
    "stores",
    "vmemmap_space",
    "platform",
    "sync",
    "firmware",
    "parameters",
    "memblock",
    "frames",
    "block",
    "carve",
    "debug",
    "vmemmap",
    "page",
    "zone",
    "hugetlb",
    "manager",
    "lazy",
    "reporting",
    "procfs",
    "bootlog",
    "adapters",
];

const CRATES: [Rules; 18] = [
    Rules { order: CORE, ..Rules::of("crates/framewright/src") },
    Rules::of("crates/framewright-jobs/src"),
    Rules::of("crates/framewright-jobs-linux/src"),
    Rules::of("crates/framewright-virtio/src"),
    Rules::of("crates/framewright-balloon/src"),
    Rules::of("crates/framewright-virtio-mem/src"),
    Rules::of("crates/framewright-hosted/src"),
    Rules::of("crates/framewright-arch/src"),
    Rules::of("crates/framewright-workload/src"),
    Rules::of("crates/framewright-shell/src"),
    Rules::of("crates/framewright-session/src"),
    Rules::of("crates/framewright-testkit/src"),
    Rules::of("crates/framewright-c/src"),
    Rules::of("guest/src"),
    Rules::of("linux-init/src"),
    Rules::of("cli/src"),
    Rules::of("bench/src"),
    Rules::of("xtask/src"),
];

/// The files that each file names, with one place of each.
type Arrows = BTreeMap<PathBuf, BTreeMap<PathBuf, String>>;

/// Broken rules, one line each.
///
/// # Errors
/// The errors of reading the files.
pub fn inspect(root: &Path) -> io::Result<Vec<String>> {
    let mut findings = Vec::new();
    for rules in &CRATES {
        let arrows = arrows(&root.join(rules.folder))?;
        let found = upward(&arrows, rules.order).into_iter().chain(circles(&arrows, rules.known));
        findings.extend(found.map(|what| format!("{}/{what}", rules.folder)));
    }
    Ok(findings)
}

/// The arrows of the crate whose sources are in `folder`.
fn arrows(folder: &Path) -> io::Result<Arrows> {
    let tree = Tree::read(folder)?;
    let mut arrows = Arrows::new();
    for (number, module) in tree.modules.iter().enumerate() {
        let code: Vec<char> =
            source::code(&fs::read_to_string(folder.join(&module.file))?).chars().collect();
        let mut add = |path: &[String]| {
            for target in longest(&tree, number, path) {
                let to = tree.file(target);
                if to != module.file {
                    let from = arrows.entry(module.file.clone()).or_default();
                    from.entry(to.to_owned()).or_insert_with(|| path.join("::"));
                }
            }
        };
        for item in module.items.iter().filter(|item| !item.is_for_tests()) {
            match &item.kind {
                Kind::Use(_) if item.is_exported => {}
                Kind::Use(names) => {
                    // A module that names its own children is one thing with them.
                    let is_root = |word: &String| ROOTS.contains(&word.as_str());
                    for (path, name) in
                        names.iter().filter(|(path, _)| path.first().is_some_and(is_root))
                    {
                        add(if name == "*" { &path[..path.len() - 1] } else { path });
                    }
                }
                Kind::ModuleFile | Kind::Module(_) => {}
                _ => {
                    let text: String = code[item.range.0..item.range.1].iter().collect();
                    paths(&text).iter().for_each(|path| add(path));
                }
            }
        }
    }
    Ok(arrows)
}

/// What the longest prefix of `path` that names anything names; modules alone define nothing.
fn longest(tree: &Tree, module: usize, path: &[String]) -> BTreeSet<Target> {
    (1..=path.len())
        .rev()
        .map(|length| tree.resolve(module, &path[..length]))
        .find(|found| !found.is_empty())
        .unwrap_or_default()
}

/// The paths in code that begin in this crate.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for start in ROOTS {
        for (at, _) in code.match_indices(&format!("{start}::")) {
            let before = code[..at].chars().next_back().unwrap_or(' ');
            if before == ':' || before == '$' || before.is_alphanumeric() || before == '_' {
                continue;
            }
            let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
            let text: &str = code[at..].split(|c| !is_part(c)).next().unwrap_or("");
            let parts = text.split("::").filter(|part| !part.is_empty() && !part.contains(':'));
            found.push(parts.map(str::to_owned).collect());
        }
    }
    found
}

/// Finds arrows to modules that come later in the order.
fn upward(arrows: &Arrows, order: &[&str]) -> Vec<String> {
    let place = |file: &Path| {
        let first = file.iter().next().and_then(|part| part.to_str()).unwrap_or("");
        let name = first.trim_end_matches(".rs");
        (name.to_owned(), order.iter().position(|known| *known == name))
    };
    let mut findings = BTreeSet::new();
    if order.is_empty() {
        return Vec::new();
    }
    for (from, targets) in arrows {
        for (to, path) in targets {
            let ((here, here_at), (there, there_at)) = (place(from), place(to));
            // The root only declares and re-exports.
            if here == "lib" || there == "lib" {
                continue;
            }
            for (name, at) in [(&here, here_at), (&there, there_at)] {
                if at.is_none() {
                    findings.insert(format!("{name}: it has no place in the order of modules"));
                }
            }
            if here_at < there_at && here_at.is_some() {
                let (from, path) = (from.display(), path);
                findings
                    .insert(format!("{from}: `{path}` leads up: `{there}` stands above `{here}`"));
            }
        }
    }
    findings.into_iter().collect()
}

/// Finds circles of too many files, except for known ones, and known ones that no longer exist.
fn circles(arrows: &Arrows, known: &[&str]) -> Vec<String> {
    let mut findings = Vec::new();
    let mut gone = known.to_vec();
    for circle in components(arrows).into_iter().filter(|circle| circle.len() > CIRCLE_LIMIT) {
        let names: Vec<String> = circle.iter().map(|file| file.display().to_string()).collect();
        gone.retain(|name| !names.iter().any(|file| file == name));
        if !names.iter().any(|name| known.contains(&name.as_str())) {
            findings.push(format!(
                "{}: {} files name each other in a circle: {}",
                names[0],
                names.len(),
                names.join(", ")
            ));
        }
    }
    findings.extend(gone.iter().map(|name| {
        format!("{name}: it is in no circle any more: take it out of xtask/src/house/modules.rs")
    }));
    findings
}

/// Sets of files that reach each other.
fn components(arrows: &Arrows) -> Vec<BTreeSet<PathBuf>> {
    let reach = |from: &PathBuf| {
        let (mut seen, mut queue) = (BTreeSet::new(), vec![from.clone()]);
        while let Some(file) = queue.pop() {
            for next in arrows.get(&file).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(next.clone()) {
                    queue.push(next.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&PathBuf, BTreeSet<PathBuf>> =
        arrows.keys().map(|file| (file, reach(file))).collect();
    let mut done = BTreeSet::new();
    let mut found = Vec::new();
    for (file, targets) in &reached {
        if !targets.contains(*file) || !done.insert((*file).clone()) {
            continue;
        }
        let is_back =
            |other: &&PathBuf| reached.get(other).is_some_and(|their| their.contains(*file));
        let circle: BTreeSet<PathBuf> = targets.iter().filter(is_back).cloned().collect();
        done.extend(circle.iter().cloned());
        found.push(circle);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sources in a temporary folder, which is removed when the value is dropped.
    struct Sources(PathBuf);

    impl Sources {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let folder = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
            for (file, text) in files {
                let path = folder.join(file);
                fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("made");
                fs::write(path, text).expect("written");
            }
            Self(folder)
        }
    }

    impl Drop for Sources {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn arrows_lead_to_where_a_name_is_defined() {
        let sources = Sources::new(
            "arrows",
            &[
                ("lib.rs", "pub mod low;\nmod high;\npub use high::Top;\n"),
                (
                    "low/mod.rs",
                    "mod inner;\npub use inner::Deep;\nfn f() -> u8 {\n    crate::high::g()\n}\n\
                     #[cfg(test)]\nmod tests {\n    use crate::high::Top;\n}\n",
                ),
                ("low/inner.rs", "use crate::Top;\npub struct Deep;\n"),
                (
                    "high.rs",
                    "use crate::low::Deep;\npub struct Top(Deep);\npub fn g() -> u8 {\n    1\n}\n",
                ),
            ],
        );
        let arrows = arrows(&sources.0).expect("readable");
        let to = |from: &str| -> Vec<String> {
            let targets = arrows.get(Path::new(from)).into_iter().flatten();
            targets.map(|(to, _)| to.display().to_string()).collect()
        };
        assert_eq!(to("high.rs"), ["low/inner.rs"]);
        assert_eq!(to("low/inner.rs"), ["high.rs"]);
        assert_eq!(to("low/mod.rs"), ["high.rs"], "neither a re-export nor a test");
        let found = upward(&arrows, &["low", "high"]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("`high` stands above `low`"));
        assert!(upward(&arrows, &["high", "low"])[0].starts_with("high.rs"));
        assert!(upward(&arrows, &["low"])[0].contains("no place"));
        assert!(circles(&arrows, &[]).is_empty(), "two files may");
    }

    #[test]
    fn larger_circles_are_found_once() {
        let sources = Sources::new(
            "circles",
            &[
                ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\n"),
                ("a.rs", "use crate::b::B;\npub struct A(B);\n"),
                ("b.rs", "use super::c;\npub struct B(c::C);\npub fn f(_: super::c::C) {}\n"),
                ("c.rs", "pub struct C(crate::a::A);\n"),
                ("d.rs", "use crate::a::A;\npub struct D(A);\n"),
            ],
        );
        let arrows = arrows(&sources.0).expect("readable");
        let found = circles(&arrows, &[]);
        assert_eq!(found, ["a.rs: 3 files name each other in a circle: a.rs, b.rs, c.rs"]);
        assert!(circles(&arrows, &["c.rs"]).is_empty());
        assert!(circles(&arrows, &["c.rs", "d.rs"])[0].contains("in no circle any more"));
    }
}
