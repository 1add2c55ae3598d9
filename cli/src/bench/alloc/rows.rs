//! The rows of one allocator on one machine.

use super::Scale;
use super::crew;
use super::last_pages::LastPages;
use super::measure::{Sample, spread};
use super::patterns::{self, Freeing, Load};
use crate::bench::subject::{Ours, Subject};
use crate::error::Error;
use crate::progress;
use framewright::units::{Order, PAGE_SHIFT};
use serde_json::{Value, json};

const ORDERS: [u8; 6] = [0, 1, 3, 8, 9, 18];
/// Orders whose refusal is timed.
const REFUSED: [u8; 2] = [0, 9];
/// With fewer blocks to a pass the clock would be read too often to tell their times apart.
const LEAST_WORKING_SET: u64 = 16;
/// The machine on which half of all blocks have one free page left.
const LARGE_GIB: u64 = 1024;

/// Rows, and why some are missing.
#[derive(Default)]
pub struct Rows {
    /// The rows.
    pub rows: Vec<Value>,
    /// One sentence for each kind of row that is missing.
    pub left_out: Vec<String>,
}

/// What a row is about.
#[derive(Clone, Copy)]
struct Title {
    allocator: &'static str,
    managed_gib: u64,
    order: Order,
    pattern: &'static str,
    threads: usize,
    working_set: u64,
}

impl Rows {
    /// Measures everything about one allocator on one machine.
    ///
    /// # Errors
    /// Threads that cannot be put on their CPUs; a working set that cannot be prepared.
    pub fn measure<S: Subject>(
        &mut self,
        subject: &S,
        managed_gib: u64,
        threads: &[usize],
        scale: Scale,
    ) -> Result<(), Error> {
        for order in ORDERS.into_iter().filter_map(Order::new) {
            progress::step(&format_args!("alloc: {}, {managed_gib} GiB, order {}", S::NAME, order.get()))?;
            for &threads in threads {
                self.order(subject, managed_gib, order, threads, scale)?;
            }
        }
        progress::step(&format_args!("alloc: {}, {managed_gib} GiB, last pages", S::NAME))?;
        let mut blocks = vec![scale.one_left_blocks];
        if scale.one_left_large && managed_gib == LARGE_GIB && S::NAME == Ours::NAME {
            blocks.push((managed_gib << 30 >> PAGE_SHIFT) / Order::BLOCK.pages() / 2);
        }
        for blocks in blocks {
            self.last_pages(subject, managed_gib, threads, blocks, scale)?;
        }
        Ok(())
    }

    /// All patterns of one order with so many threads.
    fn order<S: Subject>(
        &mut self,
        subject: &S,
        managed_gib: u64,
        order: Order,
        threads: usize,
        scale: Scale,
    ) -> Result<(), Error> {
        let title = Title { allocator: S::NAME, managed_gib, order, pattern: "pair", threads, working_set: 1 };
        let half = (managed_gib << 30 >> PAGE_SHIFT) / order.pages() / 2;
        let working_set = half.min(scale.working_set) / threads as u64;
        for (pattern, freeing) in [("bulk", Freeing::InOrder), ("random", Freeing::Shuffled)] {
            if working_set < LEAST_WORKING_SET {
                self.leave_out(format!(
                    "{pattern} where a thread's share of half the memory is less than {LEAST_WORKING_SET} blocks"
                ));
                continue;
            }
            let title = Title { pattern, working_set, ..title };
            let blocks = usize::try_from(working_set).unwrap_or(usize::MAX);
            let load = Load { order, working_set: blocks, passes: (scale.operations / blocks).max(1) };
            let samples = crew::run(subject, threads, |member| {
                patterns::fill_and_free(subject, member, load, freeing, scale.effort)
            })?;
            self.add(title, samples);
            subject.drain();
        }
        let samples = crew::run(subject, threads, |member| {
            patterns::pair(subject, member, order, scale.operations, scale.effort)
        })?;
        self.add(title, samples);
        subject.drain();
        Ok(())
    }

    /// The rows about memory that is full, or nearly.
    fn last_pages<S: Subject>(
        &mut self,
        subject: &S,
        managed_gib: u64,
        threads: &[usize],
        blocks: u64,
        scale: Scale,
    ) -> Result<(), Error> {
        let Some(mut full) = crew::alone(subject, || LastPages::prepare(subject, blocks))? else {
            self.leave_out(format!("{} full and one-left on {managed_gib} GiB: it did not fill up", S::NAME));
            return Ok(());
        };
        let title =
            Title { allocator: S::NAME, managed_gib, order: Order::PAGE, pattern: "full", threads: 1, working_set: 0 };
        if blocks == scale.one_left_blocks {
            for order in REFUSED.into_iter().filter_map(Order::new) {
                let samples = crew::run(subject, 1, |member| {
                    patterns::refusals(subject, member, order, scale.operations, scale.effort)
                })?;
                self.add(Title { order, ..title }, samples);
            }
        }
        crew::alone(subject, || full.free_one_page_a_block(subject))?;
        for &threads in threads {
            let working_set = full.blocks() / threads as u64;
            let pages = usize::try_from(working_set).unwrap_or(usize::MAX);
            let samples =
                crew::run(subject, threads, |member| patterns::last_pages(subject, member, pages, scale.effort))?;
            self.add(Title { pattern: "one-left", threads, working_set, ..title }, samples);
        }
        crew::alone(subject, || full.end(subject))
    }

    fn add(&mut self, title: Title, samples: Vec<Option<Vec<Sample>>>) {
        let Title { allocator, managed_gib, order, pattern, threads, working_set } = title;
        let samples: Option<Vec<Vec<Sample>>> = samples.into_iter().collect();
        let get = samples.as_deref().and_then(|samples| spread(samples, |sample| Some(sample.get)));
        let (Some(get), Some(samples)) = (get, samples) else {
            let reason =
                if pattern == "full" { "was served a request that no memory is left for" } else { "was refused" };
            return self.leave_out(format!(
                "{allocator} {pattern} order {order:?} on {managed_gib} GiB with {threads} threads: it {reason}"
            ));
        };
        let put = spread(&samples, |sample| sample.put);
        self.rows.push(json!({
            "bench": "alloc",
            "allocator": allocator,
            "managed_gib": managed_gib,
            "order": order.get(),
            "pattern": pattern,
            "threads": threads,
            "working_set": working_set,
            "repetitions": samples.iter().map(Vec::len).min(),
            "alloc_ns": get.middle,
            "alloc_ns_min": get.least,
            "alloc_ns_max": get.most,
            "free_ns": put.map(|put| put.middle),
            "free_ns_min": put.map(|put| put.least),
            "free_ns_max": put.map(|put| put.most),
        }));
    }

    fn leave_out(&mut self, reason: String) {
        if !self.left_out.contains(&reason) {
            self.left_out.push(reason);
        }
    }
}
