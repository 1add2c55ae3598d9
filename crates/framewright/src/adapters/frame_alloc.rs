//! Implements the traits of the crate `frame-alloc`: a [`LazyManager`] is a `PhysicalAllocator`
//! that starts through `RegionInit`, and a [`Manager`] is a `PhysicalAllocator`.
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
//! All page sizes from 4 KiB to 1 GiB are served. Usable ranges need not be sorted; an invalid
//! range is reported before any range is added.

use crate::Manager;
use crate::lazy::{LazyManager, NotUp, StartError};
use crate::manager::{AllocateError, BringUpError, PlatformFault};
use crate::memblock::MemblockError;
use crate::platform::Platform;
use crate::units::{Order, PAGE_SHIFT, PAGE_SIZE, PHYSICAL_ADDRESS_END, Pfn, PfnRange, PhysRange};
use core::num::NonZeroUsize;
use frame_alloc::{AllocError, InitError, PageSize, PhysicalAllocator, RegionInit};

const _: () = assert!(cfg!(feature = "hotplug"), "`add_usable` adds memory later");

/// The page size in bytes, as the `usize` that `frame-alloc` uses.
const PAGE_BYTES: usize = 1 << PAGE_SHIFT;

/// The number of 4 KiB frames in `count` pages of `size`, and their alignment.
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

// SAFETY: the manager hands out a run once until it is freed; the run is whole, aligned, and in
// memory.
unsafe impl<P: Platform> PhysicalAllocator for Manager<P> {
    fn allocate_physical(&self, ps: PageSize, count: NonZeroUsize) -> Result<usize, AllocError> {
        let (pages, align) = pages(ps, count)?;
        self.allocate_pages(pages, align).map_err(refused).and_then(address)
    }

    /// Memory that the manager refuses stays as it is. With debug assertions a refusal panics.
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

    /// Memory that the manager refuses stays as it is, and is counted
    /// ([`LazyManager::lost_pages`]).
    unsafe fn deallocate_physical(&self, ps: PageSize, count: NonZeroUsize, phys: usize) {
        let Ok((pages, _)) = pages(ps, count) else { return };
        // SAFETY: passed on to the caller (invariant 42).
        let _ = unsafe { self.free_pages(Pfn::containing(phys as u64), pages) };
    }
}

/// Returns the range if it consists of whole pages and lies in `span`.
fn checked(base: usize, len: usize, span: PhysRange) -> Option<PhysRange> {
    let (start, len) = (base as u64, len as u64);
    let range = PhysRange { start, end: start.checked_add(len)? };
    let is_whole = start.is_multiple_of(PAGE_SIZE) && len.is_multiple_of(PAGE_SIZE) && len != 0;
    (is_whole && range.start >= span.start && range.end <= span.end).then_some(range)
}

/// What comes nearest to an error of bring-up over ranges the last of which has number `last`.
fn not_up(error: NotUp, last: usize) -> InitError {
    let required_bytes = match error {
        NotUp::ComingUp => return InitError::AlreadyInitialized,
        NotUp::Memblock(MemblockError::MisalignedDirectMap { .. })
        | NotUp::BringUp(BringUpError::Platform(PlatformFault::MisalignedDirectMap { .. })) => {
            return InitError::Misaligned { required: PAGE_BYTES };
        }
        NotUp::Memblock(MemblockError::NoRoomToGrow { .. }) if !cfg!(feature = "large-maps") => {
            return InitError::InvalidUsable { index: last };
        }
        NotUp::Memblock(MemblockError::NoRoomToGrow { needed_bytes, .. }) => needed_bytes,
        NotUp::BringUp(BringUpError::NoRoomForTables { size_bytes, .. }) => size_bytes,
        _ => PAGE_SIZE,
    };
    InitError::MetadataWontFit {
        required_bytes: usize::try_from(required_bytes).unwrap_or(usize::MAX),
    }
}

// SAFETY: memory outside the usable ranges is not handed out: it is not memory, or is reserved
// until it is added. After an error the allocator has no memory.
unsafe impl<P: Platform, const RANGES: usize> RegionInit for LazyManager<P, RANGES> {
    /// Brings the manager up. The manager needs memory of its own for tables (`MetadataWontFit`; of
    /// 4096 bytes also if nothing would be left, and if the platform breaks its contract), and
    /// returns `InvalidUsable` when there are more ranges than it can take. `Misaligned` can be the
    /// direct map, too. `AlreadyInitialized` can mean that another CPU is about to bring it up or
    /// to add memory, and the caller cannot wait ([`Platform::can_wait`]). Memory between two
    /// usable ranges can be added later: in pages, if the gap is no larger than
    /// [`with_largest_gap`](LazyManager::with_largest_gap) allows, otherwise in blocks of 2 MiB.
    /// Memory before the first range or after the last one can also be added in blocks of 2 MiB.
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
            StartError::NotUp(error) => not_up(error, usable.len().saturating_sub(1)),
        })
    }

    unsafe fn add_usable(&self, base: usize, len: usize) {
        let (start, size_bytes) = (base as u64, len as u64);
        // Nothing is cut off, so that all that is refused is counted.
        let range = PhysRange::new(start, start.saturating_add(size_bytes));
        // SAFETY: passed on to the caller.
        let _ = unsafe { self.add(range) };
    }
}
