//! `framewright-bench alloc`: the cost of allocating and freeing, beside other allocators.

mod away;
pub mod crew;
mod last_pages;
pub mod line;
pub mod measure;
mod patterns;
mod rows;
mod table;

use super::host;
use super::section::{Section, Table};
use super::subject::{self, Buddy, Depot, Ours, Requests};
use crate::bench::common::failed;
use framewright::units::Order;
use framewright_cli::error::Error;
use measure::Effort;
use rows::Rows;
use std::time::Duration;

/// Describes the timing, for readers of the numbers.
const TIMED: &str = "\
nanoseconds per operation in each thread; the clock is read around whole passes of many operations \
and its own cost is subtracted. Repetitions are timed after one to warm up; a row is the mean of \
its threads' medians, with the minimum and maximum of all. bulk: fill the working set (blocks in \
each thread), then free it in the same order, both timed separately; random: the same, freed in \
random order; pair: allocate one block and free it at once, timed together; one-left: single \
pages, when each block of the working set has one free page and all other memory is taken, per-CPU \
caches emptied first; one-left, half: the same in half of all blocks, ours only; full: a request \
that is refused, as all memory is taken; request, odd: ours by the calls for any request, allocate \
and free instead of allocate_order and free_order, odd with a quarter fewer than 2^order pages; \
own node pair, away pair: pair on a machine with two nodes, when the caller's node has memory and \
when it is full. Each thread is a CPU of its own, pinned to a CPU of the host; all start together. \
bulk, random and pair are measured in rounds, each with all numbers of threads in turn (except \
order 18); a row has the repetitions of all its rounds. line is the time that a cache line takes \
from one of the host's first two CPUs to the other, measured before each round: where a host moves \
its virtual CPUs, rows with several threads change with it. framewright, one for each thread: each \
thread has a machine to itself, so that threads share only the host. No frame is touched";

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Scale {
    /// How often each row is measured.
    pub effort: Effort,
    /// The number of rounds, so that a disturbance of a second does not affect only one row.
    pub rounds: usize,
    /// The most blocks that all threads together hold.
    pub working_set: u64,
    /// The number of operations in a repetition.
    pub operations: usize,
    /// The number of 2 MiB blocks with one free page.
    pub one_left_blocks: u64,
    /// Whether to measure ours also with one free page in each block of half the memory of the
    /// largest machine.
    pub one_left_large: bool,
}

const FULL: Scale = Scale {
    effort: Effort { repetitions: 12, least: 3, enough: Duration::from_millis(300) },
    rounds: 3,
    working_set: 1 << 17,
    operations: 1 << 14,
    one_left_blocks: 2048,
    one_left_large: true,
};

const QUICK: Scale = Scale {
    effort: Effort { repetitions: 3, least: 3, enough: Duration::from_millis(100) },
    rounds: 3,
    working_set: 1 << 11,
    operations: 1 << 10,
    one_left_blocks: 64,
    one_left_large: false,
};

const MANAGED_GIB: [u64; 3] = [8, 64, 1024];
/// The orders that are measured with the calls for any request, and those with runs that are
/// somewhat shorter than the order.
const REQUESTED: [u8; 4] = [0, 2, 3, 9];
const ODD: [u8; 2] = [2, 9];

/// Measures all allocators.
///
/// # Errors
/// Fails if a machine cannot be emulated by this process, or an allocator did not do its task.
pub fn section(quick: bool) -> Result<Section, Error> {
    let scale = if quick { QUICK } else { FULL };
    let threads = thread_counts(host::cpus()?.len());
    let cpus = threads.last().copied().unwrap_or(1);
    let mut rows = Rows::default();
    for managed_gib in MANAGED_GIB {
        let bytes = managed_gib << 30;
        let cpus = u32::try_from(cpus).map_err(|_| failed("the host has too many CPUs"))?;
        Ours::with(bytes, cpus, |ours| {
            if managed_gib == MANAGED_GIB[0] {
                for order in REQUESTED.into_iter().filter_map(Order::new) {
                    let requests = Requests::<false>(*ours);
                    rows.order((&requests, &[]), managed_gib, order, &threads, scale)?;
                }
                for order in ODD.into_iter().filter_map(Order::new) {
                    let requests = Requests::<true>(*ours);
                    rows.order((&requests, &[]), managed_gib, order, &threads, scale)?;
                }
            }
            if cpus < 2 {
                return rows.measure(ours, &[], managed_gib, &threads, scale);
            }
            Ours::with(bytes, cpus, |one| {
                Ours::with(bytes, cpus, |other| {
                    rows.measure(ours, &[*one, *other], managed_gib, &threads, scale)
                })
            })
        })?;
        if managed_gib == MANAGED_GIB[0] && cpus > 1 {
            away::measure(&mut rows, managed_gib, scale)?;
        }
        rows.measure(&Buddy::new(bytes), &[], managed_gib, &threads, scale)?;
        rows.measure(&Depot::new(bytes)?, &[], managed_gib, &threads, scale)?;
    }
    let timed = format!("{TIMED}. {}", subject::CONDITIONS);
    let Rows { rows, left_out } = rows;
    Ok(Section { left_out, ..Section::of(scale.effort.repetitions, timed, &rows) })
}

/// Tables for people, one for each machine.
pub fn tables(rows: &crate::rows::Rows) -> Vec<Table> {
    rows.alloc
        .chunk_by(|one, next| one.managed_gib == next.managed_gib)
        .map(|rows| Table {
            title: rows.first().map(|row| format!("{} GiB managed", row.managed_gib)),
            grid: table::grid(rows),
        })
        .collect()
}

/// 1, 2, 4 and so on, and the number of all CPUs.
pub(super) fn thread_counts(cpus: usize) -> Vec<usize> {
    let doubled = std::iter::successors(Some(1), |threads| Some(threads * 2))
        .take_while(|&threads| threads < cpus);
    doubled.chain([cpus.max(1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::thread_counts;

    #[test]
    fn threads_double_up_to_all_cpus() {
        assert_eq!(
            [1, 2, 6, 8].map(thread_counts),
            [vec![1], vec![1, 2], vec![1, 2, 4, 6], vec![1, 2, 4, 8]]
        );
    }
}
