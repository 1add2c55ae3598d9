//! Memory that no device reaches, for what a driver stores and later trusts.

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use virtio_drivers::Hal;

/// Bytes of a page from [`PrivateMemory`].
pub const PRIVATE_PAGE_BYTES: usize = 4096;

/// Where a driver keeps which memory is whose. That decides what is given back, so no device may
/// write to this memory, nor a host where the guest's memory is encrypted. So it is not what
/// [`Hal::dma_alloc`] gives, which is shared with the host then.
///
/// # Safety
/// A page from [`allocate_page`](Self::allocate_page) is memory of [`PRIVATE_PAGE_BYTES`] bytes,
/// aligned to 4096, readable and writable, and the caller's alone until
/// [`free_page`](Self::free_page). No device gets its address.
pub unsafe trait PrivateMemory: Hal {
    /// A page with any content; `None` when there is no memory.
    fn allocate_page() -> Option<NonNull<u8>>;

    /// Takes a page back.
    ///
    /// # Safety
    /// It came from [`allocate_page`](Self::allocate_page), comes back once, and is not used any
    /// more.
    unsafe fn free_page(page: NonNull<u8>);
}

/// A value in a page of its own, which is freed when this is dropped.
pub struct Private<H: PrivateMemory, T> {
    value: NonNull<T>,
    owner: PhantomData<(fn() -> H, T)>,
}

// SAFETY: it owns its value as a box would (invariant 33).
unsafe impl<H: PrivateMemory, T: Send> Send for Private<H, T> {}

impl<H: PrivateMemory, T> Private<H, T> {
    /// Puts `value` into a page of its own; `None` when there is no memory.
    pub fn new(value: T) -> Option<Self> {
        const {
            assert!(size_of::<T>() <= PRIVATE_PAGE_BYTES);
            assert!(align_of::<T>() <= PRIVATE_PAGE_BYTES);
        };
        let value_page = H::allocate_page()?.cast::<T>();
        // SAFETY: a page that is ours alone, large enough and aligned (invariant 33).
        unsafe { value_page.write(value) };
        Some(Self { value: value_page, owner: PhantomData })
    }
}

impl<H: PrivateMemory, T> Deref for Private<H, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: written by `new`, and reached through this alone (invariant 33).
        unsafe { self.value.as_ref() }
    }
}

impl<H: PrivateMemory, T> DerefMut for Private<H, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { self.value.as_mut() }
    }
}

impl<H: PrivateMemory, T> Drop for Private<H, T> {
    fn drop(&mut self) {
        // SAFETY: the value is dropped once, and not reached afterwards (invariant 33).
        unsafe { self.value.drop_in_place() };
        // SAFETY: the page that `new` got, once.
        unsafe { H::free_page(self.value.cast()) };
    }
}
