//! The DMA half of `virtio_drivers::Hal`: [`Dma`] is memory for a device's queues and buffers.
//!
//! `Hal` consists of functions without `self`, so the kernel writes the implementation, which calls
//! its static manager. The other half of `Hal` depends on the kernel's page tables and its IOMMU;
//! the example uses a direct map and no IOMMU. Devices with 32 address bits need
//! [`Dma::below_4_gib`], as in the example; [`Dma::new`] leaves low memory to such devices.
//!
//! ```
//! # struct Kernel;
//! # // SAFETY: no manager is ever brought up over it.
//! # unsafe impl framewright::Platform for Kernel {
//! #     fn direct(&self, pa: u64) -> NonNull<u8> {
//! #         NonNull::new((DIRECT_MAP + pa) as *mut u8).unwrap()
//! #     }
//! #     fn pin(&self) -> framewright::PinnedCpu { framewright::PinnedCpu::new(0) }
//! #     fn irq_save(&self) -> framewright::IrqState { framewright::IrqState(0) }
//! #     unsafe fn irq_restore(&self, _: framewright::IrqState) {}
//! # }
//! # const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
//! use framewright::adapters::virtio::Dma;
//! use framewright::{Manager, Platform};
//! use std::{ptr::NonNull, sync::OnceLock}; // in a kernel: `spin::Once`
//! use virtio_drivers::{BufferDirection, Hal, PhysAddr};
//!
//! static MANAGER: OnceLock<Manager<Kernel>> = OnceLock::new();
//!
//! fn dma() -> Dma<'static, Kernel> {
//!     Dma::below_4_gib(MANAGER.get().expect("devices come after memory"))
//! }
//!
//! struct KernelHal;
//!
//! // SAFETY: DMA memory is zeroed and ours alone; the direct map shows memory and BARs, and
//! // devices see physical addresses.
//! unsafe impl Hal for KernelHal {
//!     fn dma_alloc(pages: usize, direction: BufferDirection) -> (PhysAddr, NonNull<u8>) {
//!         dma().dma_alloc(pages, direction)
//!     }
//!     unsafe fn dma_dealloc(paddr: PhysAddr, vaddr: NonNull<u8>, pages: usize) -> i32 {
//!         // SAFETY: `Hal` asks its callers for what the manager asks for.
//!         unsafe { dma().dma_dealloc(paddr, vaddr, pages) }
//!     }
//!     unsafe fn mmio_phys_to_virt(paddr: PhysAddr, _size: usize) -> NonNull<u8> {
//!         NonNull::new((DIRECT_MAP + paddr) as *mut u8).expect("the direct map is not at 0")
//!     }
//!     unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
//!         buffer.cast::<u8>().as_ptr() as u64 - DIRECT_MAP
//!     }
//!     unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
//! }
//! ```

use crate::block::MigrateType;
use crate::platform::Platform;
use crate::units::{Pfn, PfnRange};
use crate::zone::{FreeError, ZoneKind};
use crate::{Manager, Request};
use ::virtio_drivers::{BufferDirection, PhysAddr};
use core::fmt;
use core::ptr::NonNull;

/// One past the last address that a device with 32 address bits reaches.
const LIMIT_32_BITS: u64 = 1 << 32;

/// The result of `dma_dealloc` for memory that is not in use. The drivers check only whether the
/// result is 0.
const REFUSED: i32 = -1;

/// Contiguous zeroed memory for devices: a manager, and the highest address that the devices reach.
pub struct Dma<'a, P: Platform> {
    manager: &'a Manager<P>,
    max_address: u64,
}

impl<'a, P: Platform> Dma<'a, P> {
    /// Allocates for devices that reach all memory, as modern virtio devices do.
    #[must_use]
    pub const fn new(manager: &'a Manager<P>) -> Self {
        Self { manager, max_address: u64::MAX }
    }

    /// Allocates for devices with 32 address bits.
    #[must_use]
    pub const fn below_4_gib(manager: &'a Manager<P>) -> Self {
        Self { manager, max_address: LIMIT_32_BITS }
    }

    /// Allocates `pages` contiguous zeroed pages, and returns the address for the device and the
    /// pointer for the driver. The pages are unmovable, page-aligned, and below the end of the
    /// direct map. `None` when there is no such run, or when `pages` is 0.
    #[must_use]
    pub fn allocate(&self, pages: usize) -> Option<(PhysAddr, NonNull<u8>)> {
        let range = self.manager.allocate(&self.request(pages)).ok()?;
        let start = range.start.address();
        Some((start, self.manager.platform().direct(start)))
    }

    /// Frees what [`allocate`](Self::allocate) returned.
    ///
    /// # Errors
    /// When the pages are not all in use; nothing has then changed. An error that is not [about
    /// them](FreeError::concerns) reports a problem of an earlier free; these pages are free then.
    ///
    /// # Safety
    /// See [*Owning memory*](crate::manager#owning-memory): the caller owns these pages, and nobody
    /// uses them any more, no device either.
    pub unsafe fn free(&self, start: PhysAddr, pages: usize) -> Result<(), FreeError> {
        // SAFETY: passed on to the caller.
        unsafe { self.manager.free(run(start, pages)) }
    }

    /// Implements `Hal::dma_alloc`: address 0 means that there was no memory. Frame 0 is never
    /// handed out, so no allocation is at address 0.
    #[must_use]
    pub fn dma_alloc(&self, pages: usize, _direction: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        self.allocate(pages).unwrap_or((0, NonNull::dangling()))
    }

    /// Implements `Hal::dma_dealloc`: returns 0, or -1 when these pages were not in use, on which
    /// `virtio-drivers` panics.
    ///
    /// # Safety
    /// As [`free`](Self::free).
    #[must_use]
    pub unsafe fn dma_dealloc(&self, paddr: PhysAddr, _vaddr: NonNull<u8>, pages: usize) -> i32 {
        // SAFETY: passed on to the caller.
        let freed = unsafe { self.free(paddr, pages) };
        if freed.is_err_and(|error| error.concerns(run(paddr, pages))) { REFUSED } else { 0 }
    }

    /// Builds the request. Only memory in the direct map can be zeroed, so the map's end limits the
    /// request as the device does.
    fn request(&self, pages: usize) -> Request {
        Request {
            migrate_type: MigrateType::Unmovable,
            zone: if self.max_address <= LIMIT_32_BITS {
                ZoneKind::Dma32
            } else {
                ZoneKind::Normal
            },
            max_address: self.max_address.min(self.manager.platform().direct_limit()),
            zeroed: true,
            ..Request::pages(pages as u64)
        }
    }
}

fn run(start: PhysAddr, pages: usize) -> PfnRange {
    let start = Pfn::containing(start);
    PfnRange::new(start.0, start.0.saturating_add(pages as u64))
}

impl<P: Platform> Clone for Dma<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Dma<'_, P> {}

impl<P: Platform> fmt::Debug for Dma<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dma").field("max_address", &self.max_address).finish_non_exhaustive()
    }
}
