//! The clock of jobs: the processor's counter where the system keeps time by it, which takes half as long to read as the system's clock does.
//!
//! A job that turns out to be small reads the clock twice and pays for little else. Only differences within a job matter, so the counter's rate is measured once, over
//! a tenth of a millisecond: to 0.1 % or better.

use super::system;
use std::sync::OnceLock;

/// How long the counter's rate is measured.
const MEASURED_NS: u64 = 100_000;
/// Readings of counter and clock together, of which one is taken.
const ATTEMPTS: usize = 8;
/// Times with fractions of a nanosecond.
const FRACTION_BITS: u32 = 32;

/// The processor's counter, and how to make time of it.
#[derive(Clone, Copy, Debug)]
struct Counter {
    start_ticks: u64,
    start_ns: u64,
    /// Nanoseconds a tick, in 2^-32.
    rate: u64,
}

impl Counter {
    /// Nothing where the counter does not tell time, or is not to be read.
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

    /// From two readings of counter and clock. Nothing when the counter stood still.
    fn from_readings(start: (u64, u64), end: (u64, u64)) -> Option<Self> {
        let (ticks, ns) = (end.0.checked_sub(start.0)?, end.1.checked_sub(start.1)?);
        let rate = (u128::from(ns) << FRACTION_BITS).checked_div(u128::from(ticks))?;
        Some(Self {
            start_ticks: start.0,
            start_ns: start.1,
            rate: u64::try_from(rate).ok().filter(|&rate| rate != 0)?,
        })
    }

    /// A reading of the counter as nanoseconds. One from before the start is the start.
    #[inline]
    fn ns(&self, ticks: u64) -> u64 {
        let ns = (u128::from(ticks.saturating_sub(self.start_ticks)) * u128::from(self.rate)) >> FRACTION_BITS;
        // Wide enough for five centuries.
        self.start_ns.wrapping_add(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}

/// Counter and clock at one moment. Between two readings other threads may run for milliseconds, which would spoil the rate: of several attempts the one counts in which least time passed.
fn both() -> Option<(u64, u64)> {
    tightest(std::iter::repeat_with(|| Some((system::counter()?, system::now_ns(), system::counter()?))).take(ATTEMPTS))
}

/// Of readings of the counter, the clock, and the counter again.
fn tightest(readings: impl Iterator<Item = Option<(u64, u64, u64)>>) -> Option<(u64, u64)> {
    let (before, ns, after) = readings.flatten().min_by_key(|(before, _, after)| after.saturating_sub(*before))?;
    Some((before + after.saturating_sub(before) / 2, ns))
}

/// Nanoseconds on a clock that all CPUs share.
#[inline]
pub(super) fn now_ns() -> u64 {
    static COUNTER: OnceLock<Option<Counter>> = OnceLock::new();
    match COUNTER.get_or_init(Counter::measure) {
        Some(counter) => system::counter().map_or_else(system::now_ns, |ticks| counter.ns(ticks)),
        None => system::now_ns(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_become_times() {
        // 2 GHz.
        let counter = Counter::from_readings((1_000, 70), (201_000, 100_070)).expect("it runs");
        assert_eq!([0, 1_000, 3_000, 201_000].map(|ticks| counter.ns(ticks)), [70, 70, 1_070, 100_070]);
        // A year later; 3 GHz, whose ticks are no binary fraction of a nanosecond.
        let year_ns = 365 * 86_400 * 1_000_000_000_u64;
        assert_eq!(counter.ns(1_000 + 2 * year_ns), 70 + year_ns);
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
        let readings =
            [None, Some((100, 7, 5_000_100)), Some((6_000_000, 9, 6_000_040)), Some((7_000_000, 11, 7_000_050))];
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
        // However long the readings themselves were kept waiting.
        let (least, most) = (end.0 - begin.2, end.2 - begin.0);
        let ours = end.1 - begin.1;
        assert!(ours >= least - least / 100 && ours <= most + most / 100, "{least} <= {ours} <= {most}");
    }
}
