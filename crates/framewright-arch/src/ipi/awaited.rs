//! Who sleeps until a helper has ended: [`Awaited`], a set of CPUs, of which each helper has one.
//!
//! A helper's post is free for the next caller as soon as the work of the last one is done, and
//! that is before the last one was woken and has left. So several CPUs may wait for one helper at a
//! time. Each enters and leaves the set for itself alone, and the helper wakes all that are in it
//! and takes nobody out: who is woken too early looks and sleeps on. With a single place instead of
//! a set, a caller that leaves or enters late would wipe out the next one.
//!
//! # Memory ordering
//!
//! All changes and looks are Relaxed. What orders them are the SeqCst fences in
//! [`begin`](Awaited::begin) and [`wake`](Awaited::wake), which are partners: either the caller,
//! which looks once more after `begin`, finds the work done, or the helper, which has done it
//! before `wake`, finds the caller in the set.

use super::cross_calls::MAX_CPUS;
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::const_fn;

/// See the module documentation.
#[derive(Debug)]
pub struct Awaited([AtomicU64; MAX_CPUS / 64]);

impl Awaited {
    const_fn! {
        /// Nobody.
        #[must_use]
        pub fn new() -> Self {
            Self([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)])
        }
    }

    /// CPU `cpu`, below [`MAX_CPUS`], is going to sleep. It has to look once more whether the work
    /// is done before it does. Panics beyond [`MAX_CPUS`].
    pub fn begin(&self, cpu: u32) {
        let (word, bit) = place(cpu);
        self.0[word].fetch_or(bit, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// It sleeps no more. Panics as [`begin`](Self::begin).
    pub fn end(&self, cpu: u32) {
        let (word, bit) = place(cpu);
        self.0[word].fetch_and(!bit, Ordering::Relaxed);
    }

    /// By the helper, after it has let everybody see that the work is done: has `wake` wake each
    /// CPU that sleeps or is about to. It may be called for one that does not wait for this work.
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

impl Default for Awaited {
    fn default() -> Self {
        Self::new()
    }
}

/// Word and bit of a CPU.
fn place(cpu: u32) -> (usize, u64) {
    (cpu as usize / 64, 1 << (cpu % 64))
}
