//! Kernels that this project did not write, on their own allocator and on ours: built, booted in
//! QEMU, counted in instructions, and held to the counts that are kept.

mod build;
mod counts;

use crate::command::Run;
use crate::packages;
use crate::step::{Failure, Passed, Tally};
use build::{Build, Image};
use counts::{Counts, Kept};
use std::fmt::Write;

/// Memory of the machines.
const SIZES: [&str; 2] = ["4G", "8G"];
/// What their kernels say to QEMU's `isa-debug-exit` when all went well, as QEMU's exit status.
const WELL: &str = "33";
/// What a machine may take before it hangs.
const LIMIT_SECONDS: &str = "240";

/// What one adopter's two kernels have shown.
struct Shown {
    /// On the machine, or for any.
    table: &'static str,
    theirs: Counts,
    ours: Counts,
}

/// Why nothing could be run.
enum Ended {
    /// Something is missing that cannot be had here.
    NotPossible(String),
    Failed(Failure),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// The command: prints the table; with `bless` keeps its counts.
///
/// # Errors
/// What is missing, or each count that is worse than the one that is kept.
pub fn run(bless: bool) -> Result<(), String> {
    match measure() {
        Ok((shown, _)) => {
            print!("{}", table(&shown));
            let kept: Vec<_> = shown.iter().map(|shown| (shown.table, &shown.ours)).collect();
            if bless {
                return counts::write(&kept).map_err(|failure| failure.output);
            }
            check(&shown).map_err(|failure| failure.output)
        }
        Err(Ended::NotPossible(why)) => Err(format!("adopters: {why}\n")),
        Err(Ended::Failed(failure)) => Err(failure.output),
    }
}

/// The step. Where a toolchain cannot be had it passes, and says so.
///
/// # Errors
/// As of [`run`].
pub fn step() -> Result<Passed, Failure> {
    match measure() {
        Ok((shown, tests)) => {
            check(&shown).map_err(|failure| Failure { tests: tests.clone(), ..failure })?;
            let rows: usize = shown.iter().map(|shown| shown.ours.rows().len()).sum();
            Ok(Passed { tests, note: format!("ostd: {rows} counts") })
        }
        Err(Ended::NotPossible(why)) => Ok(Passed::note(format!("not possible here: {why}"))),
        Err(Ended::Failed(failure)) => Err(failure),
    }
}

fn measure() -> Result<(Vec<Shown>, Tally), Ended> {
    packages::qemu()?;
    let linker_script = build::prepare().map_err(Ended::NotPossible)?;
    let theirs = build::build(Build::Theirs, &linker_script)?;
    let ours = build::build(Build::Ours, &linker_script)?;
    let tests = build::build(Build::Tests, &linker_script)?;
    let mut shown = Vec::new();
    for size in SIZES {
        let table = if size == SIZES[0] { "ostd-4G" } else { "ostd-8G" };
        shown.push(Shown { table, theirs: bench(&theirs, size)?, ours: bench(&ours, size)? });
    }
    let tally = Tally::of(&boot(&tests, SIZES[0], &[])?);
    let mut of_theirs = Counts::default();
    let mut of_ours = Counts::default();
    of_theirs.add("text", build::text_bytes(&theirs)?);
    of_ours.add("text", build::text_bytes(&ours)?);
    of_ours.add("tests", tally.passed);
    shown.push(Shown { table: "ostd", theirs: of_theirs, ours: of_ours });
    Ok((shown, tally))
}

fn check(shown: &[Shown]) -> Result<(), Failure> {
    let kept = Kept::read()?;
    let found: Vec<_> = shown.iter().map(|shown| (shown.table, &shown.ours)).collect();
    match kept.worse(&found) {
        worse if worse.is_empty() => Ok(()),
        worse => Err(Failure::new(worse)),
    }
}

/// Instructions are counted: the same numbers each time, whatever else the host does.
fn bench(image: &Image, size: &str) -> Result<Counts, Failure> {
    let output = boot(image, size, &["-icount", "shift=0"])?;
    Counts::of(&output).map_err(|why| Failure::new(format!("{output}\n{image}: {why}\n")))
}

fn boot(image: &Image, size: &str, more: &[&str]) -> Result<String, Failure> {
    let script = format!("timeout {LIMIT_SECONDS} \"$@\"; test $? = {WELL}");
    Run::program("sh", &["-c", &script, "sh", "qemu-system-x86_64"])
        .args(["-machine", "q35", "-cpu", "Icelake-Server,+x2apic", "-accel", "tcg"])
        .args(["-smp", "1", "-m", size, "-nodefaults", "-display", "none", "-serial", "stdio"])
        .args(["-no-reboot", "-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"])
        .args(more)
        .args(["-kernel"])
        .args([&image.0])
        .output()
}

fn table(shown: &[Shown]) -> String {
    let mut text = format!("{:<24} {:>9} {:>9} {:>6}\n", "", "theirs", "ours", "ratio");
    for Shown { table, theirs, ours } in shown {
        for (name, ours) in ours.rows() {
            let theirs = theirs.get(name);
            let ratio = theirs.filter(|&theirs| theirs != 0).map_or_else(String::new, |theirs| {
                let hundredths = ours.saturating_mul(100) / theirs;
                format!("{}.{:02}", hundredths / 100, hundredths % 100)
            });
            let theirs = theirs.map_or_else(|| "-".to_owned(), |theirs| theirs.to_string());
            let row = format!("{table} {name}");
            let _ = writeln!(text, "{row:<24} {theirs:>9} {ours:>9} {ratio:>6}");
        }
    }
    text
}
