//! The CPUs that sleep until a helper has finished: [`Waiters`], one set for each helper.
//!
//! A helper takes its next job as soon as the previous one is done, which may be before the
//! previous caller was woken and has left the set. Several CPUs may therefore wait for one helper
//! at a time. If there were a single place instead of a set, a caller that leaves or enters late
//! would overwrite the next one.
//!
//! Each CPU adds and removes only itself. The helper wakes all CPUs in the set and removes none: a
//! CPU that is woken too early checks again and goes back to sleep.
//!
//! # Memory ordering
//!
//! All accesses to the set are Relaxed. The SeqCst fences in [`add`](Waiters::add) and
//! [`wake`](Waiters::wake) order them and are partners. Either the caller, which checks once more
//! after `add`, finds the work done, or the helper, which finished it before `wake`, finds the
//! caller in the set.

use super::cross_calls::MAX_CPUS;
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::const_fn;

/// A set of CPUs. See the module documentation.
#[derive(Debug)]
pub struct Waiters([AtomicU64; MAX_CPUS / 64]);

impl Waiters {
    const_fn! {
        /// An empty set.
        #[must_use]
        pub fn new() -> Self {
            Self([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)])
        }
    }

    /// Adds CPU `cpu`, which calls this itself and is going to sleep. It must check once more
    /// whether the work is done before it sleeps.
    ///
    /// # Panics
    /// When `cpu` is not below [`MAX_CPUS`].
    pub fn add(&self, cpu: u32) {
        let (word, bit) = place(cpu);
        self.0[word].fetch_or(bit, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Removes CPU `cpu`, which calls this itself and does not sleep any more.
    ///
    /// # Panics
    /// When `cpu` is not below [`MAX_CPUS`].
    pub fn remove(&self, cpu: u32) {
        let (word, bit) = place(cpu);
        self.0[word].fetch_and(!bit, Ordering::Relaxed);
    }

    /// Calls `wake` with each CPU that sleeps or is about to sleep. To be called by the helper once
    /// all CPUs can see that the work is done. `wake` may also be called with a CPU that does not
    /// wait for this work.
    pub fn wake(&self, mut wake: impl FnMut(u32)) {
        fence(Ordering::SeqCst);
        for (first, word) in (0..).step_by(64).zip(&self.0) {
            let mut bits = word.load(Ordering::Relaxed);
            while bits != 0 {
                wake(first + bits.trailing_zeros());
                bits &= bits - 1;
            }
        }
    }
}

impl Default for Waiters {
    fn default() -> Self {
        Self::new()
    }
}

/// The word and the bit of a CPU.
fn place(cpu: u32) -> (usize, u64) {
    (cpu as usize / 64, 1 << (cpu % 64))
}
