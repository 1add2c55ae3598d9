//! Locks of tests, which a failed test leaves poisoned.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also after a test has failed while it held the lock.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
