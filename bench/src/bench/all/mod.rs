//! `framewright-bench all`: runs every benchmark in a process of its own, so that none finds memory
//! or threads that another left, and one that fails does not end the others.

mod child;
mod file;

use super::section::Section;
use crate::args::BenchAll;
use crate::machine;
use crate::progress;
use crate::registry;
use file::{Header, Outcome, ResultsFile};
use framewright_cli::error::{self, Error};
use framewright_cli::interrupt;
use framewright_cli::output::Output;
use framewright_cli::qemu;
use std::path::Path;
use std::time::Instant;

/// One benchmark of the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Part {
    bench: &'static str,
    /// The platform, for benchmarks that run on several.
    on: Option<&'static str>,
}

impl Part {
    const fn new(bench: &'static str) -> Self {
        Self { bench, on: None }
    }

    const fn on(bench: &'static str, on: &'static str) -> Self {
        Self { bench, on: Some(on) }
    }

    fn needs_qemu(self) -> bool {
        self.on == Some("qemu")
    }

    /// The part's name in the file and for people.
    fn name(self) -> String {
        self.on.map_or_else(|| self.bench.to_owned(), |on| format!("{} on {on}", self.bench))
    }

    fn arguments(self, quick: bool) -> Vec<&'static str> {
        // The model's benchmark shows how far the model is off; `model` only predicts.
        let command = if self.bench == "model" { "check-model" } else { self.bench };
        let mut words = vec![command, "--json"];
        words.extend(self.on.iter().flat_map(|on| ["--on", *on]));
        words.extend(quick.then_some("--quick"));
        words
    }
}

/// All parts: those that depend on processor and memory first, those that boot machines last.
const PARTS: [Part; 17] = [
    Part::new("bring-up"),
    Part::new("alloc"),
    Part::new("traffic"),
    Part::new("simulate"),
    Part::new("longest"),
    Part::new("fragment"),
    Part::new("hotplug"),
    Part::new("contig"),
    Part::new("init"),
    Part::new("jobs"),
    Part::on("hugepages", "hosted"),
    Part::on("scaling", "hosted"),
    Part::new("model"),
    Part::on("reporting", "hosted"),
    Part::on("hugepages", "qemu"),
    Part::on("scaling", "qemu"),
    Part::on("reporting", "qemu"),
];

/// Above this share of the CPUs, the load of other programs makes times less reliable.
const BUSY: f64 = 0.25;

/// Runs everything, or what is missing from an interrupted run.
///
/// # Errors
/// Fails if the file cannot be written or is not ours, if a signal comes, or, after all others have
/// run, if sections failed.
pub fn run(options: &BenchAll) -> Result<(), Error> {
    let header = Header {
        program: machine::program()?,
        command: command(options.quick),
        machine: machine::describe(qemu::run::version(qemu::run::LONGEST_ANSWER).ok().as_deref()),
    };
    let mut results = match &options.json {
        Some(path) => open(path, header, options.fresh)?,
        None => ResultsFile::new(header),
    };
    interrupt::watch();
    warn_if_busy(&results);
    progress::begin(PARTS.len());
    let ended = sections(options, &mut results);
    progress::end();
    ended?;
    let failed = results.failed();
    if failed.is_empty() {
        return Ok(());
    }
    Err(Error::Failed(format!(
        "{} of {} sections failed: {}",
        failed.len(),
        PARTS.len(),
        failed.join(", ")
    )))
}

/// The command that identifies a run.
fn command(quick: bool) -> String {
    if quick { "bench all --quick".into() } else { "bench all".into() }
}

fn open(path: &Path, header: Header, fresh: bool) -> Result<ResultsFile, Error> {
    let (file, why) = ResultsFile::open(path, header, fresh)?;
    if let Some(why) = why {
        error::note(&format!("{}: {why}", path.display()));
    }
    Ok(file)
}

fn sections(options: &BenchAll, results: &mut ResultsFile) -> Result<(), Error> {
    let has_qemu = results.header().machine["qemu"].is_string();
    for (index, part) in PARTS.into_iter().enumerate() {
        let name = part.name();
        if !results.has(&name) {
            progress::step(&name)?;
            progress::line(&format!("[{}/{}] {name}", index + 1, PARTS.len()));
            let outcome = if part.needs_qemu() && !has_qemu {
                Outcome::LeftOut("QEMU is not installed".into())
            } else {
                measure(part, options.quick)?
            };
            // Write the file first, as the reader of the output may be gone.
            results.add(&name, part.bench, part.on, &outcome)?;
            let output = Output::new();
            let output = if options.json.is_some() { output.lasting() } else { output };
            progress::aside(|| show(&name, &outcome, output))?;
        }
        progress::done(index + 1);
    }
    Ok(())
}

fn measure(part: Part, quick: bool) -> Result<Outcome, Error> {
    let started = Instant::now();
    let said = child::run(&part.arguments(quick))?;
    let seconds = started.elapsed().as_secs_f64();
    Ok(match said.and_then(|text| Section::from_json(&text)) {
        Ok(section) if section.bench == part.bench => Outcome::Measured { section, seconds },
        Ok(section) => Outcome::Failed(format!("it measured {:?}", section.bench)),
        Err(why) => Outcome::Failed(why),
    })
}

fn show(name: &str, outcome: &Outcome, mut output: Output) -> Result<(), Error> {
    let style = output.style();
    match outcome {
        Outcome::Measured { section, seconds } => {
            output.line(&style.bold(&format!("{name}, {seconds:.1} s")))?;
            output.line("")?;
            section.show(&mut output, registry::tables(&section.bench))?;
        }
        Outcome::LeftOut(why) => output.line(&format!("{}: left out: {why}", style.bold(name)))?,
        Outcome::Failed(why) => {
            error::note(&format!("{name} failed: {why}"));
            output.line(&format!("{}: failed: {why}", style.bold(name)))?;
        }
    }
    output.line("")
}

fn warn_if_busy(results: &ResultsFile) {
    let machine = &results.header().machine;
    let (load, cpus) = (machine["load_average"].as_f64(), machine["cpus"].as_f64());
    if let (Some(load), Some(cpus)) = (load, cpus)
        && load > cpus * BUSY
    {
        error::note(&format!(
            "the machine is busy (a load of {load:.2} on {cpus} CPUs): times will be longer and \
             less steady"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_each_parts_own() {
        let names: std::collections::BTreeSet<String> = PARTS.into_iter().map(Part::name).collect();
        assert_eq!(names.len(), PARTS.len());
        assert_eq!(
            Part::on("hugepages", "qemu").arguments(true),
            ["hugepages", "--json", "--on", "qemu", "--quick"]
        );
    }
}
