//! The clock of jobs: the time stamp counter if the system keeps time by it. Reading it takes half
//! as long as reading the system's clock.
//!
//! A job that turns out to be small reads the clock twice and has little other overhead. Only
//! differences within a job matter, so the counter's rate is measured once, over a tenth of a
//! millisecond, which gives an accuracy of 0.1 % or better.
//!
//! A thread that finds the rate unknown measures it, even if other threads do so too; the first
//! result is used by all of them. No thread waits for another, because the other may be a thread of
//! the parent, which a child made by fork does not have.

use super::system;
use std::sync::atomic::{AtomicU64, Ordering};

/// How long the counter's rate is measured, in nanoseconds.
const MEASURED_NS: u64 = 100_000;
/// How many times counter and clock are read together; the best reading is taken.
const ATTEMPTS: usize = 8;
/// The number of fraction bits in the rate.
const FRACTION_BITS: u32 = 32;

/// The rate of the time stamp counter: nanoseconds per tick, in units of 2^-32. Time 0 is where the
/// counter is 0.
#[derive(Clone, Copy, Debug)]
struct Counter {
    rate: u64,
}

impl Counter {
    /// Measures the rate. `None` if the system does not keep time by the counter, or forbids
    /// reading it.
    fn measure() -> Option<Self> {
        const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
        let is_trusted = std::fs::read_to_string(SOURCE).is_ok_and(|name| name.trim() == "tsc");
        if !is_trusted || !system::may_read_counter() {
            return None;
        }
        let start = both()?;
        loop {
            let end = both()?;
            if end.1 - start.1 >= MEASURED_NS {
                return Self::from_readings(start, end);
            }
        }
    }

    /// Computes the rate from two readings of counter and clock. `None` if the counter stood still.
    fn from_readings(start: (u64, u64), end: (u64, u64)) -> Option<Self> {
        let (ticks, ns) = (end.0.checked_sub(start.0)?, end.1.checked_sub(start.1)?);
        let rate = (u128::from(ns) << FRACTION_BITS).checked_div(u128::from(ticks))?;
        let rate = u64::try_from(rate).ok().filter(|&rate| rate != UNKNOWN && rate != NONE)?;
        Some(Self { rate })
    }

    /// Converts a reading of the counter to nanoseconds.
    #[inline]
    fn ns(self, ticks: u64) -> u64 {
        let ns = (u128::from(ticks) * u128::from(self.rate)) >> FRACTION_BITS;
        // Large enough for five centuries.
        u64::try_from(ns).unwrap_or(u64::MAX)
    }
}

/// In [`Clock`]: the rate has not been measured yet.
const UNKNOWN: u64 = 0;
/// In [`Clock`]: there is no counter that keeps time.
const NONE: u64 = u64::MAX;

/// The counter's rate, once it has been measured. It is one word, so that no thread sees half of
/// it.
struct Clock(AtomicU64);

impl Clock {
    const fn new() -> Self {
        Self(AtomicU64::new(UNKNOWN))
    }

    /// The counter, if there is one. The first call measures its rate.
    #[inline]
    fn counter(&self, measure: impl FnOnce() -> Option<Counter>) -> Option<Counter> {
        // Relaxed here and below: no other data depends on this word.
        let mut rate = self.0.load(Ordering::Relaxed);
        if rate == UNKNOWN {
            rate = self.find(measure);
        }
        (rate != NONE).then_some(Counter { rate })
    }

    #[cold]
    fn find(&self, measure: impl FnOnce() -> Option<Counter>) -> u64 {
        let mine = measure().map_or(NONE, |counter| counter.rate);
        match self.0.compare_exchange(UNKNOWN, mine, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => mine,
            Err(theirs) => theirs,
        }
    }
}

/// Reads counter and clock at about the same moment. Other threads may run for milliseconds between
/// two readings, which would spoil the rate, so the attempt that took the least time is used.
fn both() -> Option<(u64, u64)> {
    tightest(
        std::iter::repeat_with(|| Some((system::counter()?, system::now_ns(), system::counter()?)))
            .take(ATTEMPTS),
    )
}

/// The best of several readings of the counter, the clock, and the counter again.
fn tightest(readings: impl Iterator<Item = Option<(u64, u64, u64)>>) -> Option<(u64, u64)> {
    let (before, ns, after) =
        readings.flatten().min_by_key(|(before, _, after)| after.saturating_sub(*before))?;
    Some((before + after.saturating_sub(before) / 2, ns))
}

/// The time in nanoseconds on a clock that all CPUs share.
#[inline]
pub(super) fn now_ns() -> u64 {
    static CLOCK: Clock = Clock::new();
    match CLOCK.counter(Counter::measure) {
        Some(counter) => system::counter().map_or_else(system::now_ns, |ticks| counter.ns(ticks)),
        None => system::now_ns(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_become_times() {
        // A counter of 2 GHz.
        let counter = Counter::from_readings((1_000, 70), (201_000, 100_070)).expect("it runs");
        let since_start = |ticks| counter.ns(ticks) - counter.ns(1_000);
        assert_eq!([1_000, 3_000, 201_000].map(since_start), [0, 1_000, 100_000]);
        assert_eq!([0, 1_000].map(|ticks| counter.ns(ticks)), [0, 500]);
        // A year later; then a counter of 3 GHz, whose tick is no binary fraction of a nanosecond.
        let year_ns = 365 * 86_400 * 1_000_000_000_u64;
        assert_eq!(since_start(1_000 + 2 * year_ns), year_ns);
        let counter = Counter::from_readings((0, 0), (300_000, 100_000)).expect("it runs");
        assert!(counter.ns(3 * year_ns).abs_diff(year_ns) < year_ns / 1_000_000_000);
    }

    #[test]
    fn a_counter_that_does_not_run_is_no_clock() {
        assert!(Counter::from_readings((5, 0), (5, 100_000)).is_none());
        assert!(Counter::from_readings((5, 0), (4, 100_000)).is_none());
        assert!(Counter::from_readings((5, 9), (500, 9)).is_none());
    }

    #[test]
    fn readings_with_something_between_them_do_not_count() {
        let readings = [
            None,
            Some((100, 7, 5_000_100)),
            Some((6_000_000, 9, 6_000_040)),
            Some((7_000_000, 11, 7_000_050)),
        ];
        assert_eq!(tightest(readings.into_iter()), Some((6_000_020, 9)));
        // Another CPU's counter may be a little behind.
        assert_eq!(tightest([Some((50, 3, 40))].into_iter()), Some((50, 3)));
        assert_eq!(tightest([None].into_iter()), None);
    }

    #[test]
    fn the_clock_keeps_pace_with_the_systems() {
        let begin = (system::now_ns(), now_ns(), system::now_ns());
        std::thread::sleep(std::time::Duration::from_millis(20));
        let end = (system::now_ns(), now_ns(), system::now_ns());
        // This holds however long the readings themselves were delayed.
        let (least, most) = (end.0 - begin.2, end.2 - begin.0);
        let ours = end.1 - begin.1;
        assert!(
            ours >= least - least / 100 && ours <= most + most / 100,
            "{least} <= {ours} <= {most}"
        );
    }

    /// The first result is used by everyone, even if it says that there is no counter.
    #[test]
    fn the_rate_is_found_once() {
        let (clock, rate) = (Clock::new(), |rate: u64| Some(Counter { rate }));
        let raced = clock.counter(|| {
            assert!(clock.counter(|| rate(7)).is_some_and(|counter| counter.rate == 7));
            rate(8)
        });
        assert!(raced.is_some_and(|counter| counter.rate == 7));
        assert!(clock.counter(|| unreachable!()).is_some());
        let none = Clock::new();
        assert!(none.counter(|| None).is_none() && none.counter(|| unreachable!()).is_none());
    }

    /// A child that is forked while a thread of its parent measures does not have that thread.
    #[test]
    fn a_child_does_not_wait_for_a_thread_of_its_parent() {
        let (clock, tell, (leave, stay)) =
            (Clock::new(), std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
        let status = std::thread::scope(|scope| {
            let clock = &clock;
            scope.spawn(move || {
                clock.counter(|| {
                    tell.0.send(()).expect("somebody listens");
                    let _ = stay.recv();
                    None
                });
            });
            tell.1.recv().expect("it measures");
            let status = system::in_child(|| clock.counter(|| Some(Counter { rate: 1 })).is_some());
            drop(leave);
            status
        });
        assert!(status.success(), "{status}");
    }
}
