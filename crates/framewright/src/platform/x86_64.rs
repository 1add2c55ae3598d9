//! Switches the interrupts of an x86-64 CPU, for [`Cpu`](super::Cpu).

use super::{IrqState, Undo};
use core::arch::asm;

/// The interrupt flag in `RFLAGS`.
const INTERRUPTS: usize = 1 << 9;

/// Turns interrupts off on this CPU and returns their previous state, as a kernel does in
/// [`Cpu::irq_save`](super::Cpu::irq_save). Must run at kernel privilege.
#[inline]
pub fn interrupts_off() -> IrqState {
    let flags: usize;
    // SAFETY: this changes only the interrupt flag. Other memory accesses must not move across it,
    // so `nomem` is absent.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
    IrqState(flags)
}

/// Turns interrupts on again if they were on, for [`Cpu::irq_restore`](super::Cpu::irq_restore).
#[inline]
pub fn interrupts_back(state: Undo<IrqState>) {
    let IrqState(flags) = state.into_inner();
    // Restores no other flag, whatever `state` contains.
    if flags & INTERRUPTS != 0 {
        // SAFETY: this changes only the interrupt flag, and on the CPU where it was cleared, which
        // having an `Undo` guarantees. Other memory accesses must not move across it, so `nomem` is
        // absent.
        unsafe { asm!("sti", options(nostack)) };
    }
}
