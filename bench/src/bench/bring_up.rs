//! `framewright-bench bring-up`: how long bringing up all memory takes on synthetic machines.

use super::common::{failed, synthetic};
use super::section::{Column, Section, Table, shown, table};
use crate::progress;
use crate::rows::{BringUp, Measured, Rows, Spread};
use framewright::units::PAGE_SIZE;
use framewright_cli::error::Error;
use framewright_cli::grid::{microseconds, size};
use framewright_cli::hosted::{Session, Silent};
use framewright_cli::output::Output;
use framewright_hosted::Machine;
use serde_json::Value;
use std::process::{Command, Stdio};

/// Describes the timing, for readers of the numbers.
const TIMED: &str = "\
timed by the library on the platform's clock, one thread, from the beginning of intake (memory \
map, nodes, command line) to all memory \
available, memblock allocator included; not timed: reserving the process's addresses, logging. \
backed: the memory of the tables was filled with 0xa5 before each run, so that it is there and \
dirty as on bare metal; \
first touch: each run in a fresh process, where the system supplies that memory page by page \
during the run";

/// Only the library's own work is timed; `framewright-bench init` measures the memory map.
const PARAMETERS: &str = "memmap_init=on-demand pages=none";

const REPETITIONS: usize = 15;
const QUICK_REPETITIONS: usize = 3;

/// A synthetic machine.
struct Subject {
    name: &'static str,
    memory_bytes: u64,
    nodes: u32,
}

const SUBJECTS: [Subject; 3] = [
    Subject { name: "8G/1 node", memory_bytes: 8 << 30, nodes: 1 },
    Subject { name: "768G/2 nodes", memory_bytes: 768 << 30, nodes: 2 },
    Subject { name: "24T/16 nodes", memory_bytes: 24 << 40, nodes: 16 },
];

impl Subject {
    fn machine(&self) -> Result<Machine, Error> {
        synthetic(self.memory_bytes, self.nodes, self.nodes)
    }
}

/// Brings up one machine once, in this fresh process.
///
/// # Errors
/// Fails if this process cannot emulate the machine.
pub fn first_touch_of(index: usize) -> Result<(), Error> {
    let subject =
        SUBJECTS.get(index).ok_or_else(|| Error::Usage(format!("there is no machine {index}")))?;
    let machine = subject.machine()?;
    let pass = Session::open(&machine, PARAMETERS)?.bring_up(&mut Silent)?;
    Output::new().line(&pass.report["totals"].to_string())
}

/// Measures all machines.
///
/// # Errors
/// Fails if a machine cannot be emulated by this process.
pub fn section(quick: bool) -> Result<Section, Error> {
    let repetitions = if quick { QUICK_REPETITIONS } else { REPETITIONS };
    let mut rows = Vec::new();
    for (index, subject) in SUBJECTS.iter().enumerate() {
        progress::step(&format_args!("bring-up: {}", subject.name))?;
        rows.push(row(subject, "backed", &backed(subject, repetitions)?)?);
        rows.push(row(subject, "first touch", &first_touch(index, repetitions)?)?);
    }
    Ok(Section::of(repetitions, TIMED, &rows))
}

/// Totals of several bring-ups over memory that is backed and dirty.
fn backed(subject: &Subject, repetitions: usize) -> Result<Vec<Value>, Error> {
    let machine = subject.machine()?;
    let mut last = Session::open(&machine, PARAMETERS)?.bring_up(&mut Silent)?;
    let mut totals = Vec::new();
    for _ in 0..repetitions {
        last = last.end_dirty()?.bring_up(&mut Silent)?;
        totals.push(last.report["totals"].clone());
    }
    Ok(totals)
}

/// Totals of several bring-ups, each the only one of its process: nothing is left by an earlier
/// one, not even the system's page tables.
fn first_touch(index: usize, repetitions: usize) -> Result<Vec<Value>, Error> {
    (0..repetitions).map(|_| first_touch_once(index)).collect()
}

fn first_touch_once(index: usize) -> Result<Value, Error> {
    let failed =
        |why: String| failed(format!("the process that measures first touch failed: {why}"));
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let output = Command::new(program)
        .args(["bring-up", "--first-touch-of", &index.to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}

/// One row of results.
fn row(subject: &Subject, tables: &str, totals: &[Value]) -> Result<BringUp, Error> {
    let spread = |name: &str| Spread::of(totals.iter().filter_map(|total| total[name].as_f64()));
    let bring_up_us = spread("bring_up_us");
    let (Some(last), Some(_)) = (totals.last(), bring_up_us.middle) else {
        return Err(failed("the library measured nothing"));
    };
    let number = |name: &str| last[name].as_u64().unwrap_or(0);
    let (metadata_bytes, present_bytes) =
        (number("metadata_bytes"), number("present_pages") * PAGE_SIZE);
    let managed_gib = (number("managed_pages") * PAGE_SIZE) as f64 / (1u64 << 30) as f64;
    Ok(BringUp {
        machine: subject.name.into(),
        threads: 1,
        tables: tables.into(),
        bring_up_us,
        first_alloc_us: spread("first_alloc_us"),
        metadata_bytes: metadata_bytes.into(),
        metadata_ratio: Measured(Some(metadata_bytes as f64 / present_bytes.max(1) as f64)),
        managed_gib: managed_gib.into(),
    })
}

const COLUMNS: [Column<BringUp>; 9] = [
    ("<machine", |row| row.machine.clone()),
    ("<tables", |row| row.tables.clone()),
    (">bring-up", |row| shown(row.bring_up_us.middle, microseconds)),
    (">min", |row| shown(row.bring_up_us.least, microseconds)),
    (">max", |row| shown(row.bring_up_us.most, microseconds)),
    (">first allocation", |row| shown(row.first_alloc_us.middle, microseconds)),
    (">metadata", |row| shown(row.metadata_bytes.get(), size)),
    (">of memory", |row| {
        shown(row.metadata_ratio.get(), |ratio| format!("{:.5} %", ratio * 100.0))
    }),
    (">managed", |row| shown(row.managed_gib.get(), |gib| format!("{gib:.2} GiB"))),
];

/// Tables for people.
pub fn tables(rows: &Rows) -> Vec<Table> {
    table(&COLUMNS, &rows.bring_up).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_row_summarises_its_runs() {
        let total = |us: f64| {
            json!({ "bring_up_us": us, "first_alloc_us": us / 2.0, "metadata_bytes": 1 << 20,
                    "present_pages": 1 << 18, "managed_pages": 1 << 18 })
        };
        let row = row(&SUBJECTS[0], "backed", &[total(3.0), total(1.0), total(20.0)])
            .expect("is measured");
        let (time, first) = (row.bring_up_us, row.first_alloc_us.middle);
        let numbers = [time.middle, time.least, time.most, first, row.managed_gib.get()];
        assert_eq!(numbers, [3.0, 1.0, 20.0, 1.5, 1.0].map(Some));
        assert_eq!(row.metadata_ratio.get(), Some(1.0 / 1024.0));
        assert!(super::row(&SUBJECTS[0], "backed", &[]).is_err());
    }
}
