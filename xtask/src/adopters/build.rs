//! Shared parts of building other projects' kernels: toolchains, cargo outside our workspace,
//! images.

use crate::command::Run;
use crate::registry;
use crate::step::Failure;
use crate::workspace;
use std::fmt;
use std::path::{Path, PathBuf};

/// The target of all these kernels.
pub const TARGET: &str = "x86_64-unknown-none";

/// A kernel that QEMU starts.
pub struct Image(pub PathBuf);

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", workspace::shown(&self.0))
    }
}

/// Why a kernel cannot be built.
#[derive(Debug)]
pub enum Obstacle {
    /// The toolchain is not available here, or no registry answers; in one line. Nothing is wrong.
    NotHere(String),
    /// Anything else: an outdated lock file, a bad manifest, a file that has moved.
    Broken(Failure),
}

impl From<Failure> for Obstacle {
    fn from(failure: Failure) -> Self {
        Self::Broken(failure)
    }
}

impl From<std::io::Error> for Obstacle {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(error.into())
    }
}

/// Installs the missing parts of a toolchain: its libraries for [`TARGET`] and, if `has_source`,
/// the source of the standard library.
///
/// # Errors
/// That it is not available here, in one line.
pub fn provide(toolchain: &str, has_source: bool) -> Result<(), Obstacle> {
    let root = Run::program("rustup", &["run", toolchain, "rustc", "--print", "sysroot"]).output();
    let is_there = root.is_ok_and(|root| {
        let libraries = Path::new(root.trim()).join("lib/rustlib");
        let source = libraries.join("src/rust/library/core");
        libraries.join(TARGET).is_dir() && (!has_source || source.is_dir())
    });
    if is_there {
        return Ok(());
    }
    Run::program("rustup", &["toolchain", "install", toolchain, "--profile", "minimal"])
        .args(["--target", TARGET, "--no-self-update"])
        .args(["--component", "rust-src"].iter().filter(|_| has_source))
        .output()
        .map(drop)
        .map_err(|failure| {
            let why = last_line(&failure);
            Obstacle::NotHere(format!("toolchain {toolchain} for {TARGET}: {why}"))
        })
}

/// Runs cargo of a toolchain on a manifest outside our workspace.
pub fn cargo(toolchain: &str, manifest: &str, words: &[&str]) -> Run {
    let (command, rest) = words.split_first().expect("a command");
    // Use rustup, because the cargo that runs this program belongs to another toolchain.
    Run::program("rustup", &["run", toolchain, "cargo", command, "--manifest-path", manifest])
        .args(rest)
}

/// Fetches packages. Returns the manifest whose path ends in `ending`.
///
/// # Errors
/// That no registry can be reached, or what is wrong with manifest and lock file.
pub fn manifest(toolchain: &str, manifest: &str, ending: &str) -> Result<PathBuf, Obstacle> {
    let obstacle = |failure: Failure| match registry::is_out_of_reach(&failure, manifest) {
        Ok(true) => Obstacle::NotHere(format!("packages of {manifest}: {}", last_line(&failure))),
        Ok(false) => Obstacle::Broken(failure),
        Err(error) => error.into(),
    };
    cargo(toolchain, manifest, &["fetch", "--locked"]).output().map_err(obstacle)?;
    let known = cargo(toolchain, manifest, &["metadata", "--locked", "--format-version", "1"]);
    let known = known.output().map_err(obstacle)?;
    let found = known.split('"').find(|word| word.ends_with(ending));
    let nowhere = || Failure::new(format!("cargo does not say where {ending} of {manifest} is\n"));
    Ok(PathBuf::from(found.ok_or_else(nowhere)?))
}

/// The bytes of code and read-only data, as `size` counts them.
///
/// # Errors
/// Fails if there is no `size`, or it prints nothing.
pub fn text_bytes(image: &Image) -> Result<u64, Failure> {
    let output = Run::program("size", &[]).args([&image.0]).output()?;
    let text = output.lines().nth(1).and_then(|line| line.split_whitespace().next());
    text.and_then(|text| text.parse().ok())
        .ok_or_else(|| Failure::new(format!("size says nothing of {image}:\n{output}")))
}

fn last_line(failure: &Failure) -> String {
    let mut lines = failure.output.lines().filter(|line| line.contains("error"));
    lines.next_back().unwrap_or("no word of why").trim().to_owned()
}
