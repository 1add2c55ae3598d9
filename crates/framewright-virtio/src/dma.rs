//! One page of memory that a device sees too. What is read here is only what the device claims:
//! whatever a driver trusts is in its own fields or in [`Private`](crate::Private) memory.
//!
//! All access is atomic, because the device may read and write at any time, and numbers are in the
//! byte order of virtio, little-endian.
//!
//! Orders of memory: Relaxed for what a ring's index publishes. That index is stored with Release
//! and loaded with Acquire; the partner of both is the device, which orders its own accesses to the
//! rings in this way (virtio 1.2, 2.7.13 and 2.7.14).

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

/// [`PAGE_SIZE`](crate::PAGE_SIZE) as an offset.
const BYTES: usize = virtio_drivers::PAGE_SIZE;

/// A page from [`Hal::dma_alloc`], given back when this is dropped: the device must not use it any
/// more then.
///
/// Offsets are in bytes and multiples of the size of what is stored or loaded. One that is not, or
/// that leads out of the page, is a mistake in the driver, and panics.
pub struct DmaPage<H: Hal> {
    physical: PhysAddr,
    pointer: NonNull<u8>,
    hal: PhantomData<fn() -> H>,
}

// SAFETY: the page belongs to this value and is reached by atomic operations only.
unsafe impl<H: Hal> Send for DmaPage<H> {}

impl<H: Hal> DmaPage<H> {
    /// A page of zeros; `None` when there is no memory.
    pub fn new(direction: BufferDirection) -> Option<Self> {
        let (physical, pointer) = H::dma_alloc(1, direction);
        // `dma_alloc` returns 0 when there is no memory.
        (physical != 0).then(|| Self { physical, pointer, hal: PhantomData })
    }

    /// Where the device sees it.
    pub fn physical(&self) -> PhysAddr {
        self.physical
    }

    /// Fills it with zeros.
    pub fn clear(&self) {
        for offset in (0..BYTES).step_by(8) {
            self.store_u64(offset, 0);
        }
    }

    /// Stores 8 bits.
    pub fn store_u8(&self, offset: usize, value: u8) {
        let byte = self.pointer_to(offset, 1).as_ptr();
        // SAFETY: `pointer_to` checks that the byte is in the page, which is ours as long as `self`
        // (invariant 32).
        unsafe { AtomicU8::from_ptr(byte) }.store(value, Ordering::Relaxed);
    }

    /// Stores 32 bits.
    pub fn store_u32(&self, offset: usize, value: u32) {
        let place = self.pointer_to(offset, 4).cast().as_ptr();
        // SAFETY: as above, and aligned.
        unsafe { AtomicU32::from_ptr(place) }.store(value.to_le(), Ordering::Relaxed);
    }

    /// Loads 32 bits.
    pub fn load_u32(&self, offset: usize) -> u32 {
        let place = self.pointer_to(offset, 4).cast().as_ptr();
        // SAFETY: as above.
        u32::from_le(unsafe { AtomicU32::from_ptr(place) }.load(Ordering::Relaxed))
    }

    /// Stores 64 bits.
    pub fn store_u64(&self, offset: usize, value: u64) {
        let place = self.pointer_to(offset, 8).cast().as_ptr();
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(place) }.store(value.to_le(), Ordering::Relaxed);
    }

    /// Stores 16 bits. A device that sees them also sees everything stored before.
    pub fn publish_u16(&self, offset: usize, value: u16) {
        let place = self.pointer_to(offset, 2).cast().as_ptr();
        // SAFETY: as above.
        unsafe { AtomicU16::from_ptr(place) }.store(value.to_le(), Ordering::Release);
    }

    /// Loads 16 bits. Later loads see what the device stored before them.
    pub fn observe_u16(&self, offset: usize) -> u16 {
        let place = self.pointer_to(offset, 2).cast().as_ptr();
        // SAFETY: as above.
        u16::from_le(unsafe { AtomicU16::from_ptr(place) }.load(Ordering::Acquire))
    }

    /// Where a number of `bytes` bytes is. Offsets come only from layouts of drivers, so a bad one
    /// is a bug there.
    fn pointer_to(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(
            offset.is_multiple_of(bytes) && offset + bytes <= BYTES,
            "an offset inside the page"
        );
        // SAFETY: inside the page.
        unsafe { self.pointer.add(offset) }
    }
}

impl<H: Hal> Drop for DmaPage<H> {
    fn drop(&mut self) {
        // SAFETY: what `dma_alloc` gave, once. The device does not use it any more (invariant 32).
        // A `Hal` that refuses its own page keeps it; nobody could handle the error.
        let _ = unsafe { H::dma_dealloc(self.physical, self.pointer, 1) };
    }
}
