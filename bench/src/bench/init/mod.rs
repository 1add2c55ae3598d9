//! `framewright-bench init`: the time for the memory map, by policy, first value and threads,
//! beside the best plain fill of as many bytes; and how fast each store instruction of the CPU
//! fills them.

mod fill;
mod ground;
pub mod growth;
pub mod limit;
mod measure;
mod stores;
mod table;

use super::host;
use super::section::{Section, Table};
use crate::rows::{Init, Rows, to_json};
use framewright::parameters::Policy;
use framewright_cli::error::Error;
use measure::Group;

/// Describes the timing, for readers of the numbers.
const TIMED: &str = "\
timed by the library on the platform's clock from the beginning of intake to all memory available; \
the limit is the fastest plain fill of the array's own bytes by as many threads, in turn with the \
bring-ups in one process: every store of this CPU is tried (clzero, rep stosb and memset for zero, \
movnti, movdir64b, SSE2, AVX2 and AVX-512 past the caches for all), as the rows of stores show; \
ratio: limit over time of neighbouring runs, median and quartiles; memory backed and dirty, or in \
the rows of first touch never touched; CPU time: of the process meanwhile; deferred over eager in \
neighbouring runs; growth: one section of 128 MiB brought up by the request that needs it, beside \
its share of the same work in the job";

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Scale {
    memory_bytes: u64,
    repetitions: usize,
}

const FULL: Scale = Scale { memory_bytes: 64 << 30, repetitions: 24 };
const QUICK: Scale = Scale { memory_bytes: 8 << 30, repetitions: 8 };

/// Measures everything.
///
/// # Errors
/// Fails if a machine cannot be emulated by this process.
pub fn section(quick: bool) -> Result<Section, Error> {
    let scale = if quick { QUICK } else { FULL };
    let cpus = host::cpus()?.len();
    let (rows, stores) = (all(scale, cpus)?, stores::rows(scale, cpus)?);
    let timed = format!("{} GiB; {TIMED}", scale.memory_bytes >> 30);
    Ok(Section::new("init", scale.repetitions, timed, [to_json(&rows), to_json(&stores)].concat()))
}

/// Tables for people.
pub fn tables(rows: &Rows) -> Vec<Table> {
    table::rows(&rows.init).into_iter().chain(stores::table_of(&rows.store)).collect()
}

/// With first touch, every page takes a page fault, so a few rounds are enough.
const FIRST_TOUCHES: usize = 5;

fn all(scale: Scale, cpus: usize) -> Result<Vec<Init>, Error> {
    let mut rows = Vec::new();
    for template in [false, true] {
        let group = |policies, threads| Group { policies, template, threads, first_touch: false };
        rows.extend(measure::rows(group(&[Policy::Eager, Policy::Deferred], 1), scale)?);
        if cpus > 1 {
            rows.extend(measure::rows(group(&[Policy::Deferred], cpus), scale)?);
        }
    }
    let zero =
        |policies, threads, first_touch| Group { policies, template: false, threads, first_touch };
    rows.extend(measure::rows(zero(&[Policy::OnDemand], 1, false), scale)?);
    let few = Scale { repetitions: scale.repetitions.min(FIRST_TOUCHES), ..scale };
    rows.extend(measure::rows(zero(&[Policy::Eager], 1, true), few)?);
    rows.extend(measure::rows(zero(&[Policy::Deferred], cpus, true), few)?);
    rows.push(growth::row(scale)?);
    Ok(rows)
}

/// The distinct numbers of threads for these shares of the CPUs, at least one thread each.
pub fn threads_of(cpus: usize, percent: &[usize]) -> Vec<usize> {
    let mut threads: Vec<usize> =
        percent.iter().map(|percent| (cpus * percent / 100).max(1)).collect();
    threads.dedup();
    threads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_cpus() {
        assert_eq!(threads_of(1, &[0, 50, 100]), [1]);
        assert_eq!(threads_of(2, &[0, 12, 25, 37, 50, 75, 100]), [1, 2]);
        assert_eq!(threads_of(52, &[0, 12, 25, 37, 50, 75, 100]), [1, 6, 13, 19, 26, 39, 52]);
    }
}
