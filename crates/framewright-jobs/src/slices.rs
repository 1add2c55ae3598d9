//! Jobs whose units are indices: chunks without a `Result`, parts of a slice, one state for each
//! worker.

use crate::error::{JobError, Summary};
use crate::helpers::Helpers;
use crate::job::{Job, as_indices};
use crate::raw::{on_parts, with_states};
use crate::worker::Worker;
use core::convert::Infallible;
use core::ops::Range;

/// An absent undo: the parts of a failed job that succeeded are kept.
type Kept<T> = Option<fn(Range<usize>, &mut [T])>;

/// # Indices and slices
///
/// The units of these jobs are the indices of a slice, or of anything else that has indices;
/// [`indices`](Self::indices) creates such a job. What is said about [`run`](Self::run) holds for
/// all of them.
impl Job<'_> {
    /// Like [`run`](Self::run), with chunks that cannot fail.
    ///
    /// ```
    /// use framewright_jobs::{Job, NoHelpers};
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    ///
    /// let sum = AtomicUsize::new(0);
    /// Job::indices(0..1000).for_each(&NoHelpers, |range, _worker| {
    ///     sum.fetch_add(range.sum(), Ordering::Relaxed);
    /// })?;
    /// assert_eq!(sum.into_inner(), 499_500);
    /// # Ok::<(), framewright_jobs::JobError<std::convert::Infallible>>(())
    /// ```
    ///
    /// # Errors
    /// [`JobError::Invalid`] and [`JobError::Cancelled`].
    ///
    /// # Panics
    /// When a chunk panics, after all workers have stopped.
    pub fn for_each<H, F>(&self, helpers: &H, chunk: F) -> Result<Summary, JobError<Infallible>>
    where
        H: Helpers + ?Sized,
        F: Fn(Range<usize>, &Worker<'_>) + Sync,
    {
        self.check_end(usize::MAX)?;
        self.run(helpers, |units, worker| {
            chunk(as_indices(&units), worker);
            Ok(())
        })
    }

    /// Calls `chunk` with parts of `slice`, each together with its indices in the slice. Parts do
    /// not overlap, so chunks write to them without atomics and without locks.
    ///
    /// ```
    /// use framewright_jobs::{Job, NoHelpers};
    ///
    /// let mut names = vec![String::new(); 1000];
    /// Job::indices(0..names.len()).for_slice_mut(&NoHelpers, &mut names, |range, part, _| {
    ///     range.zip(part).for_each(|(index, name)| *name = format!("page {index}"));
    /// })?;
    /// assert_eq!(names[999], "page 999");
    /// # Ok::<(), framewright_jobs::JobError<std::convert::Infallible>>(())
    /// ```
    ///
    /// # Errors
    /// [`JobError::Invalid`], also for a job that ends beyond the slice, and
    /// [`JobError::Cancelled`].
    ///
    /// # Panics
    /// When a chunk panics, after all workers have stopped.
    pub fn for_slice_mut<T, H, F>(
        &self,
        helpers: &H,
        slice: &mut [T],
        chunk: F,
    ) -> Result<Summary, JobError<Infallible>>
    where
        T: Send,
        H: Helpers + ?Sized,
        F: Fn(Range<usize>, &mut [T], &Worker<'_>) + Sync,
    {
        self.try_for_slice_mut(helpers, slice, |range, part, worker| {
            chunk(range, part, worker);
            Ok(())
        })
    }

    /// Like [`for_slice_mut`](Self::for_slice_mut), with chunks that can fail. After a failure,
    /// part of the slice is written.
    ///
    /// # Errors
    /// Those of [`run`](Self::run), and [`JobError::Invalid`] for a job that ends beyond the slice.
    ///
    /// # Panics
    /// When a chunk panics, after all workers have stopped.
    pub fn try_for_slice_mut<T, H, F, E>(
        &self,
        helpers: &H,
        slice: &mut [T],
        chunk: F,
    ) -> Result<Summary, JobError<E>>
    where
        T: Send,
        H: Helpers + ?Sized,
        F: Fn(Range<usize>, &mut [T], &Worker<'_>) -> Result<(), E> + Sync,
        E: Send,
    {
        on_parts(self, helpers, slice, chunk, None as Kept<T>)
    }

    /// Like [`for_slice_mut`](Self::for_slice_mut), but leaves nothing half done: if a chunk fails,
    /// or the job is cancelled before everything is claimed, calls `undo` on this thread for every
    /// maximal part whose chunks succeeded, in ascending order. A chunk that fails cleans up its
    /// own part.
    ///
    /// ```
    /// use framewright_jobs::{Job, JobError, NoHelpers};
    ///
    /// let mut disks = vec![0_u32; 1000];
    /// let result = Job::indices(0..disks.len()).min_chunk(100).for_slice_mut_or_undo(
    ///     &NoHelpers,
    ///     &mut disks,
    ///     |range, part, _| match range.contains(&700) {
    ///         true => Err("disk 700 is full"),
    ///         false => Ok(part.fill(1)),
    ///     },
    ///     |_range, part| part.fill(0),
    /// );
    /// assert!(matches!(result, Err(JobError::Failed { error: "disk 700 is full", .. })));
    /// assert!(disks.iter().all(|&disk| disk == 0));
    /// ```
    ///
    /// # Errors
    /// Those of [`run_or_undo`](Self::run_or_undo), and [`JobError::Invalid`] for a job that ends
    /// beyond the slice.
    ///
    /// # Panics
    /// When a chunk panics. Nothing is undone then.
    pub fn for_slice_mut_or_undo<T, H, F, U, E>(
        &self,
        helpers: &H,
        slice: &mut [T],
        chunk: F,
        undo: U,
    ) -> Result<Summary, JobError<E>>
    where
        T: Send,
        H: Helpers + ?Sized,
        F: Fn(Range<usize>, &mut [T], &Worker<'_>) -> Result<(), E> + Sync,
        U: FnMut(Range<usize>, &mut [T]),
        E: Send,
    {
        on_parts(self, helpers, slice, chunk, Some(undo))
    }

    /// Writes `value(index)` to every element of `slice` whose index is a unit of the job.
    ///
    /// ```
    /// use framewright_jobs::{Job, NoHelpers};
    ///
    /// let words = ["zone", "page", "order"];
    /// let mut lengths = [0; 3];
    /// Job::indices(0..3).map_into(&NoHelpers, &mut lengths, |index| words[index].len())?;
    /// assert_eq!(lengths, [4, 4, 5]);
    /// # Ok::<(), framewright_jobs::JobError<std::convert::Infallible>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`for_slice_mut`](Self::for_slice_mut).
    ///
    /// # Panics
    /// When `value` panics, after all workers have stopped.
    pub fn map_into<T, H, F>(
        &self,
        helpers: &H,
        slice: &mut [T],
        value: F,
    ) -> Result<Summary, JobError<Infallible>>
    where
        T: Send,
        H: Helpers + ?Sized,
        F: Fn(usize) -> T + Sync,
    {
        self.for_slice_mut(helpers, slice, |range, part, _| {
            range.zip(part).for_each(|(index, element)| *element = value(index));
        })
    }

    /// Runs the job with one state for each worker, such as a buffer, a file or a partial result.
    /// No two workers have a state at the same time. At most as many threads take part as there are
    /// states. A state may serve several workers one after the other, and some states may serve
    /// none.
    ///
    /// # Errors
    /// Those of [`run`](Self::run), and [`JobError::Invalid`] if there are no states.
    ///
    /// # Panics
    /// When a chunk panics, after all workers have stopped.
    pub fn with_states<S, H, F, E>(
        &self,
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
        with_states(self, helpers, states, chunk)
    }

    /// Reduces the job to one value: `fold` adds chunks to its worker's state, and `join` adds the
    /// other states to the first one, which is the result. Every state must begin as a value that
    /// adds nothing. At most as many threads take part as there are states.
    ///
    /// Which chunks a state gets differs from run to run, so the result must not depend on the
    /// order of adding.
    ///
    /// ```
    /// use framewright_jobs::{Job, NoHelpers};
    ///
    /// let pages = vec![3_u64; 100_000];
    /// let mut sums = [0; 64];
    /// Job::indices(0..pages.len()).reduce(
    ///     &NoHelpers,
    ///     &mut sums,
    ///     |sum, range| *sum += pages[range].iter().sum::<u64>(),
    ///     |sum, other| *sum += *other,
    /// )?;
    /// assert_eq!(sums[0], 300_000);
    /// # Ok::<(), framewright_jobs::JobError<std::convert::Infallible>>(())
    /// ```
    ///
    /// # Errors
    /// [`JobError::Invalid`], also if there are no states, and [`JobError::Cancelled`]; nothing is
    /// joined then.
    ///
    /// # Panics
    /// When a chunk panics, after all workers have stopped.
    pub fn reduce<S, H, F, J>(
        &self,
        helpers: &H,
        states: &mut [S],
        fold: F,
        mut join: J,
    ) -> Result<Summary, JobError<Infallible>>
    where
        S: Send,
        H: Helpers + ?Sized,
        F: Fn(&mut S, Range<usize>) + Sync,
        J: FnMut(&mut S, &mut S),
    {
        let summary = self.with_states(helpers, states, |state, range, _| {
            fold(state, range);
            Ok(())
        })?;
        if let Some((first, others)) = states.split_first_mut() {
            others.iter_mut().for_each(|other| join(first, other));
        }
        Ok(summary)
    }
}
