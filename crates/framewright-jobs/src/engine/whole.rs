//! Jobs that are done in one call on their caller's thread.

use super::run::Run;
use crate::error::{JobError, Summary};
use crate::helpers::Helpers;
use crate::job::Job;
use crate::sync::atomic::AtomicBool;
use crate::token::{Cancel, Tally};
use crate::worker::Worker;
use core::ops::Range;

impl Job<'_> {
    /// The whole range, if it is known that one call can do it without asking the clock or the
    /// platform. `None` also for an invalid description.
    #[inline]
    pub(super) fn needs_no_clock(&self) -> Option<Range<u64>> {
        let cost = self.unit_cost().filter(|_| self.can_begin_alone() && !self.has_parts())?;
        let size = self.size().ok().filter(|&size| size != 0)?;
        cost.needs_no_clock(size).then(|| self.start..self.start + size)
    }

    /// Runs a job that nothing watches as one call; small enough to be inlined.
    #[inline]
    pub(super) fn run_known<H, F, E>(
        helpers: &H,
        chunk: &F,
        range: Range<u64>,
    ) -> Result<Summary, JobError<E>>
    where
        H: Helpers + ?Sized,
        F: Fn(Range<u64>, &Worker<'_>) -> Result<(), E>,
    {
        match as_only_worker(helpers, None, |worker| chunk(range.clone(), worker)) {
            Ok(()) => Ok(Summary { threads: 1, chunks: 1, units: range.end - range.start }),
            Err(error) => Err(JobError::Failed { error, range }),
        }
    }
}

impl<H, F, E> Run<'_, H, F>
where
    H: Helpers + ?Sized,
    F: Fn(Range<u64>, &Worker<'_>) -> Result<(), E>,
{
    /// Runs the job as one call on this thread. If it fails, there is nothing to undo.
    pub(super) fn run_whole(&self, range: Range<u64>) -> Result<Summary, JobError<E>> {
        let Run { job, helpers, .. } = self;
        let record = job.statistics.first();
        let began = record.and_then(|_| helpers.now_ns());
        let units = range.end - range.start;
        let chunk = |worker: &Worker<'_>| (self.chunk)(range.clone(), worker);
        let result = as_only_worker(*helpers, job.cancel, chunk);
        let tally = Tally { chunks: 1, units: if result.is_ok() { units } else { 0 } };
        if let Some(record) = record {
            record.record(&tally, since(*helpers, began), helpers.current_node());
        }
        match result {
            Ok(()) => {
                if let Some(done) = job.done {
                    done.add(units);
                }
                Ok(Summary { threads: 1, chunks: 1, units })
            }
            Err(error) => Err(JobError::Failed { error, range }),
        }
    }
}

/// Calls `work` as the only worker of a job.
#[inline(always)]
pub(super) fn as_only_worker<H: Helpers + ?Sized, R>(
    helpers: &H,
    cancel: Option<&Cancel>,
    work: impl FnOnce(&Worker<'_>) -> R,
) -> R {
    let stop = AtomicBool::new(false);
    let node = || helpers.current_node();
    work(&Worker { index: 0, node: &node, stop: &stop, cancel })
}

/// Nanoseconds since `began_ns`; 0 without a clock.
pub(super) fn since<H: Helpers + ?Sized>(helpers: &H, began_ns: Option<u64>) -> u64 {
    let now = began_ns.and_then(|_| helpers.now_ns());
    now.unwrap_or(0).saturating_sub(began_ns.unwrap_or(0))
}
