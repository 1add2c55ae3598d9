//! Interrupts of an x86-64 CPU, for [`Cpu`](super::Cpu).

use super::{IrqState, Undo};
use core::arch::asm;

/// The interrupt flag.
const INTERRUPTS: usize = 1 << 9;

/// Turns interrupts off on this CPU and says how they were: what a kernel does in
/// [`Cpu::irq_save`](super::Cpu::irq_save). Needs the rights of a kernel.
#[inline]
pub fn interrupts_off() -> IrqState {
    let flags: usize;
    // SAFETY: changes nothing but the interrupt flag. Other memory accesses must not move across,
    // so no `nomem`.
    unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
    IrqState(flags)
}

/// Turns them on again if they were on: [`Cpu::irq_restore`](super::Cpu::irq_restore).
#[inline]
pub fn interrupts_back(state: Undo<IrqState>) {
    let IrqState(flags) = state.into_inner();
    // No other flag, whatever the state is made of.
    if flags & INTERRUPTS != 0 {
        // SAFETY: changes nothing but the interrupt flag, undone where it was cleared, as who has
        // an `Undo` can count on. Other memory accesses must not move across, so no `nomem`.
        unsafe { asm!("sti", options(nostack)) };
    }
}
