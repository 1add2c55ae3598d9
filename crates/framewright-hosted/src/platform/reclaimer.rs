//! The thread that reclaims in the background, which is woken when a node is short.

use super::HostedPlatform;
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;

/// See the module documentation.
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
    /// Names the thread that is unparked when a node is short, and returns the one before; `None`
    /// for nobody, as at first.
    pub fn set_reclaimer(&self, thread: Option<Thread>) -> Option<Thread> {
        let mut place = self.reclaimer.0.lock().unwrap_or_else(PoisonError::into_inner);
        core::mem::replace(&mut place, thread)
    }
}
