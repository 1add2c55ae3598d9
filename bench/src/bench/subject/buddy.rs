//! `buddy_system_allocator` as a subject.
//!
//! Its free lists are ordered sets, and one lock guards them all. Its largest order is a constant
//! of its type; here it equals ours.

use super::interface::Subject;
use buddy_system_allocator::LockedFrameAllocator;
use framewright::units::{MAX_ORDER, Order, PAGE_SIZE};
use framewright_cli::error::Error;

/// The allocator behind its lock.
pub struct Buddy(LockedFrameAllocator<{ MAX_ORDER as usize + 1 }>);

impl Buddy {
    /// Makes an allocator of this many bytes from frame 0.
    pub fn new(memory_bytes: u64) -> Self {
        let allocator = LockedFrameAllocator::new();
        allocator.lock().add_frame(0, frames(memory_bytes / PAGE_SIZE));
        Self(allocator)
    }
}

impl Subject for Buddy {
    const NAME: &'static str = "buddy_system_allocator";

    /// The allocator knows no CPUs.
    type Seat<'a> = ();

    fn sit(&self, _cpu: u32) -> Result<(), Error> {
        Ok(())
    }

    #[inline]
    fn get(&self, order: Order) -> Option<u64> {
        self.0.lock().alloc(1 << order.get()).map(|frame| frame as u64)
    }

    #[inline]
    fn put(&self, pfn: u64, order: Order) {
        self.0.lock().dealloc(frames(pfn), 1 << order.get());
    }

    fn drain(&self) {}
}

#[inline]
fn frames(count: u64) -> usize {
    usize::try_from(count).expect("a machine of this process")
}
