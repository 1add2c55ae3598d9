//! The command line.

use crate::error::Error;
use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand, ValueEnum};
use framewright::parameters;
use framewright::units::MAX_NODES;
use framewright_hosted::source::MAX_CPUS;
use std::path::PathBuf;
use std::time::Duration;

/// What keys do.
pub const KEYS: &str =
    "q, Esc or Ctrl-C: end; s: zones by node, by how much is used, by what is free";

/// Brings up a machine's physical memory and shows what became of it.
#[derive(Parser, Debug)]
#[command(name = "framewright", version, arg_required_else_help = true)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Bring up the memory of a machine: this one, one whose memory map is in a file, or a virtual
    /// one
    #[command(after_help = parameters_help())]
    Boot(Boot),
    /// Bring memory up and take commands: from a terminal with line editing, else from standard
    /// input
    #[command(after_help = parameters_help())]
    Shell(Shell),
    /// Watch the memory of a running shell, or of a boot with --exec: zones, pools, caches,
    /// reporting; on a terminal live, else one table after the other
    #[command(after_help = format!("Keys, on a terminal: {}", KEYS))]
    Top(Top),
    /// Make one page of snapshots of memory, to look at in a browser or to print; results of
    /// benchmarks are for `framewright-bench report`
    Report(Report),
}

/// Options of `framewright boot`.
#[derive(Args, Debug)]
pub struct Boot {
    /// What to bring up, and where
    #[command(flatten)]
    pub target: Target,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub json: bool,
    /// End with the three policies of memmap_init= side by side (hosted, not with --json or --exec)
    #[arg(long, value_name = "yes|no", value_parser = yes_or_no, default_value = "yes",
        action = clap::ArgAction::Set)]
    pub policy_table: bool,
    /// Run these shell commands once memory is up, such as 'alloc 9; cat /proc/buddyinfo'; the exit
    /// status is that of the last
    #[arg(long, value_name = "COMMANDS")]
    pub exec: Option<String>,
    /// Write down what every part of memory is used for, after the commands, as JSON for
    /// `framewright report`
    #[arg(long, value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
}

/// Options of `framewright report`.
#[derive(Args, Debug)]
pub struct Report {
    /// Snapshots of `boot --snapshot`
    #[arg(value_name = "SNAPSHOTS")]
    pub snapshots: Vec<PathBuf>,
    /// One more snapshot; may be given many times
    #[arg(long, value_name = "FILE")]
    pub snapshot: Vec<PathBuf>,
    /// Where to write the page
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub output: PathBuf,
    /// Write each map to a file of its own in this folder, too, as SVG for documents
    #[arg(long, value_name = "FOLDER")]
    pub pictures: Option<PathBuf>,
}

/// Options of `framewright shell`.
#[derive(Args, Debug)]
pub struct Shell {
    /// What to bring up, and where
    #[command(flatten)]
    pub target: Target,
}

/// Options of `framewright top`.
#[derive(Args, Debug)]
pub struct Top {
    /// Time from one table to the next
    #[arg(long, value_name = "SECONDS", value_parser = interval, default_value = "1")]
    pub interval: Duration,
    /// One table, then the end
    #[arg(long)]
    pub once: bool,
    /// The process that has the machine, by its number [default: the only one there is]
    #[arg(value_name = "PID")]
    pub pid: Option<u32>,
}

/// A machine.
#[derive(Args, Debug)]
pub struct Target {
    /// Where: in this process, or on a virtual machine, whose guest is built from the source tree
    /// with cargo unless FRAMEWRIGHT_GUEST names a built one
    #[arg(long, value_enum, default_value_t = Where::Hosted)]
    pub on: Where,
    /// How QEMU runs the machine [default: auto: KVM where it works]
    #[arg(long, value_enum)]
    pub accel: Option<Accel>,
    /// Memory of the machine, such as 512M, 8G or 1T [default: this machine's; 2G on QEMU]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub memory: Option<u64>,
    /// Spread the memory over this many nodes [default: this machine's; 1 on QEMU]
    #[arg(long, value_name = "N", value_parser = nodes)]
    pub nodes: Option<u32>,
    /// How many CPUs the machine has [default: this machine's or the file's, at least one for each
    /// of --nodes; with --memory and on QEMU one for each node]
    #[arg(long, value_name = "N", value_parser = cpus)]
    pub cpus: Option<u32>,
    /// A boot log (dmesg) or /proc/iomem of the machine, read for its memory map and nodes
    #[arg(long, value_name = "FILE")]
    pub map: Option<PathBuf>,
    /// QEMU's machine [default: q35]
    #[arg(long, value_enum)]
    pub machine: Option<Model>,
    /// A virtio balloon that takes reports of free pages; OPTIONS are further properties of the
    /// device, such as free-page-hint=on (QEMU)
    #[arg(long, value_name = "OPTIONS", num_args = 0..=1, require_equals = true,
        default_missing_value = "")]
    pub balloon: Option<String>,
    /// Give free memory back to the system while commands run: at once, or when it needs some
    /// (hosted; --balloon does it on QEMU)
    #[arg(long, value_enum, value_name = "ADVICE", num_args = 0..=1, require_equals = true,
        default_missing_value = "dontneed")]
    pub reporting: Option<Advice>,
    /// One more argument for QEMU, such as --qemu=-numa --qemu=node,cpus=0-1; may be given many
    /// times
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub qemu: Vec<String>,
    /// Give up after this long; what a shell does once it is there is not limited
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "120")]
    pub timeout: u64,
    /// Boot parameters, such as numa=off or mem=4G
    #[arg(value_name = "PARAM")]
    pub parameters: Vec<String>,
}

impl Target {
    /// A virtual machine with so much memory, of which nothing else is said.
    pub const fn on_qemu(memory_bytes: u64, timeout_seconds: u64) -> Self {
        Self {
            on: Where::Qemu,
            accel: None,
            memory: Some(memory_bytes),
            nodes: None,
            cpus: None,
            map: None,
            machine: None,
            balloon: None,
            reporting: None,
            qemu: Vec::new(),
            timeout: timeout_seconds,
            parameters: Vec::new(),
        }
    }
}

/// Where to bring memory up.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Where {
    /// In this process: threads are CPUs, a reserved mapping is the memory
    Hosted,
    /// On a virtual machine
    Qemu,
}

/// How QEMU runs the machine.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Accel {
    /// Emulated
    Tcg,
    /// With hardware virtualisation
    Kvm,
    /// KVM where it works, else TCG
    Auto,
}

/// How a process gives memory back.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
#[value(rename_all = "lower")]
pub enum Advice {
    /// At once (MADV_DONTNEED)
    DontNeed,
    /// When the system needs it (MADV_FREE)
    Free,
}

impl From<Advice> for framewright_hosted::Advice {
    fn from(advice: Advice) -> Self {
        match advice {
            Advice::DontNeed => Self::DontNeed,
            Advice::Free => Self::Free,
        }
    }
}

/// QEMU's machines.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Model {
    /// A machine with PCI Express: 2 GiB of memory below 4 GiB, the rest above
    Q35,
    /// The older PC: 3 GiB below
    Pc,
}

/// Commands of the other program, by which its users still ask this one.
const OF_BENCH: [&str; 14] = [
    "all",
    "alloc",
    "bench",
    "bring-up",
    "check-model",
    "compare",
    "fragment",
    "hugepages",
    "init",
    "jobs",
    "model",
    "reporting",
    "scaling",
    "traffic",
];

/// Reads the command line. `None`: it asked for help, which has been printed.
///
/// # Errors
/// What is wrong with it, in one line.
pub fn read() -> Result<Option<Command>, Error> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let Some((word, rest)) = words.split_first()
        && OF_BENCH.contains(&word.as_str())
    {
        let command = if word == "bench" { rest } else { &words };
        let command = if command.is_empty() { "--help".into() } else { command.join(" ") };
        return Err(Error::Usage(format!(
            "{word} is for the program framewright-bench: \
             `cargo run --release -p framewright-bench -- {command}`"
        )));
    }
    let none = "no command given; `framewright boot` brings up this machine, --help shows more";
    parse::<Program>(none).map(|program| program.map(|program| program.command))
}

/// Reads the command line of a program, which says `none` where there is nothing in it. `None`: it
/// asked for help, which has been printed.
///
/// # Errors
/// What is wrong with it, in one line.
pub fn parse<P: Parser>(none: &str) -> Result<Option<P>, Error> {
    match P::try_parse() {
        Ok(program) => Ok(Some(program)),
        Err(error)
            if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) =>
        {
            error.print()?;
            Ok(None)
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Err(Error::Usage(none.into()))
        }
        Err(error) => Err(Error::Usage(one_line(&error.to_string()))),
    }
}

/// The boot parameters that the library knows.
fn parameters_help() -> String {
    let lines = parameters::KNOWN.iter().map(|(form, meaning)| format!("\n  {form:<27} {meaning}"));
    let switches = GUEST_SWITCHES.iter().map(|(form, meaning)| format!("\n  {form:<27} {meaning}"));
    format!(
        "Boot parameters:{}\n\nSwitches of the guest, with --on qemu, among the boot parameters:{}",
        lines.collect::<String>(),
        switches.collect::<String>()
    )
}

/// What the guest's command line takes beside boot parameters; `exec=`, `shell`, `snapshot=` and
/// `report=` are this program's to give.
const GUEST_SWITCHES: [(&str, &str); 12] = [
    ("balloon_test=SECONDS", "use the virtio balloon, and wait so long for the host"),
    ("check=cpus", "have all CPUs show that they work together"),
    ("fault=KIND", "fail once memory is up: null, panic, stack, readonly, double-free or hang"),
    ("fault_cpu=N", "the CPU that fails"),
    ("ghost_cpu=ID", "start a CPU with this APIC ID, though no table lists it"),
    ("interrupt_storm=HZ", "handlers of timers allocate, too, during traffic"),
    (
        "map_space_test=1|write",
        "examine the page tables, or write at the end where nothing may be written",
    ),
    ("reporting=SECONDS", "let reports go on for so long before what comes next"),
    ("stress=SECONDS", "random traffic once memory is up"),
    ("stress_operations=N", "so much traffic, rather than so long"),
    ("stress_seed=N", "the seed of that traffic"),
    ("(anything else)", "is reported as unknown and ignored, unless it is nearly one of these"),
];

/// What clap has to say, without its usage text, in one line.
fn one_line(message: &str) -> String {
    let sentences = message
        .split("\n\n")
        .filter(|part| !part.starts_with("Usage:") && !part.starts_with("For more"));
    let joined: Vec<String> = sentences
        .map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|part| !part.is_empty())
        .collect();
    joined.join("; ").trim_start_matches("error: ").to_owned()
}

/// A size of memory, such as 512M.
///
/// # Errors
/// What is wrong with it.
pub fn size(text: &str) -> Result<u64, String> {
    match framewright_hosted::parse_size(text) {
        Ok(0) => Err("a machine has memory".into()),
        Ok(bytes) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

/// A number of nodes.
///
/// # Errors
/// What is wrong with it.
pub fn nodes(text: &str) -> Result<u32, String> {
    match number(text)? {
        0 => Err("a machine has at least one node".into()),
        nodes => u32::try_from(nodes)
            .ok()
            .filter(|&nodes| nodes as usize <= MAX_NODES)
            .ok_or_else(|| format!("at most {MAX_NODES} nodes are supported")),
    }
}

/// A number of CPUs.
///
/// # Errors
/// What is wrong with it.
pub fn cpus(text: &str) -> Result<u32, String> {
    match number(text)? {
        0 => Err("a machine has at least one CPU".into()),
        cpus => u32::try_from(cpus)
            .ok()
            .filter(|&cpus| cpus <= MAX_CPUS)
            .ok_or_else(|| format!("at most {MAX_CPUS} CPUs are supported")),
    }
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("yes or no".into()),
    }
}

fn seconds(text: &str) -> Result<u64, String> {
    match number(text)? {
        0 => Err("at least one second".into()),
        seconds => Ok(seconds.min(u64::from(u32::MAX))),
    }
}

/// Seconds with a fraction.
fn interval(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("a number of seconds from 0.1 to 3600".into()),
    }
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "not a whole number".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn boot(words: &[&str]) -> Result<Boot, String> {
        let words = ["framewright", "boot"].iter().chain(words);
        match Program::try_parse_from(words) {
            Ok(Program { command: Command::Boot(boot) }) => Ok(boot),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(one_line(&error.to_string())),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Program::command().debug_assert();
    }

    #[test]
    fn options_and_parameters_are_read() {
        let boot = boot(&["--on", "qemu", "--memory", "8G", "--nodes", "2", "numa=off", "mem=4G"])
            .expect("is right");
        let Boot { target, json, exec, .. } = boot;
        assert_eq!((target.on, target.memory, target.nodes), (Where::Qemu, Some(8 << 30), Some(2)));
        assert_eq!(target.parameters, ["numa=off", "mem=4G"]);
        assert_eq!((target.timeout, json, exec), (120, false, None));
    }

    #[test]
    fn a_balloon_needs_no_properties() {
        let balloon =
            |words: &[&str]| boot(words).map(|boot| (boot.target.balloon, boot.target.parameters));
        assert_eq!(balloon(&["numa=off"]), Ok((None, vec!["numa=off".into()])));
        assert_eq!(
            balloon(&["--balloon", "numa=off"]),
            Ok((Some(String::new()), vec!["numa=off".into()]))
        );
        assert_eq!(
            balloon(&["--balloon=free-page-hint=on"]),
            Ok((Some("free-page-hint=on".into()), vec![]))
        );
        let options =
            boot(&["--qemu", "-overcommit", "--qemu=mem-lock=on"]).map(|boot| boot.target.qemu);
        assert_eq!(options, Ok(vec!["-overcommit".to_owned(), "mem-lock=on".to_owned()]));
    }

    #[test]
    fn errors_are_one_line() {
        for (words, expected) in [
            (
                &["--cpus", "0"][..],
                "invalid value '0' for '--cpus <N>': a machine has at least one CPU",
            ),
            (
                &["--nodes", "65"],
                "invalid value '65' for '--nodes <N>': at most 64 nodes are supported",
            ),
            (&["--nodes", "x"], "invalid value 'x' for '--nodes <N>': not a whole number"),
            (
                &["--on", "moon"],
                "invalid value 'moon' for '--on <ON>' [possible values: hosted, qemu]",
            ),
            (
                &["--memroy", "8G"],
                "unexpected argument '--memroy' found; tip: a similar argument exists: '--memory'",
            ),
        ] {
            assert_eq!(boot(words).map(|_| ()), Err(expected.to_owned()));
        }
    }
}
