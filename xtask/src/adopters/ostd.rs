//! OSTD: a kernel on its own allocator and on ours, and its tests on ours.

use super::build::{self, Image, Obstacle, TARGET};
use crate::step::Failure;
use crate::workspace;
use std::fs;
use std::path::{Path, PathBuf};

/// OSTD 0.18.1 names it, and its crates need features of that day.
const TOOLCHAIN: &str = "nightly-2026-07-21";
const MANIFEST: &str = "adopters/ostd/Cargo.toml";
const KERNEL: &str = "framewright-ostd-kernel";
/// A package that cargo tells of, and the linker script in another, a program, that it fetches but
/// does not tell of: they are unpacked side by side.
const NEIGHBOUR: &str = "/ostd-0.18.1/Cargo.toml";
const SCRIPT: &str = "cargo-osdk-0.18.1/src/base_crate/x86_64.ld.template";
/// As OSTD's own tool builds kernels.
const FLAGS: &str = "-C relocation-model=static -C relro-level=off -C force-unwind-tables=yes \
                     --check-cfg cfg(ktest) -C no-redzone=y -C target-feature=+ermsb";
/// Its tests catch panics, those of `core` as well, which therefore is built with them.
const TEST_FLAGS: &str = "--cfg ktest -C panic=unwind";
const BUILD_STD: [&str; 2] =
    ["-Zbuild-std=core,alloc,compiler_builtins", "-Zbuild-std-features=compiler-builtins-mem"];
/// Where an ELF file says for which machine it is, and Intel's 32-bit one: QEMU starts no other by
/// multiboot.
const MACHINE: usize = 18;
const EM_386: u8 = 3;

/// Which kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Build {
    /// The benchmark on their allocator.
    Theirs,
    /// The benchmark on ours.
    Ours,
    /// Their tests on ours.
    Tests,
}

impl Build {
    const fn name(self) -> &'static str {
        match self {
            Self::Theirs => "ostd-theirs",
            Self::Ours => "ostd",
            Self::Tests => "ostd-tests",
        }
    }

    const fn features(self) -> &'static str {
        match self {
            Self::Theirs => "",
            Self::Ours => "framewright",
            Self::Tests => "framewright tests",
        }
    }
}

/// Installs what is missing of the toolchain, fetches the packages, and says where the linker
/// script is.
///
/// # Errors
/// What cannot be had here, or what is wrong with what can.
pub fn prepare() -> Result<PathBuf, Obstacle> {
    build::provide(TOOLCHAIN, true)?;
    let manifest = build::manifest(TOOLCHAIN, MANIFEST, NEIGHBOUR)?;
    let packages = manifest.ancestors().nth(2);
    let nowhere = || Failure::new("cargo does not say where OSTD is\n");
    let script = packages.ok_or_else(nowhere)?.join(SCRIPT);
    if script.is_file() {
        Ok(script)
    } else {
        Err(Failure::new(format!("there is no linker script {}\n", script.display())).into())
    }
}

/// Builds a kernel.
///
/// # Errors
/// The compiler's messages.
pub fn build(which: Build, linker_script: &Path) -> Result<Image, Failure> {
    let folder = workspace::root().join("target/adopters");
    let is_test = which == Build::Tests;
    // What both benchmarks are built of is the same but for the allocator.
    let target_dir = folder.join(if is_test { "ostd-tests" } else { "ostd" });
    let mut flags = format!("{FLAGS} -C link-arg=-T{}", linker_script.display());
    if is_test {
        flags = format!("{flags} {TEST_FLAGS}");
    }
    build::cargo(TOOLCHAIN, MANIFEST, &["build", "--locked", "--release", "-p", KERNEL])
        .args(["--target", TARGET])
        .args(["--no-default-features", "--features", which.features()])
        .args(BUILD_STD.iter().filter(|_| is_test))
        .args(["--target-dir"])
        .args([&target_dir])
        .env("RUSTFLAGS", flags)
        // As a release is built: in many units of code other calls are inlined, and counts differ.
        .env("CARGO_INCREMENTAL", "0")
        .output()?;
    let built = target_dir.join(TARGET).join("release").join(KERNEL);
    let mut bytes = fs::read(&built)?;
    let machine = bytes
        .get_mut(MACHINE..MACHINE + 2)
        .ok_or_else(|| Failure::new(format!("{} is no ELF file\n", built.display())))?;
    machine.copy_from_slice(&[EM_386, 0]);
    let path = folder.join(which.name()).with_extension("elf");
    fs::write(&path, bytes)?;
    Ok(Image(path))
}
