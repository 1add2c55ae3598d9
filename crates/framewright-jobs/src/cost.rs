//! The cost of a unit, kept from one job to the next: [`UnitCost`].

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::const_fn;
use core::fmt;

/// A cost is kept in units of 2^-20 nanoseconds.
const FRACTION_BITS: u32 = 20;
/// The lowest bits of `small` count the runs that still need no clock. The other bits are the
/// number of units up to which they do not.
const RUN_BITS: u32 = 4;
const RUNS: u64 = (1 << RUN_BITS) - 1;
/// A job is small if it takes at most one such part of what makes the first helper worth its start:
/// should its units become eight times as dear, no helper is missed yet.
const SMALL_PART: u64 = 8;

/// What a unit costs in jobs that are alike, as the last of them found it. Each of them is given it
/// by `Job::learning_in`; it may be a `static`. What the last job taught decides what the next
/// does:
///
/// * Nothing is known: it begins with a few units and times them, as without this.
/// * All its units together take less than an eighth of what a helper must save: it is one call
///   that never reads the clock. This holds for 15 jobs; the next is timed in its middle.
/// * They take more, but are not worth a helper: it is timed in its middle.
/// * They are worth helpers: it asks for them at once.
///
/// It is a hint. A wrong one costs time and nothing else. Units that have become dear are done by
/// the caller alone in up to 15 jobs, and the job after them finds out in its middle; units that
/// have become cheap wake helpers once for nothing. A job that fails, panics, is cancelled or has
/// no units teaches nothing.
///
/// It is two words, read and written without a locked instruction. Threads that share it overwrite
/// what the others learned, which does no harm where their units are alike (each counts up to 15 of
/// its own jobs then). Small jobs that run on several CPUs at once should have one for each CPU,
/// because they would share its cache line.
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
    /// How many more jobs need no clock, and the most units that they may have ([`RUN_BITS`]).
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
        /// Nothing is known.
        #[must_use]
        pub fn new() -> Self {
            Self { cost: AtomicU64::new(0), small: AtomicU64::new(0) }
        }
    }

    /// Nanoseconds that `units` take one thread, by what was learned last; nothing before that.
    /// `u64::MAX` stands for more as well.
    #[must_use]
    pub fn ns_of(&self, units: u64) -> Option<u64> {
        // Relaxed, as everywhere here: a hint that orders nothing.
        let cost = self.cost.load(Ordering::Relaxed);
        let ns = (u128::from(cost) * u128::from(units)) >> FRACTION_BITS;
        (cost != 0).then(|| u64::try_from(ns).unwrap_or(u64::MAX))
    }

    /// Whether a job of this many units need not read the clock this time. To be called once a job.
    #[inline]
    pub(crate) fn needs_no_clock(&self, units: u64) -> bool {
        let small = self.small.load(Ordering::Relaxed);
        let needs_none = units <= small >> RUN_BITS && small & RUNS != 0;
        if needs_none {
            self.small.store(small - 1, Ordering::Relaxed);
        }
        needs_none
    }

    /// Whether this many units are known to be worth no helper.
    pub(crate) fn is_for_one(&self, units: u64) -> bool {
        self.cost.load(Ordering::Relaxed) != 0
            && units / SMALL_PART <= self.small.load(Ordering::Relaxed) >> RUN_BITS
    }

    /// Units that take about `ns`, at least one, and what they take; nothing while the cost is
    /// unknown.
    pub(crate) fn sample(&self, ns: u64) -> Option<(u64, u64)> {
        let units = divide(ns, self.cost.load(Ordering::Relaxed))?.max(1);
        Some((units, self.ns_of(units)?))
    }

    /// Keeps that a job's `units` took one thread `ns`. A helper costs `start_cost_ns` before it
    /// does its first unit.
    pub(crate) fn learn(&self, units: u64, ns: u64, start_cost_ns: u64) {
        let Some(cost) = divide(ns, units) else { return };
        let cost = cost.max(1);
        // Helpers pay from two of their starts on.
        let small_units = divide(start_cost_ns.saturating_mul(2) / SMALL_PART, cost).unwrap_or(0);
        self.cost.store(cost, Ordering::Relaxed);
        self.small
            .store(small_units.min(u64::MAX >> RUN_BITS) << RUN_BITS | RUNS, Ordering::Relaxed);
    }
}

/// `ns / by` in units of 2^-20: a cost if `by` is units, units if `by` is a cost. Nothing if it is
/// 0.
fn divide(ns: u64, by: u64) -> Option<u64> {
    match ns.checked_mul(1 << FRACTION_BITS) {
        Some(fractions) => fractions.checked_div(by),
        // Times of five hours and more.
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
