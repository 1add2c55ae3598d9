//! The page allocator: Framewright behind ArceOS's interface.

use crate::{AllocError, AllocResult, BaseAllocator, PageAllocator};
use framewright::lazy::AddError;
use framewright::manager::Budget;
use framewright::platform::{LinearMap, OneAtATime};
use framewright::units::{Order, Pfn, PfnRange, PhysRange};
use framewright::LazyManager;

/// Where ArceOS maps all memory (`phys-virt-offset` of its platforms for these processors).
/// Addresses that it passes and gets lie there.
#[cfg(any(target_arch = "x86_64", target_arch = "loongarch64"))]
const LINEAR_MAPPING: usize = 0xffff_8000_0000_0000;
#[cfg(not(any(target_arch = "x86_64", target_arch = "loongarch64")))]
compile_error!("write this platform's `phys-virt-offset` into `LINEAR_MAPPING`");

// SAFETY: ArceOS maps all memory at one offset. It calls its allocators through a lock that turns
// interrupts off (`SpinNoIrq`), so one CPU at a time is in the manager, and no handler of it. To
// the manager they are one CPU.
static MAP: LinearMap<OneAtATime> = unsafe { LinearMap::new(LINEAR_MAPPING, OneAtATime) };

/// The page allocator, under ArceOS's name for it. The memory that it is given must exist and be
/// unused: it writes there, whereas ArceOS's own allocator only computes with the addresses.
pub struct BitmapPageAllocator<const PAGE_SIZE: usize>(LazyManager<LinearMap<OneAtATime>>);

impl<const PAGE_SIZE: usize> BitmapPageAllocator<PAGE_SIZE> {
    /// Returns an allocator without memory.
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

/// Returns the order of an alignment, a power of two in bytes, for some pages. Less than a page
/// counts as a page.
fn order(num_pages: usize, bytes: usize) -> AllocResult<Order> {
    let order = Order::new(bytes.trailing_zeros().saturating_sub(12) as u8);
    order.filter(|_| bytes.is_power_of_two() && num_pages != 0).ok_or(AllocError::InvalidParam)
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
        // Only pages that lie wholly in the range are used.
        let start = start.checked_sub(LINEAR_MAPPING).ok_or(AllocError::InvalidParam)?;
        let memory = PhysRange::with_size(start as u64, size as u64);
        // SAFETY: ArceOS hands over memory that nobody uses.
        unsafe { self.0.add(memory) }.map(drop).map_err(|error| match error {
            AddError::Overlaps(_) => AllocError::MemoryOverlap,
            AddError::TooHigh(_) => AllocError::InvalidParam,
            _ => AllocError::NoMemory,
        })
    }
}

impl<const PAGE_SIZE: usize> PageAllocator for BitmapPageAllocator<PAGE_SIZE> {
    const PAGE_SIZE: usize = PAGE_SIZE;
    fn alloc_pages(&mut self, num_pages: usize, align_pow2: usize) -> AllocResult<usize> {
        let taken = self.0.allocate_pages(num_pages as u64, order(num_pages, align_pow2)?);
        taken.map(seen).map_err(|_| AllocError::NoMemory)
    }
    fn alloc_pages_at(
        &mut self,
        base: usize,
        num_pages: usize,
        align_pow2: usize,
    ) -> AllocResult<usize> {
        order(num_pages, align_pow2)?;
        // An alignment below a page is one, so the address that is returned is `base`.
        if base < LINEAR_MAPPING || base % align_pow2.max(PAGE_SIZE) != 0 {
            return Err(AllocError::InvalidParam);
        }
        let start = pfn(base);
        let end = start.0.checked_add(num_pages as u64).ok_or(AllocError::InvalidParam)?;
        let range = PfnRange::new(start.0, end);
        let manager = self.0.bring_up().map_err(|_| AllocError::NoMemory)?;
        let taken = manager.moving().allocate_range(range, Budget::UNLIMITED);
        taken.map(seen).map_err(|_| AllocError::NoMemory)
    }
    fn dealloc_pages(&mut self, pos: usize, num_pages: usize) {
        // SAFETY: ArceOS gives back what nobody uses any more (invariant 42). Refused calls are
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
