//! Slices that the workers of one job share in disjoint parts: by chunk or by worker.

use crate::error::{InvalidJob, JobError, Summary};
use crate::helpers::Helpers;
use crate::job::{Job, as_indices};
use crate::worker::Worker;
use core::marker::PhantomData;
use core::ops::Range;

/// A slice that is borrowed exclusively and lent out in parts.
struct Disjoint<'a, T> {
    start: *mut T,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: through a shared reference a thread gets only parts that no other thread has (invariant
// 25). This is as if the parts had been moved to it, so their elements must be `Send`.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), slice: PhantomData }
    }

    /// # Safety
    /// `range` ascends and lies in the slice, and no part that overlaps it is lent out.
    #[expect(clippy::mut_from_ref, reason = "parts do not overlap, as the caller says")]
    unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        // SAFETY: the caller promises that the range, and so its start, lies in the slice
        // (invariant 25).
        let start = unsafe { self.start.add(range.start) };
        // SAFETY: its end lies there, too, and the part is borrowed by this caller alone.
        unsafe { core::slice::from_raw_parts_mut(start, range.end - range.start) }
    }
}

/// Runs `job`; each chunk gets the part of `slice` whose indices are its units. If the job fails
/// and there is an `undo`, whatever succeeded is undone as [`Job::run_or_undo`] does it.
///
/// # Errors
/// Those of [`Job::run`], and [`InvalidJob::BeyondSlice`].
pub(crate) fn on_parts<T, H, F, U, E>(
    job: &Job<'_>,
    helpers: &H,
    slice: &mut [T],
    chunk: F,
    undo: Option<U>,
) -> Result<Summary, JobError<E>>
where
    T: Send,
    H: Helpers + ?Sized,
    F: Fn(Range<usize>, &mut [T], &Worker<'_>) -> Result<(), E> + Sync,
    U: FnMut(Range<usize>, &mut [T]),
    E: Send,
{
    let len = slice.len();
    job.check_end(len)?;
    let slice = Disjoint::new(slice);
    let call = |units: Range<u64>, worker: &Worker<'_>| {
        let range = as_indices(&units);
        // SAFETY: the job ends in the slice, and no two of its chunks have a unit in common
        // (invariant 25).
        let part = unsafe { slice.part(range.clone()) };
        chunk(range, part, worker)
    };
    match undo {
        None => job.run(helpers, call),
        Some(mut undo) => job.run_or_undo(helpers, call, |units| {
            let range = as_indices(&units);
            // SAFETY: the range lies in the job, all workers have ended, and no other part is lent
            // (invariant 25).
            undo(range.clone(), unsafe { slice.part(range) });
        }),
    }
}

/// Runs `job` with one state for each worker, and with at most as many threads as there are states.
///
/// # Errors
/// Those of [`Job::run`], and [`InvalidJob::NoStates`].
pub(crate) fn with_states<S, H, F, E>(
    job: &Job<'_>,
    helpers: &H,
    states: &mut [S],
    chunk: F,
) -> Result<Summary, JobError<E>>
where
    S: Send,
    H: Helpers + ?Sized,
    F: Fn(&mut S, Range<usize>, &Worker<'_>) -> Result<(), E> + Sync,
    E: Send,
{
    let len = states.len();
    if len == 0 {
        return Err(InvalidJob::NoStates.into());
    }
    job.check_end(usize::MAX)?;
    let most = u32::try_from(len).unwrap_or(u32::MAX);
    let job = if job.max_threads > most { (*job).max_threads(most) } else { *job };
    let states = Disjoint::new(states);
    job.run(helpers, |units, worker| {
        let index = worker.index() as usize;
        assert!(index < len, "worker {index} of a job with {len} threads");
        // SAFETY: the index was compared with the number of states, and no two workers have the
        // same number at the same time (invariant 25).
        let own = unsafe { states.part(index..index + 1) };
        let [own] = own else { return Ok(()) };
        chunk(own, as_indices(&units), worker)
    })
}
