//! The pages: Framewright, where ArceOS sees them.

use crate::{AllocError, AllocResult, BaseAllocator, PageAllocator};
use framewright::manager::Budget;
use framewright::platform::{LinearMap, OneAtATime};
use framewright::units::{Order, Pfn, PfnRange, PhysRange};
use framewright::LazyManager;

/// Where ArceOS maps all memory (`phys-virt-offset` of its platforms): addresses that it gives and
/// takes are there.
const LINEAR_MAPPING: usize = 0xffff_8000_0000_0000;

// SAFETY: ArceOS maps all memory at one offset, and calls its allocators through a lock that turns
// interrupts off (`SpinNoIrq`): one CPU at a time is in the manager, and no handler of it. To the
// manager they are one CPU.
static MAP: LinearMap<OneAtATime> = unsafe { LinearMap::new(LINEAR_MAPPING, OneAtATime) };

/// The page allocator, under the name that ArceOS has for it. What it is told is memory has to be,
/// which nobody uses: it writes there, where ArceOS's own only computes with the numbers.
pub struct BitmapPageAllocator<const PAGE_SIZE: usize>(LazyManager<LinearMap<OneAtATime>>);

impl<const PAGE_SIZE: usize> BitmapPageAllocator<PAGE_SIZE> {
    /// One without memory.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(PAGE_SIZE == 4096, "pages are of 4 KiB") };
        Self(LazyManager::new(&MAP))
    }
}

impl<const PAGE_SIZE: usize> Default for BitmapPageAllocator<PAGE_SIZE> {
    fn default() -> Self {
        Self::new()
    }
}

/// Of an alignment, a power of two: less than a page is a page's.
fn order(bytes: usize) -> AllocResult<Order> {
    let order = Order::new(bytes.trailing_zeros().saturating_sub(12) as u8);
    order.filter(|_| bytes.is_power_of_two()).ok_or(AllocError::InvalidParam)
}
const fn pfn(address: usize) -> Pfn {
    Pfn::containing(address.wrapping_sub(LINEAR_MAPPING) as u64)
}
const fn seen(taken: PfnRange) -> usize {
    LINEAR_MAPPING + taken.start.address() as usize
}

impl<const PAGE_SIZE: usize> BaseAllocator for BitmapPageAllocator<PAGE_SIZE> {
    fn init(&mut self, start: usize, size: usize) {
        self.add_memory(start, size).expect("memory of some size");
        self.0.bring_up().expect("more than tables take");
    }
    fn add_memory(&mut self, start: usize, size: usize) -> AllocResult {
        // The pages that lie wholly in it.
        let start = start.checked_sub(LINEAR_MAPPING).ok_or(AllocError::InvalidParam)?;
        let memory = PhysRange::with_size(start as u64, size as u64);
        // SAFETY: ArceOS gives away what nobody uses.
        unsafe { self.0.add(memory) }.map(drop).map_err(|_| AllocError::MemoryOverlap)
    }
}

impl<const PAGE_SIZE: usize> PageAllocator for BitmapPageAllocator<PAGE_SIZE> {
    const PAGE_SIZE: usize = PAGE_SIZE;
    fn alloc_pages(&mut self, num_pages: usize, align_pow2: usize) -> AllocResult<usize> {
        let taken = self.0.allocate_pages(num_pages as u64, order(align_pow2)?);
        taken.map(seen).map_err(|_| AllocError::NoMemory)
    }
    fn alloc_pages_at(
        &mut self,
        base: usize,
        num_pages: usize,
        align_pow2: usize,
    ) -> AllocResult<usize> {
        let align = order(align_pow2)?;
        if base < LINEAR_MAPPING || base % align_pow2 != 0 {
            return Err(AllocError::InvalidParam);
        }
        let range = PfnRange { start: pfn(base), end: pfn(base).add(num_pages as u64) };
        let manager = self.0.bring_up().map_err(|_| AllocError::NoMemory)?;
        let taken = manager.moving().allocate_range(range, Budget::UNLIMITED);
        taken.map(seen).map_err(|_| AllocError::NoMemory)
    }
    fn dealloc_pages(&mut self, pos: usize, num_pages: usize) {
        // SAFETY: ArceOS gives back what nobody uses any more (invariant 42). What is refused is
        // counted.
        let _ = unsafe { self.0.free_pages(pfn(pos), num_pages as u64) };
    }
    fn total_pages(&self) -> usize {
        self.0.usage().total_pages as usize
    }
    fn used_pages(&self) -> usize {
        self.total_pages() - self.available_pages()
    }
    fn available_pages(&self) -> usize {
        self.0.usage().free_pages as usize
    }
}
