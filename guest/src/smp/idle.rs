//! What a CPU does when it has nothing to do: it helps with jobs, runs what others want run, and
//! otherwise sleeps until an interrupt.
//!
//! Orders of memory: The SeqCst fences are partners of one another; the Relaxed words beside them
//! are ordered by them.

use super::call::{has_tasks, serve_tasks};
use super::interrupts::send;
use super::{Cpu, all, helpers, this};
use core::sync::atomic::{Ordering, fence};
use framewright_arch::x86_64::interrupts::{WAKE, enable, wait};
use framewright_arch::x86_64::registers::disable_interrupts;

impl Cpu {
    /// Interrupts it if it sleeps or is about to. What was written for it to find before this is
    /// found.
    pub fn wake(&self) {
        // The partner of the fence in `sleep_until`: either it finds what we wrote, or we find it
        // asleep.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            send(self, WAKE);
        }
    }
}

/// The life of a CPU that belongs to nobody. Interrupts are on.
pub fn idle() -> ! {
    let me = this();
    let slot = helpers::slot_of(me.index());
    loop {
        if serve_tasks() || helpers::serve(me.index()) {
            continue;
        }
        sleep_until(&|| has_tasks() || slot.is_some_and(framewright_jobs::WorkerSlot::has_work));
    }
}

/// Sleeps until `done`; whoever makes it true calls [`Cpu::wake`] or [`wake_all`] afterwards.
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
            me.translations.sleep();
            // SAFETY: who may sleep has interrupts on, so they can be handled.
            unsafe { wait() };
            // An interrupt has done so already, unless what ended the sleep was none.
            me.catch_up();
        }
        me.asleep.store(false, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { enable() };
    }
}

/// Wakes every CPU that sleeps.
pub fn wake_all() {
    for cpu in all() {
        cpu.wake();
    }
}
