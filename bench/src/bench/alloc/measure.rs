//! Timed repetitions of a pass, and how their times are combined.

use super::crew::Member;
use crate::rows::Spread;
use std::time::{Duration, Instant};

/// How often to repeat.
#[derive(Clone, Copy)]
pub struct Effort {
    /// The number of timed repetitions.
    pub repetitions: usize,
    /// Even a slow row has this many repetitions.
    pub least: usize,
    /// The time after which a row ends early, once it has a few repetitions.
    pub enough: Duration,
}

impl Effort {
    /// The share of the effort for one of several rounds.
    pub fn round(self, rounds: usize) -> Self {
        Self {
            repetitions: self.repetitions.div_ceil(rounds),
            least: self.least.div_ceil(rounds),
            enough: self.enough / u32::try_from(rounds).unwrap_or(u32::MAX),
        }
    }
}

/// Nanoseconds per operation, in one repetition of one thread.
#[derive(Clone, Copy, Default)]
pub struct Sample {
    /// The time of allocating, or of both halves if they are timed together.
    pub get: f64,
    /// The time of freeing.
    pub put: Option<f64>,
}

/// Measures one repetition of one thread, summed over its passes.
pub struct Stopwatch {
    /// The cost of reading the clock.
    clock: Duration,
}

impl Stopwatch {
    /// Makes a stopwatch that knows its own cost.
    pub fn new() -> Self {
        let least = (0..1000).map(|_| Instant::now().elapsed()).min();
        Self { clock: least.unwrap_or_default() }
    }

    /// The cost of reading the clock, which is subtracted from every time.
    pub fn clock(&self) -> Duration {
        self.clock
    }

    /// Runs `work`. Returns its time and its result.
    #[inline]
    pub fn lap<T>(&self, work: impl FnOnce() -> T) -> (Duration, T) {
        let start = Instant::now();
        let result = work();
        (start.elapsed().saturating_sub(self.clock), result)
    }

    /// The nanoseconds that `work` took.
    #[inline]
    pub fn time(&self, work: impl FnOnce()) -> f64 {
        self.lap(work).0.as_nanos() as f64
    }
}

/// Repeats `pass` in one thread of a crew: once to warm up, then timed until there are enough
/// samples. A pass that returns `None` could not do its work, and ends the repetitions of all
/// threads.
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
        // One thread decides, so that all have equally many samples.
        if !able || member.index == 0 && (samples.len() >= effort.repetitions || slow) {
            member.stop();
        }
    }
    able.then_some(samples)
}

/// One half of a row, in nanoseconds: the mean of the threads' medians, and the extremes of all
/// repetitions of all threads.
pub fn spread(threads: &[Vec<Sample>], half: impl Fn(&Sample) -> Option<f64>) -> Spread {
    let of = |samples: &Vec<Sample>| Spread::of(samples.iter().filter_map(&half));
    let all: Vec<Spread> = threads.iter().map(of).collect();
    let sum: Option<f64> = all.iter().map(|one| one.middle).sum();
    let Some(sum) = sum.filter(|_| !all.is_empty()) else { return Spread::default() };
    Spread {
        middle: Some(sum / all.len() as f64),
        least: all.iter().filter_map(|one| one.least).reduce(f64::min),
        most: all.iter().filter_map(|one| one.most).reduce(f64::max),
        ..Spread::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_combined_by_their_medians() {
        let samples = |gets: [f64; 3]| gets.map(|get| Sample { get, put: None }).to_vec();
        let threads = [samples([5.0, 1.0, 3.0]), samples([7.0, 90.0, 6.0])];
        let expected = (Some(5.0), Some(1.0), Some(90.0));
        let of = spread(&threads, |sample| Some(sample.get));
        assert_eq!((of.middle, of.least, of.most), expected);
        assert_eq!(spread(&threads, |sample| sample.put), Spread::default());
        assert_eq!(spread(&[], |sample| Some(sample.get)), Spread::default());
    }

    #[test]
    fn the_clock_is_read_at_some_cost() {
        let stopwatch = Stopwatch::new();
        assert!(stopwatch.clock() < Duration::from_millis(1));
        assert!(stopwatch.time(|| std::thread::sleep(Duration::from_millis(2))) > 1e6);
    }
}
