//! The beginning of an adaptive job: the caller works alone before it sets up anything that other
//! threads could see.
//!
//! Most jobs that turn out to be small end here. Their only overhead is one clock reading before
//! the first chunk and one after it.

use super::pace::Pace;
use super::run::{Asks, Run};
use super::track::border;
use super::whole::as_only_worker;
use crate::helpers::Helpers;
use crate::job::Job;
use crate::worker::Worker;
use core::ops::Range;

/// The work that the caller did before helpers became worth calling, or to the end without them.
pub(super) struct Begun {
    pub(super) pace: Pace,
    pub(super) chunks: u64,
    /// One past the last unit that is done.
    pub(super) at: u64,
    pub(super) asks: Asks,
}

impl Job<'_> {
    /// Whether nothing watches the job while it runs, and its size alone does not determine how
    /// many threads it is worth.
    #[inline]
    pub(super) fn can_begin_alone(&self) -> bool {
        self.min_chunk.is_none()
            && self.cancel.is_none()
            && self.done.is_none()
            && self.statistics.is_empty()
    }

    /// Whether a finished job that keeps its unit cost needs another reading because less than half
    /// of its units were timed.
    fn must_look_again(&self, pace: &Pace, size: u64) -> bool {
        self.unit_cost().is_some() && pace.timed().0 < size / 2
    }
}

impl<H, F, E> Run<'_, H, F>
where
    H: Helpers + ?Sized,
    F: Fn(Range<u64>, &Worker<'_>) -> Result<(), E>,
{
    /// Works on `range`, which no other thread can see yet, until all is done or helpers are worth
    /// calling.
    ///
    /// # Errors
    /// The error of a chunk, and the chunk's range. All units before it are done, and none after it
    /// was begun.
    #[inline(always)]
    pub(super) fn begin_alone(
        &self,
        range: &Range<u64>,
        now_ns: u64,
    ) -> Result<Begun, (E, Range<u64>)> {
        let job = self.job;
        let threads = self.possible_threads();
        let size = range.end - range.start;
        let pace = self.first_pace(size, now_ns);
        let mut begun = Begun { pace, chunks: 0, at: range.start, asks: Asks::default() };
        // A job that is thought to be worth no helper is timed once, in its middle, and needs no
        // second reading at its end.
        let half = job.unit_cost().filter(|cost| cost.is_for_one(size)).map(|_| size.div_ceil(2));
        loop {
            let rest = range.end - begun.at;
            if self.worthwhile_helpers(&begun.pace, rest, &mut begun.asks) != 0 {
                return Ok(begun);
            }
            let wanted =
                half.unwrap_or_else(|| begun.pace.next_alone(size, threads)).max(job.align);
            let next = begun.at..border(begun.at, wanted, job.align, range.end);
            let units = next.end - next.start;
            (begun.at, begun.chunks) = (next.end, begun.chunks + 1);
            as_only_worker(self.helpers, None, |worker| (self.chunk)(next.clone(), worker))
                .map_err(|error| (error, next))?;
            let is_done = begun.at == range.end;
            if (!is_done || job.must_look_again(&begun.pace, size))
                && let Some(now) = self.helpers.now_ns()
            {
                begun.pace.lap(now, units);
            }
            if is_done {
                self.learn(&begun.pace);
                return Ok(begun);
            }
        }
    }
}
