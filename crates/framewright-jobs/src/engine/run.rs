//! One run of a job: what it was given, and how many helpers it is worth.

use super::pace::{KNOWN_NS, Pace};
use crate::helpers::Helpers;
use crate::job::Job;
use crate::scheduler::Workers;

/// A job description together with the platform and the chunk function.
pub(super) struct Run<'a, H: ?Sized, F> {
    pub(super) job: &'a Job<'a>,
    pub(super) helpers: &'a H,
    /// The platform's helpers, or `None` if it has none at all.
    pub(super) workers: Option<Workers<'a>>,
    pub(super) chunk: &'a F,
}

/// Whether a job asks for the helpers that it is worth, once that has been decided.
#[derive(Clone, Copy, Default)]
pub(super) struct Asks(Option<bool>);

impl Asks {
    /// A job that asks only once it is large.
    pub(super) const IF_LARGE: Self = Self(Some(false));
}

impl<H: Helpers + ?Sized, F> Run<'_, H, F> {
    /// The most threads that could take part, before any helper was asked.
    pub(super) fn possible_threads(&self) -> u32 {
        let slots = self.workers.map_or(0, |workers| workers.slots.len());
        u32::try_from(slots).unwrap_or(u32::MAX).saturating_add(1).min(self.job.max_threads)
    }

    /// The time that a helper costs before it does its first unit, in nanoseconds.
    pub(super) fn start_cost_ns(&self) -> u64 {
        self.helpers.start_cost_ns().unwrap_or_else(|| {
            self.workers.map_or(u64::MAX, |workers| workers.scheduler.start_cost_ns())
        })
    }

    /// What the caller knows about time when it begins. If earlier jobs say that no helper is worth
    /// its start, the caller ignores them and relies on what it sees while it is alone.
    pub(super) fn first_pace(&self, size: u64, now_ns: u64) -> Pace {
        let known = self
            .job
            .unit_cost()
            .filter(|cost| !cost.is_for_one(size))
            .and_then(|cost| cost.sample(KNOWN_NS));
        Pace::known(now_ns, known.unwrap_or_default())
    }

    /// Keeps what the caller measured in a job that was done completely.
    pub(super) fn learn(&self, pace: &Pace) {
        if let Some(cost) = self.job.unit_cost() {
            let (units, ns) = pace.timed();
            cost.learn(units, ns, self.start_cost_ns());
        }
    }

    /// How many helpers `rest` units are worth, but no more than there are chunks. Returns 0 for a
    /// job that is not large if recent requests for helpers were not answered.
    #[inline]
    pub(super) fn worthwhile_helpers(&self, pace: &Pace, rest: u64, asks: &mut Asks) -> u32 {
        if pace.is_trusted() { self.worthwhile_when_trusted(*pace, rest, asks) } else { 0 }
    }

    fn worthwhile_when_trusted(&self, pace: Pace, rest: u64, asks: &mut Asks) -> u32 {
        let Some(workers) = self.workers else { return 0 };
        let worth = pace.worthwhile_helpers(rest, self.start_cost_ns()).min(rest / self.job.align);
        if worth == 0 {
            return 0;
        }
        if pace.is_large(rest) {
            asks.0 = Some(true);
        }
        if !*asks.0.get_or_insert_with(|| workers.scheduler.should_ask()) {
            return 0;
        }
        u32::try_from(worth).unwrap_or(u32::MAX).min(self.job.max_threads - 1)
    }
}
