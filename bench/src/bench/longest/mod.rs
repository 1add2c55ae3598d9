//! `framewright-bench longest`: the longest call, and the longest time with interrupts off, in
//! states of memory that are worst for searches.
//!
//! A state is made (`states`) on a machine whose platform reads a clock when interrupts go off and
//! on (`watched`); then each operation is called several times.

mod states;

use super::common::failed;
use super::section::{Column, Section, Table, shown, table};
use super::watched::{Took, Watched, watch};
use crate::progress;
use crate::rows::{Longest, Measured, Rows, Spread};
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::{Manager, Request, Reserves};
use framewright_cli::error::Error;
use framewright_cli::grid::microseconds;
use states::{State, give_back};

/// Describes the timing, for readers of the numbers.
const TIMED: &str = "\
time that a CPU spent on the calling thread, so that what the host did meanwhile does not count, \
read around each call and where interrupts go off and on, which adds up to half a microsecond to \
each. Each repetition, on a fresh machine, counts as its longest call; the table has the shortest \
of the repetitions. get and put are allocations by general request and their frees; below is under \
the middle of memory, refused where that is in use; free areas is what /proc/buddyinfo shows; \
isolate takes 1 GiB out of use, unisolate puts it back. One node, no page descriptors";

const REPETITIONS: usize = 5;
const QUICK_REPETITIONS: usize = 2;
/// The calls of an allocation in a repetition.
const CALLS: usize = 64;
/// The memory of the machines.
const GIB: [u64; 3] = [8, 64, 1024];

/// Measures all states of all machines.
///
/// # Errors
/// Fails if a machine cannot be emulated by this process.
pub fn section(quick: bool) -> Result<Section, Error> {
    let (repetitions, sizes) = if quick { (QUICK_REPETITIONS, 1) } else { (REPETITIONS, 3) };
    let mut rows = Vec::new();
    for gib in GIB.into_iter().take(sizes) {
        for state in states::ALL {
            progress::step(&format_args!("longest: {gib} GiB, {}", state.name()))?;
            // Making the largest machine takes seconds.
            let repetitions = if gib > 64 { 2 } else { repetitions };
            rows.extend(of_state(gib, state, repetitions)?);
        }
    }
    Ok(Section::of(repetitions, TIMED, &rows))
}

/// The times of the operations in one repetition, in order.
type Operations = Vec<(String, usize, Took)>;

fn of_state(gib: u64, state: State, repetitions: usize) -> Result<Vec<Longest>, Error> {
    let runs: Vec<Operations> =
        (0..repetitions).map(|_| once(gib, state)).collect::<Result<_, _>>()?;
    let Some(first) = runs.first() else { return Ok(Vec::new()) };
    let row = |(number, (operation, calls, _)): (usize, &(String, usize, Took))| {
        let us = |part: fn(&Took) -> f64| {
            let each = runs.iter().filter_map(|run| run.get(number));
            Spread::of(each.map(|(_, _, took)| part(took) * 1e6))
        };
        Longest {
            managed_gib: gib,
            state: state.name().into(),
            operation: operation.clone(),
            calls: Measured(Some(*calls as u64)),
            call_us: us(|took| took.call),
            hold_us: us(|took| took.hold),
        }
    };
    Ok(first.iter().enumerate().map(row).collect())
}

/// Runs one repetition on a machine of its own.
fn once(gib: u64, state: State) -> Result<Operations, Error> {
    let manager = Watched::bring_up(gib << 30)?;
    let _cpu = manager.platform().enter()?;
    state.make(&manager);
    let mut took = Vec::new();
    for of in [0, 1, 5, 9, 10, 18] {
        pair(&manager, &format!("order {of}"), request(of)?, &mut took);
    }
    for of in [0, 9] {
        let below = Request { max_address: gib << 29, ..request(of)? };
        pair(&manager, &format!("order {of} below"), below, &mut took);
    }
    let (_, areas) = watch(|| manager.views().map(|zone| zone.free_areas().pages()).sum::<u64>());
    took.push(("free areas".into(), 1, areas));
    let start = BlockNumber::containing(Pfn((gib << 18) / 2));
    let range = BlockRange { start, end: BlockNumber(start.0 + 512) };
    let (isolated, isolate) = watch(|| manager.isolation().isolate(range));
    isolated.map_err(failed)?;
    let (put_back, unisolate) = watch(|| manager.isolation().unisolate(range));
    put_back.map_err(failed)?;
    took.push(("isolate".into(), 1, isolate));
    took.push(("unisolate".into(), 1, unisolate));
    let (drained, drain) = watch(|| manager.drain());
    drained.map_err(failed)?;
    took.push(("drain".into(), 1, drain));
    manager.verify().map_err(failed)?;
    Ok(took)
}

fn request(order: u8) -> Result<Request, Error> {
    let order = Order::new(order).ok_or_else(|| failed("no such order"))?;
    Ok(Request { reserves: Reserves::All, ..Request::new(order) })
}

/// Allocates and frees; records the longest call of each.
fn pair(manager: &Manager<Watched>, name: &str, request: Request, took: &mut Operations) {
    let (mut held, mut get, mut put) = (Vec::<PfnRange>::new(), Took::default(), Took::default());
    for _ in 0..CALLS {
        let (got, one) = watch(|| manager.allocate(&request));
        get = get.max(one);
        held.extend(got);
    }
    took.push((format!("get, {name}"), CALLS, get));
    let calls = held.len();
    for range in held {
        let ((), one) = watch(|| give_back(manager, range.start.0, range.pages()));
        put = put.max(one);
    }
    if calls != 0 {
        took.push((format!("put, {name}"), calls, put));
    }
}

const COLUMNS: [Column<Longest>; 6] = [
    (">managed", |row| format!("{} GiB", row.managed_gib)),
    ("<state", |row| row.state.clone()),
    ("<operation", |row| row.operation.clone()),
    (">calls", |row| shown(row.calls.get(), |calls| calls.to_string())),
    (">longest", |row| shown(row.call_us.least, microseconds)),
    (">interrupts off", |row| shown(row.hold_us.least, microseconds)),
];

/// Tables for people.
pub fn tables(rows: &Rows) -> Vec<Table> {
    table(&COLUMNS, &rows.longest).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_are_parts_of_calls_and_there_are_some() {
        let manager = Watched::bring_up(1 << 30).expect("a small machine");
        let _cpu = manager.platform().enter().expect("nobody else is it");
        let mut took = Vec::new();
        pair(&manager, "", request(10).expect("an order"), &mut took);
        assert_eq!(took.len(), 2);
        assert!(took.iter().all(|(_, _, took)| took.hold > 0.0 && took.hold <= took.call));
    }
}
