//! `framewright-bench hotplug`: adding and removing memory.

use super::common::failed;
use super::section::{Column, Section, Table, shown, table};
use super::subject::Ours;
use crate::progress;
use crate::rows::{Hotplug, Rows, Spread};
use framewright::Platform;
use framewright::manager::Budget;
use framewright::units::{NodeId, PAGE_SIZE, PhysRange};
use framewright::zone::Grade;
use framewright_cli::error::Error;
use framewright_cli::grid::microseconds;

/// Describes the timing, for readers of the numbers.
const TIMED: &str = "\
time of the call, on one thread, on a machine of 256 MiB; its memory is a mapping that the host \
backs when it is touched. taken: how much more free memory shrank, or how much less it grew, than \
pages were added: tables of the new memory in memory that was there. Each repetition has its own \
machine. No page descriptors";

/// The row that targets look for.
pub const ADD_TEBIBYTE: &str = "add 1 TiB";
const BOOT: &str = "mem=256M pages=none";
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Where the memory of synthetic machines goes on behind the hole below 4 GiB.
const START: u64 = 4 * GIB;

/// One call: how long it took, and how much existing memory.
struct Run {
    call_us: f64,
    taken_kib: f64,
}

/// Measures everything.
///
/// # Errors
/// Fails if a machine cannot be emulated by this process, or memory was not accepted.
pub fn section(quick: bool) -> Result<Section, Error> {
    let repetitions = if quick { 2 } else { 9 };
    let names = [ADD_TEBIBYTE, "remove 1 TiB, all free", "add 12 GiB", "add 1 GiB by 2 MiB, each"];
    let mut runs: [Vec<Run>; 4] = Default::default();
    for number in 1..=repetitions {
        progress::step(&format_args!("hotplug: {number}"))?;
        let large = Ours::with_words(1040 * GIB, BOOT, |ours| {
            let range = PhysRange::with_size(8 * GIB, 1024 * GIB);
            Ok([add(ours, range)?, remove(ours, range)?])
        })?;
        let small = Ours::with_words(32 * GIB, BOOT, |ours| {
            let twelve = add(ours, PhysRange::with_size(START, 12 * GIB))?;
            let mut each = Vec::new();
            for number in 0..GIB / (2 * MIB) {
                let start = START + 16 * GIB + number * 2 * MIB;
                each.push(add(ours, PhysRange::with_size(start, 2 * MIB))?);
            }
            let calls = each.len() as f64;
            let call_us = each.iter().map(|run| run.call_us).sum::<f64>() / calls;
            let taken_kib = each.iter().map(|run| run.taken_kib).sum();
            Ok([twelve, Run { call_us, taken_kib }])
        })?;
        for (runs, run) in runs.iter_mut().zip(large.into_iter().chain(small)) {
            runs.push(run);
        }
    }
    let rows: Vec<Hotplug> =
        names.into_iter().zip(&runs).map(|(what, runs)| row(what, runs)).collect();
    Ok(Section::of(repetitions, TIMED, &rows))
}

fn row(what: &str, runs: &[Run]) -> Hotplug {
    Hotplug {
        what: what.into(),
        call_us: Spread::of(runs.iter().map(|run| run.call_us)),
        taken_kib: Spread::of(runs.iter().map(|run| run.taken_kib)),
    }
}

/// Times a call that changes memory by a number of pages.
fn timed(
    ours: &Ours<'_>,
    range: PhysRange,
    call: impl FnOnce() -> Result<i64, String>,
) -> Result<Run, Error> {
    let manager = ours.manager();
    let platform = manager.platform();
    let free = || i64::try_from(manager.totals().free_pages).unwrap_or(i64::MAX);
    let (before, started) = (free(), platform.now_ns());
    let came = call().map_err(|error| failed(format!("{range}: {error}")))?;
    let call_ns = between(started, platform.now_ns())?;
    let taken_pages = before + came - free();
    let taken_kib = (taken_pages * PAGE_SIZE.cast_signed()) as f64 / 1024.0;
    Ok(Run { call_us: call_ns as f64 / 1000.0, taken_kib })
}

/// Nanoseconds between two readings of the clock. Without a clock, every call would seem to take no
/// time.
fn between(then: Option<u64>, now: Option<u64>) -> Result<u64, Error> {
    let passed = then.zip(now).and_then(|(then, now)| now.checked_sub(then));
    passed.ok_or_else(|| failed("the machine has no clock that goes forward"))
}

fn add(ours: &Ours<'_>, range: PhysRange) -> Result<Run, Error> {
    let hotplug = ours.manager().hotplug();
    timed(ours, range, || {
        // SAFETY: the machine has this memory, which `mem=` has left out (invariant 1).
        let added = unsafe { hotplug.add(range, NodeId::ZERO, Grade::Any) };
        added.map(|added| added.pages.cast_signed()).map_err(|error| error.to_string())
    })
}

fn remove(ours: &Ours<'_>, range: PhysRange) -> Result<Run, Error> {
    let hotplug = ours.manager().hotplug();
    timed(ours, range, || {
        // SAFETY: nobody looks at page descriptors (invariant 49).
        let removed = unsafe { hotplug.remove(range, Budget::UNLIMITED) };
        removed.map(|removed| -removed.pages.cast_signed()).map_err(|error| error.to_string())
    })
}

const COLUMNS: [Column<Hotplug>; 3] = [
    ("<call", |row| row.what.clone()),
    (">time", |row| shown(row.call_us.middle, microseconds)),
    (">taken", |row| shown(row.taken_kib.middle, |kib| format!("{kib:.0} KiB"))),
];

/// Tables for people.
pub fn tables(rows: &Rows) -> Vec<Table> {
    table(&COLUMNS, &rows.hotplug).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_clock_nothing_is_measured() {
        assert_eq!(between(Some(5), Some(12)).ok(), Some(7));
        for (then, now) in [(None, None), (Some(5), None), (None, Some(5)), (Some(5), Some(4))] {
            assert!(between(then, now).is_err(), "{then:?} {now:?}");
        }
    }
}
