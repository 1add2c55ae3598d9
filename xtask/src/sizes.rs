//! What kernels of five kinds have to write and link: builds, runs and measures the programs of
//! `adopters/profiles`.

use crate::command::Run;
use crate::packages;
use crate::step::{Failure, Passed};
use crate::workspace;
use std::fs;
use std::path::PathBuf;

const FOLDER: &str = "adopters/profiles";
const TARGET: &str = "x86_64-unknown-none";
const TARGET_DIR: &str = "target/profiles";
/// The compiler flags for a Linux program that is not relocated. Paths in panic messages begin at
/// the root, as the length of this folder's name must not count as a part of the library.
fn flags() -> String {
    let root = workspace::root();
    format!("-Crelocation-model=static\x1f--remap-path-prefix={}=.", root.display())
}

/// A program of `adopters/profiles`, which is also a feature of the package.
struct Profile {
    name: &'static str,
    about: &'static str,
    /// The most that it may link.
    limit_kib: u64,
}

const PROFILES: [Profile; 5] = [
    Profile { name: "one-cpu", about: "one CPU, pages only", limit_kib: 57 },
    Profile { name: "several-cpus", about: "several CPUs and nodes", limit_kib: 117 },
    Profile { name: "descriptors", about: "and descriptors, counts, jobs", limit_kib: 155 },
    Profile { name: "huge-pages", about: "and pools of huge pages, reports", limit_kib: 281 },
    Profile { name: "everything", about: "everything", limit_kib: 478 },
];

/// The program that runs traffic on a small library, and the sets of features with which it does
/// so.
const CHECKED: &str = "checked";
const CHECKED_WITH: [&str; 6] = [
    "one-cpu",
    "one-cpu,framewright/smp",
    "one-cpu,framewright/vmemmap",
    "one-cpu,framewright/moving",
    "one-cpu,later",
    "one-cpu,framewright/default",
];

/// The step: checks that no profile links more than it may, and that libraries without some of
/// their parts work.
///
/// # Errors
/// The compiler's messages, that a profile failed, or by how much it is too large.
pub fn step() -> Result<Passed, Failure> {
    packages::target(TARGET)?;
    for features in CHECKED_WITH {
        Run::program(build(CHECKED, features)?, &[]).output()?;
    }
    let mut sizes = Vec::new();
    for profile in &PROFILES {
        let Measured { linked_bytes, .. } = measure(profile)?;
        let (name, limit) = (profile.name, profile.limit_kib);
        let kib = linked_bytes.div_ceil(1024);
        if kib > limit {
            return Err(Failure::new(format!("{name} links {kib} KiB: the limit is {limit}\n")));
        }
        sizes.push(format!("{name} {kib} KiB"));
    }
    Ok(Passed::note(sizes.join(", ")))
}

/// Measures all profiles and prints a table.
///
/// # Errors
/// The compiler's messages, or that a profile failed.
pub fn run() -> Result<(), String> {
    packages::target(TARGET).map_err(|failure| failure.output)?;
    println!("| profile | lines to write | KiB linked | KiB of stack | KiB of metadata |");
    println!("|---|---|---|---|---|");
    for profile in &PROFILES {
        let measured = measure(profile).map_err(|failure| failure.output)?;
        let Measured { lines, linked_bytes, stack_bytes, metadata_bytes } = measured;
        let [linked, stack, metadata] =
            [linked_bytes, stack_bytes, metadata_bytes].map(|bytes| bytes.div_ceil(1024));
        println!("| {} | {lines} | {linked} | {stack} | {metadata} |", profile.about);
    }
    Ok(())
}

/// The needs of a profile.
struct Measured {
    lines: usize,
    linked_bytes: u64,
    stack_bytes: u64,
    metadata_bytes: u64,
}

fn measure(profile: &Profile) -> Result<Measured, Failure> {
    let name = profile.name;
    let source = format!("{FOLDER}/src/bin/{}.rs", name.replace('-', "_"));
    let source = fs::read_to_string(workspace::root().join(source))?;
    let program = build(name, name)?;
    let sections = Run::program("size", &["-A"]).args([&program]).output()?;
    let linked = [".text", ".rodata"].map(|section| size_of(&sections, section));
    let [Some(text), Some(constants)] = linked else {
        return Err(Failure::new(format!("size says nothing of {name}:\n{sections}")));
    };
    let said = Run::program(&program, &[]).output()?;
    let numbers: Option<Vec<u64>> = said.split_whitespace().map(|word| word.parse().ok()).collect();
    let Some(&[metadata_bytes, stack_bytes]) = numbers.as_deref() else {
        return Err(Failure::new(format!("{name} says no two numbers:\n{said}")));
    };
    Ok(Measured {
        lines: source.lines().filter(|line| is_code(line)).count(),
        linked_bytes: text + constants,
        stack_bytes,
        metadata_bytes,
    })
}

/// Builds a program with some features.
fn build(name: &str, features: &str) -> Result<PathBuf, Failure> {
    let manifest = format!("{FOLDER}/Cargo.toml");
    Run::cargo(&["build", "--release", "--target", TARGET, "--target-dir", TARGET_DIR])
        .args(["--manifest-path", &manifest, "--features", features, "--bin", name])
        .env("CARGO_ENCODED_RUSTFLAGS", flags())
        .output()?;
    Ok(workspace::root().join(TARGET_DIR).join(TARGET).join("release").join(name))
}

/// Whether a line is neither empty nor a comment.
fn is_code(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with("//")
}

/// The size of a section, as `size -A` prints it.
fn size_of(output: &str, section: &str) -> Option<u64> {
    output.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next()? == section).then(|| words.next()?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_sections_are_counted() {
        assert!(is_code("    fn main() {") && !is_code("   // why") && !is_code(""));
        let output = "a  :\nsection    size   addr\n.rodata     12   100\n.text      300    200\n";
        assert_eq!(size_of(output, ".text"), Some(300));
        assert_eq!(size_of(output, ".data"), None);
    }
}
