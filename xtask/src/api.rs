//! The public interface of each library as a list, so that reviews see its changes.
//!
//! `docs/api/CRATE.txt` has an item on each line, by its shortest public path, with its public
//! fields, variants and methods below it. `cargo xtask api` writes the files; the step `api`
//! compares them with the sources. Only the sources are read: expansions of macros and exports of
//! dependencies are not in the list.

use crate::rust::items::{Item, Kind};
use crate::rust::tree::{self, Target, Tree};
use crate::step::{Failure, Passed};
use crate::{publish, workspace};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// The step: fails if a list differs from the sources.
///
/// # Errors
/// The lines that differ.
pub fn check() -> Result<Passed, Failure> {
    let mut differences = String::new();
    let mut lines = 0;
    for (name, file, listed) in lists()? {
        lines += listed.lines().count();
        let known = fs::read_to_string(&file).unwrap_or_default();
        for line in difference(&known, &listed) {
            differences.push_str(&format!("{name}: {line}\n"));
        }
    }
    if differences.is_empty() {
        return Ok(Passed::note(format!("{lines} lines")));
    }
    differences.push_str(
        "The public interface changed. If that is meant, `cargo xtask api` writes the lists anew;\n\
         CONTRIBUTING.md says what the change means for the version.\n",
    );
    Err(Failure::new(differences))
}

/// Writes all lists.
///
/// # Errors
/// The errors of the file system, in words.
pub fn write() -> Result<(), String> {
    let write = || -> io::Result<()> {
        for (_, file, listed) in lists()? {
            fs::create_dir_all(file.parent().unwrap_or(Path::new(".")))?;
            fs::write(&file, listed)?;
            println!("{}", workspace::shown(&file));
        }
        Ok(())
    };
    write().map_err(|error| format!("{error}\n"))
}

/// Each library's name, the file of its list, and the list that its sources give.
fn lists() -> io::Result<Vec<(String, PathBuf, String)>> {
    let root = workspace::root();
    let libraries = publish::libraries(root)?;
    let list = |(name, folder): (String, PathBuf)| {
        let file = root.join("docs/api").join(format!("{name}.txt"));
        Ok((name, file, list(&Tree::read(&folder.join("src"))?)))
    };
    libraries.into_iter().map(list).collect()
}

/// The lines that only one of the two lists has, in order, marked with `-` and `+`. If there are
/// none, the first line that has moved: another order of fields is another layout, and another
/// order of variants another comparison.
fn difference(known: &str, listed: &str) -> Vec<String> {
    // Members are compared together with their owner.
    let keyed = |text: &str| {
        let mut owner = "";
        let mut lines = BTreeSet::new();
        for line in text.lines() {
            match line.strip_prefix("    ") {
                Some(member) => lines.insert(format!("{owner}  {member}")),
                None => {
                    owner = line;
                    lines.insert(line.to_owned())
                }
            };
        }
        lines
    };
    let (known_lines, listed_lines) = (keyed(known), keyed(listed));
    let gone = known_lines.difference(&listed_lines).map(|line| (line, '-'));
    let new = listed_lines.difference(&known_lines).map(|line| (line, '+'));
    let mut lines: Vec<(&String, char)> = gone.chain(new).collect();
    lines.sort();
    if lines.is_empty() && known != listed {
        return vec![moved(known, listed)];
    }
    lines.into_iter().map(|(line, sign)| format!("{sign} {line}")).collect()
}

/// Where two lists with equal lines first differ in order, in words.
fn moved(known: &str, listed: &str) -> String {
    let mut owner = "";
    let mut others = known.lines();
    for line in listed.lines() {
        if !line.starts_with("    ") {
            owner = line;
        }
        if others.next() != Some(line) {
            return format!("~ {owner}: another order, from `{}` on", line.trim_start());
        }
    }
    format!("~ {owner}: another order")
}

/// The list of a crate.
fn list(tree: &Tree) -> String {
    let paths = public_paths(tree);
    let mut entries: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (target, paths) in &paths {
        let Target::Item(module, index) = *target else {
            let lines = paths.iter().map(|path| format!("mod {path}"));
            entries.extend(lines.filter(|line| line != "mod ").map(|line| (line, Vec::new())));
            continue;
        };
        let item = &tree.modules[module].items[index];
        let (path, others) = (&paths[0], &paths[1..]);
        let key = format!("{path}: {}", described(item));
        entries.entry(key).or_default().extend(item.members.iter().cloned());
        for other in others {
            entries.entry(format!("{other}: pub use {path}")).or_default();
        }
    }
    for (module, item) in all_items(tree).filter(|(_, item)| !item.is_left_out()) {
        let Kind::Impl { of, has_trait } = &item.kind else { continue };
        for target in tree.resolve(module, of) {
            let Some(paths) = paths.get(&target) else { continue };
            let Target::Item(home, index) = target else { continue };
            let owner = &tree.modules[home].items[index];
            let key = format!("{}: {}", paths[0], described(owner));
            let members = entries.entry(key).or_default();
            if *has_trait {
                members.push(item.signature.clone());
            } else {
                members.extend(item.members.iter().cloned());
            }
        }
    }
    for (path, name) in outside(tree) {
        let members = members_of_unknown(tree, &path);
        entries.entry(format!("{name}: pub use {path}")).or_default().extend(members);
    }
    let mut text = String::new();
    for (head, mut members) in entries {
        text.push_str(&head);
        text.push('\n');
        // Fields and variants keep their order, which matters to readers. Methods are sorted by
        // name.
        let first = members.iter().position(|line| line.contains("fn ") || line.contains("impl"));
        let first = first.unwrap_or(members.len());
        members[first..].sort();
        members.iter().for_each(|line| text.push_str(&format!("    {line}\n")));
    }
    text
}

/// The methods of a type of this crate that a macro defines: `impl` items with its name.
fn members_of_unknown(tree: &Tree, path: &str) -> Vec<String> {
    let name = path.rsplit("::").next().unwrap_or(path);
    let mut members = Vec::new();
    for (module, item) in all_items(tree).filter(|(_, item)| !item.is_left_out()) {
        match &item.kind {
            Kind::Impl { of, has_trait: false }
                if of.last().is_some_and(|last| last == name)
                    && tree.resolve(module, of).is_empty() =>
            {
                members.extend(item.members.iter().cloned());
            }
            _ => {}
        }
    }
    members
}

/// The signature, preceded by those attributes that are promises.
fn described(item: &Item) -> String {
    const PROMISES: [&str; 5] =
        ["#[derive(", "#[non_exhaustive", "#[must_use", "#[repr(", "#[cfg(feature"];
    let kept = item.attributes.iter().filter(|text| PROMISES.iter().any(|p| text.starts_with(p)));
    let mut line: String = kept.fold(String::new(), |line, text| {
        // The reason for `must_use` is documentation, so leave it out.
        line + text.split(" = ").next().filter(|_| text.starts_with("#[must_use")).unwrap_or(text)
            + " "
    });
    line = line.replace("#[must_use ", "#[must_use] ");
    line + &item.signature
}

fn all_items(tree: &Tree) -> impl Iterator<Item = (usize, &Item)> {
    let modules = tree.modules.iter().enumerate();
    modules.flat_map(|(at, module)| module.items.iter().map(move |item| (at, item)))
}

/// Every path by which users outside can name each target, shortest first.
fn public_paths(tree: &Tree) -> BTreeMap<Target, Vec<String>> {
    let mut paths: BTreeMap<Target, Vec<String>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut queue = VecDeque::from([(0, String::new())]);
    while let Some((module, path)) = queue.pop_front() {
        if !seen.insert((module, path.clone())) || path.matches("::").count() > 8 {
            continue;
        }
        paths.entry(Target::Module(module)).or_default().push(path.clone());
        let join = |name: &str| match path.as_str() {
            "" => name.to_owned(),
            path => format!("{path}::{name}"),
        };
        for (target, name) in exports(tree, module) {
            match target {
                Target::Module(inner) => queue.push_back((inner, join(&name))),
                Target::Item(..) => paths.entry(target).or_default().push(join(&name)),
            }
        }
    }
    for names in paths.values_mut() {
        names.sort_by_key(|name| (name.matches("::").count(), name.clone()));
        names.dedup();
    }
    paths
}

/// The items that a public module offers, each with its name there.
fn exports(tree: &Tree, module: usize) -> Vec<(Target, String)> {
    let here = &tree.modules[module];
    let mut found = Vec::new();
    for (name, child) in &here.children {
        if tree.modules[*child].is_public {
            found.push((Target::Module(*child), name.clone()));
        }
    }
    for (index, item) in here.items.iter().enumerate().filter(|(_, item)| !item.is_left_out()) {
        let exported_macro = item.attributes.iter().any(|text| text == "#[macro_export]");
        match &item.kind {
            Kind::Named if item.is_public => {
                found.push((Target::Item(module, index), item.name.clone()));
            }
            Kind::Macro if exported_macro => {
                found.push((Target::Item(module, index), item.name.clone()));
            }
            Kind::Use(names) if item.is_public => {
                for (path, name) in names.iter().filter(|(_, name)| name != "*") {
                    found.extend(tree.resolve(module, path).into_iter().map(|t| (t, name.clone())));
                }
                for (path, _) in tree::globs(item) {
                    for target in tree.resolve(module, &path[..path.len() - 1]) {
                        if let Target::Module(inner) = target
                            && inner != module
                        {
                            found.extend(exports(tree, inner));
                        }
                    }
                }
            }
            _ => {}
        }
    }
    found
}

/// What the crate's root and its public modules export from other crates.
fn outside(tree: &Tree) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (module, item) in all_items(tree).filter(|(_, item)| item.is_public && !item.is_left_out())
    {
        let Kind::Use(names) = &item.kind else { continue };
        if !is_reachable(tree, module) {
            continue;
        }
        for (path, name) in names.iter().filter(|(_, name)| name != "*") {
            if tree.resolve(module, path).is_empty() {
                let here = tree.modules[module].path.iter().chain([name]);
                let shown = here.cloned().collect::<Vec<_>>().join("::");
                found.push((path.join("::"), shown));
            }
        }
    }
    found
}

fn is_reachable(tree: &Tree, mut module: usize) -> bool {
    while module != 0 {
        if !tree.modules[module].is_public {
            return false;
        }
        module = tree.modules[module].parent;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate in a temporary folder, which is removed when the value is dropped.
    struct Crate(PathBuf);

    impl Crate {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let folder = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
            for (file, text) in files {
                let path = folder.join(file);
                fs::create_dir_all(path.parent().expect("a file is in a folder")).expect("made");
                fs::write(path, text).expect("written");
            }
            Self(folder)
        }

        fn list(&self) -> String {
            list(&Tree::read(&self.0).expect("it is all there"))
        }
    }

    impl Drop for Crate {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const ROOT: &str = "pub mod open;\nmod made;\npub use made::Facet;\nmod closed;\npub use \
        closed::inner::Deep;\npub use other::Thing;\n#[doc(hidden)]\npub mod hidden;\n";
    const OPEN: &str = "pub use crate::closed::*;\n/// A.\n#[derive(Clone)]\npub struct A {\n    \
        pub x: u8,\n}\npub(crate) fn not_this() {}\n";
    const CLOSED: &str = "pub mod inner;\nuse crate::open::A;\npub fn shown() -> u8 {\n    1\n}\n\
        fn not_shown() {}\nimpl A {\n    pub fn method(&self) {}\n    fn private(&self) {}\n}\n\
        impl Drop for A {\n    fn drop(&mut self) {}\n}\n";
    const MADE: &str = "make! { Facet }\nimpl Facet {\n    pub fn from_macro(self) {}\n}\n";
    const DEEP: &str = "pub enum Deep {\n    One,\n}\n";

    fn sample(name: &str) -> Crate {
        let hidden = ("hidden.rs", "pub fn never() {}\n");
        let deep = ("closed/inner.rs", DEEP);
        let made = ("made.rs", MADE);
        Crate::new(
            name,
            &[("lib.rs", ROOT), ("open.rs", OPEN), ("closed/mod.rs", CLOSED), deep, hidden, made],
        )
    }

    #[test]
    fn items_are_listed_by_their_shortest_public_path() {
        let expected = "\
Deep: pub enum Deep
    One
Facet: pub use made::Facet
    pub fn from_macro(self) { .. }
Thing: pub use other::Thing
mod open
mod open::inner
open::A: #[derive(Clone)] pub struct A
    pub x: u8
    impl Drop for A
    pub fn method(&self) { .. }
open::inner::Deep: pub use Deep
open::shown: pub fn shown() -> u8
";
        assert_eq!(sample("api-list").list(), expected);
    }

    #[test]
    fn a_changed_signature_is_a_difference() {
        let crate_ = sample("api-change");
        let known = crate_.list();
        fs::write(crate_.0.join("open.rs"), OPEN.replace("x: u8", "x: u16")).expect("written");
        assert_eq!(
            difference(&known, &crate_.list()),
            [
                "+ open::A: #[derive(Clone)] pub struct A  pub x: u16",
                "- open::A: #[derive(Clone)] pub struct A  pub x: u8"
            ]
        );
        assert!(difference(&known, &known).is_empty());
    }

    #[test]
    fn fields_and_variants_in_another_order_are_a_difference() {
        let crate_ = sample("api-order");
        for (file, was, is, line) in [
            ("open.rs", "pub x: u8,", "pub x: u8, pub y: u8,", "pub y: u8"),
            ("closed/inner.rs", "One,", "One, Two,", "Two"),
        ] {
            let text = fs::read_to_string(crate_.0.join(file)).expect("it is there");
            let (one, other) = is.split_once(", ").expect("two of them");
            let write = |text: &str| fs::write(crate_.0.join(file), text).expect("written");
            write(&text.replace(was, is));
            let known = crate_.list();
            write(&text.replace(was, &format!("{other} {one},")));
            let found = difference(&known, &crate_.list());
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].ends_with(&format!("another order, from `{line}` on")), "{found:?}");
        }
    }
}
