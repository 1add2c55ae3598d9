//! How a CPU sleeps until an interrupt, and how others wake it.
//!
//! Orders of memory: the SeqCst fences are partners of each other, and order the Relaxed accesses
//! beside them.

use super::controller::send;
use super::{Cpu, cpu, online, this};
use core::sync::atomic::{Ordering, fence};
use framewright_arch::x86_64::interrupts::{WAKE, enable, wait};
use framewright_arch::x86_64::registers::disable_interrupts;

impl Cpu {
    /// Interrupts the CPU if it sleeps or is about to. The CPU then sees what was written before.
    pub fn wake(&self) {
        // The partner of the fence in `sleep_until`: either the other CPU sees what we wrote, or we
        // see that it is asleep.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            send(self, WAKE);
        }
    }
}

/// Sleeps until `done` returns true. Code that makes it true must call [`Cpu::wake`] or
/// [`wake_all`] afterwards. Interrupts are on before and after.
pub fn sleep_until(done: &dyn Fn() -> bool) {
    let me = this();
    while !done() {
        // Off, so that an interrupt between the last check of `done` and the sleep ends the sleep.
        let _ = disable_interrupts();
        me.asleep.store(true, Ordering::Relaxed);
        // The partner of the fence in `wake`.
        fence(Ordering::SeqCst);
        if !done() {
            me.lazy_flush.sleep();
            // SAFETY: interrupts were on before, so they can be handled.
            unsafe { wait() };
            // If an interrupt ended the sleep, its handler has caught up already.
            me.catch_up();
        }
        me.asleep.store(false, Ordering::Relaxed);
        // SAFETY: interrupts were on before, as in `wait` above.
        unsafe { enable() };
    }
}

/// Runs `then` with interrupts off. They are on before and after.
pub fn with_interrupts_off(then: impl FnOnce()) {
    let _ = disable_interrupts();
    then();
    // SAFETY: interrupts were on before, so they can be handled.
    unsafe { enable() };
}

/// Wakes every CPU that sleeps, except parked ones.
pub fn wake_all() {
    online().iter().filter_map(cpu).for_each(Cpu::wake);
}
