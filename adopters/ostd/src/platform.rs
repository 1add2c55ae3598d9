//! What Framewright asks of OSTD.

use core::arch::asm;
use core::ptr::NonNull;
use framewright::{IrqState, PinnedCpu, Platform};
use ostd::cpu::CpuId;

/// Where OSTD 0.18 maps all memory on x86-64: its constant is private.
const LINEAR_MAPPING: usize = 0xffff_8000_0000_0000;

/// OSTD, which takes the CPU from a task only where that gives it away.
pub struct Ostd;

// SAFETY: OSTD maps all memory at one offset before it adds any; it switches tasks where one
// yields, waits or goes back to user mode (`might_preempt` in its scheduler), and the manager does
// none of these, so that the CPU stays the same and other tasks of it away; it knows how many CPUs
// there are before it allocates.
unsafe impl Platform for Ostd {
    #[inline]
    fn direct(&self, pa: u64) -> NonNull<u8> {
        let address = (LINEAR_MAPPING + pa as usize) as *mut u8;
        // SAFETY: in the upper half.
        unsafe { NonNull::new_unchecked(address) }
    }

    #[inline]
    fn pin(&self) -> PinnedCpu {
        PinnedCpu::new(CpuId::current_racy().into())
    }

    fn irq_save(&self) -> IrqState {
        let flags: usize;
        // SAFETY: `irq_restore` follows, with the flags as they were.
        unsafe { asm!("pushfq", "pop {}", "cli", out(reg) flags) };
        IrqState(flags)
    }

    unsafe fn irq_restore(&self, IrqState(flags): IrqState) {
        // SAFETY: what `irq_save` found.
        unsafe { asm!("push {}", "popfq", in(reg) flags) };
    }
}
