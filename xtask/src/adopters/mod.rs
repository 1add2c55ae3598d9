//! Kernels of other projects, on their own allocators and on ours: builds them, boots them in QEMU,
//! counts instructions, and compares the counts with the expected ones.

mod arceos;
mod build;
mod counts;
mod ostd;

use crate::command::Run;
use crate::packages;
use crate::step::{Failure, Passed, Tally};
use build::{Image, Obstacle};
use counts::{Counts, Kept};
use ostd::Build;
use std::fmt::Write;
use std::path::Path;

/// The memory sizes of the machines, and the names of their tables.
const OSTD: [(&str, &str); 2] = [("4G", "ostd-4G"), ("8G", "ostd-8G")];
const ARCEOS: [(&str, &str); 2] = [("256M", "arceos-256M"), ("2G", "arceos-2G")];
/// QEMU's exit status when a kernel reports success through `isa-debug-exit`.
const WELL: &str = "33";
/// The time after which a machine is taken to hang.
const LIMIT_SECONDS: &str = "240";

/// The results of one adopter's two kernels.
struct Shown {
    /// The name of the results' table: of a machine, or independent of machines.
    table: &'static str,
    theirs: Counts,
    ours: Counts,
}

/// The results of all adopters.
#[derive(Default)]
struct Measured {
    shown: Vec<Shown>,
    tests: Tally,
    /// The adopters that could not be run here, and why.
    missing: Vec<String>,
}

/// The command: prints the table; with `bless`, makes its counts the expected ones.
///
/// # Errors
/// What is missing, or each count that is worse than expected.
pub fn run(bless: bool) -> Result<(), String> {
    let Measured { shown, missing, .. } = measure().map_err(|failure| failure.output)?;
    print!("{}", table(&shown));
    if !missing.is_empty() {
        return Err(format!("adopters: {}\n", missing.join("; ")));
    }
    let kept: Vec<_> = shown.iter().map(|shown| (shown.table, &shown.ours)).collect();
    let done = if bless { counts::write(&kept) } else { check(&shown) };
    done.map_err(|failure| failure.output)
}

/// The step. If a toolchain or its packages are not available, it passes and says so.
///
/// # Errors
/// The errors of [`run`].
pub fn step() -> Result<Passed, Failure> {
    let Measured { shown, tests, missing } = measure()?;
    check(&shown).map_err(|failure| Failure { tests: tests.clone(), ..failure })?;
    let rows: usize = shown.iter().map(|shown| shown.ours.rows().len()).sum();
    let missing = missing.iter().map(|why| format!("; not possible here: {why}"));
    Ok(Passed { tests, note: format!("{rows} counts{}", missing.collect::<String>()) })
}

fn measure() -> Result<Measured, Failure> {
    packages::qemu()?;
    let mut all = Measured::default();
    match ostd::prepare() {
        Ok(linker_script) => measure_ostd(&linker_script, &mut all)?,
        Err(Obstacle::NotHere(why)) => all.missing.push(why),
        Err(Obstacle::Broken(failure)) => return Err(failure),
    }
    match arceos::prepare() {
        Ok(description) => {
            let (theirs, ours) =
                (arceos::build(false, &description)?, arceos::build(true, &description)?);
            benches(&ARCEOS, &theirs, &ours, &mut all.shown)?;
            all.shown.push(texts("arceos", &theirs, &ours)?);
        }
        Err(Obstacle::NotHere(why)) => all.missing.push(why),
        Err(Obstacle::Broken(failure)) => return Err(failure),
    }
    Ok(all)
}

fn measure_ostd(linker_script: &Path, all: &mut Measured) -> Result<(), Failure> {
    let theirs = ostd::build(Build::Theirs, linker_script)?;
    let ours = ostd::build(Build::Ours, linker_script)?;
    let tests = ostd::build(Build::Tests, linker_script)?;
    benches(&OSTD, &theirs, &ours, &mut all.shown)?;
    all.tests = Tally::of(&boot(&tests, OSTD[0].0, &[])?);
    let mut texts = texts("ostd", &theirs, &ours)?;
    texts.ours.add("tests", all.tests.passed);
    all.shown.push(texts);
    Ok(())
}

fn benches(
    machines: &[(&str, &'static str)],
    theirs: &Image,
    ours: &Image,
    shown: &mut Vec<Shown>,
) -> Result<(), Failure> {
    for &(size, table) in machines {
        shown.push(Shown { table, theirs: bench(theirs, size)?, ours: bench(ours, size)? });
    }
    Ok(())
}

/// The sizes of both images.
fn texts(table: &'static str, theirs: &Image, ours: &Image) -> Result<Shown, Failure> {
    let text = |image| {
        let mut counts = Counts::default();
        counts.add("text", build::text_bytes(image)?);
        Ok::<_, Failure>(counts)
    };
    Ok(Shown { table, theirs: text(theirs)?, ours: text(ours)? })
}

fn check(shown: &[Shown]) -> Result<(), Failure> {
    let kept = Kept::read()?;
    let found: Vec<_> = shown.iter().map(|shown| (shown.table, &shown.ours)).collect();
    match kept.worse(&found) {
        worse if worse.is_empty() => Ok(()),
        worse => Err(Failure::new(worse)),
    }
}

/// Counts instructions, which give equal numbers each time, whatever else the host does.
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
