//! Checks that the libraries could be published as they are.
//!
//! Cargo itself packs and builds every package against the packages before it, in a registry of its
//! own. If the index of dependencies cannot be reached, the files of each package are listed
//! instead, and the step says so. The manifests are checked in any case.

use crate::command::Run;
use crate::registry;
use crate::step::{Failure, Passed};
use crate::workspace;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Keys that every library's manifest must have, its own or from the workspace.
const KEYS: [&str; 9] = [
    "description",
    "version.workspace",
    "edition.workspace",
    "rust-version.workspace",
    "license.workspace",
    "authors.workspace",
    "readme",
    "keywords",
    "categories",
];
/// Files that every library's folder must have.
const FILES: [&str; 3] = ["README.md", "LICENSE-MIT", "LICENSE-APACHE"];
/// The most keywords, and the most categories, that registries accept.
const MOST_WORDS: usize = 5;
/// Where packages are packed and built.
const TARGET: &str = "target/publish";

/// The step.
///
/// # Errors
/// What manifests lack, or cargo's messages.
pub fn check() -> Result<Passed, Failure> {
    let root = workspace::root();
    let libraries = libraries(root)?;
    let mut findings = Vec::new();
    let version = version(&fs::read_to_string(root.join("Cargo.toml"))?);
    for (name, folder) in &libraries {
        let manifest = fs::read_to_string(folder.join("Cargo.toml"))?;
        findings.extend(manifest_findings(&manifest).map(|what| format!("{name}: {what}")));
        let missing = FILES.iter().filter(|file| !folder.join(file).is_file());
        findings.extend(missing.map(|file| format!("{name}: {file} is missing")));
    }
    findings.extend(version_findings(&fs::read_to_string(root.join("Cargo.toml"))?, &version));
    if !findings.is_empty() {
        return Err(Failure::new(findings.join("\n") + "\n"));
    }
    forget_earlier_packages(root, &libraries, &version)?;
    let dry_run = ["publish", "--workspace", "--dry-run", "--allow-dirty", "--target-dir", TARGET];
    // Debug information is of no use in these builds.
    let publish = Run::cargo(&dry_run).env("CARGO_PROFILE_DEV_DEBUG", "none");
    let Err(failure) = publish.output() else {
        return Ok(Passed::note(format!("{} packages, packed and built", libraries.len())));
    };
    if !registry::is_out_of_reach(&failure, "Cargo.toml")? {
        return Err(failure);
    }
    for (name, _) in &libraries {
        Run::cargo(&["package", "--list", "--allow-dirty", "--offline", "-p", name]).output()?;
    }
    Ok(Passed::note(format!(
        "{} packages listed; not packed and built, as no index of dependencies can be reached",
        libraries.len()
    )))
}

/// Removes what an earlier run packed, unpacked and built: cargo believes that packages with equal
/// version numbers are equal.
fn forget_earlier_packages(
    root: &Path,
    libraries: &[(String, PathBuf)],
    version: &str,
) -> io::Result<()> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")));
    for registry in children(&home.unwrap_or_default().join("registry/src"))? {
        // A registry in a folder has no host, so its name begins with a dash.
        if has_name(&registry, "-") {
            for (name, _) in libraries {
                remove(&registry.join(format!("{name}-{version}")))?;
            }
        }
    }
    remove(&root.join(TARGET).join("package"))?;
    // Packages by others need not be built again.
    for built in children(&root.join(TARGET).join("debug/.fingerprint"))? {
        if libraries.iter().any(|(name, _)| has_name(&built, name)) {
            remove(&built)?;
        }
    }
    Ok(())
}

/// The entries of a folder; none if the folder does not exist.
fn children(folder: &Path) -> io::Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}

fn has_name(path: &Path, beginning: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(beginning))
}

fn remove(folder: &Path) -> io::Result<()> {
    if folder.is_dir() { fs::remove_dir_all(folder) } else { Ok(()) }
}

/// The public libraries by name, with their folders: those without `publish = false`.
///
/// # Errors
/// The errors of reading the manifests.
pub fn libraries(root: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut libraries = Vec::new();
    for path in workspace::files(&root.join("crates"), "Cargo.toml")? {
        let manifest = fs::read_to_string(&path)?;
        if !manifest.lines().any(|line| line.trim() == "publish = false")
            && let Some(folder) = path.parent()
            && let Some(name) = folder.file_name().and_then(|name| name.to_str())
        {
            libraries.push((name.to_owned(), folder.to_owned()));
        }
    }
    Ok(libraries)
}

/// What a library's manifest lacks.
fn manifest_findings(manifest: &str) -> impl Iterator<Item = String> {
    let value = |key: &str| {
        let line = manifest.lines().find(|line| {
            line.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='))
        });
        line.and_then(|line| line.split_once('=')).map(|(_, value)| value.trim().to_owned())
    };
    let missing: Vec<String> = KEYS
        .iter()
        .filter(|key| value(key).is_none())
        .map(|key| format!("`{key}` is missing"))
        .collect();
    let many = ["keywords", "categories"].into_iter().filter(move |key| {
        let words = value(key).unwrap_or_default();
        words.matches('"').count() / 2 > MOST_WORDS
    });
    let docs = (!manifest.contains("[package.metadata.docs.rs]"))
        .then(|| "`[package.metadata.docs.rs]` is missing".to_owned());
    let many: Vec<String> =
        many.map(|key| format!("more than {MOST_WORDS} words in `{key}`")).collect();
    missing.into_iter().chain(many).chain(docs)
}

/// The version of the workspace.
fn version(manifest: &str) -> String {
    let section = manifest.lines().skip_while(|line| *line != "[workspace.package]");
    let mut line = section.filter(|line| line.starts_with("version"));
    line.next().and_then(|line| line.split('"').nth(1)).unwrap_or_default().to_owned()
}

/// Finds libraries whose dependencies on each other name another version than the workspace has.
fn version_findings(manifest: &str, version: &str) -> Vec<String> {
    let ours = manifest.lines().filter(|line| line.contains("path = \"crates/"));
    let named = ours.filter(|line| line.contains("version = "));
    let wrong = named.filter(|line| !line.contains(&format!("version = \"{version}\"")));
    wrong.map(|line| format!("Cargo.toml: not version {version}: {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: &str = "[package]\nname = \"a\"\ndescription = \"b\"\nversion.workspace = \
        true\nedition.workspace = true\nrust-version.workspace = true\nlicense.workspace = true\n\
        authors.workspace = true\nreadme = \"README.md\"\nkeywords = [\"a\"]\ncategories = \
        [\"os\"]\n[package.metadata.docs.rs]\n";

    #[test]
    fn what_a_manifest_lacks_is_named() {
        assert_eq!(manifest_findings(MANIFEST).count(), 0);
        let bare = MANIFEST.replace("readme = \"README.md\"\n", "").replace("docs.rs", "other");
        let found: Vec<String> = manifest_findings(&bare).collect();
        assert_eq!(found, ["`readme` is missing", "`[package.metadata.docs.rs]` is missing"]);
        let six = MANIFEST.replace("[\"a\"]", "[\"a\", \"b\", \"c\", \"d\", \"e\", \"f\"]");
        assert_eq!(
            manifest_findings(&six).collect::<Vec<_>>(),
            ["more than 5 words in `keywords`"]
        );
    }

    #[test]
    fn versions_of_our_own_agree() {
        let manifest = "[workspace.package]\nversion = \"0.2.0\"\n[workspace.dependencies]\na = { \
            version = \"0.1.0\", path = \"crates/a\" }\nb = { path = \"crates/b\" }\n";
        assert_eq!(version(manifest), "0.2.0");
        assert_eq!(version_findings(manifest, "0.2.0").len(), 1);
        assert!(version_findings(manifest, "0.1.0").is_empty());
    }

    #[test]
    fn this_source_tree_has_libraries() {
        let libraries = libraries(workspace::root()).expect("manifests are readable");
        assert!(libraries.iter().any(|(name, _)| name == "framewright"));
        assert!(!libraries.iter().any(|(name, _)| name == "framewright-freestanding"));
    }
}
