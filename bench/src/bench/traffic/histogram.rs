//! The lengths of calls, counted in 32 classes for each doubling, so that times from nanoseconds to
//! seconds are known to 3 %, in memory that does not grow.

use std::time::Duration;

/// Times below this many nanoseconds have a class each.
const EXACT: u64 = 1 << (BITS + 1);
/// Each doubling has `1 << BITS` classes.
const BITS: u32 = 5;
const CLASSES: usize = ((u64::BITS - BITS + 1) as usize) << BITS;

/// A log-linear histogram of times in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    calls: u64,
    longest: u64,
}

impl Histogram {
    /// Makes an empty histogram.
    pub fn new() -> Self {
        Self { counts: vec![0; CLASSES], calls: 0, longest: 0 }
    }

    /// Counts a call.
    #[inline]
    pub fn count(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counts[class(ns)] += 1;
        self.calls += 1;
        self.longest = self.longest.max(ns);
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
        self.calls += other.calls;
        self.longest = self.longest.max(other.longest);
    }

    /// The number of calls.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// The longest call, in nanoseconds; `None` if there were no calls.
    pub fn longest(&self) -> Option<u64> {
        (self.calls != 0).then_some(self.longest)
    }

    /// The time that all calls but one of `one_in` kept, in nanoseconds, at most a class too long.
    /// Returns `None` if there were too few calls to tell it from the longest.
    pub fn all_but(&self, one_in: u64) -> Option<u64> {
        let mut left = self.calls / one_in;
        // The first call from above is the longest.
        if left < 2 {
            return None;
        }
        let above = self.counts.iter().rposition(|&count| {
            let is_enough = count >= left;
            left = left.saturating_sub(count);
            is_enough
        })?;
        Some(most(above).min(self.longest))
    }
}

/// The class of a time.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "less than 2 * EXACT")]
const fn class(ns: u64) -> usize {
    if ns < EXACT {
        return ns as usize;
    }
    let doublings = ns.ilog2() - BITS;
    ((doublings as usize) << BITS) + (ns >> doublings) as usize
}

/// The longest time of a class.
const fn most(class: usize) -> u64 {
    let class = class as u64;
    if class < EXACT {
        return class;
    }
    let doublings = (class >> BITS) - 1;
    let first = (class - (doublings << BITS)) << doublings;
    first + ((1 << doublings) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_one_another_and_are_narrow() {
        let mut next = 0;
        for number in 0..CLASSES {
            let last = most(number);
            assert_eq!((class(next), class(last)), (number, number));
            assert!(last - next <= next >> BITS, "{number}: {next} to {last}");
            next = last.wrapping_add(1);
        }
        assert_eq!(next, 0, "the last class ends with the longest time");
    }

    #[test]
    fn shares_are_found_to_a_class() {
        let mut histogram = Histogram::new();
        (1..=100_000).for_each(|ns| histogram.count(Duration::from_nanos(ns)));
        for (one_in, expected) in [(2, 50_001), (100, 99_001), (1000, 99_901), (10_000, 99_991)] {
            let found = histogram.all_but(one_in).expect("enough calls");
            assert!((expected..=expected + expected / 32).contains(&found), "{one_in}: {found}");
        }
        assert_eq!((histogram.calls(), histogram.longest()), (100_000, Some(100_000)));
        assert_eq!((histogram.all_but(50_001), histogram.all_but(100_001)), (None, None));
        assert!(histogram.all_but(50_000).is_some());
    }

    #[test]
    fn sums_are_of_both() {
        let of = |times: &[u64]| {
            let mut histogram = Histogram::new();
            times.iter().for_each(|&ns| histogram.count(Duration::from_nanos(ns)));
            histogram
        };
        let (mut one, other) = (of(&[3, 70]), of(&[5_000_000]));
        one.add(&other);
        assert_eq!(one, of(&[5_000_000, 70, 3]));
        assert_eq!((of(&[]).longest(), of(&[]).all_but(2)), (None, None));
    }
}
