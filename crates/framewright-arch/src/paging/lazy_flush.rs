//! Lazy TLB flush: a CPU that sleeps is not woken to flush its TLB, it flushes when it wakes.
//!
//! One word per CPU decides which of the two happens:
//!
//! ```text
//!            sleep()               defer()
//!   AWAKE --------------> ASLEEP ------------> PENDING
//!     ^                      |                    |
//!     +------- wake() -------+------ wake() ------+  (true: flush everything first)
//! ```
//!
//! The CPU itself calls `sleep` and `wake`, any other CPU `defer`. A deferred flush takes effect
//! before the CPU uses an address. While it sleeps it may still walk tables on its own, so this is
//! only for changes that free no table.
//!
//! Orders of memory: changes of the word are SeqCst on both sides, so that whichever comes second
//! sees what the other did before. The first load in `wake` is Relaxed because the CPU finds its
//! own store. Model checked in `tests/loom/lazy_flush.rs`.

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::const_fn;

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
/// Asleep, and translations have changed.
const PENDING: u32 = 2;

/// Whether one CPU sleeps, and whether it has to flush when it wakes. See the module documentation.
#[derive(Debug)]
pub struct LazyFlush(AtomicU32);

impl LazyFlush {
    const_fn! {
        /// Of a CPU that is awake.
        #[must_use]
        pub fn new() -> Self {
            Self(AtomicU32::new(AWAKE))
        }
    }

    /// By the CPU itself, with interrupts off: from here on it uses no address that a flush can
    /// name, until it has called [`wake`](Self::wake).
    pub fn sleep(&self) {
        // What it did with old translations is done for whoever finds it asleep.
        self.0.store(ASLEEP, Ordering::SeqCst);
    }

    /// By the CPU itself, first thing in every interrupt and after every sleep. True when it has to
    /// flush its whole TLB before it goes on.
    #[must_use = "translations may be stale"]
    pub fn wake(&self) -> bool {
        // Only the CPU itself makes it sleep, so that it knows when it does not.
        self.0.load(Ordering::Relaxed) != AWAKE && self.0.swap(AWAKE, Ordering::SeqCst) == PENDING
    }

    /// By another CPU that has changed translations: leaves the flush to the CPU if it sleeps.
    /// False when it is awake and has to be interrupted.
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
