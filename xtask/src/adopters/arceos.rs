//! ArceOS: one program on its own allocator and, in a workspace with a patch, on ours.

use super::build::{self, Image, Obstacle, TARGET};
use crate::step::Failure;
use crate::workspace;
use std::fs;
use std::path::PathBuf;

/// ArceOS's crates use unstable features, which this stable compiler accepts on request.
const TOOLCHAIN: &str = "1.95.0";
const UNSTABLE: &str = "RUSTC_BOOTSTRAP";
const KERNEL: &str = "framewright-arceos-kernel";
const OURS: &str = "adopters/arceos/Cargo.toml";
const THEIRS: &str = "adopters/arceos/theirs/Cargo.toml";
/// The package that knows QEMU's machine, and its description of the machine.
const PLATFORM: &str = "/axplat-x86-pc-0.3.1-pre.6/Cargo.toml";
const DESCRIPTION: &str = "axconfig.toml";
/// What ArceOS wants to know about any machine.
const GENERAL: &str = "task-stack-size = 0x40000\nticks-per-sec = 100\n";
/// The linker script that one of ArceOS's packages writes.
const SCRIPT: &str = "linker_x86-pc.lds";

/// Installs and fetches what is missing, and writes ArceOS's description of the machine.
///
/// # Errors
/// What is not available here, or what is wrong with it.
pub fn prepare() -> Result<PathBuf, Obstacle> {
    build::provide(TOOLCHAIN, false)?;
    build::manifest(TOOLCHAIN, OURS, PLATFORM)?;
    let platform = build::manifest(TOOLCHAIN, THEIRS, PLATFORM)?;
    let failed = |error: std::io::Error| {
        Obstacle::from(Failure::new(format!("ArceOS's {DESCRIPTION}: {error}\n")))
    };
    let known = fs::read_to_string(platform.with_file_name(DESCRIPTION)).map_err(failed)?;
    let folder = workspace::root().join("target/adopters");
    let path = folder.join(DESCRIPTION);
    let wanted = format!("{GENERAL}{known}");
    // Cargo rebuilds what depends on a newer file, so leave an equal file alone.
    if fs::read_to_string(&path).ok().as_ref() != Some(&wanted) {
        fs::create_dir_all(folder).map_err(failed)?;
        fs::write(&path, wanted).map_err(failed)?;
    }
    Ok(path)
}

/// Builds the program on one of the allocators.
///
/// # Errors
/// The compiler's messages.
pub fn build(is_ours: bool, description: &PathBuf) -> Result<Image, Failure> {
    let (manifest, name) = if is_ours { (OURS, "arceos") } else { (THEIRS, "arceos-theirs") };
    let folder = workspace::root().join("target/adopters");
    // Both builds share everything except the allocator.
    let target_dir = folder.join("arceos");
    let built = target_dir.join(TARGET).join("release");
    let flags = format!(
        "-C link-arg=-T{} -C link-arg=-no-pie -C link-arg=-znostart-stop-gc",
        built.join(SCRIPT).display()
    );
    build::cargo(TOOLCHAIN, manifest, &["build", "--locked", "--release", "-p", KERNEL])
        .args(["--target", TARGET, "--target-dir"])
        .args([&target_dir])
        .env("RUSTFLAGS", flags)
        .env("AX_CONFIG_PATH", description)
        .env("AX_LOG", "off")
        .env(UNSTABLE, "1")
        // Build as for a release: with more codegen units, other calls are inlined and counts
        // differ.
        .env("CARGO_INCREMENTAL", "0")
        .output()?;
    // The next build overwrites the program.
    let path = folder.join(name).with_extension("elf");
    fs::copy(built.join(KERNEL), &path)?;
    Ok(Image(path))
}
