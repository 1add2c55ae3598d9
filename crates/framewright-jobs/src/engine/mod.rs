//! The engine that runs jobs.
//!
//! ```text
//! Job::run -> run_known     jobs like it were small: one call, no clock
//!          -> run_whole     one thread: one call, no atomics
//!          -> begin_alone   adaptive, not watched: ends here, or once helpers are worth calling
//!          -> run_on_tracks -> Leader (on the caller): alone, then together with helpers
//!                           -> Shared::help (on each helper)
//!                           -> join: withdraw unanswered offers, wait for the others -> undo
//! ```

mod alone;
mod indices;
mod leader;
mod pace;
mod run;
mod shared;
mod track;
mod undo;
mod whole;

use crate::error::{JobError, Summary};
use crate::helpers::Helpers;
use crate::job::Job;
use crate::nodes::MAX_PARTS;
use crate::plan;
use crate::raw::with_job_slots;
use crate::scheduler::{MAX_HELPERS, Workers};
use crate::sync::atomic::Ordering;
use crate::token::Cancel;
use crate::worker::Worker;
use alone::Begun;
use core::ops::Range;
use leader::Leader;
use run::Run;
use shared::Shared;
use track::Track;

impl Job<'_> {
    /// Runs the job: calls `chunk` for ranges that cover it exactly once, on this thread and on
    /// helpers. Returns when all these calls have returned. If no helper comes, this thread does
    /// everything; a helper that has not started by the time this returns never runs a chunk of
    /// this job.
    ///
    /// What the chunks wrote is visible once this returns. `chunk` may run jobs of its own.
    ///
    /// # Errors
    /// * [`JobError::Invalid`]: nothing was called.
    /// * [`JobError::Failed`]: the first error of a chunk. No chunk was claimed after it, and the
    ///   chunks that were running have finished. Part of the range is done.
    /// * [`JobError::Cancelled`]: no chunk was claimed after the cancellation, and the chunks that
    ///   were running have finished. Part of the range is done.
    ///
    /// # Panics
    /// When a chunk panics, after all workers have stopped.
    #[inline]
    pub fn run<H, F, E>(&self, helpers: &H, chunk: F) -> Result<Summary, JobError<E>>
    where
        H: Helpers + ?Sized,
        F: Fn(Range<u64>, &Worker<'_>) -> Result<(), E> + Sync,
        E: Send,
    {
        if let Some(range) = self.needs_no_clock() {
            return Self::run_known(helpers, &chunk, range);
        }
        self.start(helpers, &chunk, None::<fn(Range<u64>)>)
    }

    /// Like [`run`](Self::run), but leaves nothing half done: if a chunk fails, or the job is
    /// cancelled before everything is claimed, calls `undo` on this thread for every maximal range
    /// whose chunks succeeded, in ascending order. A chunk that fails cleans up after itself;
    /// `undo` is not called for it.
    ///
    /// # Errors
    /// Those of `run`. Nothing stays done, as far as `undo` undoes it.
    ///
    /// # Panics
    /// When a chunk panics. Nothing is undone then, because the panicking chunk left its state
    /// unknown.
    #[inline]
    pub fn run_or_undo<H, F, U, E>(
        &self,
        helpers: &H,
        chunk: F,
        undo: U,
    ) -> Result<Summary, JobError<E>>
    where
        H: Helpers + ?Sized,
        F: Fn(Range<u64>, &Worker<'_>) -> Result<(), E> + Sync,
        U: FnMut(Range<u64>),
        E: Send,
    {
        // This runs as one chunk. If that fails, no other chunk has succeeded and there is nothing
        // to undo.
        if let Some(range) = self.needs_no_clock() {
            return Self::run_known(helpers, &chunk, range);
        }
        self.start(helpers, &chunk, Some(undo))
    }

    #[inline(never)]
    fn start<H, F, U, E>(
        &self,
        helpers: &H,
        chunk: &F,
        undo: Option<U>,
    ) -> Result<Summary, JobError<E>>
    where
        H: Helpers + ?Sized,
        F: Fn(Range<u64>, &Worker<'_>) -> Result<(), E> + Sync,
        U: FnMut(Range<u64>),
        E: Send,
    {
        let size = self.size()?;
        if size == 0 {
            return Ok(Summary::default());
        }
        if self.cancel.is_some_and(Cancel::is_cancelled) {
            return Err(JobError::Cancelled { units: 0 });
        }
        let workers = helpers.workers().map(|workers| Workers {
            slots: workers.slots.get(..MAX_HELPERS).unwrap_or(workers.slots),
            ..workers
        });
        let run = Run { job: self, helpers, workers, chunk };
        if self.has_parts() {
            return run.run_parts(undo);
        }
        let range = self.start..self.start + size;
        let has_helpers = workers.is_some_and(|workers| !workers.slots.is_empty());
        let whole = match self.min_chunk {
            Some(min_chunk) => {
                plan::threads_wanted(size, self.align, min_chunk, self.max_threads) == 1
            }
            None if !has_helpers || self.max_threads == 1 => {
                self.cancel.is_none() && self.done.is_none()
            }
            None => size <= self.align,
        };
        if whole {
            return run.run_whole(range);
        }
        if has_helpers
            && self.can_begin_alone()
            && let Some(now_ns) = helpers.now_ns()
        {
            return match run.begin_alone(&range, now_ns) {
                Ok(Begun { chunks, at, .. }) if at == range.end => {
                    Ok(Summary { threads: 1, chunks, units: size })
                }
                Ok(begun) => {
                    let track = Track::at(range, 0, begun.at);
                    run.run_on_tracks(undo, &[track], Some(begun))
                }
                Err((error, failed)) => {
                    if let Some(mut undo) = undo.filter(|_| failed.start > range.start) {
                        undo(range.start..failed.start);
                    }
                    Err(JobError::Failed { error, range: failed })
                }
            };
        }
        run.run_on_tracks(undo, &[self.track(range, 0)], None)
    }

    fn track(&self, range: Range<u64>, node: u32) -> Track {
        Track::new(range, node, self.is_guided())
    }

    pub(crate) const fn is_guided(&self) -> bool {
        self.guided || self.min_chunk.is_none()
    }
}

impl<H, F, E> Run<'_, H, F>
where
    H: Helpers + ?Sized,
    F: Fn(Range<u64>, &Worker<'_>) -> Result<(), E> + Sync,
    E: Send,
{
    /// Runs a job of parts. It is a separate function so that the space for [`MAX_PARTS`] parts is
    /// on the stack only if there are parts.
    #[inline(never)]
    fn run_parts<U>(self, undo: Option<U>) -> Result<Summary, JobError<E>>
    where
        U: FnMut(Range<u64>),
    {
        // Built in place, without a copy, because the stack may be small.
        #[cfg(not(any(loom, shuttle)))]
        let mut tracks = [const { Track::empty() }; MAX_PARTS];
        #[cfg(any(loom, shuttle))]
        let mut tracks: [Track; MAX_PARTS] = core::array::from_fn(|_| Track::empty());
        let parts = self.job.parts;
        for (track, part) in tracks.iter_mut().zip(parts) {
            *track = self.job.track(part.range.clone(), part.node);
        }
        let tracks = tracks.get(..parts.len()).unwrap_or(&tracks);
        self.run_on_tracks(undo, tracks, None)
    }

    #[inline(never)]
    fn run_on_tracks<U>(
        self,
        undo: Option<U>,
        tracks: &[Track],
        begun: Option<Begun>,
    ) -> Result<Summary, JobError<E>>
    where
        U: FnMut(Range<u64>),
    {
        let Run { helpers, workers, .. } = self;
        let slots = workers.map_or(&[][..], |workers| workers.slots);
        let shared = Shared::new(self, tracks);
        let wait = |helper: usize, done: &dyn Fn() -> bool| helpers.wait_for(helper, done);
        let complete = with_job_slots(slots, &shared, &wait, |job_slots| {
            let (failed, pace) = Leader::new(&shared, job_slots).lead(begun);
            job_slots.join();
            shared.note_whether_helpers_came();
            if let Some(helper) = job_slots.panicked() {
                helpers.resume_panic(helper);
            }
            // Relaxed: all workers have ended.
            let complete = !shared.stop.load(Ordering::Relaxed) && shared.rest() == 0;
            if let Some(undo) = undo.filter(|_| !complete) {
                let rule = shared.rule();
                let claimed = tracks.iter().map(|track| track.start..track.claimed_end(rule));
                let own = |at: u64| failed.clone().filter(|range| range.start >= at);
                let next_failed = |at| {
                    own(at)
                        .into_iter()
                        .chain(job_slots.next_failed(at))
                        .min_by_key(|next| next.start)
                };
                undo::undo_succeeded(claimed, next_failed, undo);
            }
            if let (true, Some(_), Some(pace)) = (complete, workers, &pace) {
                shared.run.learn(pace);
            }
            complete
        });
        let summary = shared.totals.summary();
        match shared.first_error.into_inner() {
            Some((error, range)) => Err(JobError::Failed { error, range }),
            None if complete => Ok(summary),
            None => Err(JobError::Cancelled { units: summary.units }),
        }
    }
}
