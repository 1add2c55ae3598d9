//! The local interrupt controllers, through which CPUs interrupt each other, and the CPUs'
//! counters.
//!
//! Orders of memory: Relaxed: they are only counters.

use super::{Cpu, this};
use crate::platform::PLATFORM;
use crate::storage::Settled;
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::platform::Platform;
use framewright_arch::x86_64::local_apic::LocalApic;

static APIC: Settled<LocalApic> = Settled::new();

/// The local controller of this CPU, once there is one.
pub fn apic() -> Option<&'static LocalApic> {
    APIC.get()
}

/// Sets the local controller. To be called once, before another CPU is started.
pub fn set_apic(apic: LocalApic) -> &'static LocalApic {
    APIC.settle(apic)
}

/// Interrupts `cpu`.
pub fn send(cpu: &Cpu, vector: u8) {
    command(|apic| apic.send(cpu.apic_id(), vector));
}

/// Sends `cpu` a non-maskable interrupt.
pub fn send_non_maskable(cpu: &Cpu) {
    command(|apic| apic.send_non_maskable(cpu.apic_id()));
}

/// Writes a command with interrupts off, so that a handler's command cannot come between its two
/// halves.
pub(super) fn command(write: impl FnOnce(&LocalApic)) {
    if let Some(apic) = apic() {
        let state = PLATFORM.irq_save();
        write(apic);
        // SAFETY: `state` was saved above, and interrupts were not touched since.
        unsafe { PLATFORM.irq_restore(state) };
        count(&this().counters.sent);
    }
}

/// Adds one to a counter.
pub fn count(counter: &AtomicU64) {
    add(counter, 1);
}

/// Adds to a counter. It is one atomic instruction, because an interrupt in between may count, too,
/// and other CPUs write `deferred_flushes`.
pub fn add(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}
