//! The heap: a two-level segregated fit allocator (TLSF).

use crate::{AllocError, AllocResult, BaseAllocator, ByteAllocator};
use core::alloc::Layout;
use core::ptr::{NonNull, slice_from_raw_parts_mut, with_exposed_provenance_mut};
use rlsf::Tlsf;

/// The heap. Each of its pools is smaller than 8 GiB.
#[derive(Default)]
pub struct TlsfByteAllocator {
    pools: Tlsf<'static, u32, u32, 28, 32>,
    total: usize,
    used: usize,
}

impl TlsfByteAllocator {
    /// Returns a heap without memory.
    #[must_use]
    pub const fn new() -> Self {
        Self { pools: Tlsf::new(), total: 0, used: 0 }
    }
}

impl BaseAllocator for TlsfByteAllocator {
    fn init(&mut self, start: usize, size: usize) {
        self.add_memory(start, size).expect("memory of some size");
    }
    fn add_memory(&mut self, start: usize, size: usize) -> AllocResult {
        let memory = slice_from_raw_parts_mut(with_exposed_provenance_mut(start), size);
        let memory = NonNull::new(memory).ok_or(AllocError::InvalidParam)?;
        // SAFETY: ArceOS hands over memory that nobody uses.
        let taken = unsafe { self.pools.insert_free_block_ptr(memory) };
        self.total += taken.map(|_| size).ok_or(AllocError::InvalidParam)?;
        Ok(())
    }
}

impl ByteAllocator for TlsfByteAllocator {
    fn alloc(&mut self, layout: Layout) -> AllocResult<NonNull<u8>> {
        let place = self.pools.allocate(layout).ok_or(AllocError::NoMemory)?;
        self.used += layout.size();
        Ok(place)
    }
    fn dealloc(&mut self, pos: NonNull<u8>, layout: Layout) {
        // SAFETY: ArceOS gives back, once, what it was given.
        unsafe { self.pools.deallocate(pos, layout.align()) };
        self.used -= layout.size();
    }
    fn total_bytes(&self) -> usize {
        self.total
    }
    fn used_bytes(&self) -> usize {
        self.used
    }
    fn available_bytes(&self) -> usize {
        self.total - self.used
    }
}
