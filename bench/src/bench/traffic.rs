//! `framewright-bench traffic`: what an operation costs when all sizes come together.
//!
//! `bench alloc` asks for one order at a time, which is the best case of every cache and every
//! special case. Here a recorded trace of mixed orders is replayed on memory that is half or
//! nearly full: bursts of allocations, then frees of random runs until memory is as full as before.

use super::alloc::crew::{self, Member};
use super::alloc::measure::{Effort, Sample, Stopwatch, repeat, spread};
use super::host;
use super::random::Random;
use super::section::{Column, Section, Table, shown, table};
use super::subject::{self, Buddy, Depot, Ours, Subject};
use crate::progress;
use crate::rows::{Measured, Rows, Spread, Traffic};
use framewright::units::{Order, PAGE_SHIFT};
use framewright_cli::error::Error;
use std::cell::RefCell;
use std::time::Duration;

/// What is timed, in words that go with the numbers.
const TIMED: &str = "\
nanoseconds per operation, an operation being one allocation or one free, in each thread; the cost \
of the harness (harness), which is the same trace replayed on an array used as a stack, is \
subtracted. 70 % of the requests are of order 0, 10 % of orders 1 to 3, 10 % of orders 4 to 8 and \
10 % of order 9; up to 256 are made in a burst, then random runs are freed until memory is as full \
as before. The trace is recorded before and is the same for all. refused is the share of the \
requests that found no memory; what was refused is not freed. No frame is touched";

const MANAGED_GIB: u64 = 8;
/// How full memory is kept.
const FULL_PERCENT: [u64; 2] = [50, 97];
const THREADS: [usize; 2] = [1, 2];
/// Requests of a burst at most.
const MOST_IN_BURST: usize = 256;
/// Share of the requests in percent, and their orders.
const MIX: [(usize, std::ops::RangeInclusive<u8>); 4] =
    [(70, 0..=0), (10, 1..=3), (10, 4..=8), (10, 9..=9)];

/// How much is done.
#[derive(Clone, Copy)]
struct Scale {
    effort: Effort,
    /// Operations of a repetition, to the end of a burst.
    operations: usize,
}

const FULL: Scale = Scale {
    effort: Effort { repetitions: 24, least: 12, enough: Duration::from_secs(2) },
    operations: 1 << 16,
};

const QUICK: Scale = Scale {
    effort: Effort { repetitions: 3, least: 3, enough: Duration::from_millis(100) },
    operations: 1 << 13,
};

/// Measures all allocators.
///
/// # Errors
/// A machine that this process cannot stand in for.
pub fn section(quick: bool) -> Result<Section, Error> {
    let scale = if quick { QUICK } else { FULL };
    let cpus = host::cpus()?.len();
    let mut rows = Vec::new();
    let mut left_out = Vec::new();
    let bytes = MANAGED_GIB << 30;
    for threads in THREADS {
        if threads > cpus {
            left_out.push(format!("{threads} threads: the host has {cpus} CPU"));
            continue;
        }
        for percent in FULL_PERCENT {
            let case = Case { percent, threads, scale };
            // Each on memory that nothing was done to before.
            rows.push(Ours::with(bytes, 2, |ours| case.row(ours))?);
            rows.push(case.row(&Buddy::new(bytes))?);
            rows.push(case.row(&Depot::new(bytes)?)?);
        }
    }
    let timed = format!("{TIMED}. {}", subject::CONDITIONS);
    Ok(Section { left_out, ..Section::of(scale.effort.repetitions, timed, &rows) })
}

/// One row, whatever the allocator.
#[derive(Clone, Copy)]
struct Case {
    percent: u64,
    threads: usize,
    scale: Scale,
}

impl Case {
    fn row<S: Subject>(self, subject: &S) -> Result<Traffic, Error> {
        let Self { percent, threads, scale } = self;
        progress::step(&format_args!("traffic: {}, {percent} % full", S::NAME))?;
        let pages = (MANAGED_GIB << 30 >> PAGE_SHIFT) * percent / 100 / threads as u64;
        let counts = std::sync::Mutex::new((0, 0));
        let samples = crew::run(subject, threads, |member| {
            let trace = Trace::record(member.index as u64, pages, scale);
            let (samples, refused, asked) = replay_timed(subject, member, &trace, scale.effort);
            if let Ok(mut counts) = counts.lock() {
                *counts = (counts.0 + refused, counts.1 + asked);
            }
            samples.unwrap_or_default()
        })?;
        let (refused, asked) = counts.into_inner().unwrap_or((0, 0));
        Ok(Traffic {
            allocator: S::NAME.into(),
            managed_gib: MANAGED_GIB,
            full: format!("{percent} %"),
            threads: threads as u64,
            repetitions: Measured(samples.iter().map(|samples| samples.len() as u64).min()),
            operation_ns: spread(&samples, |sample| Some(sample.get)),
            harness_ns: spread(&samples, |sample| sample.put),
            refused_percent: Measured(Some(refused as f64 / asked.max(1) as f64 * 100.0)),
        })
    }
}

/// One operation: the order of a request, or which of the runs that are held is freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Get(Order),
    Put(u32),
}

/// What one thread does: first it fills its part of memory, then it replays one segment after the
/// other. Each ends with memory as full as it began.
struct Trace {
    fill: Vec<Step>,
    segments: Vec<Vec<Step>>,
}

impl Trace {
    /// Records the trace of a thread that holds some `pages` pages.
    fn record(seed: u64, pages: u64, scale: Scale) -> Self {
        let mut random = Random::new(seed);
        let mut held: Vec<Order> = Vec::new();
        let mut used = 0;
        let mut fill = Vec::new();
        while used < pages {
            fill.push(get(&mut random, &mut held, &mut used));
        }
        // One that warms up.
        let segments = (0..=scale.effort.repetitions).map(|_| {
            let mut steps = Vec::with_capacity(scale.operations + 2 * MOST_IN_BURST);
            while steps.len() < scale.operations {
                let requests = 1 + random.below(MOST_IN_BURST);
                steps.extend((0..requests).map(|_| get(&mut random, &mut held, &mut used)));
                while used > pages {
                    let place = random.below(held.len());
                    used -= held.swap_remove(place).pages();
                    steps.push(Step::Put(u32::try_from(place).unwrap_or(u32::MAX)));
                }
            }
            steps
        });
        let segments = segments.collect();
        Self { fill, segments }
    }
}

fn get(random: &mut Random, held: &mut Vec<Order>, used: &mut u64) -> Step {
    let mut chance = random.below(100);
    let mut order = Order::PAGE;
    for (percent, orders) in MIX {
        if chance < percent {
            let span = usize::from(orders.end() - orders.start()) + 1;
            let above = u8::try_from(random.below(span)).unwrap_or(0);
            order = Order::new(orders.start() + above).unwrap_or(Order::PAGE);
            break;
        }
        chance -= percent;
    }
    held.push(order);
    *used += order.pages();
    Step::Get(order)
}

/// Runs that a thread holds; nothing where a request was refused.
type Held = Vec<(Option<u64>, Order)>;

/// Replays steps, and returns how many requests were refused.
#[inline(always)]
fn replay(
    steps: &[Step],
    held: &mut Held,
    mut get: impl FnMut(Order) -> Option<u64>,
    mut put: impl FnMut(u64, Order),
) -> u64 {
    let mut refused = 0;
    for &step in steps {
        match step {
            Step::Get(order) => {
                let run = get(order);
                refused += u64::from(run.is_none());
                held.push((run, order));
            }
            Step::Put(place) => {
                if let (Some(run), order) = held.swap_remove(place as usize) {
                    put(run, order);
                }
            }
        }
    }
    refused
}

/// Replays a trace on an allocator and on the control; returns the samples (`get` is an operation,
/// `put` the harness), how many requests were refused and how many were made.
fn replay_timed<S: Subject>(
    subject: &S,
    member: &Member<'_>,
    trace: &Trace,
    effort: Effort,
) -> (Option<Vec<Sample>>, u64, u64) {
    let stopwatch = Stopwatch::new();
    let get = |order| subject.get(order);
    let put = |run, order| subject.put(run, order);
    let (mut held, mut control_held) = (Held::new(), Held::new());
    replay(&trace.fill, &mut held, get, put);
    // As many numbers as are ever held.
    let numbers = 2 * trace.fill.len() as u64 + 4 * MOST_IN_BURST as u64;
    let control = RefCell::new((0..numbers).collect::<Vec<u64>>());
    let control_get = |_| control.borrow_mut().pop();
    let control_put = |run, _| control.borrow_mut().push(run);
    replay(&trace.fill, &mut control_held, control_get, control_put);
    let (mut refused, mut asked) = (0, 0);
    let mut segments = trace.segments.iter();
    let samples = repeat(member, effort, || {
        let steps = segments.next()?;
        let operations = steps.len() as f64;
        let harness = stopwatch.time(|| {
            replay(steps, &mut control_held, control_get, control_put);
        });
        member.meet();
        let all = stopwatch.time(|| refused += replay(steps, &mut held, get, put));
        member.meet();
        asked += steps.iter().filter(|step| matches!(step, Step::Get(_))).count() as u64;
        let (all, harness) = (all / operations, harness / operations);
        Some(Sample { get: (all - harness).max(0.0), put: Some(harness) })
    });
    for (run, order) in held {
        run.into_iter().for_each(|run| subject.put(run, order));
    }
    member.meet();
    if member.index == 0 {
        subject.drain();
    }
    (samples, refused, asked)
}

fn nanoseconds(spread: Spread) -> String {
    shown(spread.middle, |ns| format!("{ns:.1} ns"))
}

const COLUMNS: [Column<Traffic>; 6] = [
    ("<allocator", |row| row.allocator.clone()),
    (">full", |row| row.full.clone()),
    (">threads", |row| row.threads.to_string()),
    (">operation", |row| nanoseconds(row.operation_ns)),
    (">harness", |row| nanoseconds(row.harness_ns)),
    (">refused", |row| shown(row.refused_percent.get(), |percent| format!("{percent:.2} %"))),
];

/// Rows for people.
pub fn tables(rows: &Rows) -> Vec<Table> {
    table(&COLUMNS, &rows.traffic).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Row;

    #[test]
    fn a_trace_is_the_mix_and_keeps_memory_as_full_as_it_was() {
        let trace = Trace::record(1, 50_000, QUICK);
        let again = Trace::record(1, 50_000, QUICK);
        assert_eq!((&trace.fill, &trace.segments), (&again.fill, &again.segments));
        let mut held: Vec<Order> = Vec::new();
        let mut of_order = [0_u64; 10];
        let all = std::iter::once(&trace.fill).chain(&trace.segments);
        for steps in all {
            for step in steps {
                match *step {
                    Step::Get(order) => {
                        held.push(order);
                        of_order[usize::from(order.get())] += 1;
                    }
                    Step::Put(place) => drop(held.swap_remove(place as usize)),
                }
            }
            let used: u64 = held.iter().map(|order| order.pages()).sum();
            assert!((50_000 - 512..50_000 + 512).contains(&used), "{used} pages");
        }
        let asked: u64 = of_order.iter().sum();
        let percent = |orders: std::ops::RangeInclusive<usize>| {
            of_order[orders].iter().sum::<u64>() * 100 / asked
        };
        assert!((67..73).contains(&percent(0..=0)), "{of_order:?}");
        assert!((8..12).contains(&percent(1..=3)) && (8..12).contains(&percent(4..=8)));
        assert!((8..12).contains(&percent(9..=9)), "{of_order:?}");
    }

    #[test]
    fn refused_requests_are_counted_and_not_freed() {
        let steps = [Step::Get(Order::PAGE), Step::Get(Order::BLOCK), Step::Put(0), Step::Put(0)];
        let (mut held, mut freed) = (Held::new(), Vec::new());
        let refused = replay(
            &steps,
            &mut held,
            |order| (order == Order::PAGE).then_some(7),
            |run, order| freed.push((run, order)),
        );
        assert_eq!((refused, freed, held.len()), (1, vec![(7, Order::PAGE)], 0));
    }

    #[test]
    fn a_row_has_all_numbers() {
        let case = Case { percent: 50, threads: 1, scale: QUICK };
        let row = case.row(&Buddy::new(MANAGED_GIB << 30)).expect("there is no seat to be refused");
        let row = row.to_json();
        for field in ["operation_ns", "harness_ns", "harness_ns_min", "harness_ns_max"]
            .into_iter()
            .chain(["operation_ns_min", "operation_ns_max", "refused_percent"])
        {
            assert!(row[field].as_f64().is_some_and(|value| value >= 0.0), "{field}: {row}");
        }
    }
}
