//! `framewright-bench reporting`: how soon freed memory is back with the host, as the host sees it,
//! and what reports cost later allocations.

mod fall;
mod fault;
mod hosted;
mod qemu;
mod shuffle;
mod table;

pub use fall::Sample;
pub use qemu::watched;

use super::section::{Section, Table};
use crate::progress;
use crate::rows::{Row, Rows, to_json};
use fall::Fall;
use framewright::reporting::Pace;
use framewright_cli::args::Where;
use framewright_cli::error::Error;
use std::time::Duration;

/// Describes the timing, for readers of the numbers.
const TIMED: &str = "\
reporting: all that is free is reported, then memory is dirtied and freed at once, and the host's \
Rss of the machine's memory is read again and again; t50 and t95: from the free until that \
percentage of what was dirtied is back; left: Rss at the end above that before it was dirtied; \
twice: reported beyond what was dirtied, or while idle afterwards. fault: every CPU allocates 128 \
MiB, in pages of 2 MiB (page_fault1) or 4 KiB (page_fault2), clears and touches all of it, and \
frees it; iterations are pages of 4 KiB a second over all CPUs, the median of runs; configurations \
take turns in rounds, in random order forwards and then backwards, each with the same memory; \
deviation: of the runs from their mean; per CPU second: by the CPU time of the whole process, \
reports included, which neighbours on the machine disturb less; reported: meanwhile; host faults: \
pages that the system had to find for the process meanwhile; off, again: the benchmark's own \
error; shuffle: all free memory of a machine of 1 TiB, once more; against off: per CPU second, the \
median of the ratios of all rounds and its 95 % bootstrap interval";

/// How much is measured.
#[derive(Clone, Copy)]
struct Scale {
    memory_bytes: u64,
    dirtied_bytes: u64,
    paces: &'static [Pace],
    /// The number of courses of each pace in this process.
    falls: usize,
    /// The number of rounds of the workloads, in each of which every configuration runs twice, and
    /// the length of a run.
    rounds: usize,
    run: Duration,
}

const FULL: Scale = Scale {
    memory_bytes: 4 << 30,
    dirtied_bytes: 2 << 30,
    paces: &[Pace::Adaptive, Pace::Fixed],
    falls: 3,
    rounds: 32,
    run: Duration::from_millis(100),
};
const QUICK: Scale = Scale {
    memory_bytes: 1 << 30,
    dirtied_bytes: 512 << 20,
    paces: &[Pace::Adaptive],
    falls: 1,
    rounds: 3,
    run: Duration::from_millis(50),
};

const SHUFFLES: usize = 9;

/// Measures everything that was asked for.
///
/// # Errors
/// Fails if a machine cannot be started, or did not do its task.
pub fn section(on: Option<Where>, quick: bool) -> Result<Section, Error> {
    let scale = if quick { QUICK } else { FULL };
    let mut rows = Vec::new();
    if on != Some(Where::Qemu) {
        for &pace in scale.paces {
            progress::step(&format_args!("reporting: {} pace", pace.name()))?;
            // A course at Linux's pace takes half a minute.
            let count = if pace == Pace::Fixed { 1 } else { scale.falls };
            let falls =
                (0..count).map(|_| hosted::fall(scale, pace)).collect::<Result<Vec<_>, _>>()?;
            add(&mut rows, &falls);
        }
    }
    if on != Some(Where::Hosted) {
        for &pace in scale.paces {
            progress::step(&format_args!("reporting: guest, {} pace", pace.name()))?;
            add(&mut rows, &[qemu::fall(scale, pace)?]);
        }
    }
    if on != Some(Where::Qemu) {
        rows.extend(to_json(&fault::rows(scale)?));
        progress::step(&"reporting: shuffle")?;
        rows.push(shuffle::row(SHUFFLES)?.to_json());
    }
    let timed = format!("machines of {} GiB; {TIMED}", scale.memory_bytes >> 30);
    Ok(Section::new("reporting", scale.rounds, timed, rows))
}

/// Adds the row of these courses, and the first course over time.
fn add(rows: &mut Vec<serde_json::Value>, falls: &[Fall]) {
    rows.push(fall::row(falls).to_json());
    rows.extend(falls.first().map(|fall| fall.series().to_json()));
}

/// Tables for people.
pub fn tables(rows: &Rows) -> Vec<Table> {
    table::tables(rows)
}
