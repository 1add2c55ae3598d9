//! Framewright as the frame allocator of a kernel on OSTD.
//!
//! ```ignore
//! #[ostd::global_frame_allocator]
//! static FRAMES: framewright_ostd::Framewright = framewright_ostd::Framewright;
//! ```
//!
//! OSTD calls it. Its trait is safe to call for everybody, who then answers for the calls: the
//! manager keeps tables in memory that it was given, so that a `dealloc` or `add_free_memory` of
//! memory in use is memory in use twice, once by the manager. Of several CPUs the first has a
//! cache; the others go past it.
//!
//! OSTD adds memory range by range and never says which was the last: the first allocation ends it,
//! and brings the manager up. What lies between ranges OSTD has in use, and frees it later.
#![no_std]

use core::alloc::Layout;
use framewright::platform::{Cpu, LinearMap, Undo, interrupts_back, interrupts_off};
use framewright::units::{Pfn, PhysRange};
use framewright::{IrqState, LazyManager, PinnedCpu};
use ostd::cpu::CpuId;
use ostd::mm::{Paddr, frame::GlobalFrameAllocator};

/// Where OSTD 0.18 maps all memory on x86-64: its constant is private.
const LINEAR_MAPPING: usize = 0xffff_8000_0000_0000;

/// OSTD's CPUs. It takes one from a task only where that gives it away.
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

// SAFETY: OSTD maps all memory at one offset before it adds any; it switches tasks where one
// yields, waits or goes back to user mode (`might_preempt` in its scheduler), and the manager does
// none of these, so that the CPU stays the same and other tasks of it away.
static MAP: LinearMap<Ostd> = unsafe { LinearMap::new(LINEAR_MAPPING, Ostd) };
static FRAMES: LazyManager<LinearMap<Ostd>> = LazyManager::new(&MAP);

/// The allocator; there is one, whatever the number of these.
#[derive(Clone, Copy, Debug)]
pub struct Framewright;

impl Framewright {
    /// The manager, and what could not be taken.
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
        // SAFETY: OSTD adds what nobody uses, and uses what lies between. Refusals are counted.
        let _ = unsafe { FRAMES.add(PhysRange::with_size(addr as u64, size as u64)) };
    }
}
