//! Running a job: [`Shared`] is what all its workers see, `leader` is the caller's side.
//!
//! ```text
//! job.run -> run_whole                      one thread: one call, no atomics
//!         -> run_known                 its like were small: likewise
//!         -> begin_alone               adaptive, nobody looks: until helpers are worth it, which small jobs never see
//!         -> Shared -> with_recruits -> Leader: alone -> (helpers are worth it) -> together -> settle -> undo
//!                                   \-> Shared::help on each helper's thread
//! ```

mod alone;
mod indices;
mod leader;
mod pace;
mod track;
mod undo;
mod whole;

use crate::error::{JobError, Summary};
use crate::helpers::{Crew, Helpers, MAX_HELPERS};
use crate::job::{Job, MAX_PARTS};
use crate::plan;
use crate::raw::{Ended, FirstError, Work, with_recruits};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::token::{Cancel, Tally};
use crate::worker::Worker;
use alone::Begun;
use core::mem;
use core::ops::Range;
use indices::Indices;
use leader::Leader;
use pace::Pace;
use track::{Rule, Track};
use whole::since;

/// A job whose progress is watched is cut into this many chunks when one thread does it without a
/// smallest chunk.
const WATCHED_CHUNKS: u64 = 64;

impl Job<'_> {
    /// Runs the job: calls `chunk` for ranges that cover it exactly once, on this thread and on
    /// helpers. Returns when all calls have returned. Runs to its end on this thread if no helper
    /// comes; a helper that has not started by then never does.
    ///
    /// What the chunks wrote is visible when this returns. `chunk` may run jobs of its own.
    ///
    /// # Errors
    /// [`JobError::Invalid`]: nothing was called. [`JobError::Failed`]: the first error of a chunk; no chunk was claimed after it, those that ran have finished.
    /// [`JobError::Cancelled`]: likewise. In the last two cases part of the range is done.
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

    /// [`run`](Self::run) that leaves nothing half done: when a chunk failed, or the job was
    /// cancelled before all was claimed, calls `undo` on this thread for every maximal range whose
    /// chunks succeeded, in ascending order. Never for a chunk that failed, which cleans up after
    /// itself, nor for what was not begun (SPEC 1.4).
    ///
    /// # Errors
    /// Those of `run`. In each case nothing is left done, as far as `undo` undoes it.
    ///
    /// # Panics
    /// When a chunk panics; nothing is undone then, as nobody knows what state that chunk left.
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
        // A failure leaves nothing to undo.
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
        let crew = helpers.crew().map(|crew| Crew {
            posts: crew.posts.get(..MAX_HELPERS).unwrap_or(crew.posts),
            ..crew
        });
        if !self.has_parts() {
            let range = self.start..self.start + size;
            let possible = crew.filter(|crew| !crew.posts.is_empty());
            let whole = match self.min_chunk {
                Some(min_chunk) => {
                    plan::threads_wanted(size, self.align, min_chunk, self.max_threads) == 1
                }
                None if possible.is_none() || self.max_threads == 1 => {
                    self.cancel.is_none() && self.done.is_none()
                }
                None => size <= self.align,
            };
            if whole {
                return self.run_whole(helpers, chunk, range);
            }
            let mut begun = None;
            let mut position = range.start;
            if let Some(crew) = possible.filter(|_| self.can_begin_alone())
                && let Some(now_ns) = helpers.now_ns()
            {
                match self.begin_alone(helpers, crew, chunk, &range, now_ns) {
                    Ok(Begun { chunks, at, .. }) if at == range.end => {
                        return Ok(Summary { threads: 1, chunks, units: size });
                    }
                    Ok(some) => {
                        position = some.at;
                        begun = Some(some);
                    }
                    Err((error, failed)) => {
                        if let Some(mut undo) = undo.filter(|_| failed.start > range.start) {
                            undo(range.start..failed.start);
                        }
                        return Err(JobError::Failed { error, range: failed });
                    }
                }
            }
            let track =
                if begun.is_some() { Track::at(range, 0, position) } else { self.track(range, 0) };
            return self.run_on_tracks(helpers, crew, chunk, undo, &[track], begun);
        }
        self.run_parts(helpers, crew, chunk, undo)
    }

    /// A function of its own, so that the room for [`MAX_PARTS`] parts is on the stack only when
    /// there are parts.
    #[inline(never)]
    fn run_parts<H, F, U, E>(
        &self,
        helpers: &H,
        crew: Option<Crew<'_>>,
        chunk: &F,
        undo: Option<U>,
    ) -> Result<Summary, JobError<E>>
    where
        H: Helpers + ?Sized,
        F: Fn(Range<u64>, &Worker<'_>) -> Result<(), E> + Sync,
        U: FnMut(Range<u64>),
        E: Send,
    {
        // Made in place: a stack may be small.
        #[cfg(not(any(loom, shuttle)))]
        let mut tracks = [const { Track::empty() }; MAX_PARTS];
        #[cfg(any(loom, shuttle))]
        let mut tracks: [Track; MAX_PARTS] = core::array::from_fn(|_| Track::empty());
        for (track, part) in tracks.iter_mut().zip(self.parts) {
            *track = self.track(part.range.clone(), part.node);
        }
        let tracks = tracks.get(..self.parts.len()).unwrap_or(&tracks);
        self.run_on_tracks(helpers, crew, chunk, undo, tracks, None)
    }

    fn track(&self, range: Range<u64>, node: u32) -> Track {
        Track::new(range, node, self.is_guided())
    }

    pub(crate) const fn is_guided(&self) -> bool {
        self.guided || self.min_chunk.is_none()
    }

    #[inline(never)]
    fn run_on_tracks<H, F, U, E>(
        &self,
        helpers: &H,
        crew: Option<Crew<'_>>,
        chunk: &F,
        undo: Option<U>,
        tracks: &[Track],
        begun: Option<Begun>,
    ) -> Result<Summary, JobError<E>>
    where
        H: Helpers + ?Sized,
        F: Fn(Range<u64>, &Worker<'_>) -> Result<(), E> + Sync,
        U: FnMut(Range<u64>),
        E: Send,
    {
        let posts = crew.map_or(&[][..], |crew| crew.posts);
        let size = tracks.iter().map(|track| track.end - track.start).sum();
        let shared = Shared::new(self, helpers, crew, chunk, tracks, size);
        let wait = |helper: usize, done: &dyn Fn() -> bool| helpers.wait_for(helper, done);
        let complete = with_recruits(posts, &shared, &wait, |recruits| {
            let (failed, pace) = Leader::new(&shared, recruits).lead(begun);
            recruits.settle();
            shared.learn_whether_helpers_came();
            if let Some(helper) = recruits.panicked() {
                helpers.resume_panic(helper);
            }
            let complete = !shared.stop.load(Ordering::Relaxed) && shared.rest() == 0;
            if let Some(undo) = undo.filter(|_| !complete) {
                let rule = shared.rule();
                let claimed = tracks.iter().map(|track| track.start..track.claimed_end(rule));
                let own = |at: u64| failed.clone().filter(|range| range.start >= at);
                let next_failed = |at| match (own(at), recruits.next_failed(at)) {
                    (Some(own), Some(helpers)) => {
                        Some(if own.start < helpers.start { own } else { helpers })
                    }
                    (own, helpers) => own.or(helpers),
                };
                undo::undo_succeeded(claimed, next_failed, undo);
            }
            if let (true, Some(crew), Some(pace)) = (complete, crew, &pace) {
                self.learn(helpers, crew, pace);
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

/// What the workers of a job share, on its caller's stack.
///
/// | atomic | written by | read by | ordering |
/// |---|---|---|---|
/// | positions of tracks | every worker | every worker | Relaxed, see `track` |
/// | `stop` | who fails or panics | every worker before it claims | Relaxed: a late reader claims one chunk more, as if it had claimed earlier |
/// | `grid_chunk`, `called_ns`, `asked_ns` | the caller before an offer | helpers | Relaxed, carried by the offer |
/// | `held`, `staying`, `waking` | caller and helpers | caller and helpers | Relaxed: counts |
/// | `indices` | helpers | helpers | Acquire and Release, see `indices` |
/// | `totals` | workers when they end | the caller after `settle` | Relaxed, carried by the helper's end |
/// | `first_error` | who fails first | the caller after `settle` | see `raw::first` |
struct Shared<'a, H: ?Sized, F, E> {
    job: &'a Job<'a>,
    helpers: &'a H,
    crew: Option<Crew<'a>>,
    chunk: &'a F,
    tracks: &'a [Track],
    size: u64,
    /// Least units of a guided chunk.
    floor: u64,
    /// 0: guided.
    grid_chunk: AtomicU64,
    stop: AtomicBool,
    /// Helpers that were asked for and have not left for another job.
    held: AtomicU32,
    /// Of those, the ones that have not decided to leave.
    staying: AtomicU32,
    indices: Indices,
    /// The next post whose helper is to be woken; beyond the last when there is none.
    waking: AtomicUsize,
    /// When helpers were first, and last, asked for.
    called_ns: AtomicU64,
    asked_ns: AtomicU64,
    totals: Totals,
    first_error: FirstError<E>,
}

#[derive(Default)]
struct Totals {
    threads: AtomicU32,
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

    fn summary(&self) -> Summary {
        Summary {
            threads: self.threads.load(Ordering::Relaxed),
            chunks: self.chunks.load(Ordering::Relaxed),
            units: self.units.load(Ordering::Relaxed),
        }
    }
}

/// What a worker keeps for itself.
struct Own<'a> {
    worker: Worker<'a>,
    tally: Tally,
    /// The track from which it claims.
    track: usize,
    /// Units of its last chunk that was claimed together with others.
    last: u64,
    /// With a clock and guided chunks.
    pace: Option<Pace>,
}

/// Marks the job as stopped unless it is forgotten: what happens when a chunk unwinds.
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
    fn new(
        job: &'a Job<'a>,
        helpers: &'a H,
        crew: Option<Crew<'a>>,
        chunk: &'a F,
        tracks: &'a [Track],
        size: u64,
    ) -> Self {
        Self {
            job,
            helpers,
            crew,
            chunk,
            tracks,
            size,
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

    /// For the caller when all have ended.
    #[inline]
    fn learn_whether_helpers_came(&self) {
        let called_ns = self.called_ns.load(Ordering::Relaxed);
        let was_alone = self.totals.threads.load(Ordering::Relaxed) <= 1;
        let Some(crew) =
            self.crew.filter(|_| called_ns != 0 && was_alone && self.job.min_chunk.is_none())
        else {
            return;
        };
        let waited_ns = self.helpers.now_ns().map_or(0, |now| now.saturating_sub(called_ns));
        if waited_ns >= alone::start_cost_ns(self.helpers, crew).saturating_mul(2) {
            crew.desk.learn_vain();
        }
    }

    fn rule(&self) -> Rule {
        match self.grid_chunk.load(Ordering::Relaxed) {
            0 => Rule::Guided,
            chunk => Rule::Grid(chunk),
        }
    }

    fn rest(&self) -> u64 {
        let rule = self.rule();
        self.tracks.iter().map(|track| track.rest(rule)).sum()
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.job.cancel.is_some_and(Cancel::is_cancelled)
    }

    /// Claims for a worker that is not alone.
    fn claim_together(&self, own: &mut Own<'_>) -> Option<Range<u64>> {
        let claimed = self.claim(own, |track, own| match self.rule() {
            Rule::Grid(chunk) => track.claim_piece(chunk, true),
            Rule::Guided => {
                let sharers = self.sharers(track, own);
                let called_ns = self.called_ns.load(Ordering::Relaxed);
                track.claim_units(self.job.align, true, |rest| {
                    let share = pace::share(rest, sharers, own.last);
                    let longest_ns = self.helpers.longest_chunk_ns();
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

    /// How many threads share a track, about: those of its node while it is claimed from there,
    /// everybody at the end.
    fn sharers(&self, track: &Track, own: &Own<'_>) -> u32 {
        let threads = self.held.load(Ordering::Relaxed) + 1;
        if self.tracks.len() > 1 && track.node == own.worker.node() {
            threads.div_ceil(u32::try_from(self.tracks.len()).unwrap_or(u32::MAX))
        } else {
            threads
        }
    }

    /// Claims from the worker's track; when that is exhausted from another of its node, then from
    /// the one with most left.
    #[inline]
    fn claim(
        &self,
        own: &mut Own<'_>,
        from: impl Fn(&Track, &Own<'_>) -> Option<Range<u64>>,
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

    /// The track that a worker on `node` should claim from; nothing when all is claimed.
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

    /// Calls the chunk function; gives back the range if it failed.
    #[inline]
    fn call(&self, range: Range<u64>, own: &mut Own<'_>) -> Result<(), Range<u64>> {
        let units = range.end - range.start;
        own.tally.chunks += 1;
        let stop_on_unwind = StopOnUnwind(&self.stop);
        let result = (self.chunk)(range.clone(), &own.worker);
        mem::forget(stop_on_unwind);
        match result {
            Ok(()) => {
                own.tally.units += units;
                if let Some(done) = self.job.done {
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

    /// A worker that begins, on this thread.
    fn worker<'b>(&'b self, index: u32, node: &'b (dyn Fn() -> u32 + 'b)) -> Own<'b> {
        let worker = Worker { index, node, stop: &self.stop, cancel: self.job.cancel };
        let track =
            if self.tracks.len() > 1 { self.best_track(worker.node()).unwrap_or(0) } else { 0 };
        Own { worker, tally: Tally::default(), track, last: 0, pace: None }
    }

    /// A worker that ends.
    fn finish(&self, own: &Own<'_>, began_ns: Option<u64>) {
        self.totals.add(&own.tally);
        if let Some(record) = self.job.statistics.get(own.worker.index as usize) {
            record.record(&own.tally, since(self.helpers, began_ns), own.worker.node());
        }
    }

    /// Whether a helper should leave for another job: one is short of helpers, and this one has
    /// more than its share.
    fn must_leave(&self) -> bool {
        let Some(crew) = self.crew.filter(|crew| crew.desk.hungry() != 0) else { return false };
        let share = crew.desk.share(crew.posts.len());
        let leave = |staying: u32| (staying > share).then(|| staying - 1);
        self.staying.fetch_update(Ordering::Relaxed, Ordering::Relaxed, leave).is_ok()
    }

    /// Wakes helpers that were offered work, together with everybody else who does so, until all
    /// are woken.
    fn wake_on(&self) {
        let Some(crew) = self.crew else { return };
        while self.waking.load(Ordering::Relaxed) < crew.posts.len() {
            let helper = self.waking.fetch_add(1, Ordering::Relaxed);
            if crew.posts.get(helper).is_some_and(crate::Post::is_offered) {
                self.helpers.wake(helper);
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
        let began = self.helpers.now_ns();
        if let (Some(now), Some(crew)) = (began, self.crew) {
            crew.desk.learn_start_cost(now.saturating_sub(self.asked_ns.load(Ordering::Relaxed)));
        }
        self.wake_on();
        let Some(index) = self.indices.take() else { return Ended::Well };
        let node = || self.helpers.current_node();
        let mut own = self.worker(index, &node);
        own.pace = began.filter(|_| self.job.is_guided()).map(Pace::start);
        let mut leaves = false;
        let mut ended = Ended::Well;
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
                (&mut own.pace, began.and_then(|_| self.helpers.now_ns()))
            {
                pace.lap(now, units);
            }
        }
        self.finish(&own, began);
        self.indices.give_back(index);
        if leaves {
            // After its number was given back: the one that comes for it finds that number free.
            self.held.fetch_sub(1, Ordering::Relaxed);
        }
        ended
    }
}
