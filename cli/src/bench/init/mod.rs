//! `framewright bench init`: how long the memory map takes, by policy, first value and threads, beside a plain fill of as many bytes.

pub mod limit;
mod measure;
mod table;

use super::host;
use super::scaling;
use super::section::Section;
use crate::args::{BenchInit, BenchScaling, Where};
use crate::error::Error;
use crate::grid::Grid;
use framewright::parameters::Policy;
use measure::Title;
use serde_json::Value;

/// What is timed, in words that go with the numbers.
const TIMED: &str = "\
timed by the library on the platform's clock from the beginning of intake to all memory available; the limit is the fastest plain fill of the same number of bytes \
by as many threads, in turn with the bring-ups (rep stosb, memset or clzero for zero, movnti for a template); memory backed and dirty, or in the rows of first touch never touched; \
growth: one section of 128 MiB brought up by the request that wants it, beside its share of the same work in the job";

/// How much is done.
#[derive(Clone, Copy)]
pub struct Scale {
    memory_bytes: u64,
    repetitions: usize,
}

const FULL: Scale = Scale { memory_bytes: 64 << 30, repetitions: 7 };
const QUICK: Scale = Scale { memory_bytes: 8 << 30, repetitions: 3 };

/// Measures everything.
///
/// # Errors
/// A machine that this process cannot stand in for.
pub fn run(options: &BenchInit) -> Result<(), Error> {
    if options.table {
        return scaling::run(&BenchScaling { on: Where::Hosted, quick: options.quick, json: options.json });
    }
    let scale = if options.quick { QUICK } else { FULL };
    let rows = all(scale, host::cpus()?.len())?;
    let timed = format!("{} GiB; {TIMED}", scale.memory_bytes >> 30);
    Section::new("init", scale.repetitions, timed, rows).print(options.json)
}

/// Rows for people.
pub fn table(rows: &[Value]) -> Grid {
    table::rows(rows)
}

fn all(scale: Scale, cpus: usize) -> Result<Vec<Value>, Error> {
    let mut rows = Vec::new();
    for template in [false, true] {
        let title = |policy, threads| Title { policy, template, threads, first_touch: false };
        rows.push(measure::row(title(Policy::Eager, 1), scale)?);
        for threads in threads_of(cpus, &[0, 100]) {
            rows.push(measure::row(title(Policy::Deferred, threads), scale)?);
        }
    }
    rows.push(measure::row(
        Title { policy: Policy::OnDemand, template: false, threads: 1, first_touch: false },
        scale,
    )?);
    for (policy, threads) in [(Policy::Eager, 1), (Policy::Deferred, cpus)] {
        rows.push(measure::row(Title { policy, template: false, threads, first_touch: true }, scale)?);
    }
    rows.push(measure::growth(scale)?);
    Ok(rows)
}

/// Numbers of threads that are these shares of the CPUs, at least one, each once.
pub fn threads_of(cpus: usize, percent: &[usize]) -> Vec<usize> {
    let mut threads: Vec<usize> = percent.iter().map(|percent| (cpus * percent / 100).max(1)).collect();
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
