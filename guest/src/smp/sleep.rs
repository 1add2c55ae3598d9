//! How a CPU sleeps until an interrupt, and how others wake it.
//!
//! Orders of memory: the SeqCst fences are partners of one another; the Relaxed words beside them
//! are ordered by them.

use super::controller::send;
use super::{Cpu, cpu, online, this};
use core::sync::atomic::{Ordering, fence};
use framewright_arch::x86_64::interrupts::{WAKE, enable, wait};
use framewright_arch::x86_64::registers::disable_interrupts;

impl Cpu {
    /// Interrupts the CPU if it sleeps or is about to. It finds what was written before.
    pub fn wake(&self) {
        // The partner of the fence in `sleep_until`: either it finds what we wrote, or we find it
        // asleep.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            send(self, WAKE);
        }
    }
}

/// Sleeps until `done`. Whoever makes it true must call [`Cpu::wake`] or [`wake_all`] afterwards.
/// Interrupts are on before and after.
pub fn sleep_until(done: &dyn Fn() -> bool) {
    let me = this();
    while !done() {
        // Off, so that an interrupt between the last look and the sleep ends the sleep.
        let _ = disable_interrupts();
        me.asleep.store(true, Ordering::Relaxed);
        // The partner of the fence in `wake`.
        fence(Ordering::SeqCst);
        if !done() {
            me.lazy_flush.sleep();
            // SAFETY: interrupts were on before, so they can be handled.
            unsafe { wait() };
            // If an interrupt ended the sleep, its handler has done so already.
            me.catch_up();
        }
        me.asleep.store(false, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { enable() };
    }
}

/// Wakes every CPU that sleeps, but for those that are parked.
pub fn wake_all() {
    online().iter().filter_map(cpu).for_each(Cpu::wake);
}
