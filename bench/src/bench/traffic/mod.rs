//! `framewright-bench traffic`: the time of operations that come as they do on real machines, and
//! of the slowest among them.
//!
//! `bench alloc` requests one order at a time, which is the best case of every cache and of every
//! special case. Here recorded traces (`trace`) are replayed (`replay`), each of a pattern with a
//! file of its own: once with the clock read around many operations, and once around each, which
//! goes into histograms.

mod boot;
mod cases;
pub mod control;
mod histogram;
pub mod mixed;
mod passing;
mod replay;
mod ring;
mod server;
mod table;
mod tails;
pub mod trace;

use super::alloc::crew;
use super::alloc::measure::{Effort, Stopwatch, spread};
use super::host;
use super::section::Section;
use super::subject::{self, Buddy, Depot, Ours, Subject, Unmovable};
use crate::progress;
use crate::rows::{Measured, Tail, Traffic, to_json};
use cases::{Case, Pattern, cases};
use control::Control;
use framewright_cli::error::Error;
use replay::Player;
use ring::Rings;
use serde_json::json;
use std::time::Duration;
pub use table::tables;
use tails::Tails;
use trace::{Length, Trace};

/// Describes the timing, for readers of the numbers.
const TIMED: &str = "\
nanoseconds per operation, an operation being one allocation or one free, in each thread; the cost \
of the harness (harness), which is the same trace replayed on an array used as a stack, is \
subtracted. Traces are recorded before and are the same for all. mixed: 70 % of the requests are \
of order 0, 10 % of orders 1 to 3, 10 % of orders 4 to 8 and 10 % of order 9; up to 256 are made \
in a burst, then random runs are freed until memory is as full as before. producer/consumer: one \
thread allocates, single pages or that mix, and another frees, 256 runs at a time; passing them on \
is not timed. server: orders 0 to 3, each run freed after a time from a Pareto distribution with \
exponent 1; one run in eight is handed to the next thread and freed there. boot: unmovable memory \
where the allocator knows it, 86 % single pages and 1 % of order 9; one request in 32 is followed \
by a free, and at the end an eighth is freed; each repetition begins with free memory. Percent \
full is memory that is held in addition; in producer/consumer and server it is held throughout, in \
the sizes of mixed. refused is the share of the requests that found no memory; what was refused is \
not freed. Each call: the same traces again, the clock read around every call, its own cost \
(clock_ns) subtracted; get includes refused calls, and refused shows them once more. A percentile \
is left out where there are too few calls to tell it from the longest; times are exact to 3 %, or \
to the step of the host's clock. The rows of the array are the limit: max shows what the host took \
away from the threads, and it did so there as well. No frame is touched";

/// The control's name in results.
const CONTROL: &str = "array";

const MANAGED_GIB: u64 = 8;

/// How much is measured.
#[derive(Clone, Copy)]
struct Scale {
    effort: Effort,
    /// The approximate number of operations in a repetition.
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

impl Scale {
    const fn length(self) -> Length {
        Length { segments: self.effort.repetitions + 1, operations: self.operations }
    }
}

/// Measures all allocators.
///
/// # Errors
/// Fails if a machine cannot be emulated by this process.
pub fn section(quick: bool) -> Result<Section, Error> {
    let scale = if quick { QUICK } else { FULL };
    let cpus = host::cpus()?.len();
    let (cases, left_out) = cases(cpus);
    let mut results = Results { scale, traffic: Vec::new(), tail: Vec::new() };
    for case in cases {
        results.case(case)?;
    }
    let Results { traffic, tail, .. } = results;
    let rows = [to_json(&traffic), to_json(&tail)].concat();
    let timed = format!("{TIMED}. {}", subject::CONDITIONS);
    let mut section = Section::new("traffic", scale.effort.repetitions, timed, rows);
    let clock = u64::try_from(Stopwatch::new().clock().as_nanos()).unwrap_or(u64::MAX);
    section.further.insert("clock_ns".into(), json!(clock));
    Ok(Section { left_out, ..section })
}

/// The rows so far.
struct Results {
    scale: Scale,
    traffic: Vec<Traffic>,
    tail: Vec<Tail>,
}

impl Results {
    /// Measures one kind of traffic on all allocators, each on fresh memory.
    fn case(&mut self, case: Case) -> Result<(), Error> {
        let traces = case.record(self.scale.length());
        let bytes = MANAGED_GIB << 30;
        let cpus = u32::try_from(case.threads.max(2)).unwrap_or(u32::MAX);
        Ours::with(bytes, cpus, |ours| match case.pattern {
            Pattern::Boot => self.allocator(case, &traces, &Unmovable(*ours)),
            _ => self.allocator(case, &traces, ours),
        })?;
        self.allocator(case, &traces, &Buddy::new(bytes))?;
        self.allocator(case, &traces, &Depot::new(bytes)?)?;
        self.calls(case, &traces, &Control::new(case.threads))
    }

    fn allocator<S: Subject>(
        &mut self,
        case: Case,
        traces: &[Trace],
        subject: &S,
    ) -> Result<(), Error> {
        let row = self.throughput(case, traces, subject)?;
        self.traffic.push(row);
        self.calls(case, traces, subject)
    }

    /// Measures the time of an operation.
    fn throughput<S: Subject>(
        &self,
        case: Case,
        traces: &[Trace],
        subject: &S,
    ) -> Result<Traffic, Error> {
        let Case { pattern, percent, threads } = case;
        progress::step(&format_args!("traffic: {}, {}, {percent} %", S::NAME, pattern.name()))?;
        let rings = Rings::new(threads);
        let control = Control::new(threads);
        let results = crew::run(subject, threads, |member| {
            let (trace, ends) = (traces.get(member.index)?, rings.take(member.index)?);
            control.sit(u32::try_from(member.index).ok()?).ok()?;
            let player = Player { subject, trace, ends: &ends };
            Some(player.throughput(member, &control, self.scale.effort))
        })?;
        let (samples, requests): (Vec<_>, Vec<_>) = results.into_iter().flatten().unzip();
        let made: u64 = requests.iter().map(|of| of.made).sum();
        let refused: u64 = requests.iter().map(|of| of.refused).sum();
        Ok(Traffic {
            allocator: S::NAME.into(),
            managed_gib: MANAGED_GIB,
            pattern: pattern.name().into(),
            full: format!("{percent} %"),
            threads: threads as u64,
            repetitions: Measured(samples.iter().map(|samples| samples.len() as u64).min()),
            operation_ns: spread(&samples, |sample| Some(sample.get)),
            harness_ns: spread(&samples, |sample| sample.put),
            refused_percent: Measured(Some(refused as f64 / made.max(1) as f64 * 100.0)),
        })
    }

    /// Measures how long each call takes.
    fn calls<S: Subject>(
        &mut self,
        case: Case,
        traces: &[Trace],
        subject: &S,
    ) -> Result<(), Error> {
        progress::step(&format_args!("traffic: {}, {}, calls", S::NAME, case.pattern.name()))?;
        let rings = Rings::new(case.threads);
        let effort = self.scale.effort;
        let all = crew::run(subject, case.threads, |member| {
            let (trace, ends) = (traces.get(member.index)?, rings.take(member.index)?);
            Some(Player { subject, trace, ends: &ends }.tails(member, effort))
        })?;
        let mut sum = Tails::new();
        all.iter().flatten().for_each(|tails| sum.add(tails));
        self.tail.extend(sum.rows(&case.tail(S::NAME)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Row;

    #[test]
    fn rows_have_all_numbers() {
        let scale = Scale { operations: 1 << 11, ..QUICK };
        let mut results = Results { scale, traffic: Vec::new(), tail: Vec::new() };
        let case = Case { pattern: Pattern::Mixed, percent: 50, threads: 1 };
        let traces = case.record(scale.length());
        let buddy = Buddy::new(MANAGED_GIB << 30);
        results.allocator(case, &traces, &buddy).expect("there is no seat to be refused");
        let row = results.traffic[0].to_json();
        for field in ["operation_ns", "harness_ns", "harness_ns_min", "harness_ns_max"]
            .into_iter()
            .chain(["operation_ns_min", "operation_ns_max", "refused_percent"])
        {
            assert!(row[field].as_f64().is_some_and(|value| value >= 0.0), "{field}: {row}");
        }
        assert_eq!(results.tail.len(), 10);
        for row in results.tail.iter().map(Row::to_json) {
            let numbers = ["p50_ns", "p99_ns", "max_ns"].map(|field| row[field].as_u64());
            assert!(numbers.is_sorted() && numbers[2] > Some(0), "{row}");
        }
    }
}
