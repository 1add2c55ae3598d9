//! What kernels of five kinds write and link: the programs of `adopters/profiles`, each built, run
//! and measured.

use crate::command::Run;
use crate::packages;
use crate::step::Failure;
use crate::workspace;
use std::fs;

const FOLDER: &str = "adopters/profiles";
const TARGET: &str = "x86_64-unknown-none";
const TARGET_DIR: &str = "target/profiles";
/// What a program of Linux is built with, which nobody moves to another address.
const FLAGS: &str = "-C relocation-model=static";

/// A program of `adopters/profiles`, which is a feature of the package as well.
struct Profile {
    name: &'static str,
    about: &'static str,
}

const PROFILES: [Profile; 5] = [
    Profile { name: "one-cpu", about: "one CPU, pages only" },
    Profile { name: "several-cpus", about: "several CPUs and nodes" },
    Profile { name: "descriptors", about: "and descriptors, counts, jobs" },
    Profile { name: "huge-pages", about: "and pools of huge pages, reports" },
    Profile { name: "everything", about: "everything" },
];

/// Measures all profiles and prints a table.
///
/// # Errors
/// What the compiler says, or that a profile failed.
pub fn run() -> Result<(), String> {
    packages::target(TARGET).map_err(|failure| failure.output)?;
    println!("| profile | lines to write | KiB linked | KiB of stack | KiB of metadata |");
    println!("|---|---|---|---|---|");
    for profile in &PROFILES {
        let row = measure(profile).map_err(|failure| failure.output)?;
        println!("| {} | {row} |", profile.about);
    }
    Ok(())
}

/// A profile's row of the table, from its second column on.
fn measure(profile: &Profile) -> Result<String, Failure> {
    let name = profile.name;
    let folder = workspace::root().join(FOLDER);
    let source = folder.join("src/bin").join(name.replace('-', "_") + ".rs");
    let lines = fs::read_to_string(source)?.lines().filter(|line| is_code(line)).count();
    let manifest = format!("{FOLDER}/Cargo.toml");
    Run::cargo(&["build", "--release", "--target", TARGET, "--target-dir", TARGET_DIR])
        .args(["--manifest-path", &manifest, "--features", name, "--bin", name])
        .env("RUSTFLAGS", FLAGS)
        .output()?;
    let program = workspace::root().join(TARGET_DIR).join(TARGET).join("release").join(name);
    let sections = Run::program("size", &["-A"]).args([&program]).output()?;
    let linked =
        size_of(&sections, ".text").unwrap_or(0) + size_of(&sections, ".rodata").unwrap_or(0);
    if linked == 0 {
        return Err(Failure::new(format!("size says nothing of {name}:\n{sections}")));
    }
    let said = Run::program(&program, &[]).output()?;
    let mut numbers = said.split_whitespace().map(|word| word.parse().unwrap_or(0));
    let (metadata, stack): (u64, u64) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    Ok(format!("{lines} | {} | {} | {}", kib(linked), kib(stack), kib(metadata)))
}

/// Neither empty nor a comment.
fn is_code(line: &str) -> bool {
    let line = line.trim_start();
    !line.is_empty() && !line.starts_with("//")
}

fn kib(bytes: u64) -> String {
    format!("{}", bytes.div_ceil(1024))
}

/// Bytes of a section, as `size -A` says.
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
