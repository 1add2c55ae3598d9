//! Memory that no device can access, for data that a driver stores and later trusts.

use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use virtio_drivers::Hal;

/// The size of a page from [`PrivateMemory`].
pub const PRIVATE_PAGE_BYTES: usize = 4096;

/// Memory in which a driver records which memory belongs to whom. That record decides what is
/// freed, so no device may write to this memory, and neither may a host if the guest's memory is
/// encrypted. It must therefore differ from the memory that [`Hal::dma_alloc`] returns, which is
/// shared with such a host.
///
/// # Safety
/// A page from [`allocate_page`](Self::allocate_page) is memory of [`PRIVATE_PAGE_BYTES`] bytes,
/// aligned to 4096, readable and writable, and belongs to the caller alone until
/// [`free_page`](Self::free_page). No device gets its address.
pub unsafe trait PrivateMemory: Hal {
    /// Allocates a page with unspecified content; `None` if there is no memory.
    fn allocate_page() -> Option<NonNull<u8>>;

    /// Frees a page.
    ///
    /// # Safety
    /// The page came from [`allocate_page`](Self::allocate_page), is freed once, and is not used
    /// any more.
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
    /// Puts `value` into a page of its own; `None` if there is no memory.
    pub fn new(value: T) -> Option<Self> {
        const {
            assert!(size_of::<T>() <= PRIVATE_PAGE_BYTES);
            assert!(align_of::<T>() <= PRIVATE_PAGE_BYTES);
        };
        let value_page = H::allocate_page()?.cast::<T>();
        // SAFETY: the page belongs to us alone, is large enough, and is aligned (invariant 33).
        unsafe { value_page.write(value) };
        Some(Self { value: value_page, owner: PhantomData })
    }
}

impl<H: PrivateMemory, T> Deref for Private<H, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the value was written by `new`, and is accessed only through `self` (invariant
        // 33).
        unsafe { self.value.as_ref() }
    }
}

impl<H: PrivateMemory, T> DerefMut for Private<H, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { self.value.as_mut() }
    }
}

impl<H: PrivateMemory, T> Drop for Private<H, T> {
    fn drop(&mut self) {
        // SAFETY: the value is dropped once, and not accessed afterwards (invariant 33).
        unsafe { self.value.drop_in_place() };
        // SAFETY: this is the page that `new` allocated, and it is freed once.
        unsafe { H::free_page(self.value.cast()) };
    }
}
