//! Repetitions of a pass, timed, and what their times come to.

use super::crew::Member;
use crate::bench::common::median;
use std::time::{Duration, Instant};

/// How often to repeat.
#[derive(Clone, Copy)]
pub struct Effort {
    /// Timed repetitions.
    pub repetitions: usize,
    /// Even a slow row has this many.
    pub least: usize,
    /// The time after which a row ends early, once it has a few repetitions.
    pub enough: Duration,
}

impl Effort {
    /// A part of it, for one of so many rounds.
    pub fn round(self, rounds: usize) -> Self {
        Self {
            repetitions: self.repetitions.div_ceil(rounds),
            least: self.least.div_ceil(rounds),
            enough: self.enough / u32::try_from(rounds).unwrap_or(u32::MAX),
        }
    }
}

/// Nanoseconds per operation of one repetition in one thread.
#[derive(Clone, Copy, Default)]
pub struct Sample {
    /// Of allocating, or of both halves where they are timed together.
    pub get: f64,
    /// Of freeing.
    pub put: Option<f64>,
}

/// Times from one repetition of one thread to the next, summed over the passes of a repetition.
pub struct Stopwatch {
    /// What reading the clock costs by itself.
    clock_ns: f64,
}

impl Stopwatch {
    /// A stopwatch that knows its own cost.
    pub fn new() -> Self {
        let between = |_| {
            let start = Instant::now();
            start.elapsed().as_nanos() as f64
        };
        let least = (0..1000).map(between).min_by(f64::total_cmp);
        Self { clock_ns: least.unwrap_or(0.0) }
    }

    /// How many nanoseconds `work` took.
    #[inline]
    pub fn time(&self, work: impl FnOnce()) -> f64 {
        let start = Instant::now();
        work();
        (start.elapsed().as_nanos() as f64 - self.clock_ns).max(0.0)
    }
}

/// Repeats `pass` in one thread of a crew: once to warm up, then timed until there are enough
/// samples. A pass that gives nothing could not do its work, and ends it for all.
pub fn repeat(
    member: &Member<'_>,
    effort: Effort,
    mut pass: impl FnMut() -> Option<Sample>,
) -> Option<Vec<Sample>> {
    let mut samples = Vec::with_capacity(effort.repetitions);
    let start = Instant::now();
    let mut warm = false;
    let mut able = true;
    while member.goes_on() {
        match pass() {
            Some(sample) if warm => samples.push(sample),
            Some(_) => warm = true,
            None => able = false,
        }
        let slow = samples.len() >= effort.least && start.elapsed() > effort.enough;
        // One thread decides, so that all have equally many.
        if !able || member.index == 0 && (samples.len() >= effort.repetitions || slow) {
            member.stop();
        }
    }
    able.then_some(samples)
}

/// One half of a row: median, least and most, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    /// The mean of the threads' medians.
    pub middle: f64,
    /// The least of all repetitions of all threads.
    pub least: f64,
    /// The most of them.
    pub most: f64,
}

/// Combines the samples of all threads.
pub fn spread(threads: &[Vec<Sample>], half: impl Fn(&Sample) -> Option<f64>) -> Option<Spread> {
    let mut out = Spread { middle: 0.0, least: f64::INFINITY, most: 0.0 };
    for samples in threads {
        let mut sorted: Vec<f64> = samples.iter().filter_map(&half).collect();
        sorted.sort_by(f64::total_cmp);
        out.middle += median(&sorted)? / threads.len() as f64;
        out.least = out.least.min(*sorted.first()?);
        out.most = out.most.max(*sorted.last()?);
    }
    (!threads.is_empty()).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_combined_by_their_medians() {
        let samples = |gets: [f64; 3]| gets.map(|get| Sample { get, put: None }).to_vec();
        let threads = [samples([5.0, 1.0, 3.0]), samples([7.0, 90.0, 6.0])];
        let expected = Spread { middle: 5.0, least: 1.0, most: 90.0 };
        assert_eq!(spread(&threads, |sample| Some(sample.get)), Some(expected));
        assert_eq!(spread(&threads, |sample| sample.put), None);
        assert_eq!(spread(&[], |sample| Some(sample.get)), None);
    }

    #[test]
    fn the_clock_is_read_at_some_cost() {
        let stopwatch = Stopwatch::new();
        assert!(stopwatch.clock_ns < 1e6);
        assert!(stopwatch.time(|| std::thread::sleep(Duration::from_millis(2))) > 1e6);
    }
}
