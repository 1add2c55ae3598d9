//! Lazy TLB flush: a sleeping CPU is not woken to flush its TLB; it flushes when it wakes.
//!
//! One word per CPU decides whether the CPU is interrupted or flushes later:
//!
//! ```text
//!            sleep()               defer()
//!   AWAKE --------------> ASLEEP ------------> PENDING
//!     ^                      |                    |
//!     +------- wake() -------+------ wake() ------+  (true: flush everything first)
//! ```
//!
//! The CPU itself calls `sleep` and `wake`, and any other CPU calls `defer`. A deferred flush takes
//! effect before the CPU uses an address. While the CPU sleeps, its hardware may still walk tables
//! speculatively, so this is only for changes that free no table.
//!
//! Orders of memory: changes of the word are SeqCst on both sides, so that the later of the two
//! sees what the other did before. The first load in `wake` is Relaxed because it only has to see
//! the CPU's own store. Model checked in `tests/loom/lazy_flush.rs`.

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::const_fn;

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
/// The CPU is asleep, and translations have changed.
const PENDING: u32 = 2;

/// Whether one CPU sleeps, and whether it must flush when it wakes. See the module documentation.
#[derive(Debug)]
pub struct LazyFlush(AtomicU32);

impl LazyFlush {
    const_fn! {
        /// Creates the state of a CPU that is awake.
        #[must_use]
        pub fn new() -> Self {
            Self(AtomicU32::new(AWAKE))
        }
    }

    /// Called by the CPU itself, with interrupts off: from here on it uses no address that a flush
    /// can name, until it has called [`wake`](Self::wake).
    pub fn sleep(&self) {
        // A CPU that finds this one asleep also sees that its accesses with old translations are
        // over.
        self.0.store(ASLEEP, Ordering::SeqCst);
    }

    /// Called by the CPU itself, first thing in every interrupt and after every sleep. Returns true
    /// if it must flush its whole TLB before it goes on.
    #[must_use = "translations may be stale"]
    pub fn wake(&self) -> bool {
        // Relaxed is enough for the first load: only this CPU ever leaves AWAKE, so it knows if it
        // did not.
        self.0.load(Ordering::Relaxed) != AWAKE && self.0.swap(AWAKE, Ordering::SeqCst) == PENDING
    }

    /// Called by another CPU that has changed translations: leaves the flush to this CPU if it
    /// sleeps. Returns false if it is awake and must be interrupted.
    #[must_use = "a CPU that is awake has to be interrupted"]
    pub fn defer(&self) -> bool {
        matches!(
            self.0.compare_exchange(ASLEEP, PENDING, Ordering::SeqCst, Ordering::SeqCst),
            Ok(_) | Err(PENDING)
        )
    }
}

impl Default for LazyFlush {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_flush_is_deferred_only_to_a_sleeping_cpu_and_found_once() {
        let cpu = LazyFlush::default();
        assert!(!cpu.defer() && !cpu.wake());
        cpu.sleep();
        assert!(!cpu.wake(), "nothing has changed");
        cpu.sleep();
        assert!(cpu.defer() && cpu.defer());
        assert!(cpu.wake() && !cpu.wake());
        assert!(!cpu.defer());
    }
}
