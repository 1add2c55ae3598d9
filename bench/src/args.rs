//! The command line.

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use framewright_cli::args::{Accel, Where, cpus, nodes, size};
use framewright_cli::error::Error;
use std::path::PathBuf;

/// Measures Framewright's memory manager, compares it with others, and makes reports of the
/// results.
#[derive(Parser, Debug)]
#[command(name = "framewright-bench", version, arg_required_else_help = true)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// A benchmark.
    #[command(flatten)]
    Bench(Bench),
    /// Run the same work on another kernel and on ours, in turn, on the same virtual machine
    #[command(subcommand)]
    Compare(Compare),
    /// Make one page from results and snapshots, to view in a browser or to print
    Report(Report),
    /// Predict how long a machine's memory takes to come up, its pools to fill and empty, and a
    /// flush of all its CPUs
    Model(ModelOptions),
}

/// Options of `framewright-bench report`.
#[derive(Args, Debug)]
pub struct Report {
    /// Results of benchmarks with `--json` and of `compare`, snapshots of
    /// `framewright boot --snapshot`; of rows that measure the same thing, the last one counts
    #[arg(value_name = "RESULTS")]
    pub results: Vec<PathBuf>,
    /// A snapshot of memory, for its map; may be repeated
    #[arg(long, value_name = "FILE")]
    pub snapshot: Vec<PathBuf>,
    /// Where to write the page
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub output: PathBuf,
    /// Also write each plot and map to a separate SVG file in this folder, for documents
    #[arg(long, value_name = "FOLDER")]
    pub pictures: Option<PathBuf>,
    /// Print targets and measurements as text, and make no page
    #[arg(long, conflicts_with_all = ["output", "snapshot", "pictures"])]
    pub text: bool,
}

/// What to measure.
#[derive(Subcommand, Debug)]
pub enum Bench {
    /// How long bringing up all memory takes on synthetic machines from 8 GiB to 24 TiB
    BringUp(BenchBringUp),
    /// How long allocating and freeing take, by order, pattern, threads and memory, beside two
    /// other allocators
    Alloc(BenchOptions),
    /// What operations take in traffic like that of real machines, and how slow the slowest are:
    /// all sizes, a producer and a consumer, a server, a boot, beside two other allocators
    Traffic(BenchOptions),
    /// How long the longest call takes, and how long it has interrupts off, in states of memory
    /// that are worst for searches
    Longest(BenchOptions),
    /// How much of the free memory lies in whole 2 MiB blocks after long random use, beside two
    /// other allocators
    Fragment(BenchOptions),
    /// How long moving memory takes beside a plain copy, in compaction and in emptying a range, and
    /// finding the place for a long run
    Contig(BenchOptions),
    /// How long adding and removing memory takes, up to 1 TiB at once, and how much existing memory
    /// that uses
    Hotplug(BenchOptions),
    /// How long the memory map takes, eager, deferred and on demand, beside a plain fill of the
    /// same bytes
    Init(BenchInit),
    /// How long parallel jobs take, by number, cost and evenness of units, beside a plain loop,
    /// rayon and scoped threads
    Jobs(BenchOptions),
    /// How long filling and emptying pools of 2 MiB and 1 GiB pages takes, by number of pages and
    /// threads
    Hugepages(BenchOn),
    /// How soon freed memory is back with the host, and what that costs later allocations
    Reporting(BenchReporting),
    /// Boot and initialisation by threads as a share of a node's CPUs, for deferred memory and for
    /// pools
    Scaling(BenchOn),
    /// What 1 to 256 CPUs on one node would do, simulated from what calls and locks take here
    Simulate(BenchOptions),
    /// How far the model's predictions are from what is measured here and from what others
    /// published
    CheckModel(BenchOptions),
    /// All of these, one after the other
    All(BenchAll),
}

/// What to compare with.
#[derive(Subcommand, Debug)]
pub enum Compare {
    /// Linux: times to boot and to make the memory map, memory left over, huge-page pools, page
    /// reports, page faults
    Linux(CompareLinux),
}

/// Options of `framewright-bench compare linux`.
#[derive(Args, Debug)]
pub struct CompareLinux {
    /// The kernel, a bzImage such as /boot/vmlinuz-* [default: Debian's newest for virtual
    /// machines, fetched by apt on Debian the first time, and kept]
    #[arg(long, value_name = "VMLINUZ")]
    pub kernel: Option<PathBuf>,
    /// Memory of all machines [default: 2G for spawn to prompt, 4G for reporting, 8G for the rest,
    /// less where the host has less]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// CPUs of all machines [default: 2]
    #[arg(long, value_name = "N", value_parser = cpus)]
    pub cpus: Option<u32>,
    /// Nodes of all machines [default: 2 for the memory map and pools, else 1]
    #[arg(long, value_name = "N", value_parser = nodes)]
    pub nodes: Option<u32>,
    /// How QEMU runs both
    #[arg(long, value_enum, default_value_t = Accel::Auto)]
    pub accel: Accel,
    /// One repetition of everything, for a first look
    #[arg(long)]
    pub quick: bool,
    /// Only this section, such as memory or compaction
    #[arg(long, value_name = "SECTION")]
    pub only: Option<String>,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Options of the benchmarks that have no others.
#[derive(Args, Debug)]
pub struct BenchOptions {
    /// Less of everything, for a first look
    #[arg(long)]
    pub quick: bool,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub json: bool,
}

/// Options of the benchmarks that run on either platform.
#[derive(Args, Debug)]
pub struct BenchOn {
    /// Where: in this process, or in the reference guest
    #[arg(long, value_enum, default_value_t = Where::Hosted)]
    pub on: Where,
    #[command(flatten)]
    pub common: BenchOptions,
}

/// Options of `framewright-bench bring-up`.
#[derive(Args, Debug)]
pub struct BenchBringUp {
    /// 3 repetitions rather than 15
    #[arg(long)]
    pub quick: bool,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub json: bool,
    /// Bring up one machine in this fresh process (used by the first-touch rows)
    #[arg(long, hide = true, value_name = "INDEX")]
    pub first_touch_of: Option<usize>,
}

/// Options of `framewright-bench init`.
#[derive(Args, Debug)]
pub struct BenchInit {
    #[command(flatten)]
    pub common: BenchOptions,
    /// Measure and print what `framewright-bench scaling` does
    #[arg(long)]
    pub table: bool,
}

/// Options of `framewright-bench reporting`.
#[derive(Args, Debug)]
pub struct BenchReporting {
    /// Where to run: in this process or on a virtual machine [default: both]
    #[arg(long, value_enum)]
    pub on: Option<Where>,
    #[command(flatten)]
    pub common: BenchOptions,
}

/// Options of `framewright-bench all`.
#[derive(Args, Debug)]
pub struct BenchAll {
    /// Less of everything: three minutes at most on two idle CPUs
    #[arg(long)]
    pub quick: bool,
    /// Keep the results in this file, section by section; an interrupted run resumes with what is
    /// missing
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Start over even if the file has results
    #[arg(long, requires = "json")]
    pub fresh: bool,
}

/// Options of `framewright-bench model`.
#[derive(Args, Debug)]
pub struct ModelOptions {
    /// A boot log (dmesg), /proc/iomem or description of the machine, as `framewright boot --map`
    /// takes
    #[arg(long, value_name = "FILE", required_unless_present = "memory")]
    pub machine: Option<PathBuf>,
    /// How many CPUs it has [default: what the file says]
    #[arg(long, value_name = "N", value_parser = cpus)]
    pub cpus: Option<u32>,
    /// Spread its memory over this many nodes [default: what the file says]
    #[arg(long, value_name = "N", value_parser = nodes)]
    pub nodes: Option<u32>,
    /// Instead of a file, a made-up machine with this much memory, such as 24T
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "machine")]
    pub memory: Option<u64>,
    /// Take costs from the `model` section of this file of results instead of measuring them
    #[arg(long, value_name = "FILE")]
    pub results: Option<PathBuf>,
    /// Also write predictions and constants to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Reads the command line. Returns `None` if it asked for help, which has then been printed.
///
/// # Errors
/// Says what is wrong with the command line, in one line.
pub fn read() -> Result<Option<Command>, Error> {
    let words = framewright_cli::args::command_words()?;
    let theirs = framewright_cli::args::command();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["bench", rest @ ..] => {
            let command = if rest.is_empty() { "--help".into() } else { rest.join(" ") };
            return Err(Error::Usage(format!(
                "there is no command bench: use `framewright-bench {command}`"
            )));
        }
        // Both programs make reports.
        [word, ..] if *word != "report" && theirs.find_subcommand(word).is_some() => {
            return Err(Error::Usage(format!(
                "{word} is for the program framewright: `cargo run --release -- {}`",
                words.join(" ")
            )));
        }
        ["compare"] => {
            return Err(Error::Usage(
                "compare with what? `framewright-bench compare linux`".into(),
            ));
        }
        _ => {}
    }
    let none = "no command given; `framewright-bench alloc` measures allocation, --help shows more";
    let matches = framewright_cli::args::parse(Program::command(), none)?;
    let program = matches.map(|matches| Program::from_arg_matches(&matches)).transpose();
    program
        .map(|program| program.map(|program| program.command))
        .map_err(|error| Error::Usage(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::{CommandFactory, Program};

    #[test]
    fn the_definition_is_consistent() {
        Program::command().debug_assert();
    }

    #[test]
    fn the_other_program_knows_what_is_asked_here() {
        let command = Program::command();
        let names = command.get_subcommands().map(clap::Command::get_name);
        // Both programs make reports; `bench` was the name of this program when it was a
        // subcommand.
        let mut ours: Vec<_> = names.filter(|&name| name != "report").chain(["bench"]).collect();
        ours.sort_unstable();
        assert_eq!(ours, framewright_cli::args::OF_BENCH);
    }
}
