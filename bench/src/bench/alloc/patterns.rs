//! What is done with an allocator while it is timed.

use super::crew::Member;
use super::measure::{Effort, Sample, Stopwatch, repeat};
use crate::bench::random::Random;
use crate::bench::subject::Subject;
use framewright::units::Order;
use std::hint::black_box;

/// An allocator that shares its state between CPUs may refuse by mistake; it is asked this many
/// times in a row.
const ATTEMPTS: usize = 1000;

/// Requests of one size.
#[derive(Clone, Copy)]
pub struct Load {
    /// The size of a request.
    pub order: Order,
    /// The most blocks that each thread holds.
    pub working_set: usize,
    /// The number of passes in a repetition, so that it is long enough to be timed.
    pub passes: usize,
}

/// The order in which a full working set is freed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Freeing {
    /// In the order of allocation.
    InOrder,
    /// In a random order that is equal in every run.
    Shuffled,
}

/// Fills the working set and frees it, and times the two separately.
pub fn fill_and_free<S: Subject>(
    subject: &S,
    member: &Member<'_>,
    load: Load,
    freeing: Freeing,
    effort: Effort,
) -> Option<Vec<Sample>> {
    let stopwatch = Stopwatch::new();
    let mut random = Random::new(member.index as u64);
    let mut held = Vec::with_capacity(load.working_set);
    repeat(member, effort, || {
        let (mut get_ns, mut put_ns) = (0.0, 0.0);
        let mut full = true;
        for _ in 0..load.passes {
            get_ns += stopwatch.time(|| fill(subject, load, &mut held));
            full &= held.len() == load.working_set;
            if freeing == Freeing::Shuffled {
                random.shuffle(&mut held);
            }
            // All threads allocate at the same time, and all free at the same time.
            member.meet();
            put_ns += stopwatch.time(|| free(subject, load.order, &held));
            held.clear();
            member.meet();
        }
        let operations = (load.working_set * load.passes) as f64;
        full.then(|| Sample { get: get_ns / operations, put: Some(put_ns / operations) })
    })
}

fn fill<S: Subject>(subject: &S, load: Load, held: &mut Vec<u64>) {
    let order = black_box(load.order);
    let mut attempts = 0;
    while held.len() < load.working_set {
        match subject.get(order) {
            Some(pfn) => held.push(black_box(pfn)),
            None if attempts == ATTEMPTS => return,
            None => attempts += 1,
        }
    }
}

fn free<S: Subject>(subject: &S, order: Order, held: &[u64]) {
    let order = black_box(order);
    for &pfn in held {
        subject.put(black_box(pfn), order);
    }
}

/// Allocates and frees in turn, timed together.
pub fn pair<S: Subject>(
    subject: &S,
    member: &Member<'_>,
    order: Order,
    pairs: usize,
    effort: Effort,
) -> Option<Vec<Sample>> {
    let stopwatch = Stopwatch::new();
    repeat(member, effort, || {
        let mut refused = 0;
        let ns = stopwatch.time(|| {
            let order = black_box(order);
            for _ in 0..pairs {
                match subject.get(order) {
                    Some(pfn) => subject.put(black_box(pfn), order),
                    None => refused += 1,
                }
            }
        });
        (refused <= ATTEMPTS.min(pairs / 2)).then(|| Sample { get: ns / pairs as f64, put: None })
    })
}

/// Requests memory that is not there.
pub fn refusals<S: Subject>(
    subject: &S,
    member: &Member<'_>,
    order: Order,
    requests: usize,
    effort: Effort,
) -> Option<Vec<Sample>> {
    let stopwatch = Stopwatch::new();
    repeat(member, effort, || {
        let mut served = Vec::new();
        let ns = stopwatch.time(|| {
            let order = black_box(order);
            for _ in 0..requests {
                if let Some(pfn) = black_box(subject.get(order)) {
                    served.push(pfn);
                }
            }
        });
        free(subject, order, &served);
        served.is_empty().then(|| Sample { get: ns / requests as f64, put: None })
    })
}

/// Allocates all free memory, which is one page in each block, and frees it, and times the two
/// separately. The caches of CPUs are drained in between, so that pages come from their blocks and
/// return to them.
pub fn last_pages<S: Subject>(
    subject: &S,
    member: &Member<'_>,
    pages: usize,
    effort: Effort,
) -> Option<Vec<Sample>> {
    let stopwatch = Stopwatch::new();
    let load = Load { order: Order::PAGE, working_set: pages, passes: 1 };
    let mut random = Random::new(member.index as u64);
    let mut held = Vec::with_capacity(pages);
    repeat(member, effort, || {
        let get_ns = stopwatch.time(|| fill(subject, load, &mut held));
        let full = held.len() == pages;
        random.shuffle(&mut held);
        member.meet();
        let put_ns = stopwatch.time(|| free(subject, Order::PAGE, &held));
        held.clear();
        member.meet();
        if member.index == 0 {
            subject.drain();
        }
        let pages = pages as f64;
        full.then(|| Sample { get: get_ns / pages, put: Some(put_ns / pages) })
    })
}
