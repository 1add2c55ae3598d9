//! The guest's own words on the command line; the rest is for the manager.

use crate::faults::Fault;
use crate::map_check::MapSpaceTest;
use crate::stress::{Length, Stress};
use framewright::parameters::Problem;

/// Bytes of the command line that are passed on.
pub const CAPACITY: usize = framewright_x86::pvh::MAX_COMMAND_LINE_BYTES + 1;

/// What the command line asks of the guest itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// `report=json`: a report for programs comes last.
    pub json: bool,
    /// `fault=...`: fail in this way once memory is up.
    pub fault: Option<Fault>,
    /// `stress=SECONDS` or `stress_operations=N`: random traffic once memory is up.
    pub stress: Option<Length>,
    /// `stress_seed=N`.
    pub stress_seed: u64,
    /// `map_space_test=1` or `=write`: examine the page tables, and at the end write where nothing may be written.
    pub map_space_test: Option<MapSpaceTest>,
}

impl Options {
    /// The traffic that is asked for.
    pub fn stress(&self) -> Option<Stress> {
        self.stress.map(|length| Stress { length, seed: self.stress_seed })
    }
}

/// Takes the guest's words out of `line`. The others are joined in `rest`, so that the manager does not wonder about ours.
pub fn split<'a, 'b>(
    line: &'a str,
    rest: &'b mut [u8; CAPACITY],
    problem: &mut dyn FnMut(Problem<'a>),
) -> (Options, &'b str) {
    let mut options = Options::default();
    let mut length = 0;
    for word in line.split_ascii_whitespace() {
        match word.split_once('=') {
            Some(("report", "json")) => options.json = true,
            Some(("report", _)) => problem(Problem { word, reason: Some("report= is json") }),
            Some(("fault", value)) => match Fault::from_name(value) {
                Some(fault) => options.fault = Some(fault),
                None => problem(Problem { word, reason: Some("fault= is null, panic, stack, rodata or hang") }),
            },
            Some(("stress", value)) => match value.parse() {
                Ok(seconds) => options.stress = Some(Length::Seconds(seconds)),
                Err(_) => problem(Problem { word, reason: Some("stress= takes a number of seconds") }),
            },
            Some(("map_space_test", value)) => match MapSpaceTest::from_name(value) {
                Some(test) => options.map_space_test = Some(test),
                None => problem(Problem { word, reason: Some("map_space_test= is 1 or write") }),
            },
            Some(("stress_operations", value)) => match value.parse() {
                Ok(operations) => options.stress = Some(Length::Operations(operations)),
                Err(_) => problem(Problem { word, reason: Some("stress_operations= takes a number") }),
            },
            Some(("stress_seed", value)) => match value.parse() {
                Ok(seed) => options.stress_seed = seed,
                Err(_) => problem(Problem { word, reason: Some("stress_seed= takes a number") }),
            },
            _ => {
                // A line of at most CAPACITY - 1 bytes has room for a blank after each of its words.
                rest[length..length + word.len()].copy_from_slice(word.as_bytes());
                rest[length + word.len()] = b' ';
                length += word.len() + 1;
            }
        }
    }
    (options, core::str::from_utf8(&rest[..length]).unwrap_or(""))
}
