//! Compares every store instruction of this CPU over the vmemmap's own memory, with one thread and
//! with two: which is the best, and whether the library chose it.

use super::Scale;
use super::fill::Fill;
use super::ground::Ground;
use super::measure::{DESCRIPTOR, on_last_cpu};
use crate::bench::common::{failed, synthetic};
use crate::bench::section::{Column, Table, shown, table};
use crate::rows::{Measured, Spread, Store};
use framewright::units::PAGE_SIZE;
use framewright_cli::error::Error;
use framewright_cli::grid::microseconds;
use framewright_cli::hosted::Session;

/// Rows of both kinds of first values, with one thread and, if there are more CPUs, with two.
///
/// # Errors
/// Fails if this process cannot emulate the machine.
pub fn rows(scale: Scale, cpus: usize) -> Result<Vec<Store>, Error> {
    let mut rows = Vec::new();
    for threads in 1..=cpus.min(2) {
        crate::progress::step(&format_args!("init: every store, {threads} threads"))?;
        let measured = if threads == 1 {
            on_last_cpu(|| measure(scale, threads))
        } else {
            measure(scale, threads)
        }?;
        rows.extend(measured);
    }
    Ok(rows)
}

fn measure(scale: Scale, threads: usize) -> Result<Vec<Store>, Error> {
    let machine = synthetic(scale.memory_bytes, 1, u32::try_from(threads).unwrap_or(1))?;
    let session = Session::open(&machine, "")?;
    let parts = session.vmemmap_parts();
    if parts.is_empty() {
        return Err(failed("this host has too little memory for the vmemmap"));
    }
    let bytes = usize::try_from(scale.memory_bytes / PAGE_SIZE * DESCRIPTOR).unwrap_or(usize::MAX);
    let mut ground = Ground::new(&parts, bytes);
    session.dirty_page_array();
    let fills = Fill::of_this_cpu(false);
    let mut times = vec![Vec::new(); fills.len()];
    for round in 0..scale.repetitions {
        for turn in 0..fills.len() {
            let place = if round % 2 == 0 { turn } else { fills.len() - 1 - turn };
            // SAFETY: the ground is the array of this session, which has no manager.
            times[place].push(unsafe { ground.fill(fills[place], threads) }?);
            session.dirty_page_array();
        }
    }
    let all: Vec<(Fill, Spread)> =
        fills.into_iter().zip(times.into_iter().map(Spread::of)).collect();
    let of = |template: bool| {
        let fills = Fill::of_this_cpu(template);
        let all: Vec<_> = all.iter().filter(|one| fills.contains(&one.0)).copied().collect();
        let chosen = session.store_name(template).unwrap_or_default();
        compared(&all, chosen, template, threads as u64, bytes as u64)
    };
    Ok([of(false), of(true)].concat())
}

/// Rows of one kind of first value.
fn compared(
    all: &[(Fill, Spread)],
    chosen: &str,
    template: bool,
    threads: u64,
    bytes: u64,
) -> Vec<Store> {
    let best = all.iter().filter_map(|one| one.1.middle).fold(f64::INFINITY, f64::min);
    let row = |&(fill, seconds): &(Fill, Spread)| Store {
        store: fill.name().into(),
        init: if template { "template" } else { "zero" }.into(),
        threads,
        bytes,
        seconds,
        best_ratio: Measured(seconds.middle.map(|seconds| best / seconds)),
        chosen: Measured(Some(u64::from(fill.name() == chosen))),
    };
    all.iter().map(row).collect()
}

const COLUMNS: [Column<Store>; 8] = [
    ("<store", |row| row.store.clone()),
    ("<init", |row| row.init.clone()),
    (">threads", |row| row.threads.to_string()),
    (">time", |row| shown(row.seconds.middle, |seconds| microseconds(seconds * 1e6))),
    (">min", |row| shown(row.seconds.least, |seconds| microseconds(seconds * 1e6))),
    (">GB/s", |row| {
        shown(row.seconds.middle, |seconds| format!("{:.1}", row.bytes as f64 / seconds * 1e-9))
    }),
    (">of the best", |row| shown(row.best_ratio.get(), |ratio| format!("{ratio:.2}"))),
    ("<chosen", |row| if row.chosen.get() == Some(1) { "yes" } else { "" }.into()),
];

/// Tables for people.
pub fn table_of(rows: &[Store]) -> Option<Table> {
    let table = table(&COLUMNS, rows)?;
    Some(Table { title: Some("Every store of this CPU over the same memory".into()), ..table })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_is_one_and_the_chosen_is_marked() {
        let all = [
            (Fill::Movnti, Spread::of([4.0, 4.0, 5.0])),
            (Fill::Avx2, Spread::of([2.0, 2.0, 3.0])),
        ];
        let rows = compared(&all, "movnti", true, 2, 64);
        let told: Vec<_> =
            rows.iter().map(|row| (row.best_ratio.get(), row.chosen.get())).collect();
        assert_eq!(told, [(Some(0.5), Some(1)), (Some(1.0), Some(0))]);
        assert!(rows.iter().all(|row| row.init == "template" && row.threads == 2));
    }
}
