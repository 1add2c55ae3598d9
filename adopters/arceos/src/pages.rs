//! The pages: Framewright, where ArceOS sees them.

use crate::{AllocError, AllocResult, BaseAllocator, PageAllocator};
use core::ptr::{NonNull, with_exposed_provenance_mut};
use framewright::firmware::{MemoryAffinity, Topology};
use framewright::manager::Budget;
use framewright::memblock::{Memblock, MemblockStorage};
use framewright::units::{NodeId, Order, Pfn, PfnRange, PhysRange};
use framewright::{BringUp, IrqState, Manager, Parameters, PinnedCpu, Platform};

/// Where ArceOS maps all memory (`phys-virt-offset` of its platforms): addresses that it gives and
/// takes are there.
const LINEAR_MAPPING: usize = 0xffff_8000_0000_0000;

struct Locked;

// SAFETY: ArceOS maps all memory at one offset, and calls its allocators through a lock that turns
// interrupts off (`SpinNoIrq`): one CPU at a time is in the manager, and no handler of it. To the
// manager they are one CPU.
unsafe impl Platform for Locked {
    #[inline]
    fn direct(&self, pa: u64) -> NonNull<u8> {
        let place = with_exposed_provenance_mut(LINEAR_MAPPING + pa as usize);
        // SAFETY: in the upper half.
        unsafe { NonNull::new_unchecked(place) }
    }
    #[inline]
    fn pin(&self) -> PinnedCpu {
        PinnedCpu::new(0)
    }
    #[inline]
    fn irq_save(&self) -> IrqState {
        IrqState(0)
    }
    #[inline]
    unsafe fn irq_restore(&self, _: IrqState) {}
}

/// The page allocator, under the name that ArceOS has for it.
#[derive(Default)]
pub struct BitmapPageAllocator<const PAGE_SIZE: usize> {
    manager: Option<Manager<Locked>>,
    total: usize,
    used: usize,
}

impl<const PAGE_SIZE: usize> BitmapPageAllocator<PAGE_SIZE> {
    /// One without memory.
    #[must_use]
    pub const fn new() -> Self {
        Self { manager: None, total: 0, used: 0 }
    }

    /// What comes of a request for so many pages.
    #[inline]
    fn taken(
        &mut self,
        align: usize,
        allocate: impl FnOnce(&Manager<Locked>, Order) -> Option<PfnRange>,
    ) -> AllocResult<usize> {
        let order = Order::for_pages((align / PAGE_SIZE) as u64).ok_or(AllocError::InvalidParam)?;
        let manager = self.manager.as_ref().ok_or(AllocError::NoMemory)?;
        let pages = allocate(manager, order).ok_or(AllocError::NoMemory)?;
        self.used += pages.pages() as usize;
        Ok(LINEAR_MAPPING + pages.start.address() as usize)
    }
}

const fn pfn(address: usize) -> Pfn {
    Pfn::containing((address - LINEAR_MAPPING) as u64)
}

impl<const PAGE_SIZE: usize> BaseAllocator for BitmapPageAllocator<PAGE_SIZE> {
    fn init(&mut self, start: usize, size: usize) {
        let memory = PhysRange::with_size((start - LINEAR_MAPPING) as u64, size as u64);
        let (mut claims, mut storage) = ([MemoryAffinity::EMPTY; 1], MemblockStorage::new());
        let topology = Topology::new(&mut claims);
        let mut early = Memblock::empty(&Locked, &mut storage, &topology);
        // SAFETY: ArceOS gives away what nobody uses.
        unsafe { early.add_memory(memory, NodeId::ZERO, false) }.expect("one range");
        let parameters = Parameters::default();
        let input = BringUp { parameters: &parameters, started_ns: None };
        match Manager::bring_up(early, &input) {
            Ok(manager) => {
                self.total = manager.totals().free_pages as usize;
                self.manager = Some(manager);
            }
            Err(failed) => panic!("{}", failed.error),
        }
    }
    fn add_memory(&mut self, _: usize, _: usize) -> AllocResult {
        // ArceOS gives what comes later to the heap.
        Err(AllocError::NoMemory)
    }
}

impl<const PAGE_SIZE: usize> PageAllocator for BitmapPageAllocator<PAGE_SIZE> {
    const PAGE_SIZE: usize = PAGE_SIZE;
    fn alloc_pages(&mut self, num_pages: usize, align_pow2: usize) -> AllocResult<usize> {
        self.taken(align_pow2, |manager, order| {
            manager.allocate_pages(num_pages as u64, order).ok()
        })
    }
    fn alloc_pages_at(
        &mut self,
        base: usize,
        num_pages: usize,
        align_pow2: usize,
    ) -> AllocResult<usize> {
        let range = PfnRange { start: pfn(base), end: pfn(base).add(num_pages as u64) };
        self.taken(align_pow2, |manager, order| {
            let range = range.start.is_aligned(order).then_some(range)?;
            manager.moving().allocate_range(range, Budget::UNLIMITED).ok()
        })
    }
    fn dealloc_pages(&mut self, pos: usize, num_pages: usize) {
        let Some(manager) = &self.manager else { return };
        // SAFETY: ArceOS gives back what nobody uses any more (invariant 42).
        if unsafe { manager.free_pages(pfn(pos), num_pages as u64) }.is_ok() {
            self.used -= num_pages;
        }
    }
    fn total_pages(&self) -> usize {
        self.total
    }
    fn used_pages(&self) -> usize {
        self.used
    }
    fn available_pages(&self) -> usize {
        self.total - self.used
    }
}
