//! The rows of one allocator on one machine.

use super::Scale;
use super::crew::{self, Member};
use super::last_pages::LastPages;
use super::line;
use super::measure::{Sample, spread};
use super::patterns::{self, Freeing, Load};
use crate::bench::subject::{APART, Ours, Subject};
use crate::progress;
use crate::rows::{Alloc, Measured, Spread};
use framewright::units::{Order, PAGE_SHIFT};
use framewright_cli::error::Error;

const ORDERS: [u8; 6] = [0, 1, 3, 8, 9, 18];
/// Orders whose refusal is timed.
const REFUSED: [u8; 2] = [0, 9];
/// Single pages from blocks that have one left: from some blocks, and from half of all.
const ONE_LEFT: &str = "one-left";
const HALF_LEFT: &str = "one-left, half";
/// With fewer blocks in a pass, reading the clock would dominate the times.
const LEAST_WORKING_SET: u64 = 16;
/// The size of the machine on which half of all blocks have one free page left.
const LARGE_GIB: u64 = 1024;

/// Rows, and why some are missing.
#[derive(Default)]
pub struct Rows {
    /// The rows.
    pub rows: Vec<Alloc>,
    /// A sentence for each kind of row that is missing.
    pub left_out: Vec<String>,
}

/// What is done with one order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bulk,
    Random,
    Pair,
}

/// What a row is about.
#[derive(Clone, Copy)]
pub struct Title {
    /// The allocator.
    pub allocator: &'static str,
    /// The memory of the machine.
    pub managed_gib: u64,
    /// The order of the runs.
    pub order: Order,
    /// How runs are allocated and freed.
    pub pattern: &'static str,
    /// The number of threads.
    pub threads: usize,
    /// The most runs that each thread holds.
    pub working_set: u64,
}

/// One assignment of threads to allocators, and its measurements.
struct Way<'a, S> {
    allocator: &'static str,
    subjects: &'a [S],
    threads: usize,
    /// The samples of each thread, as long as no request was refused.
    samples: Option<Vec<Vec<Sample>>>,
    /// The distance between the CPUs in each round, if there are several.
    line_ns: Vec<f64>,
}

impl<'a, S: Subject> Way<'a, S> {
    fn new(allocator: &'static str, subjects: &'a [S], threads: usize) -> Self {
        Self {
            allocator,
            subjects,
            threads,
            samples: Some(vec![Vec::new(); threads]),
            line_ns: Vec::new(),
        }
    }

    /// Measures one more round.
    fn round(
        &mut self,
        work: impl Fn(&Member<'_>, &S) -> Option<Vec<Sample>> + Sync,
    ) -> Result<(), Error> {
        if self.threads > 1 {
            self.line_ns.extend(line::nanoseconds()?);
        }
        let samples = crew::run_on(self.subjects, self.threads, work)?;
        self.subjects.iter().for_each(Subject::drain);
        let samples: Option<Vec<Vec<Sample>>> = samples.into_iter().collect();
        self.samples = self.samples.take().zip(samples).map(|(mut all, samples)| {
            all.iter_mut().zip(samples).for_each(|(all, more)| all.extend(more));
            all
        });
        Ok(())
    }
}

impl Rows {
    /// Measures everything about one allocator on one machine. `apart` has two more allocators for
    /// measuring two threads that share none; it may be empty.
    ///
    /// # Errors
    /// Fails if threads cannot be pinned to their CPUs, or a working set cannot be prepared.
    pub fn measure<S: Subject>(
        &mut self,
        subject: &S,
        apart: &[S],
        managed_gib: u64,
        threads: &[usize],
        scale: Scale,
    ) -> Result<(), Error> {
        for order in ORDERS.into_iter().filter_map(Order::new) {
            progress::step(&format_args!(
                "alloc: {}, {managed_gib} GiB, order {}",
                S::NAME,
                order.get()
            ))?;
            self.order((subject, apart), managed_gib, order, threads, scale)?;
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

    /// Measures all patterns of one order with all numbers of threads.
    ///
    /// # Errors
    /// The errors of [`measure`](Self::measure).
    pub fn order<S: Subject>(
        &mut self,
        (subject, apart): (&S, &[S]),
        managed_gib: u64,
        order: Order,
        threads: &[usize],
        scale: Scale,
    ) -> Result<(), Error> {
        let effort = scale.effort.round(scale.rounds);
        let half = (managed_gib << 30 >> PAGE_SHIFT) / order.pages() / 2;
        for (kind, pattern) in [Kind::Bulk, Kind::Random, Kind::Pair].into_iter().zip(S::PATTERNS) {
            let shared = std::slice::from_ref(subject);
            let mut ways: Vec<Way<'_, S>> =
                threads.iter().map(|&threads| Way::new(S::NAME, shared, threads)).collect();
            // Runs that no CPU caches are shared anyway; and their free lists are as earlier
            // threads left them, so one thread does all its rounds first.
            let is_kept = order <= Order::BLOCK;
            if is_kept && !apart.is_empty() {
                ways.push(Way::new(APART, apart, apart.len()));
            }
            let share = |way: &Way<'_, S>| half.min(scale.working_set) / way.threads as u64;
            if kind != Kind::Pair && ways.iter().any(|way| share(way) < LEAST_WORKING_SET) {
                self.leave_out(format!(
                    "{pattern} where a thread's share of half the memory is less than \
                     {LEAST_WORKING_SET} blocks"
                ));
                ways.retain(|way| share(way) >= LEAST_WORKING_SET);
            }
            let turns: Vec<usize> = (0..ways.len() * scale.rounds)
                .map(|turn| if is_kept { turn % ways.len() } else { turn / scale.rounds })
                .collect();
            for turn in turns {
                if let Some(way) = ways.get_mut(turn) {
                    let blocks = usize::try_from(share(way)).unwrap_or(usize::MAX);
                    let load = Load {
                        order,
                        working_set: blocks,
                        passes: (scale.operations / blocks.max(1)).max(1),
                    };
                    way.round(|member, subject| match kind {
                        Kind::Bulk => {
                            patterns::fill_and_free(subject, member, load, Freeing::InOrder, effort)
                        }
                        Kind::Random => patterns::fill_and_free(
                            subject,
                            member,
                            load,
                            Freeing::Shuffled,
                            effort,
                        ),
                        Kind::Pair => {
                            patterns::pair(subject, member, order, scale.operations, effort)
                        }
                    })?;
                }
            }
            for way in ways {
                let working_set = if kind == Kind::Pair { 1 } else { share(&way) };
                let Way { allocator, threads, samples, line_ns, .. } = way;
                self.add(
                    Title { allocator, managed_gib, order, pattern, threads, working_set },
                    samples,
                    line_ns,
                );
            }
        }
        Ok(())
    }

    /// Measures the rows about memory that is full, or nearly full.
    fn last_pages<S: Subject>(
        &mut self,
        subject: &S,
        managed_gib: u64,
        threads: &[usize],
        blocks: u64,
        scale: Scale,
    ) -> Result<(), Error> {
        let Some(mut full) = crew::alone(subject, || LastPages::prepare(subject, blocks))? else {
            self.leave_out(format!(
                "{} full and one-left on {managed_gib} GiB: it did not fill up",
                S::NAME
            ));
            return Ok(());
        };
        let title = Title {
            allocator: S::NAME,
            managed_gib,
            order: Order::PAGE,
            pattern: "full",
            threads: 1,
            working_set: 0,
        };
        let is_large = blocks != scale.one_left_blocks;
        let pattern = if is_large { HALF_LEFT } else { ONE_LEFT };
        if !is_large {
            for order in REFUSED.into_iter().filter_map(Order::new) {
                let samples = crew::run(subject, 1, |member| {
                    patterns::refusals(subject, member, order, scale.operations, scale.effort)
                })?;
                self.add(Title { order, ..title }, samples.into_iter().collect(), Vec::new());
            }
        }
        crew::alone(subject, || full.free_one_page_a_block(subject))?;
        for &threads in threads {
            let working_set = full.blocks() / threads as u64;
            let pages = usize::try_from(working_set).unwrap_or(usize::MAX);
            let line_ns = if threads > 1 { line::nanoseconds()? } else { None };
            let samples = crew::run(subject, threads, |member| {
                patterns::last_pages(subject, member, pages, scale.effort)
            })?;
            let title = Title { pattern, threads, working_set, ..title };
            self.add(title, samples.into_iter().collect(), line_ns.into_iter().collect());
        }
        crew::alone(subject, || full.end(subject))
    }

    /// Adds a row, or the reason why there is none.
    pub fn add(&mut self, title: Title, samples: Option<Vec<Vec<Sample>>>, line_ns: Vec<f64>) {
        let Title { allocator, managed_gib, order, pattern, threads, working_set } = title;
        let samples = samples.filter(|all| all.iter().all(|samples| !samples.is_empty()));
        let Some(samples) = samples.filter(|all| !all.is_empty()) else {
            let reason = if pattern == "full" {
                "was served a request that no memory is left for"
            } else {
                "was refused"
            };
            return self.leave_out(format!(
                "{allocator} {pattern} order {order:?} on {managed_gib} GiB with {threads} \
                 threads: it {reason}"
            ));
        };
        self.rows.push(Alloc {
            allocator: allocator.into(),
            managed_gib,
            order: order.get().into(),
            pattern: pattern.into(),
            threads: threads as u64,
            working_set: working_set.into(),
            repetitions: Measured(samples.iter().map(|samples| samples.len() as u64).min()),
            alloc_ns: spread(&samples, |sample| Some(sample.get)),
            free_ns: spread(&samples, |sample| sample.put),
            line_ns: Spread::of(line_ns),
        });
    }

    fn leave_out(&mut self, reason: String) {
        if !self.left_out.contains(&reason) {
            self.left_out.push(reason);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::alloc::QUICK;
    use crate::rows::{repeated, to_json};

    #[test]
    fn the_last_pages_of_few_blocks_and_of_many_are_told_apart() {
        let scale = Scale { one_left_blocks: 16, ..QUICK };
        let mut rows = Rows::default();
        for blocks in [16, 64] {
            let measured =
                Ours::with(1 << 30, 1, |ours| rows.last_pages(ours, 1, &[1], blocks, scale));
            measured.expect("it is measured");
        }
        assert_eq!((rows.rows.len(), repeated(&to_json(&rows.rows))), (4, None));
    }
}
