//! Framewright as the page allocator of ArceOS. ArceOS finds its allocators by crate name: a patch
//! puts this one in place of `axallocator`.
//!
//! ```toml
//! [patch.crates-io]
//! axallocator = { path = "axallocator" } # a crate that says `pub use framewright_arceos::*;`
//! ```
//!
//! The heap takes its pages from this allocator. It remains ArceOS's own, the crate `rlsf`.
#![no_std]

mod heap;
mod pages;

pub use heap::TlsfByteAllocator;
pub use pages::BitmapPageAllocator;

use core::alloc::Layout;
use core::ptr::NonNull;

/// Why nothing was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocError {
    /// An impossible size or alignment.
    InvalidParam,
    /// The memory was added already.
    MemoryOverlap,
    /// There is not enough memory.
    NoMemory,
    /// The memory was not allocated.
    NotAllocated,
}

/// `AxError` of the crate `axerrno` 0.1 is this type, too.
#[cfg(feature = "axerrno")]
impl From<AllocError> for axerrno::AxErrorKind {
    fn from(error: AllocError) -> Self {
        match error {
            AllocError::NoMemory => Self::NoMemory,
            _ => Self::InvalidInput,
        }
    }
}

/// The result of a request.
pub type AllocResult<T = ()> = Result<T, AllocError>;

/// An allocator that is given its memory.
pub trait BaseAllocator {
    /// Starts with this memory.
    fn init(&mut self, start: usize, size: usize);
    /// Adds more memory.
    ///
    /// # Errors
    /// No more memory can be added, or not this memory.
    fn add_memory(&mut self, start: usize, size: usize) -> AllocResult;
}

/// A heap.
pub trait ByteAllocator: BaseAllocator {
    /// Allocates memory.
    ///
    /// # Errors
    /// There is not enough memory.
    fn alloc(&mut self, layout: Layout) -> AllocResult<NonNull<u8>>;
    /// Frees memory that was allocated with this layout.
    fn dealloc(&mut self, pos: NonNull<u8>, layout: Layout);
    /// Returns how many bytes the heap was given.
    fn total_bytes(&self) -> usize;
    /// Returns how many bytes are allocated.
    fn used_bytes(&self) -> usize;
    /// Returns how many bytes are not allocated.
    fn available_bytes(&self) -> usize;
}

/// An allocator of pages.
pub trait PageAllocator: BaseAllocator {
    /// Bytes in a page.
    const PAGE_SIZE: usize;
    /// Allocates a run whose start is a multiple of `align_pow2` bytes.
    ///
    /// # Errors
    /// There is no such run, or the request is invalid.
    fn alloc_pages(&mut self, num_pages: usize, align_pow2: usize) -> AllocResult<usize>;
    /// Allocates the run at `base`.
    ///
    /// # Errors
    /// The run is not free, or the request is invalid.
    fn alloc_pages_at(
        &mut self,
        base: usize,
        num_pages: usize,
        align_pow2: usize,
    ) -> AllocResult<usize>;
    /// Frees a run that was allocated.
    fn dealloc_pages(&mut self, pos: usize, num_pages: usize);
    /// Returns how many pages the allocator was given.
    fn total_pages(&self) -> usize;
    /// Returns how many pages are allocated.
    fn used_pages(&self) -> usize;
    /// Returns how many pages are not allocated.
    fn available_pages(&self) -> usize;
}
