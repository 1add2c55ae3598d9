//! Framewright as the frame allocator of a kernel on OSTD.
//!
//! ```ignore
//! #[ostd::global_frame_allocator]
//! static FRAMES: framewright_ostd::Framewright = framewright_ostd::Framewright;
//! ```
//!
//! OSTD calls it. OSTD's trait has safe methods, so anybody can call them, and whoever does answers
//! for the call. The manager keeps tables in the memory that it was given, so a `dealloc` or
//! `add_free_memory` of memory in use means that this memory is used twice, once by the manager. Of
//! several CPUs, only the first has a cache; the others bypass it.
//!
//! OSTD adds memory range by range and never says which range was the last. The first allocation
//! ends the additions and brings the manager up. OSTD uses the memory between ranges, and frees it
//! later.
#![no_std]

use core::alloc::Layout;
use framewright::platform::{Cpu, LinearMap, Undo, interrupts_back, interrupts_off};
use framewright::units::{Pfn, PhysRange};
use framewright::{IrqState, LazyManager, PinnedCpu};
use ostd::cpu::CpuId;
use ostd::mm::{Paddr, frame::GlobalFrameAllocator};

/// Where OSTD 0.18 maps all memory on x86-64. Its own constant is private.
const LINEAR_MAPPING: usize = 0xffff_8000_0000_0000;

/// OSTD's CPUs. OSTD preempts a task only where the task allows it.
pub struct Ostd;

impl Cpu for Ostd {
    #[inline]
    fn pin(&self) -> PinnedCpu {
        PinnedCpu::new(CpuId::current_racy().into())
    }
    fn irq_save(&self) -> IrqState {
        interrupts_off()
    }
    fn irq_restore(&self, state: Undo<IrqState>) {
        interrupts_back(state);
    }
}

// SAFETY: OSTD maps all memory at one offset before it adds any. It switches tasks only where a
// task yields, waits or returns to user mode (`might_preempt` in its scheduler). The manager does
// none of these, so a task stays on its CPU, and no other task runs there meanwhile.
static MAP: LinearMap<Ostd> = unsafe { LinearMap::new(LINEAR_MAPPING, Ostd) };
static FRAMES: LazyManager<LinearMap<Ostd>> = LazyManager::new(&MAP);

/// The allocator. All values of this type stand for the same one.
#[derive(Clone, Copy, Debug)]
pub struct Framewright;

impl Framewright {
    /// Returns the manager, with counts of what was refused.
    pub fn frames(self) -> &'static LazyManager<LinearMap<Ostd>> {
        &FRAMES
    }
}

impl GlobalFrameAllocator for Framewright {
    #[inline]
    fn alloc(&self, layout: Layout) -> Option<Paddr> {
        Some(FRAMES.allocate_layout(layout).ok()?.start.address() as Paddr)
    }
    #[inline]
    fn dealloc(&self, addr: Paddr, size: usize) {
        // SAFETY: OSTD gives back what nobody uses any more (invariant 42). Refusals are counted.
        let _ = unsafe { FRAMES.free_bytes(Pfn::containing(addr as u64), size as u64) };
    }
    fn add_free_memory(&self, addr: Paddr, size: usize) {
        // SAFETY: OSTD adds memory that nobody uses, and uses what lies between. Refusals are
        // counted.
        let _ = unsafe { FRAMES.add(PhysRange::with_size(addr as u64, size as u64)) };
    }
}
