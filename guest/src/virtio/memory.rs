//! Memory from the manager for the drivers of virtio devices.
//!
//! Orders of memory: the manager that is lent is stored with Release and loaded with Acquire.

use crate::platform::{DIRECT_MAP, GuestPlatform, PLATFORM};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicPtr, Ordering};
use framewright::adapters::virtio::Dma;
use framewright::platform::Platform;
use framewright::units::{Pfn, PfnRange};
use framewright::{Manager, MigrateType, Request};
use framewright_virtio::PrivateMemory;
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

/// The manager while it is lent, otherwise null. It is static because the functions of `Hal` have
/// no `self`.
static LENT: AtomicPtr<Manager<GuestPlatform>> = AtomicPtr::new(ptr::null_mut());

/// Runs `work` with a [`GuestHal`] that takes its memory from `manager`. May be called again inside
/// `work`, with the same manager.
pub fn lend<R>(manager: &Manager<GuestPlatform>, work: impl FnOnce() -> R) -> R {
    let before = LENT.load(Ordering::Acquire);
    LENT.store(ptr::from_ref(manager).cast_mut(), Ordering::Release);
    let result = work();
    LENT.store(before, Ordering::Release);
    result
}

/// Memory for the devices' queues.
pub struct GuestHal;

impl GuestHal {
    fn manager() -> Option<&'static Manager<GuestPlatform>> {
        let manager = LENT.load(Ordering::Acquire);
        // SAFETY: the pointer is not null only inside `lend`, whose caller's manager stays where it
        // is. No caller keeps the reference beyond the call of a method.
        unsafe { manager.as_ref() }
    }

    fn dma() -> Option<Dma<'static, GuestPlatform>> {
        Self::manager().map(Dma::new)
    }
}

// SAFETY: a page from the manager belongs to nobody else until it is freed, the direct map maps it,
// and no device is told of it. This guest shares with its host only the memory that it tells
// devices of.
unsafe impl PrivateMemory for GuestHal {
    fn allocate_page() -> Option<NonNull<u8>> {
        let request = Request {
            max_address: PLATFORM.direct_limit(),
            // The driver keeps addresses of it.
            migrate_type: MigrateType::Unmovable,
            ..Request::pages(1)
        };
        let page = Self::manager()?.allocate(&request).ok()?;
        Some(PLATFORM.direct(page.start.address()))
    }

    unsafe fn free_page(page: NonNull<u8>) {
        let first = Pfn::containing(page.addr().get() as u64 - DIRECT_MAP);
        let page = PfnRange { start: first, end: first.add(1) };
        // SAFETY: `allocate_page` gave the page to a driver, which does not use it any more
        // (invariants 33 and 42).
        let freed = Self::manager().map(|manager| unsafe { manager.free(page) });
        if let Some(Err(error)) = freed {
            crate::console::log!("virtio: a driver's page is lost: {error}");
        }
    }
}

// SAFETY: DMA memory comes from the manager, zeroed and for one owner. Registers are where
// `map_registers` has mapped them. Devices see physical addresses.
unsafe impl Hal for GuestHal {
    fn dma_alloc(pages: usize, direction: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        Self::dma().map_or((0, NonNull::dangling()), |dma| dma.dma_alloc(pages, direction))
    }

    unsafe fn dma_dealloc(address: PhysAddr, pointer: NonNull<u8>, pages: usize) -> i32 {
        // SAFETY: `Hal` requires of its callers what the manager requires.
        Self::dma().map_or(-1, |dma| unsafe { dma.dma_dealloc(address, pointer, pages) })
    }

    unsafe fn mmio_phys_to_virt(address: PhysAddr, bytes: usize) -> NonNull<u8> {
        super::pci::registers_at(address, bytes)
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        // The drivers share only pages from `dma_alloc`. This is here for completeness: all memory
        // is in the direct map.
        buffer.cast::<u8>().addr().get() as u64 - DIRECT_MAP
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}
