//! The first error of a job, together with the range that failed.

use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicBool, Ordering};
use core::ops::Range;

/// Written by the first worker that fails, read when all workers have stopped.
pub(crate) struct FirstError<E> {
    taken: AtomicBool,
    /// Never shared: only the worker that set `taken` writes it, and it is read through an owned
    /// value.
    error: UnsafeCell<Option<(E, Range<u64>)>>,
}

// SAFETY: through a shared reference the cell is only ever written, once, by the one thread that
// set `taken` (invariant 26). Its content moves to the thread that takes it out, so it must be
// `Send`.
unsafe impl<E: Send> Sync for FirstError<E> {}

impl<E> FirstError<E> {
    pub(crate) fn new() -> Self {
        Self { taken: AtomicBool::new(false), error: UnsafeCell::new(None) }
    }

    /// Keeps `error` if it is the first.
    pub(crate) fn offer(&self, error: E, range: Range<u64>) {
        // Relaxed: `taken` only chooses the writer. The error itself reaches the caller through the
        // end of the writer's work: Release in `WorkerSlot::serve_with`, Acquire in
        // `JobSlots::join`.
        if !self.taken.swap(true, Ordering::Relaxed) {
            // SAFETY: only one thread finds `taken` unset, and nothing is read before the job is
            // owned again (invariant 26).
            self.error.with_mut(|slot| unsafe { *slot = Some((error, range)) });
        }
    }

    /// The first error, if there is one. Every worker has stopped, because `self` is owned.
    pub(crate) fn into_inner(self) -> Option<(E, Range<u64>)> {
        // SAFETY: `self` is owned, so no thread has a reference to it (invariant 26).
        self.error.with_mut(|slot| unsafe { (*slot).take() })
    }
}
