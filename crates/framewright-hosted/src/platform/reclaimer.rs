//! The thread that reclaims in the background. It is woken when a node is short of memory.

use super::HostedPlatform;
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;

/// The thread to wake, if there is one.
#[derive(Debug, Default)]
pub(super) struct Reclaimer(Mutex<Option<Thread>>);

impl Reclaimer {
    /// Wakes the thread, if there is one.
    pub(super) fn wake(&self) {
        let thread = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        thread.iter().for_each(Thread::unpark);
    }
}

impl HostedPlatform {
    /// Sets the thread that is unparked when a node is short of memory, and returns the one set
    /// before. `None` stands for no thread, as at first.
    pub fn set_reclaimer(&self, thread: Option<Thread>) -> Option<Thread> {
        let mut place = self.reclaimer.0.lock().unwrap_or_else(PoisonError::into_inner);
        core::mem::replace(&mut place, thread)
    }
}
