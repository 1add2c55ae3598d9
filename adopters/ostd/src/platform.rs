//! What Framewright asks of OSTD.

use core::ptr::NonNull;
use framewright::{IrqState, PinnedCpu, Platform};
use ostd::cpu::CpuId;

/// Where OSTD 0.18 maps all memory on x86-64: its constant is private.
const LINEAR_MAPPING: usize = 0xffff_8000_0000_0000;

/// OSTD, which calls only with interrupts off.
pub struct Ostd;

// SAFETY: OSTD maps all memory at one offset before it adds any; this crate calls the manager with
// interrupts off only, so nobody else of this CPU does, and the CPU stays the same; OSTD knows how
// many CPUs there are before it allocates.
unsafe impl Platform for Ostd {
    fn direct(&self, pa: u64) -> NonNull<u8> {
        let address = (LINEAR_MAPPING + pa as usize) as *mut u8;
        // SAFETY: in the upper half.
        unsafe { NonNull::new_unchecked(address) }
    }

    fn pin(&self) -> PinnedCpu {
        PinnedCpu::new(CpuId::current_racy().into())
    }

    fn irq_save(&self) -> IrqState {
        IrqState(0)
    }

    unsafe fn irq_restore(&self, _: IrqState) {}
}
