//! The command line.

mod values;

pub use values::{cpus, nodes, size};

use crate::error::Error;
use crate::target::percent;
use clap::builder::PossibleValue;
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, ValueEnum, value_parser};
use framewright::parameters;
use std::path::PathBuf;
use std::time::Duration;
use values::{addition, interval, number, patience, seconds, size_or_nothing, yes_or_no};

/// What the keys of `top` do.
pub const KEYS: &str =
    "q, Esc or Ctrl-C: quit; s: sort zones by node, by memory used, by memory free";

/// Defines a struct of options whose doc comments become their help, as clap's derive does; but
/// clap's derive takes longer to build than all other dependencies of this program. `with Target`
/// puts the options of a machine first.
macro_rules! options {
    ($(#[doc = $about:literal])+ $name:ident $(with $target:ident)? {
        $($(#[doc = $help:literal])+ $field:ident: $type:ty = $arg:expr,)*
    }) => {
        $(#[doc = $about])+
        #[derive(Debug)]
        pub struct $name {
            $(
                /// What to bring up, and where.
                pub target: $target,
            )?
            $($(#[doc = $help])+ pub $field: $type,)*
        }

        impl $name {
            fn define(command: clap::Command) -> clap::Command {
                $(let command = $target::define(command);)?
                command.about(concat!($($about),+).trim_start())$(
                    .arg($arg.id(stringify!($field)).help(concat!($($help),+).trim_start()))
                )*
            }

            fn read(matches: &mut ArgMatches) -> Self {
                Self {
                    $(target: $target::read(matches),)?
                    $($field: Field::read(matches, stringify!($field)),)*
                }
            }
        }
    };
}

/// Defines an enum of words to choose from, whose doc comments become their help.
macro_rules! choice {
    ($(#[$about:meta])* $name:ident {
        $(#[doc = $help:literal] $variant:ident = $word:literal,)*
    }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name {
            $(#[doc = $help] $variant,)*
        }

        impl ValueEnum for $name {
            fn value_variants<'a>() -> &'a [Self] {
                &[$(Self::$variant),*]
            }

            fn to_possible_value(&self) -> Option<PossibleValue> {
                let (word, help) = match self {
                    $(Self::$variant => ($word, $help),)*
                };
                Some(PossibleValue::new(word).help(help.trim_start()))
            }
        }
    };
}

/// The subcommand and its options.
#[derive(Debug)]
pub enum Command {
    /// Brings up the memory of a machine.
    Boot(Boot),
    /// Brings memory up and takes commands.
    Shell(Shell),
    /// Watches the memory of a running machine.
    Top(Top),
    /// Makes one page of snapshots.
    Report(Report),
    /// Changes how much memory a running machine has.
    Plug(Plug),
}

options! {
    /// Bring up the memory of a machine: this one, one whose memory map is in a file, or a virtual
    /// one
    Boot with Target {
        /// Print one JSON object and nothing else
        json: bool = flag("json"),
        /// End with a table of the three memmap_init= policies (hosted, not with --json or --exec)
        /// [default: yes]
        policy_table: Option<bool> = value("policy-table", "yes|no").value_parser(yes_or_no),
        /// Run these shell commands once memory is up, such as 'alloc 9; cat /proc/buddyinfo'; the
        /// exit status is that of the last
        exec: Option<String> = value("exec", "COMMANDS"),
        /// After the commands, write to a file what every part of memory is used for, as JSON for
        /// `framewright report`
        snapshot: Option<PathBuf> = path("snapshot"),
    }
}

options! {
    /// Make one page from snapshots of memory, to view in a browser or to print; results of
    /// benchmarks are for `framewright-bench report`
    Report {
        /// Snapshots written by `boot --snapshot`
        snapshots: Vec<PathBuf> = words("SNAPSHOTS").value_parser(value_parser!(PathBuf)),
        /// Another snapshot; may be repeated
        snapshot: Vec<PathBuf> = path("snapshot").action(ArgAction::Append),
        /// Where to write the page
        output: PathBuf = path("output").short('o').default_value("report.html"),
        /// Also write each map to a separate SVG file in this folder, for documents
        pictures: Option<PathBuf> = path("pictures").value_name("FOLDER"),
    }
}

options! {
    /// Bring memory up and take commands: from a terminal with line editing, else from standard
    /// input
    Shell with Target {}
}

options! {
    /// Watch the memory of a running shell, or of a boot with --exec: zones, pools, caches,
    /// reporting; live on a terminal, otherwise one table after another
    Top {
        /// Time between two tables
        interval: Duration = value("interval", "SECONDS").value_parser(interval).default_value("1"),
        /// Print one table, then exit
        once: bool = flag("once"),
        /// The process that has the machine, by its number [default: the only one there is]
        pid: Option<u32> = Arg::new("PID").value_parser(value_parser!(u32)).value_name("PID"),
    }
}

options! {
    /// Set how much of its --virtio-mem memory a running machine has, and wait until it has that
    Plug {
        /// How much, such as 512M; 0 removes all of it
        bytes: u64 =
            Arg::new("SIZE").value_parser(size_or_nothing).value_name("SIZE").required(true),
        /// The process that has the machine, by its number [default: the only one there is]
        pid: Option<u32> = Arg::new("PID").value_parser(value_parser!(u32)).value_name("PID"),
        /// Wait this long, then say how far it got
        wait: u64 = value("wait", "SECONDS").value_parser(patience).default_value("10"),
    }
}

/// Memory that may be added while a machine runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addition {
    /// The most that may be added, in bytes.
    pub bytes: u64,
    /// Further properties of the device.
    pub properties: String,
}

options! {
    /// A machine.
    Target {
        /// Where: in this process, or on a virtual machine, whose guest is built from the source
        /// tree with cargo unless FRAMEWRIGHT_GUEST names a built one
        on: Where = value("on", "ON").value_parser(value_parser!(Where)).default_value("hosted"),
        /// How QEMU runs the machine [default: auto: KVM where it works]
        accel: Option<Accel> = value("accel", "ACCEL").value_parser(value_parser!(Accel)),
        /// Memory of the machine, such as 512M, 8G or 1T [default: this machine's; 2G on QEMU]
        memory: Option<u64> = value("memory", "SIZE").value_parser(size),
        /// Spread the memory over this many nodes, at most 1024 (QEMU: 128) [default: this
        /// machine's; 1 on QEMU]
        nodes: Option<u32> = value("nodes", "N").value_parser(nodes),
        /// How many CPUs the machine has [default: this machine's or the file's, at least one for
        /// each of --nodes; with --memory and on QEMU one for each node]
        cpus: Option<u32> = value("cpus", "N").value_parser(cpus),
        /// A boot log (dmesg) or /proc/iomem of the machine, read for its memory map and nodes
        map: Option<PathBuf> = path("map"),
        /// Leave this share of memory, such as 60%, unaccepted, as firmware of confidential guests
        /// does: it must be accepted before use (hosted)
        unaccepted: Option<u64> = value("unaccepted", "PERCENT")
            .value_parser(percent)
            .allow_hyphen_values(true),
        /// How long accepting 2 MiB takes, in microseconds
        accept_delay: Option<u64> = value("accept-delay", "MICROSECONDS").value_parser(number),
        /// QEMU machine type [default: q35]
        machine: Option<Model> = value("machine", "MACHINE").value_parser(value_parser!(Model)),
        /// A virtio balloon that takes reports of free pages; OPTIONS are further properties of the
        /// device, such as free-page-hint=on (QEMU)
        balloon: Option<String> = with_or_without_value("balloon", "OPTIONS", ""),
        /// Memory that `framewright plug` adds and takes away while the machine runs, such as 2G;
        /// further properties of the device may follow, as in 2G,requested-size=1G (QEMU)
        virtio_mem: Option<Addition> =
            value("virtio-mem", "SIZE[,OPTIONS]").value_parser(addition),
        /// Give free memory back to the system while commands run: at once, or when the system
        /// needs memory (hosted; --balloon does it on QEMU)
        reporting: Option<Advice> = with_or_without_value("reporting", "ADVICE", "dontneed")
            .value_parser(value_parser!(Advice)),
        /// Another argument for QEMU, such as --qemu=-numa --qemu=node,cpus=0-1; may be repeated
        qemu: Vec<String> =
            value("qemu", "ARG").allow_hyphen_values(true).action(ArgAction::Append),
        /// Give up after this long, builds aside; a shell that has started is not limited
        timeout: u64 = value("timeout", "SECONDS").value_parser(seconds).default_value("120"),
        /// Boot parameters, such as numa=off or mem=4G
        parameters: Vec<String> = words("PARAM"),
    }
}

impl Target {
    /// A virtual machine with this much memory and defaults for everything else.
    pub const fn on_qemu(memory_bytes: u64, timeout_seconds: u64) -> Self {
        Self {
            on: Where::Qemu,
            accel: None,
            memory: Some(memory_bytes),
            nodes: None,
            cpus: None,
            map: None,
            unaccepted: None,
            accept_delay: None,
            machine: None,
            balloon: None,
            virtio_mem: None,
            reporting: None,
            qemu: Vec::new(),
            timeout: timeout_seconds,
            parameters: Vec::new(),
        }
    }
}

choice! {
    /// Where to bring memory up.
    Where {
        /// In this process: threads are CPUs, a reserved mapping is the memory
        Hosted = "hosted",
        /// On a virtual machine
        Qemu = "qemu",
    }
}

choice! {
    /// How QEMU runs the machine.
    Accel {
        /// Emulated
        Tcg = "tcg",
        /// With hardware virtualisation
        Kvm = "kvm",
        /// KVM where it works, else TCG
        Auto = "auto",
    }
}

choice! {
    /// How a process gives memory back.
    Advice {
        /// At once (MADV_DONTNEED)
        DontNeed = "dontneed",
        /// When the system needs it (MADV_FREE)
        Free = "free",
    }
}

choice! {
    /// QEMU's machines.
    Model {
        /// A machine with PCI Express: 2 GiB of memory below 4 GiB, the rest above
        Q35 = "q35",
        /// The older PC: 3 GiB of memory below 4 GiB
        Pc = "pc",
    }
}

impl From<Advice> for framewright_hosted::Advice {
    fn from(advice: Advice) -> Self {
        match advice {
            Advice::DontNeed => Self::DontNeed,
            Advice::Free => Self::Free,
        }
    }
}

/// An option without a value.
fn flag(name: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue)
}

/// An option with a value.
fn value(name: &'static str, value: &'static str) -> Arg {
    // clap's own tip about a negative value would be about boot parameters; ours is better.
    Arg::new(name).long(name).value_name(value).allow_negative_numbers(true)
}

/// An option whose value is a file.
fn path(name: &'static str) -> Arg {
    value(name, "FILE").value_parser(value_parser!(PathBuf))
}

/// An option whose value is `usual` if no `=` follows it.
fn with_or_without_value(name: &'static str, of: &'static str, usual: &'static str) -> Arg {
    value(name, of).num_args(0..=1).require_equals(true).default_missing_value(usual)
}

/// Positional arguments.
fn words(name: &'static str) -> Arg {
    Arg::new(name).value_name(name).num_args(1..).action(ArgAction::Append)
}

/// A Rust type that an option's value can be read into.
trait Field {
    fn read(matches: &mut ArgMatches, id: &str) -> Self;
}

impl<T: Clone + Send + Sync + 'static> Field for Option<T> {
    fn read(matches: &mut ArgMatches, id: &str) -> Self {
        matches.remove_one(id)
    }
}

impl<T: Clone + Send + Sync + 'static> Field for Vec<T> {
    fn read(matches: &mut ArgMatches, id: &str) -> Self {
        matches.remove_many(id).map_or_else(Self::new, Iterator::collect)
    }
}

macro_rules! fields_with_defaults {
    ($($type:ty)*) => {
        $(impl Field for $type {
            fn read(matches: &mut ArgMatches, id: &str) -> Self {
                matches.remove_one(id).expect("clap gives the default")
            }
        })*
    };
}

fields_with_defaults!(bool u64 Duration PathBuf Where);

/// Defines the whole command line.
pub fn command() -> clap::Command {
    let parameters = parameters_help();
    clap::Command::new("framewright")
        .about("Brings up a machine's physical memory and shows the result")
        .version(env!("CARGO_PKG_VERSION"))
        .arg_required_else_help(true)
        .subcommand_required(true)
        .subcommand(Boot::define(clap::Command::new("boot")).after_help(&parameters))
        .subcommand(Shell::define(clap::Command::new("shell")).after_help(&parameters))
        .subcommand(
            Top::define(clap::Command::new("top"))
                .after_help(format!("Keys, on a terminal: {KEYS}")),
        )
        .subcommand(Report::define(clap::Command::new("report")))
        .subcommand(Plug::define(clap::Command::new("plug")))
}

/// Reads the subcommand that the command line asks for.
fn chosen(mut matches: ArgMatches) -> Command {
    let (name, mut matches) = matches.remove_subcommand().expect("clap demands one");
    match name.as_str() {
        "boot" => Command::Boot(Boot::read(&mut matches)),
        "shell" => Command::Shell(Shell::read(&mut matches)),
        "top" => Command::Top(Top::read(&mut matches)),
        "plug" => Command::Plug(Plug::read(&mut matches)),
        _ => Command::Report(Report::read(&mut matches)),
    }
}

/// Subcommands that moved to the other program but may still be typed here.
pub const OF_BENCH: [&str; 18] = [
    "all",
    "alloc",
    "bench",
    "bring-up",
    "check-model",
    "compare",
    "contig",
    "fragment",
    "hotplug",
    "hugepages",
    "init",
    "jobs",
    "longest",
    "model",
    "reporting",
    "scaling",
    "simulate",
    "traffic",
];

/// Reads the command line. Returns `None` if it asked for help, which has then been printed.
///
/// # Errors
/// Says what is wrong with the command line, in one line.
pub fn read() -> Result<Option<Command>, Error> {
    let words = command_words()?;
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
    Ok(parse(command(), none)?.map(chosen))
}

/// The words of the command line.
///
/// # Errors
/// Fails if a word is not UTF-8.
pub fn command_words() -> Result<Vec<String>, Error> {
    let text = |word: std::ffi::OsString| {
        word.into_string().map_err(|word| Error::Usage(format!("{word:?} is not UTF-8")))
    };
    std::env::args_os().skip(1).map(text).collect()
}

/// Parses the command line of a program; an empty one fails with the message `none`. Returns `None`
/// if it asked for help, which has then been printed.
///
/// # Errors
/// Says what is wrong with the command line, in one line.
pub fn parse(command: clap::Command, none: &str) -> Result<Option<ArgMatches>, Error> {
    match command.try_get_matches() {
        Ok(matches) => Ok(Some(matches)),
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

/// The help for the boot parameters that the library knows.
fn parameters_help() -> String {
    let lines = parameters::KNOWN.iter().map(|(form, meaning)| format!("\n  {form:<27} {meaning}"));
    let switches = GUEST_SWITCHES.iter().map(|(form, meaning)| format!("\n  {form:<27} {meaning}"));
    format!(
        "Boot parameters:{}\n\nParameters of the guest (--on qemu), given in the same way:{}",
        lines.collect::<String>(),
        switches.collect::<String>()
    )
}

/// What the guest's command line accepts besides boot parameters. This program itself passes
/// `exec=`, `report=`, `shell` and `snapshot=`; they are listed for users who boot the guest
/// directly.
const GUEST_SWITCHES: [(&str, &str); 20] = [
    ("accept_delay=MICROSECONDS", "time that accepting 2 MiB takes"),
    ("accept_fault=ADDRESS", "make accepting the 2 MiB at this address fail"),
    ("balloon_test=SECONDS", "test the virtio balloon, waiting this long for the host"),
    ("check=cpus|release", "test all CPUs together, or that wrong releases are refused"),
    ("exec=COMMANDS", "run shell commands (given by --exec)"),
    (
        "fault=KIND",
        "fault to cause once memory is up: null, panic, stack, readonly, released, double-free, \
         unaccepted or hang",
    ),
    ("fault_cpu=N", "the CPU that fails"),
    ("ghost_cpu=ID", "also start a CPU with this APIC ID, which no table lists"),
    ("interrupt_storm=HZ", "timer handlers allocate this often during the traffic"),
    ("map_space_test=1|write", "test the vmemmap's page tables; write: end with a forbidden write"),
    ("report=json", "print a JSON report at the end (given by --json)"),
    ("reporting=SECONDS", "run free page reporting for this long before going on"),
    ("shell[=plain]", "take commands from the serial line (given by `shell`)"),
    ("snapshot=1", "print what memory is used for at the end (given by --snapshot)"),
    ("stress=SECONDS", "random traffic for this long once memory is up"),
    ("stress_operations=N", "this many operations of traffic instead"),
    ("stress_seed=N", "the seed of that traffic"),
    (
        "unaccepted=[SIZE]@ADDRESS",
        "memory that starts unaccepted; without SIZE, all from ADDRESS on",
    ),
    ("virtio_mem_test=SECONDS", "test the virtio-mem device, waiting this long for the host"),
    ("(anything else)", "is reported as unknown and ignored, unless it looks like a typo of these"),
];

/// Reduces clap's message to one line, without its usage text and its tip about parameters.
fn one_line(message: &str) -> String {
    let idle = ["Usage:", "For more", "  tip: to pass"];
    let sentences =
        message.split("\n\n").filter(|part| !idle.iter().any(|idle| part.starts_with(idle)));
    let joined: Vec<String> = sentences
        .map(|part| part.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|part| !part.is_empty())
        .collect();
    joined.join("; ").trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boot(words: &[&str]) -> Result<Boot, String> {
        let words = ["framewright", "boot"].iter().chain(words);
        match command().try_get_matches_from(words).map(chosen) {
            Ok(Command::Boot(boot)) => Ok(boot),
            Ok(other) => Err(format!("{other:?}")),
            Err(error) => Err(one_line(&error.to_string())),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        command().debug_assert();
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
    fn memory_to_add_has_a_size_and_perhaps_properties() {
        let addition = |words: &[&str]| {
            let addition = boot(words).map(|boot| boot.target.virtio_mem)?;
            Ok::<_, String>(addition.map(|addition| (addition.bytes, addition.properties)))
        };
        assert_eq!(addition(&["--virtio-mem", "2G"]), Ok(Some((2 << 30, String::new()))));
        assert_eq!(
            addition(&["--virtio-mem=64M,requested-size=4M,memaddr=8G"]),
            Ok(Some((64 << 20, "requested-size=4M,memaddr=8G".to_owned())))
        );
        assert_eq!(addition(&[]), Ok(None));
        for (size, why) in
            [("0", "a machine needs some memory"), ("3M", "memory is added in multiples of 2M")]
        {
            let error = addition(&["--virtio-mem", size]).expect_err("refused");
            assert!(error.ends_with(why), "{error}");
        }
    }

    #[test]
    fn errors_are_one_line() {
        for (words, expected) in [
            (
                &["--cpus", "0"][..],
                "invalid value '0' for '--cpus <N>': a machine needs at least one CPU",
            ),
            (
                &["--nodes", "1025"],
                "invalid value '1025' for '--nodes <N>': at most 1024 nodes are supported",
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
