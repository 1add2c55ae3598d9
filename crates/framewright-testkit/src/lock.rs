//! Locks for tests, which a failed test leaves poisoned.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Takes the lock, even after a test has failed while holding it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
