//! Parses the guest's own words on the command line. The other words are for the manager.

use crate::accept::Unaccepted;
use crate::faults::Fault;
use crate::stress::{Length, Stress};
use crate::vmemmap_check::VmemmapSpaceTest;
use framewright::parameters::{Problem, next_word, parse_size};
use framewright::units::{PHYSICAL_ADDRESS_END, PhysRange};

/// Room for the part of the command line that is passed on, in bytes.
pub const CAPACITY: usize = framewright_arch::x86_64::pvh::MAX_COMMAND_LINE_BYTES + 1;

/// The names of the guest's words.
const NAMES: [&str; 19] = [
    "accept_delay",
    "accept_fault",
    "balloon_test",
    "check",
    "exec",
    "fault",
    "fault_cpu",
    "ghost_cpu",
    "interrupt_storm",
    "map_space_test",
    "report",
    "reporting",
    "shell",
    "snapshot",
    "stress",
    "stress_operations",
    "stress_seed",
    "unaccepted",
    "virtio_mem_test",
];

/// Most interrupts a second that a storm may have on each CPU.
const MOST_STORM_HZ: u64 = 100_000;
/// Most microseconds that accepting 2 MiB may take.
const MOST_DELAY_US: u64 = 1_000_000;

/// What the command line asks the guest itself to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// `exec=COMMANDS`: shell commands, with blanks and quotes as `%` and two hexadecimal digits.
    pub exec: Option<&'a str>,
    /// `snapshot=1`: show what memory is used for after the shell's commands.
    pub snapshot: bool,
    /// `shell` or `shell=plain`: take commands from the serial line.
    pub shell: Option<Input>,
    /// `report=json`: write a report for programs at the end.
    pub json: bool,
    /// `fault=...`: fail in this way once memory is up.
    pub fault: Option<Fault>,
    /// `stress=SECONDS` or `stress_operations=N`: random traffic once memory is up.
    pub stress: Option<Length>,
    /// `stress_seed=N`: the seed of the traffic.
    pub stress_seed: Option<u64>,
    /// `balloon_test=SECONDS`: test the virtio balloon, and wait for the host at most this long.
    pub balloon_test: Option<u64>,
    /// `virtio_mem_test=SECONDS`: test the virtio-mem device, and wait for the host at most this
    /// long each time.
    pub virtio_mem_test: Option<u64>,
    /// `reporting=SECONDS`: let free page reporting run for this long before the reports and the
    /// shell.
    pub reporting: Option<u64>,
    /// `map_space_test=1` or `=write`: examine the page tables; with `write`, finally write where
    /// nothing may be written.
    pub map_space_test: Option<VmemmapSpaceTest>,
    /// `interrupt_storm=HZ`: during the traffic, timer handlers allocate, too.
    pub storm_hz: Option<u64>,
    /// `fault_cpu=N`: the CPU that fails, 0 by default.
    pub fault_cpu: Option<u32>,
    /// `ghost_cpu=ID`: start a CPU with this APIC ID, though no table lists it.
    pub ghost_cpu: Option<u32>,
    /// `unaccepted=SIZE@ADDRESS` or `unaccepted=@ADDRESS`: memory that is not accepted when the
    /// guest starts.
    pub unaccepted: Option<PhysRange>,
    /// `accept_fault=ADDRESS`: the 2 MiB with this address cannot be accepted.
    pub accept_fault: Option<u64>,
    /// `accept_delay=MICROSECONDS`: accepting each 2 MiB takes this long.
    pub accept_delay_us: Option<u64>,
    /// `check=cpus`: check that all CPUs work together.
    pub check_cpus: bool,
    /// `check=release`: try to release memory that must not be released.
    pub check_release: bool,
}

/// What is at the other end of the serial line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input {
    /// Somebody at a terminal.
    Terminal,
    /// A program. It needs no echo, and sends bytes 3, 4 and 16 of its input, which would be keys
    /// on the line, as 16 followed by the byte with bit 6 flipped.
    Plain,
}

impl Options<'_> {
    /// The traffic that the options ask for.
    pub fn stress(&self) -> Option<Stress> {
        let (seed, storm_hz) = (self.stress_seed.unwrap_or_default(), self.storm_hz);
        self.stress.map(|length| Stress { length, seed, storm_hz })
    }

    /// The memory that the options leave unaccepted.
    pub fn unaccepted(&self) -> Option<Unaccepted> {
        let (fault, delay_us) = (self.accept_fault, self.accept_delay_us.unwrap_or(0));
        self.unaccepted.map(|range| Unaccepted { range, fault, delay_us })
    }

    /// Returns the words that have no effect because another one is missing, each with the missing
    /// word.
    pub fn without_effect(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        const TRAFFIC: &str = "stress= or stress_operations=";
        let has_traffic = self.stress.is_some();
        let is_unaccepted = self.unaccepted.is_some();
        [
            (self.stress_seed.is_some() && !has_traffic, "stress_seed=", TRAFFIC),
            (self.storm_hz.is_some() && !has_traffic, "interrupt_storm=", TRAFFIC),
            (self.accept_fault.is_some() && !is_unaccepted, "accept_fault=", "unaccepted="),
            (self.accept_delay_us.is_some() && !is_unaccepted, "accept_delay=", "unaccepted="),
            (self.fault_cpu.is_some() && self.fault.is_none(), "fault_cpu=", "fault="),
        ]
        .into_iter()
        .filter_map(|(is_alone, word, missing)| is_alone.then_some((word, missing)))
    }
}

/// Copies the command line into `room`.
pub fn keep<'b>(line: &str, room: &'b mut [u8; CAPACITY]) -> &'b str {
    let bytes = line.as_bytes();
    let length = bytes.len().min(CAPACITY);
    room[..length].copy_from_slice(&bytes[..length]);
    core::str::from_utf8(&room[..length]).unwrap_or("")
}

/// Takes the guest's words out of `line`. The others are joined in `rest` for the manager.
pub fn split<'a, 'b>(
    line: &'a str,
    rest: &'b mut [u8; CAPACITY],
    problem: &mut dyn FnMut(Problem<'a>),
) -> (Options<'a>, &'b str) {
    let mut options = Options::default();
    let mut length = 0;
    let (mut word, mut left) = next_word(line);
    while !word.is_empty() {
        match word.split_once('=') {
            Some(("report", "json")) => options.json = true,
            Some(("report", _)) => problem(Problem { word, reason: Some("report= is json") }),
            Some(("fault", value)) => match Fault::from_name(value) {
                Some(fault) => options.fault = Some(fault),
                None => problem(Problem {
                    word,
                    reason: Some(
                        "fault= is null, panic, stack, readonly, released, double-free, \
                         unaccepted or hang",
                    ),
                }),
            },
            Some(("fault_cpu", value)) => match value.parse() {
                Ok(cpu) => options.fault_cpu = Some(cpu),
                Err(_) => {
                    problem(Problem { word, reason: Some("fault_cpu= takes the number of a CPU") })
                }
            },
            Some(("ghost_cpu", value)) => match value.parse() {
                Ok(apic_id) => options.ghost_cpu = Some(apic_id),
                Err(_) => problem(Problem { word, reason: Some("ghost_cpu= takes an APIC ID") }),
            },
            Some(("unaccepted", value)) => match parse_range(value) {
                Some(range) => options.unaccepted = Some(range),
                None => problem(Problem {
                    word,
                    reason: Some("unaccepted= is SIZE@ADDRESS, or @ADDRESS for all from there on"),
                }),
            },
            Some(("accept_fault", value)) => match parse_size(value) {
                Ok(address) => options.accept_fault = Some(address),
                Err(_) => problem(Problem { word, reason: Some("accept_fault= takes an address") }),
            },
            Some(("accept_delay", value)) => match value.parse() {
                Ok(us) if us <= MOST_DELAY_US => options.accept_delay_us = Some(us),
                _ => problem(Problem {
                    word,
                    reason: Some("accept_delay= takes microseconds, up to a second"),
                }),
            },
            Some(("check", "cpus")) => options.check_cpus = true,
            Some(("check", "release")) => options.check_release = true,
            Some(("check", _)) => {
                problem(Problem { word, reason: Some("check= is cpus or release") })
            }
            Some(("interrupt_storm", value)) => match value.parse() {
                Ok(hz) if (1..=MOST_STORM_HZ).contains(&hz) => options.storm_hz = Some(hz),
                _ => problem(Problem {
                    word,
                    reason: Some("interrupt_storm= takes 1 to 100000 interrupts a second"),
                }),
            },
            Some(("exec", value)) => options.exec = Some(value),
            Some(("snapshot", "1")) => options.snapshot = true,
            Some(("snapshot", _)) => problem(Problem { word, reason: Some("snapshot= is 1") }),
            None if word == "shell" => options.shell = Some(Input::Terminal),
            Some(("shell", "plain")) => options.shell = Some(Input::Plain),
            Some(("shell", _)) => problem(Problem {
                word,
                reason: Some("shell= is plain, or nothing for a terminal"),
            }),
            Some(("stress", value)) => match value.parse() {
                Ok(seconds) => options.stress = Some(Length::Seconds(seconds)),
                Err(_) => {
                    problem(Problem { word, reason: Some("stress= takes a number of seconds") })
                }
            },
            Some(("map_space_test", value)) => match VmemmapSpaceTest::from_name(value) {
                Some(test) => options.map_space_test = Some(test),
                None => problem(Problem { word, reason: Some("map_space_test= is 1 or write") }),
            },
            Some(("stress_operations", value)) => match value.parse() {
                Ok(operations) => options.stress = Some(Length::Operations(operations)),
                Err(_) => {
                    problem(Problem { word, reason: Some("stress_operations= takes a number") })
                }
            },
            Some(("stress_seed", value)) => match value.parse() {
                Ok(seed) => options.stress_seed = Some(seed),
                Err(_) => problem(Problem { word, reason: Some("stress_seed= takes a number") }),
            },
            Some(("balloon_test", value)) => match value.parse() {
                Ok(seconds) => options.balloon_test = Some(seconds),
                Err(_) => problem(Problem {
                    word,
                    reason: Some("balloon_test= takes a number of seconds"),
                }),
            },
            Some(("virtio_mem_test", value)) => match value.parse() {
                Ok(seconds) => options.virtio_mem_test = Some(seconds),
                Err(_) => problem(Problem {
                    word,
                    reason: Some("virtio_mem_test= takes a number of seconds"),
                }),
            },
            Some(("reporting", value)) => match value.parse() {
                Ok(seconds) => options.reporting = Some(seconds),
                Err(_) => {
                    problem(Problem { word, reason: Some("reporting= takes a number of seconds") })
                }
            },
            _ => {
                // A line of at most CAPACITY - 1 bytes has room for a blank after each of its
                // words.
                rest[length..length + word.len()].copy_from_slice(word.as_bytes());
                rest[length + word.len()] = b' ';
                length += word.len() + 1;
            }
        }
        (word, left) = next_word(left);
    }
    (options, core::str::from_utf8(&rest[..length]).unwrap_or(""))
}

/// Parses `SIZE@ADDRESS`, or `@ADDRESS` for everything from there on.
fn parse_range(text: &str) -> Option<PhysRange> {
    let (size, start) = text.split_once('@')?;
    let start = parse_size(start).ok()?;
    let size = if size.is_empty() { u64::MAX } else { parse_size(size).ok()? };
    let range = PhysRange::new(start, start.saturating_add(size).min(PHYSICAL_ADDRESS_END));
    (range.start < range.end).then_some(range)
}

/// Returns the guest's word that `word` is probably a misspelling of. Boot lines also carry words
/// that are not meant for this guest at all; for these it returns `None`.
pub fn meant(word: &str) -> Option<&'static str> {
    let name = word.split_once('=').map_or(word, |(name, _)| name).as_bytes();
    let is_nearly = |own: &&str| is_one_edit_away(name, own.as_bytes());
    let is_part =
        |own: &&str| is_first_part(name, own.as_bytes()) || is_first_part(own.as_bytes(), name);
    NAMES.into_iter().find(is_nearly).or_else(|| NAMES.into_iter().find(is_part))
}

/// Whether two names are equal, ignoring case and the difference between `-` and `_`.
fn equal(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| fold(*a) == fold(*b))
}

const fn fold(letter: u8) -> u8 {
    if letter == b'-' { b'_' } else { letter.to_ascii_lowercase() }
}

/// Whether `short` is the part of `long` before an underscore.
fn is_first_part(short: &[u8], long: &[u8]) -> bool {
    let parts = long.split_at_checked(short.len());
    parts.is_some_and(|(first, rest)| {
        equal(first, short)
            && !short.is_empty()
            && rest.first().is_some_and(|&next| fold(next) == b'_')
    })
}

/// Whether at most one letter is missing, added or changed, or two neighbouring letters are
/// swapped.
fn is_one_edit_away(one: &[u8], other: &[u8]) -> bool {
    let same = one.iter().zip(other).take_while(|(a, b)| fold(**a) == fold(**b)).count();
    let (one, other) = (&one[same..], &other[same..]);
    let (one_rest, other_rest) =
        (one.get(1..).unwrap_or_default(), other.get(1..).unwrap_or_default());
    let is_swapped = match (one, other) {
        ([a, b, one @ ..], [c, d, other @ ..]) => equal(&[*a, *b], &[*d, *c]) && equal(one, other),
        _ => false,
    };
    is_swapped || equal(one_rest, other) || equal(one, other_rest) || equal(one_rest, other_rest)
}
