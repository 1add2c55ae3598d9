//! OSTD: a kernel on its own allocator and on ours, and OSTD's tests on ours.

use super::build::{self, Image, Obstacle, TARGET};
use crate::step::Failure;
use crate::workspace;
use std::fs;
use std::path::{Path, PathBuf};

/// OSTD 0.18.1 names this toolchain, and its crates need the unstable features of that day.
const TOOLCHAIN: &str = "nightly-2026-07-21";
const MANIFEST: &str = "adopters/ostd/Cargo.toml";
const KERNEL: &str = "framewright-ostd-kernel";
/// The linker script is in a package that cargo fetches but does not list, as it is a program. It
/// is unpacked beside this package, which cargo lists.
const NEIGHBOUR: &str = "/ostd-0.18.1/Cargo.toml";
const SCRIPT: &str = "cargo-osdk-0.18.1/src/base_crate/x86_64.ld.template";
/// The flags with which OSTD's own tool builds kernels.
const FLAGS: &str = "-C relocation-model=static -C relro-level=off -C force-unwind-tables=yes \
                     --check-cfg cfg(ktest) -C no-redzone=y -C target-feature=+ermsb";
/// OSTD's tests catch panics, including those of `core`, so `core` is built with them.
const TEST_FLAGS: &str = "--cfg ktest -C panic=unwind";
const BUILD_STD: [&str; 2] =
    ["-Zbuild-std=core,alloc,compiler_builtins", "-Zbuild-std-features=compiler-builtins-mem"];
/// The place of the machine type in an ELF file, and the type of Intel's 32-bit machine: QEMU
/// starts no other type by multiboot.
const MACHINE: usize = 18;
const EM_386: u8 = 3;

/// Which kernel to build.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Build {
    /// The benchmark on OSTD's allocator.
    Theirs,
    /// The benchmark on ours.
    Ours,
    /// OSTD's tests on ours.
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

/// Installs the missing parts of the toolchain and fetches the packages. Returns the path of the
/// linker script.
///
/// # Errors
/// What is not available here, or what is wrong with it.
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
    // Both benchmarks share everything except the allocator.
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
        // Build as for a release: with more codegen units, other calls are inlined and counts
        // differ.
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
