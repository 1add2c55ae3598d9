//! What the workers of a job share, and what each of them does: claim a chunk, call the chunk
//! function, count it.

use super::indices::Indices;
use super::pace::{self, Pace};
use super::run::Run;
use super::track::{Rule, Track};
use super::whole::since;
use crate::error::Summary;
use crate::helpers::Helpers;
use crate::raw::{Ended, FirstError, Work, WorkerSlot};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::token::{Cancel, Tally};
use crate::worker::Worker;
use core::mem;
use core::ops::Range;

/// What the workers of a job share. It lives on the stack of the job's caller.
///
/// | atomic | written by | read by | ordering |
/// |---|---|---|---|
/// | positions of tracks | every worker | every worker | Relaxed, see `track` |
/// | `stop` | a worker that fails or panics | every worker before it claims | Relaxed (1) |
/// | `grid_chunk`, `called_ns`, `asked_ns` | the caller | helpers | Relaxed, carried by the offer |
/// | `held` | all workers | all workers | Release and Acquire where a helper leaves (2) |
/// | `waking` | all workers | all workers | Acquire in `wake_on` (3) |
/// | `staying` | all workers | all workers | Relaxed: a count |
/// | `indices` | helpers | helpers | Acquire and Release, see `indices` |
/// | `totals` | workers when they end | the caller after `join` | Relaxed, carried by the end |
/// | `first_error` | the first that fails | the caller after `join` | see `raw::first` |
///
/// (1) A worker that sees the flag late claims one more chunk, as if it had claimed earlier.
/// (2) A helper's number is free before the caller learns that the helper has left.
/// (3) Pairs with the caller's fence in `JobSlots::offer_reserved` and its later store to `waking`:
///     any worker that wakes others does so after the fence, as the caller does.
pub(super) struct Shared<'a, H: ?Sized, F, E> {
    pub(super) run: Run<'a, H, F>,
    pub(super) tracks: &'a [Track],
    pub(super) size: u64,
    /// The fewest units of a guided chunk.
    pub(super) floor: u64,
    /// The number of units per chunk if all chunks have one size; 0 if chunks are guided.
    pub(super) grid_chunk: AtomicU64,
    pub(super) stop: AtomicBool,
    /// The number of helpers that were asked for and have not left for another job.
    pub(super) held: AtomicU32,
    /// Of those, the number that have not decided to leave.
    pub(super) staying: AtomicU32,
    indices: Indices,
    /// The next slot whose helper is to be woken; beyond the last slot if there is none.
    pub(super) waking: AtomicUsize,
    /// When helpers were first asked for.
    pub(super) called_ns: AtomicU64,
    /// When helpers were last asked for.
    pub(super) asked_ns: AtomicU64,
    pub(super) totals: Totals,
    pub(super) first_error: FirstError<E>,
}

/// What the workers of a job did together.
#[derive(Default)]
pub(super) struct Totals {
    pub(super) threads: AtomicU32,
    chunks: AtomicU64,
    units: AtomicU64,
}

impl Totals {
    fn add(&self, tally: &Tally) {
        if tally.chunks != 0 {
            self.threads.fetch_add(1, Ordering::Relaxed);
            self.chunks.fetch_add(tally.chunks, Ordering::Relaxed);
            self.units.fetch_add(tally.units, Ordering::Relaxed);
        }
    }

    pub(super) fn summary(&self) -> Summary {
        Summary {
            threads: self.threads.load(Ordering::Relaxed),
            chunks: self.chunks.load(Ordering::Relaxed),
            units: self.units.load(Ordering::Relaxed),
        }
    }
}

/// What one worker keeps for itself.
pub(super) struct Local<'a> {
    pub(super) worker: Worker<'a>,
    pub(super) tally: Tally,
    /// The track from which this worker claims; beyond the last one if it has not chosen any.
    track: usize,
    /// The number of units in the last chunk that it claimed while other workers could claim too.
    pub(super) last: u64,
    /// Kept if there is a clock and chunks are guided.
    pub(super) pace: Option<Pace>,
}

/// Marks the job as stopped when dropped. It is forgotten unless the chunk unwinds.
struct StopOnUnwind<'a>(&'a AtomicBool);

impl Drop for StopOnUnwind<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<'a, H, F, E> Shared<'a, H, F, E>
where
    H: Helpers + ?Sized,
    F: Fn(Range<u64>, &Worker<'_>) -> Result<(), E>,
{
    pub(super) fn new(run: Run<'a, H, F>, tracks: &'a [Track]) -> Self {
        let job = run.job;
        Self {
            run,
            tracks,
            size: tracks.iter().map(|track| track.end - track.start).sum(),
            floor: job.min_chunk.unwrap_or(0).max(job.align),
            grid_chunk: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            held: AtomicU32::new(0),
            staying: AtomicU32::new(0),
            indices: Indices::new(),
            waking: AtomicUsize::new(usize::MAX),
            called_ns: AtomicU64::new(0),
            asked_ns: AtomicU64::new(0),
            totals: Totals::default(),
            first_error: FirstError::new(),
        }
    }

    /// Tells the scheduler if helpers had the time to come and none did. Called by the job's caller
    /// when all workers have ended.
    #[inline]
    pub(super) fn note_whether_helpers_came(&self) {
        let called_ns = self.called_ns.load(Ordering::Relaxed);
        let was_alone = self.totals.threads.load(Ordering::Relaxed) <= 1;
        let Some(workers) = self
            .run
            .workers
            .filter(|_| called_ns != 0 && was_alone && self.run.job.min_chunk.is_none())
        else {
            return;
        };
        let waited_ns = self.run.helpers.now_ns().map_or(0, |now| now.saturating_sub(called_ns));
        if waited_ns >= self.run.start_cost_ns().saturating_mul(2) {
            workers.scheduler.note_unanswered();
        }
    }

    pub(super) fn rule(&self) -> Rule {
        match self.grid_chunk.load(Ordering::Relaxed) {
            0 => Rule::Guided,
            chunk => Rule::Grid(chunk),
        }
    }

    pub(super) fn rest(&self) -> u64 {
        let rule = self.rule();
        self.tracks.iter().map(|track| track.rest(rule)).sum()
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.run.job.cancel.is_some_and(Cancel::is_cancelled)
    }

    /// Claims a chunk for a worker that is not alone.
    pub(super) fn claim_together(&self, own: &mut Local<'_>) -> Option<Range<u64>> {
        let claimed = self.claim(own, |track, own| match self.rule() {
            Rule::Grid(chunk) => track.claim_piece(chunk, true),
            Rule::Guided => {
                let sharers = self.sharers(track, own);
                let called_ns = self.called_ns.load(Ordering::Relaxed);
                track.claim_units(self.run.job.align, true, |rest| {
                    let share = pace::share(rest, sharers, own.last);
                    let longest_ns = self.run.helpers.longest_chunk_ns();
                    let units = own.pace.map_or(share, |pace| {
                        let limit = pace.limit(rest, track.claimed_since_call(), called_ns);
                        pace.next_together(share, limit.min(pace.units_within(longest_ns)))
                    });
                    units.max(self.floor)
                })
            }
        })?;
        own.last = claimed.end - claimed.start;
        Some(claimed)
    }

    /// About how many threads share a track: for a worker on the track's node, an equal part of all
    /// threads; for a worker from another node, all threads.
    fn sharers(&self, track: &Track, own: &Local<'_>) -> u32 {
        let threads = self.held.load(Ordering::Relaxed) + 1;
        if self.tracks.len() > 1 && track.node == own.worker.node() {
            threads.div_ceil(u32::try_from(self.tracks.len()).unwrap_or(u32::MAX))
        } else {
            threads
        }
    }

    /// Claims from the worker's track. If it has none, or that is exhausted, moves to another track
    /// of the worker's node, or else to the track with the most units left.
    #[inline]
    pub(super) fn claim(
        &self,
        own: &mut Local<'_>,
        from: impl Fn(&Track, &Local<'_>) -> Option<Range<u64>>,
    ) -> Option<Range<u64>> {
        loop {
            if let Some(claimed) = self.tracks.get(own.track).and_then(|track| from(track, own)) {
                return Some(claimed);
            }
            if self.tracks.len() < 2 {
                return None;
            }
            own.track = self.best_track(own.worker.node())?;
        }
    }

    /// The track that a worker on `node` should claim from, or `None` if everything is claimed.
    fn best_track(&self, node: u32) -> Option<usize> {
        let rule = self.rule();
        let mut most = (0, None);
        for (index, track) in self.tracks.iter().enumerate() {
            let rest = track.rest(rule);
            if rest != 0 && track.node == node {
                return Some(index);
            }
            if rest > most.0 {
                most = (rest, Some(index));
            }
        }
        most.1
    }

    /// Calls the chunk function.
    ///
    /// # Errors
    /// The range of the chunk, if it failed.
    #[inline]
    pub(super) fn call(&self, range: Range<u64>, own: &mut Local<'_>) -> Result<(), Range<u64>> {
        let units = range.end - range.start;
        own.tally.chunks += 1;
        let stop_on_unwind = StopOnUnwind(&self.stop);
        let result = (self.run.chunk)(range.clone(), &own.worker);
        mem::forget(stop_on_unwind);
        match result {
            Ok(()) => {
                own.tally.units += units;
                if let Some(done) = self.run.job.done {
                    done.add(units);
                }
                Ok(())
            }
            Err(error) => {
                self.stop.store(true, Ordering::Relaxed);
                self.first_error.offer(error, range.clone());
                Err(range)
            }
        }
    }

    /// Creates the local state of a worker that begins on this thread.
    pub(super) fn worker<'b>(&'b self, index: u32, node: &'b (dyn Fn() -> u32 + 'b)) -> Local<'b> {
        let worker = Worker { index, node, stop: &self.stop, cancel: self.run.job.cancel };
        // The job's caller chooses only when it has fixed how parts are cut.
        let track = if self.tracks.len() > 1 { usize::MAX } else { 0 };
        Local { worker, tally: Tally::default(), track, last: 0, pace: None }
    }

    /// Adds what a worker did to the totals when the worker ends.
    pub(super) fn finish(&self, own: &Local<'_>, began_ns: Option<u64>) {
        self.totals.add(&own.tally);
        if let Some(record) = self.run.job.statistics.get(own.worker.index as usize) {
            record.record(&own.tally, since(self.run.helpers, began_ns), own.worker.node());
        }
    }

    /// Whether a helper should leave for another job: some job is short of helpers, and this job
    /// has more than its share.
    fn must_leave(&self) -> bool {
        let Some(workers) = self.run.workers.filter(|workers| workers.scheduler.hungry() != 0)
        else {
            return false;
        };
        let share = workers.scheduler.share(workers.slots.len());
        let leave = |staying: u32| (staying > share).then(|| staying - 1);
        self.staying.fetch_update(Ordering::Relaxed, Ordering::Relaxed, leave).is_ok()
    }

    /// Wakes helpers that were offered work until all of them are woken. Several workers may do
    /// this together.
    pub(super) fn wake_on(&self) {
        let Some(workers) = self.run.workers else { return };
        while self.waking.load(Ordering::Relaxed) < workers.slots.len() {
            let helper = self.waking.fetch_add(1, Ordering::Acquire);
            if workers.slots.get(helper).is_some_and(WorkerSlot::is_offered) {
                self.run.helpers.wake(helper);
            }
        }
    }
}

impl<H, F, E> Work for Shared<'_, H, F, E>
where
    H: Helpers + ?Sized,
    F: Fn(Range<u64>, &Worker<'_>) -> Result<(), E> + Sync,
    E: Send,
{
    fn help(&self) -> Ended {
        let began = self.run.helpers.now_ns();
        if let (Some(now), Some(workers)) = (began, self.run.workers) {
            workers
                .scheduler
                .learn_start_cost(now.saturating_sub(self.asked_ns.load(Ordering::Relaxed)));
        }
        self.wake_on();
        let Some(index) = self.indices.take() else { return Ended::Done };
        let node = || self.run.helpers.current_node();
        let mut own = self.worker(index, &node);
        own.pace = began.filter(|_| self.run.job.is_guided()).map(Pace::start);
        let mut leaves = false;
        let mut ended = Ended::Done;
        while !self.stopped() {
            leaves = self.must_leave();
            if leaves {
                break;
            }
            let Some(range) = self.claim_together(&mut own) else { break };
            let units = range.end - range.start;
            if let Err(failed) = self.call(range, &mut own) {
                ended = Ended::Failed(failed);
                break;
            }
            if let (Some(pace), Some(now)) =
                (&mut own.pace, began.and_then(|_| self.run.helpers.now_ns()))
            {
                pace.lap(now, units);
            }
        }
        self.finish(&own, began);
        self.indices.release(index);
        if leaves {
            // Only after the number was given back, so that the helper's successor finds a number
            // free: Release pairs with the Acquire in `Leader::missing`, and the offer passes it on
            // to the successor.
            self.held.fetch_sub(1, Ordering::Release);
        }
        ended
    }
}
