//! A page of memory that a device can access too. Everything read from it is only what the device
//! claims: a driver keeps whatever it trusts in its own fields or in [`Private`](crate::Private)
//! memory.
//!
//! All accesses are atomic, because the device may read and write at any time. Numbers are in the
//! byte order of virtio, little-endian.
//!
//! Orders of memory: Relaxed for everything that a ring's index publishes. That index is stored
//! with Release and loaded with Acquire; the partner of both is the device, which orders its own
//! accesses to the rings in this way (virtio 1.2, 2.7.13 and 2.7.14).

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

/// [`PAGE_SIZE`](crate::PAGE_SIZE) as an offset.
const BYTES: usize = virtio_drivers::PAGE_SIZE;

/// A page from [`Hal::dma_alloc`], which is freed when this is dropped: the device must not use it
/// any more at that time.
///
/// Offsets are in bytes, and must be multiples of the size of the value that is stored or loaded.
/// An offset that is not, or that lies outside the page, is a bug in the driver, and panics.
pub struct DmaPage<H: Hal> {
    physical: PhysAddr,
    pointer: NonNull<u8>,
    hal: PhantomData<fn() -> H>,
}

// SAFETY: the page belongs to this value and is accessed only by atomic operations.
unsafe impl<H: Hal> Send for DmaPage<H> {}

impl<H: Hal> DmaPage<H> {
    /// Allocates a page of zeros; `None` if there is no memory.
    pub fn new(direction: BufferDirection) -> Option<Self> {
        let (physical, pointer) = H::dma_alloc(1, direction);
        // `dma_alloc` returns 0 if there is no memory.
        (physical != 0).then(|| Self { physical, pointer, hal: PhantomData })
    }

    /// The address of the page as the device sees it.
    pub fn physical(&self) -> PhysAddr {
        self.physical
    }

    /// Fills the page with zeros.
    pub fn clear(&self) {
        for offset in (0..BYTES).step_by(8) {
            self.store_u64(offset, 0);
        }
    }

    /// Stores 8 bits.
    pub fn store_u8(&self, offset: usize, value: u8) {
        let byte = self.pointer_to(offset, 1).as_ptr();
        // SAFETY: `pointer_to` checks that the byte is in the page, which belongs to `self` as long
        // as that lives (invariant 32).
        unsafe { AtomicU8::from_ptr(byte) }.store(value, Ordering::Relaxed);
    }

    /// Stores 32 bits.
    pub fn store_u32(&self, offset: usize, value: u32) {
        let place = self.pointer_to(offset, 4).cast().as_ptr();
        // SAFETY: as in `store_u8`; the place is aligned, too.
        unsafe { AtomicU32::from_ptr(place) }.store(value.to_le(), Ordering::Relaxed);
    }

    /// Loads 32 bits.
    pub fn load_u32(&self, offset: usize) -> u32 {
        let place = self.pointer_to(offset, 4).cast().as_ptr();
        // SAFETY: as in `store_u32`.
        u32::from_le(unsafe { AtomicU32::from_ptr(place) }.load(Ordering::Relaxed))
    }

    /// Stores 64 bits.
    pub fn store_u64(&self, offset: usize, value: u64) {
        let place = self.pointer_to(offset, 8).cast().as_ptr();
        // SAFETY: as in `store_u32`.
        unsafe { AtomicU64::from_ptr(place) }.store(value.to_le(), Ordering::Relaxed);
    }

    /// Stores 16 bits. A device that sees them also sees everything that was stored before.
    pub fn publish_u16(&self, offset: usize, value: u16) {
        let place = self.pointer_to(offset, 2).cast().as_ptr();
        // SAFETY: as in `store_u32`.
        unsafe { AtomicU16::from_ptr(place) }.store(value.to_le(), Ordering::Release);
    }

    /// Loads 16 bits. Later loads see what the device stored before them.
    pub fn observe_u16(&self, offset: usize) -> u16 {
        let place = self.pointer_to(offset, 2).cast().as_ptr();
        // SAFETY: as in `store_u32`.
        u16::from_le(unsafe { AtomicU16::from_ptr(place) }.load(Ordering::Acquire))
    }

    /// A pointer to the number of `bytes` bytes at `offset`. Offsets come only from layouts of
    /// drivers, so a bad one is a bug in the driver.
    fn pointer_to(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(
            offset.is_multiple_of(bytes) && offset + bytes <= BYTES,
            "an offset inside the page"
        );
        // SAFETY: the offset lies within the page.
        unsafe { self.pointer.add(offset) }
    }
}

impl<H: Hal> Drop for DmaPage<H> {
    fn drop(&mut self) {
        // SAFETY: these came from `dma_alloc`, are freed once, and the device does not use the page
        // any more (invariant 32). A `Hal` that refuses to free its own page keeps it; nobody could
        // handle the error.
        let _ = unsafe { H::dma_dealloc(self.physical, self.pointer, 1) };
    }
}
