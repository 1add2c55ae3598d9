//! The allocator under test, and how long its start took.

use core::alloc::Layout;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use ostd::arch::read_tsc;
use ostd::mm::{Paddr, frame::GlobalFrameAllocator};

#[cfg(feature = "framewright")]
pub use framewright_ostd::Framewright as Allocator;
#[cfg(not(feature = "framewright"))]
pub use osdk_frame_allocator::FrameAllocator as Allocator;

#[cfg(feature = "framewright")]
pub const NAME: &str = "framewright";
#[cfg(not(feature = "framewright"))]
pub const NAME: &str = "osdk";

/// The allocator itself, without the clock below.
pub static UNDER_TEST: Allocator = Allocator;

/// Ticks spent in adding memory.
pub static ADDITION_TICKS: AtomicU64 = AtomicU64::new(0);
/// Ticks spent in the first allocation.
pub static FIRST_TICKS: AtomicU64 = AtomicU64::new(0);

/// The allocator with a clock around it.
struct Timed;

#[ostd::global_frame_allocator]
static FRAMES: Timed = Timed;

impl GlobalFrameAllocator for Timed {
    fn alloc(&self, layout: Layout) -> Option<Paddr> {
        let began = read_tsc();
        let start = UNDER_TEST.alloc(layout);
        if FIRST_TICKS.load(Relaxed) == 0 {
            FIRST_TICKS.store(read_tsc() - began, Relaxed);
        }
        start
    }

    fn dealloc(&self, addr: Paddr, size: usize) {
        UNDER_TEST.dealloc(addr, size);
    }

    fn add_free_memory(&self, addr: Paddr, size: usize) {
        let began = read_tsc();
        UNDER_TEST.add_free_memory(addr, size);
        ADDITION_TICKS.fetch_add(read_tsc() - began, Relaxed);
    }
}
