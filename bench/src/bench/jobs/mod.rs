//! `framewright-bench jobs`: what parallel jobs cost, beside a plain loop, rayon and threads that
//! are started for each job.

mod busy;
mod cases;
mod engines;
mod measure;
mod table;

use super::host;
use super::section::{Section, Table};
use crate::progress;
use crate::rows::{Jobs, Rows};
use cases::{Case, Scale};
use engines::Pools;
use framewright_cli::error::Error;
use framewright_hosted::HostedHelpers;
use measure::Effort;
use serde_json::json;
use std::time::Duration;

/// Describes the timing, for readers of the numbers.
const TIMED: &str = "\
seconds for one job, from the call to its return; short jobs are timed many at a time. The engines \
of a case take turns in rounds, in random order and with a pause before each sample; a row is the \
median of its rounds, with the least and the most, and the median of the ratios to the loop and to \
framewright in the same round, with its 95 % bootstrap interval. A unit is a chain of \
multiplications that takes about unit_ns, or, in memory, 4 KiB that are read. A unit begins when \
the one before it in its chunk has ended. uniform: all units alike; apart: likewise, but they wait \
for nothing, in small jobs only; one-heavy: one in the middle costs as much as a thousand others; \
ramp: costs rise from nothing to twice the mean; two-empty: two units without work, for which two \
threads are requested; busy-*: while another process spins on one CPU. framewright keeps what \
units cost from one job of a case to the next, as others keep their threads; framewright-new does \
not, in jobs of up to 2 ms and beside a busy process. rayon is called from a thread that is not \
one of its own, as a program does; rayon-inside from one of its own, in short jobs only. scoped: \
threads of std::thread::scope, one share each";

/// How often each case is measured, and how much work it has.
const FULL: (Effort, Scale) =
    (Effort { rounds: 101, enough: Duration::from_millis(1300) }, Scale::FULL);
const QUICK: (Effort, Scale) =
    (Effort { rounds: 4, enough: Duration::from_millis(150) }, Scale::QUICK);

/// Measures all engines on all cases.
///
/// # Errors
/// Fails if threads or the other process cannot be started.
pub fn section(quick: bool) -> Result<Section, Error> {
    let (effort, scale) = if quick { QUICK } else { FULL };
    let cpus = host::cpus()?;
    let pools = Pools::new(cpus.len())?;
    let memory: Vec<u64> = (0..scale.memory_bytes as u64 / 8).collect();
    let (cases, left_out) = cases::all(scale);
    let mut rows: Vec<Jobs> = Vec::new();
    let (quiet, busy): (Vec<&Case>, Vec<&Case>) = cases.iter().partition(|case| !case.busy);
    for case in quiet {
        progress::step(&format_args!("jobs: {}, {} units", case.name, case.units))?;
        rows.extend(measure::rows(case, &pools, &memory, effort));
    }
    if let Some(&last) = cpus.last() {
        let _spinning = busy::Spinner::on(last)?;
        for case in busy {
            progress::step(&format_args!("jobs: {}, {} units", case.name, case.units))?;
            rows.extend(measure::rows(case, &pools, &memory, effort));
        }
    }
    let priority = HostedHelpers::shared().priority();
    let mut section = Section { left_out, ..Section::of(effort.rounds, TIMED, &rows) };
    section.further.insert("cpus".into(), json!(cpus.len()));
    section.further.insert("priority".into(), json!(priority.to_string()));
    Ok(section)
}

/// Tables for people.
pub fn tables(rows: &Rows) -> Vec<Table> {
    vec![Table { title: None, grid: table::grid(&rows.jobs) }]
}
