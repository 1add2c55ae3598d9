//! What the jobs of one platform share: [`Workers`], the slots of its helpers, and
//! [`SchedulerState`], which divides the helpers among jobs.

use crate::nodes::NodeCursor;
use crate::raw::WorkerSlot;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::const_fn;

/// The most helpers that a platform can use: there are 256 worker numbers, and the caller has the
/// first.
pub const MAX_HELPERS: usize = 255;

/// The start cost that is assumed until one has been measured.
const FIRST_START_COST_NS: u64 = 20_000;

/// The most jobs in a row that do not ask for helpers after a job whose request was not answered.
const MAX_SKIPPED: u32 = 15;

/// What the jobs of one platform share: the node cursor, the number of jobs that are short of
/// helpers, and how long helpers take to start.
///
/// All its atomics are Relaxed. They are hints and counts: a stale value costs time, and no other
/// data depends on their order.
pub struct SchedulerState {
    pub(crate) cursor: NodeCursor,
    jobs: AtomicU32,
    hungry: AtomicU32,
    start_cost_ns: AtomicU64,
    /// The number of jobs in a row whose helpers had the time to come and did not.
    unanswered: AtomicU32,
    /// The number of jobs worth helpers since the last of those jobs.
    skipped: AtomicU32,
}

impl Default for SchedulerState {
    fn default() -> Self {
        Self::new()
    }
}

impl SchedulerState {
    const_fn! {
        /// Creates the state of a platform without jobs. A helper's start is assumed to take 20 us
        /// until some helpers have started.
        #[must_use]
        pub fn new() -> Self {
            Self {
                cursor: NodeCursor::new(),
                jobs: AtomicU32::new(0),
                hungry: AtomicU32::new(0),
                start_cost_ns: AtomicU64::new(FIRST_START_COST_NS),
                unanswered: AtomicU32::new(0),
                skipped: AtomicU32::new(0),
            }
        }
    }

    /// Nanoseconds from a request for helpers to a helper's first claim: a moving average over the
    /// helpers that came.
    #[must_use]
    pub fn start_cost_ns(&self) -> u64 {
        self.start_cost_ns.load(Ordering::Relaxed)
    }

    /// Whether a job that is not large should ask for helpers. While requests go unanswered, only
    /// one job in 2, 4, 8, and at most [`MAX_SKIPPED`] + 1 does. To be called once per job.
    pub(crate) fn should_ask(&self) -> bool {
        let unanswered = self.unanswered.load(Ordering::Relaxed);
        if unanswered == 0 {
            return true;
        }
        let skip =
            1_u32.checked_shl(unanswered).map_or(MAX_SKIPPED, |jobs| (jobs - 1).min(MAX_SKIPPED));
        self.skipped.fetch_add(1, Ordering::Relaxed) >= skip
    }

    /// Records that a job ended whose helpers had the time to come and did not.
    pub(crate) fn note_unanswered(&self) {
        let unanswered = self.unanswered.load(Ordering::Relaxed);
        self.unanswered.store(unanswered.saturating_add(1), Ordering::Relaxed);
        self.skipped.store(0, Ordering::Relaxed);
    }

    /// Adds one helper's start to the average with a weight of one eighth. A start that was delayed
    /// by a busy CPU counts as at most eight times the average.
    pub(crate) fn learn_start_cost(&self, sample_ns: u64) {
        if self.unanswered.load(Ordering::Relaxed) != 0 {
            self.unanswered.store(0, Ordering::Relaxed);
        }
        let old = self.start_cost_ns();
        let sample = sample_ns.min(old.saturating_mul(8)).max(8);
        self.start_cost_ns.store(old - old / 8 + sample / 8, Ordering::Relaxed);
    }

    /// The number of jobs that asked for helpers and have not ended.
    #[must_use]
    pub fn jobs(&self) -> u32 {
        self.jobs.load(Ordering::Relaxed)
    }

    /// The number of jobs that have fewer helpers than their share and than they want.
    pub(crate) fn hungry(&self) -> u32 {
        self.hungry.load(Ordering::Relaxed)
    }

    /// How many helpers each job may keep while another job is short of some: at least one, so a
    /// single helper stays where it is.
    pub(crate) fn share(&self, slots: usize) -> u32 {
        let slots = u32::try_from(slots.min(MAX_HELPERS)).unwrap_or(u32::MAX);
        (slots / self.jobs().max(1)).max(1)
    }
}

/// A job that the scheduler counts until this is dropped.
pub(crate) struct Registration<'a> {
    scheduler: &'a SchedulerState,
    hungry: bool,
}

impl<'a> Registration<'a> {
    pub(crate) fn new(scheduler: &'a SchedulerState) -> Self {
        scheduler.jobs.fetch_add(1, Ordering::Relaxed);
        Self { scheduler, hungry: false }
    }

    pub(crate) fn set_hungry(&mut self, hungry: bool) {
        if hungry != self.hungry {
            if hungry {
                self.scheduler.hungry.fetch_add(1, Ordering::Relaxed);
            } else {
                self.scheduler.hungry.fetch_sub(1, Ordering::Relaxed);
            }
            self.hungry = hungry;
        }
    }

    pub(crate) fn others_hungry(&self) -> bool {
        self.scheduler.hungry() > u32::from(self.hungry)
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.set_hungry(false);
        self.scheduler.jobs.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The workers that a platform lends to jobs: helper `i` serves `slots[i]`.
#[derive(Clone, Copy)]
pub struct Workers<'a> {
    /// One slot for each helper; slots from index [`MAX_HELPERS`] on are not used.
    pub slots: &'a [WorkerSlot],
    /// What all jobs that use these slots share.
    pub scheduler: &'a SchedulerState,
}
