//! Finds the source tree and files in it.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// The root of the source tree.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the root of the source tree")
}

/// All files below `folder` whose names end in `ending`, sorted. Build outputs and hidden folders
/// are left out.
pub fn files(folder: &Path, ending: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    collect(folder, ending, &mut found)?;
    found.sort();
    Ok(found)
}

fn collect(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if entry.file_type()?.is_dir() {
            if name != "target" && !name.starts_with('.') {
                collect(&entry.path(), ending, found)?;
            }
        } else if name.ends_with(ending) {
            found.push(entry.path());
        }
    }
    Ok(())
}

/// The names of those integration tests of all packages that `wanted` accepts, sorted: the files of
/// their `tests` folders, and folders in these that hold a `main.rs`.
pub fn test_targets(wanted: impl Fn(&str) -> bool) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for parent in [root().to_owned(), root().join("crates")] {
        for package in fs::read_dir(parent)? {
            let folder = package?.path().join("tests");
            if folder.is_dir() {
                collect_targets(&folder, &mut names)?;
            }
        }
    }
    names.retain(|name| wanted(name));
    names.sort();
    names.dedup();
    Ok(names)
}

fn collect_targets(folder: &Path, names: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_target = path.extension().is_some_and(|extension| extension == "rs")
            || path.join("main.rs").is_file();
        if is_target && let Some(name) = path.file_stem().and_then(|stem| stem.to_str()) {
            names.push(name.to_owned());
        }
    }
    Ok(())
}

/// `path` relative to the root, for messages.
pub fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}
