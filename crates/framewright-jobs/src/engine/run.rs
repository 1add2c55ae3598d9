//! One run of a job: what it was given, and how many helpers that is worth.

use super::pace::{KNOWN_NS, Pace};
use crate::helpers::Helpers;
use crate::job::Job;
use crate::scheduler::Workers;

/// A description together with the platform and the chunk function.
pub(super) struct Run<'a, H: ?Sized, F> {
    pub(super) job: &'a Job<'a>,
    pub(super) helpers: &'a H,
    /// The platform's helpers; nothing where there are none at all.
    pub(super) workers: Option<Workers<'a>>,
    pub(super) chunk: &'a F,
}

/// Whether a job asks for the helpers that it is worth, once that is decided.
#[derive(Clone, Copy, Default)]
pub(super) struct Asks(Option<bool>);

impl<H: Helpers + ?Sized, F> Run<'_, H, F> {
    /// How many threads there could be at most, before any helper was asked.
    pub(super) fn possible_threads(&self) -> u32 {
        let slots = self.workers.map_or(0, |workers| workers.slots.len());
        u32::try_from(slots).unwrap_or(u32::MAX).saturating_add(1).min(self.job.max_threads)
    }

    /// What a helper costs before it does its first unit, nanoseconds.
    pub(super) fn start_cost_ns(&self) -> u64 {
        self.helpers.start_cost_ns().unwrap_or_else(|| {
            self.workers.map_or(u64::MAX, |workers| workers.scheduler.start_cost_ns())
        })
    }

    /// What the caller knows about time when it begins. Where it knows that no helper is worth its
    /// start, it forgets that and believes what it sees while it is alone.
    pub(super) fn first_pace(&self, size: u64, now_ns: u64) -> Pace {
        let known = self
            .job
            .unit_cost()
            .filter(|cost| !cost.is_for_one(size))
            .and_then(|cost| cost.sample(KNOWN_NS));
        Pace::known(now_ns, known.unwrap_or_default())
    }

    /// Keeps what the caller saw of a job that was done completely.
    pub(super) fn learn(&self, pace: &Pace) {
        if let Some(cost) = self.job.unit_cost() {
            let (units, ns) = pace.timed();
            cost.learn(units, ns, self.start_cost_ns());
        }
    }

    /// How many helpers `rest` units are worth: one for each share of them, and not more than there
    /// are chunks. None for a job that is not large, where helpers were asked for in vain lately.
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
