//! A CPU that sleeps is not woken to forget translations: it forgets when it wakes.
//!
//! One word decides between the two: whoever changed translations either finds the CPU asleep and
//! leaves word there, or finds it awake and has to interrupt it. The CPU finds the word when it
//! wakes, before it uses an address. What it may do while it sleeps is follow tables on its own, so
//! this is only for changes that set no table free.
//!
//! Orders of memory: Changes of the word are SeqCst on both sides: a CPU that wakes and one that
//! leaves word meet in it, and what each did before is seen by who comes second. The first look in
//! `wake` is Relaxed because the CPU finds its own store.

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::const_fn;

/// It is awake.
const AWAKE: u32 = 0;
/// It sleeps.
const ASLEEP: u32 = 1;
/// It sleeps, and translations have changed.
const BEHIND: u32 = 2;

/// See the module documentation. One for each CPU.
#[derive(Debug)]
pub struct PutOff(AtomicU32);

impl PutOff {
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

    /// By the CPU itself, the first thing in every interrupt and after every sleep. True when it
    /// has to forget all translations first.
    #[must_use = "translations may be stale"]
    pub fn wake(&self) -> bool {
        // Only the CPU itself makes it sleep, so that it knows when it does not.
        self.0.load(Ordering::Relaxed) != AWAKE && self.0.swap(AWAKE, Ordering::SeqCst) == BEHIND
    }

    /// By others, once they have changed translations: leaves word. False when the CPU is awake and
    /// has to be interrupted.
    #[must_use = "a CPU that is awake has to be told"]
    pub fn leave_word(&self) -> bool {
        matches!(
            self.0.compare_exchange(ASLEEP, BEHIND, Ordering::SeqCst, Ordering::SeqCst),
            Ok(_) | Err(BEHIND)
        )
    }
}

impl Default for PutOff {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn word_is_left_only_for_who_sleeps_and_found_once() {
        let cpu = PutOff::default();
        assert!(!cpu.leave_word() && !cpu.wake());
        cpu.sleep();
        assert!(!cpu.wake(), "nothing has changed");
        cpu.sleep();
        assert!(cpu.leave_word() && cpu.leave_word());
        assert!(cpu.wake() && !cpu.wake());
        assert!(!cpu.leave_word());
    }
}
