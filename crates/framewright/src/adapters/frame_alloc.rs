//! The traits of the crate `frame-alloc`: a [`LazyManager`] is a `PhysicalAllocator` that starts
//! by `RegionInit`, and a [`Manager`] a `PhysicalAllocator`.
//!
//! ```
//! # use framewright::{LazyManager, Platform};
//! use core::num::NonZeroUsize;
//! use frame_alloc::{AllocError, PageSize, PhysicalAllocator};
//!
//! /// A page table, of whatever allocates.
//! fn page_table(frames: &impl PhysicalAllocator) -> Result<usize, AllocError> {
//!     frames.allocate_physical(PageSize::from_log2(12), NonZeroUsize::MIN)
//! }
//! # fn of<P: Platform>(lazy: &LazyManager<P>) -> Result<usize, AllocError> {
//! page_table(lazy)
//! # }
//! ```
//!
//! All page sizes from 4 KiB to 1 GiB are served. Usable ranges need not be sorted; what is wrong
//! with one of them is told before any is added.

use crate::Manager;
use crate::lazy::{LazyManager, NotUp, StartError};
use crate::manager::{AllocateError, BringUpError};
use crate::platform::Platform;
use crate::units::{Order, PAGE_SHIFT, PAGE_SIZE, PHYSICAL_ADDRESS_END, Pfn, PfnRange, PhysRange};
use core::num::NonZeroUsize;
use frame_alloc::{AllocError, InitError, PageSize, PhysicalAllocator, RegionInit};

/// Their sizes are of the pointer's width.
const PAGE_BYTES: usize = 1 << PAGE_SHIFT;

/// Frames of 4 KiB in `count` of a size, and to what they are aligned.
fn pages(size: PageSize, count: NonZeroUsize) -> Result<(u64, Order), AllocError> {
    let order = u64::try_from(size.bytes()).ok().and_then(|bytes| {
        bytes.is_multiple_of(PAGE_SIZE).then(|| Order::for_pages(bytes / PAGE_SIZE))?
    });
    let order = order.ok_or(AllocError::InvalidPageSize)?;
    let bytes = size.total_bytes(count).ok_or(AllocError::RequestTooLarge)?;
    Ok((bytes as u64 / PAGE_SIZE, order))
}

fn address(taken: PfnRange) -> Result<usize, AllocError> {
    usize::try_from(taken.start.address()).map_err(|_| AllocError::OutOfMemory)
}

fn refused(error: AllocateError) -> AllocError {
    match error {
        AllocateError::BadSize { .. } => AllocError::RequestTooLarge,
        _ => AllocError::OutOfMemory,
    }
}

// SAFETY: the manager hands a run out once until it is freed, whole, aligned, and in memory.
unsafe impl<P: Platform> PhysicalAllocator for Manager<P> {
    fn allocate_physical(&self, ps: PageSize, count: NonZeroUsize) -> Result<usize, AllocError> {
        let (pages, align) = pages(ps, count)?;
        self.allocate_pages(pages, align).map_err(refused).and_then(address)
    }

    /// What the manager refuses stays as it is. With debug assertions that panics.
    unsafe fn deallocate_physical(&self, ps: PageSize, count: NonZeroUsize, phys: usize) {
        let Ok((pages, _)) = pages(ps, count) else { return };
        let start = Pfn::containing(phys as u64);
        // SAFETY: passed on to the caller (invariant 42).
        let freed = unsafe { self.free_pages(start, pages) };
        let range = PfnRange { start, end: Pfn(start.0.saturating_add(pages)) };
        let refused = freed.is_err_and(|error| error.concerns(range));
        debug_assert!(!refused, "frames were given back that are not in use: {freed:?}");
    }
}

// SAFETY: as above.
unsafe impl<P: Platform, const RANGES: usize> PhysicalAllocator for LazyManager<P, RANGES> {
    fn allocate_physical(&self, ps: PageSize, count: NonZeroUsize) -> Result<usize, AllocError> {
        let (pages, align) = pages(ps, count)?;
        self.allocate_pages(pages, align).map_err(refused).and_then(address)
    }

    /// What the manager refuses stays as it is, and is counted ([`LazyManager::lost_pages`]).
    unsafe fn deallocate_physical(&self, ps: PageSize, count: NonZeroUsize, phys: usize) {
        let Ok((pages, _)) = pages(ps, count) else { return };
        // SAFETY: passed on to the caller (invariant 42).
        let _ = unsafe { self.free_pages(Pfn::containing(phys as u64), pages) };
    }
}

/// A range of whole pages within a span.
fn checked(base: usize, len: usize, span: PhysRange) -> Option<PhysRange> {
    let (start, len) = (base as u64, len as u64);
    let range = PhysRange { start, end: start.checked_add(len)? };
    let is_whole = start.is_multiple_of(PAGE_SIZE) && len.is_multiple_of(PAGE_SIZE) && len != 0;
    (is_whole && range.start >= span.start && range.end <= span.end).then_some(range)
}

/// What bring-up lacked.
fn needed(error: NotUp) -> usize {
    match error {
        NotUp::BringUp(BringUpError::NoRoomForTables { size_bytes, .. }) => {
            usize::try_from(size_bytes).unwrap_or(usize::MAX)
        }
        _ => PAGE_BYTES,
    }
}

// SAFETY: memory that is no usable range is not handed out: it is no memory, or reserved until it
// is added. An error leaves the allocator without memory.
unsafe impl<P: Platform, const RANGES: usize> RegionInit for LazyManager<P, RANGES> {
    /// Brings the manager up. It needs memory of its own for tables (`MetadataWontFit`), and says
    /// `InvalidUsable` where there are more ranges than it can take. What lies between two usable
    /// ranges can be added later: as any pages where that is no more than
    /// [`with_largest_gap`](LazyManager::with_largest_gap) says, else as blocks of 2 MiB, as is
    /// what lies before the first or behind the last.
    unsafe fn try_init(
        &self,
        phys_base: usize,
        span_len: usize,
        usable: &[frame_alloc::PhysRange],
    ) -> Result<(), InitError> {
        if !(phys_base as u64).is_multiple_of(PAGE_SIZE) {
            return Err(InitError::Misaligned { required: PAGE_BYTES });
        }
        let all = PhysRange::new(0, PHYSICAL_ADDRESS_END);
        let span = checked(phys_base, span_len, all).ok_or(InitError::InvalidSpan)?;
        let ranges = || usable.iter().map(|range| checked(range.base, range.len, span));
        if let Some(index) = ranges().position(|range| range.is_none()) {
            return Err(InitError::InvalidUsable { index });
        }
        // SAFETY: passed on to the caller.
        unsafe { self.start_with(ranges().flatten()) }.map_err(|error| match error {
            StartError::IsUp => InitError::AlreadyInitialized,
            StartError::Add(index) => InitError::InvalidUsable { index },
            StartError::NotUp(error) => {
                InitError::MetadataWontFit { required_bytes: needed(error) }
            }
        })
    }

    unsafe fn add_usable(&self, base: usize, len: usize) {
        // SAFETY: passed on to the caller. What cannot be taken is counted.
        let _ = unsafe { self.add(PhysRange::with_size(base as u64, len as u64)) };
    }
}
