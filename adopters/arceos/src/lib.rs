//! Framewright as the page allocator of ArceOS, which names its allocators by crate: a patch puts
//! this one in place of `axallocator`.
//!
//! ```toml
//! [patch.crates-io]
//! axallocator = { path = "axallocator" } # a crate that says `pub use framewright_arceos::*;`
//! ```
//!
//! The heap above takes pages from it and stays what ArceOS has, the crate `rlsf`.
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
    /// A size or an alignment that cannot be.
    InvalidParam,
    /// Memory that is there already.
    MemoryOverlap,
    /// There is not enough.
    NoMemory,
    /// It was not allocated.
    NotAllocated,
}

/// What comes of a request.
pub type AllocResult<T = ()> = Result<T, AllocError>;

/// An allocator that is given its memory.
pub trait BaseAllocator {
    /// Begins with this memory.
    fn init(&mut self, start: usize, size: usize);
    /// Takes more of it.
    ///
    /// # Errors
    /// There cannot be more, or not this.
    fn add_memory(&mut self, start: usize, size: usize) -> AllocResult;
}

/// A heap.
pub trait ByteAllocator: BaseAllocator {
    /// Allocates.
    ///
    /// # Errors
    /// There is not enough memory.
    fn alloc(&mut self, layout: Layout) -> AllocResult<NonNull<u8>>;
    /// Frees what was allocated with this layout.
    fn dealloc(&mut self, pos: NonNull<u8>, layout: Layout);
    /// Bytes that it was given.
    fn total_bytes(&self) -> usize;
    /// Bytes that are allocated.
    fn used_bytes(&self) -> usize;
    /// Bytes that are not.
    fn available_bytes(&self) -> usize;
}

/// An allocator of pages.
pub trait PageAllocator: BaseAllocator {
    /// Bytes of a page.
    const PAGE_SIZE: usize;
    /// Allocates a run whose start is a multiple of `align_pow2` bytes.
    ///
    /// # Errors
    /// There is no such run, or cannot be.
    fn alloc_pages(&mut self, num_pages: usize, align_pow2: usize) -> AllocResult<usize>;
    /// Allocates the run at `base`.
    ///
    /// # Errors
    /// It is not free, or cannot be.
    fn alloc_pages_at(
        &mut self,
        base: usize,
        num_pages: usize,
        align_pow2: usize,
    ) -> AllocResult<usize>;
    /// Frees what was allocated.
    fn dealloc_pages(&mut self, pos: usize, num_pages: usize);
    /// Pages that it was given.
    fn total_pages(&self) -> usize;
    /// Pages that are allocated.
    fn used_pages(&self) -> usize;
    /// Pages that are not.
    fn available_pages(&self) -> usize;
}
