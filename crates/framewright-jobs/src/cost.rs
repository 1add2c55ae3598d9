//! The cost of a unit, remembered from one job to the next: [`UnitCost`].

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::const_fn;
use core::fmt;

/// Costs are kept in units of 2^-20 nanoseconds.
const FRACTION_BITS: u32 = 20;
/// The lowest bits of `small` count the jobs that still need no clock. The other bits hold the
/// largest number of units for which that is so.
const RUN_BITS: u32 = 4;
const RUNS: u64 = (1 << RUN_BITS) - 1;
/// A job is small if it takes at most this fraction (one eighth) of the work that makes the first
/// helper worth its start. Even if its units become eight times as expensive, it is still worth no
/// helper.
const SMALL_PART: u64 = 8;

/// The cost of a unit in similar jobs, as the last of them found it. Every such job gets it through
/// `Job::learning_in`; it may be a `static`. What the last job taught decides what the next one
/// does:
///
/// * If nothing is known, the job begins with a few units and times them, as it does without a
///   `UnitCost`.
/// * If all its units together take less than an eighth of what a helper must save, the job is one
///   call that never reads the clock. This holds for 15 jobs; the one after them is timed in its
///   middle.
/// * If the units take more than that but are not worth a helper, the job is timed in its middle.
/// * If the units are worth helpers, the job asks for them at once.
///
/// The cost is a hint. A wrong one costs time and nothing else. If units have become expensive, the
/// caller does up to 15 jobs alone, and the job after them finds out in its middle; if units have
/// become cheap, helpers are woken once for nothing. A job that fails, panics, is cancelled or has
/// no units teaches nothing.
///
/// It consists of two words, read and written without a locked instruction. Threads that share it
/// overwrite what the others learned, which does no harm if their units are alike (each thread then
/// counts up to 15 jobs of its own). Small jobs that run on several CPUs at once should have one
/// `UnitCost` for each CPU, because otherwise they contend for its cache line.
///
/// ```
/// use framewright_jobs::{Job, JobError, NoHelpers, Summary, UnitCost};
///
/// fn clear(pages: u64) -> Result<Summary, JobError<()>> {
///     static COST: UnitCost = UnitCost::new();
///     Job::new(0..pages).learning_in(&COST).run(&NoHelpers, |_chunk, _worker| Ok(()))
/// }
/// assert!(clear(100).is_ok());
/// ```
pub struct UnitCost {
    /// In units of 2^-20 nanoseconds; 0 when unknown.
    cost: AtomicU64,
    /// How many more jobs need no clock, and the most units that such a job may have (see
    /// [`RUN_BITS`]).
    small: AtomicU64,
}

impl Default for UnitCost {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for UnitCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnitCost").field("ns_of_1000", &self.ns_of(1000)).finish()
    }
}

impl UnitCost {
    const_fn! {
        /// Creates a cost of which nothing is known.
        #[must_use]
        pub fn new() -> Self {
            Self { cost: AtomicU64::new(0), small: AtomicU64::new(0) }
        }
    }

    /// The nanoseconds that `units` take one thread, by what was learned last, or `None` if nothing
    /// was. `u64::MAX` also stands for anything larger.
    #[must_use]
    pub fn ns_of(&self, units: u64) -> Option<u64> {
        // Relaxed, like all accesses here: the cost is a hint that orders nothing.
        let cost = self.cost.load(Ordering::Relaxed);
        let ns = (u128::from(cost) * u128::from(units)) >> FRACTION_BITS;
        (cost != 0).then(|| u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Whether a job of this many units can do without the clock this time. To be called once per
    /// job.
    #[inline]
    pub(crate) fn needs_no_clock(&self, units: u64) -> bool {
        let small = self.small.load(Ordering::Relaxed);
        let needs_none = units <= small >> RUN_BITS && small & RUNS != 0;
        if needs_none {
            self.small.store(small - 1, Ordering::Relaxed);
        }
        needs_none
    }

    /// Whether this many units are known not to be worth a helper.
    pub(crate) fn is_for_one(&self, units: u64) -> bool {
        self.cost.load(Ordering::Relaxed) != 0
            && units / SMALL_PART <= self.small.load(Ordering::Relaxed) >> RUN_BITS
    }

    /// A number of units that take about `ns`, at least one, and the time they take; `None` while
    /// the cost is unknown.
    pub(crate) fn sample(&self, ns: u64) -> Option<(u64, u64)> {
        let units = divide(ns, self.cost.load(Ordering::Relaxed))?.max(1);
        Some((units, self.ns_of(units)?))
    }

    /// Remembers that one thread did `units` of a job in `ns`. A helper costs `start_cost_ns`
    /// before it does its first unit.
    pub(crate) fn learn(&self, units: u64, ns: u64, start_cost_ns: u64) {
        let Some(cost) = divide(ns, units) else { return };
        let cost = cost.max(1);
        // The first helper pays off for work that takes at least twice its start cost.
        let small_units = divide(start_cost_ns.saturating_mul(2) / SMALL_PART, cost).unwrap_or(0);
        self.cost.store(cost, Ordering::Relaxed);
        self.small
            .store(small_units.min(u64::MAX >> RUN_BITS) << RUN_BITS | RUNS, Ordering::Relaxed);
    }
}

/// `ns / by` in units of 2^-20: a cost if `by` is a number of units, a number of units if `by` is a
/// cost. `None` if `by` is 0.
fn divide(ns: u64, by: u64) -> Option<u64> {
    match ns.checked_mul(1 << FRACTION_BITS) {
        Some(fractions) => fractions.checked_div(by),
        // Only for times of about five hours and more.
        None => Some(ns.checked_div(by)?.saturating_mul(1 << FRACTION_BITS)),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn fifteen_small_jobs_need_no_clock() {
        let cost = UnitCost::new();
        assert!(cost.ns_of(1).is_none() && !cost.needs_no_clock(0) && !cost.needs_no_clock(1));
        // 3 ns each; 833 of them take an eighth of 20 us.
        cost.learn(1000, 3000, 10_000);
        assert_eq!((cost.ns_of(1), cost.ns_of(2_000_000)), (Some(3), Some(6_000_000)));
        assert!(cost.is_for_one(6671) && !cost.is_for_one(6672) && !cost.needs_no_clock(834));
        assert_eq!((0..20).filter(|_| cost.needs_no_clock(833)).count(), 15);
        assert!(cost.is_for_one(833) && !cost.needs_no_clock(1));
        // A third of a nanosecond.
        cost.learn(3000, 1000, 10_000);
        assert_eq!(cost.ns_of(3_000_000), Some(999_999));
        assert!(cost.needs_no_clock(7500) && !cost.needs_no_clock(7501));
        assert_eq!(cost.sample(4000), Some((12_000, 3_999)));
    }

    #[test]
    fn no_number_is_too_large_or_too_small() {
        let cost = UnitCost::new();
        cost.learn(0, 5, 10_000);
        assert!(cost.ns_of(1).is_none() && cost.sample(1).is_none());
        let extremes = [0, 1, 7, 1 << 20, u64::MAX - 1, u64::MAX];
        for units in extremes {
            for ns in extremes {
                for start_cost_ns in extremes {
                    cost.learn(units, ns, start_cost_ns);
                    assert_eq!(cost.needs_no_clock(0), units != 0 || cost.ns_of(1).is_some());
                    assert!(cost.sample(start_cost_ns).is_none_or(|(units, _)| units != 0));
                    assert!(
                        extremes.iter().all(|&units| cost.ns_of(units) >= cost.ns_of(units / 2))
                    );
                }
            }
        }
        cost.learn(1, u64::MAX, u64::MAX);
        assert_eq!(cost.ns_of(u64::MAX), Some(u64::MAX));
        assert!(!cost.is_for_one(u64::MAX) && !UnitCost::new().is_for_one(0));
    }
}
