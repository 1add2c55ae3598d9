//! Replaces the frame allocators of the crate `buddy_system_allocator` (0.9 to 0.13): types with
//! their names and methods over a [`LazyManager`], so that a kernel that uses them changes the
//! declaration and no call.
//!
//! ```
//! # mod kernel {
//! # use framewright::{IrqState, PinnedCpu};
//! use framewright::adapters::buddy_system::LockedFrameAllocator;
//! use framewright::platform::{LinearMap, OneAtATime};
//!
//! // SAFETY: boot code maps all memory from here on, and one CPU calls, with interrupts off.
//! static MAP: LinearMap<OneAtATime> =
//!     unsafe { LinearMap::new(0xffff_8000_0000_0000, OneAtATime) };
//! // SAFETY: the kernel adds frames that nobody uses, and gives back what it was given, once.
//! pub static FRAMES: LockedFrameAllocator<LinearMap<OneAtATime>> =
//!     unsafe { LockedFrameAllocator::new(&MAP) };
//! # }
//! # use kernel::FRAMES;
//!
//! // As before:
//! assert_eq!(FRAMES.lock().alloc(1), None);
//! # if false {
//! FRAMES.lock().add_frame(0x100, 0x8000);
//! let frame = FRAMES.lock().alloc(1).expect("there is memory");
//! FRAMES.lock().dealloc(frame, 1);
//! # }
//! ```
//!
//! The crate's methods are safe to call, whatever is freed, so the ones here have to be safe as
//! well. That is why construction is unsafe: whoever makes an allocator answers for all calls.
//!
//! Differences: a frame is 4 KiB, and its number is the physical frame number. `lock` takes no
//! lock. If a count is not a power of two, only the frames asked for are taken, aligned to the next
//! power of two; the rest stays free, and any part may be freed. Frames that cannot be taken, when
//! they are added or freed, are counted ([`FrameAllocator::frames`], [`LazyManager::lost_pages`]),
//! where the crate would let them have two owners.

use crate::block::MigrateType;
use crate::lazy::LazyManager;
use crate::platform::Platform;
use crate::units::{Order, PAGE_SIZE, Pfn, PfnRange, PhysRange};
use core::alloc::Layout;
use core::ops::Range;

/// Allocates frames by number; see the [module documentation](self).
#[derive(Debug)]
pub struct FrameAllocator<P: Platform> {
    frames: LazyManager<P>,
}

/// The type is its own lock: any CPU may call at any time.
pub type LockedFrameAllocator<P> = FrameAllocator<P>;

impl<P: Platform> FrameAllocator<P> {
    /// Makes an allocator without frames.
    ///
    /// # Safety
    /// Frames that are added ([`add_frame`](Self::add_frame), [`insert`](Self::insert)) are as
    /// [`LazyManager::add`] requires them, and frames that are given back
    /// ([`dealloc`](Self::dealloc), [`dealloc_aligned`](Self::dealloc_aligned)) belong to the
    /// caller and are not in use (invariant 42).
    #[cfg(not(loom))]
    #[must_use]
    pub const unsafe fn new(platform: &'static P) -> Self {
        Self { frames: LazyManager::new(platform) }
    }

    /// The manager below this allocator.
    #[must_use]
    pub const fn frames(&self) -> &LazyManager<P> {
        &self.frames
    }

    /// Returns the allocator itself.
    #[must_use]
    pub const fn lock(&self) -> &Self {
        self
    }

    /// Adds the frames `start..end`. Frames that cannot be added are lost.
    pub fn add_frame(&self, start: usize, end: usize) {
        let address = |frame: usize| (frame as u64).saturating_mul(PAGE_SIZE);
        // SAFETY: the caller of `new` answers for these frames.
        let _ = unsafe { self.frames.add(PhysRange::new(address(start), address(end))) };
    }

    /// Adds a range of frames. Frames that cannot be added are lost.
    pub fn insert(&self, range: Range<usize>) {
        self.add_frame(range.start, range.end);
    }

    /// Allocates `count` frames, or one if `count` is 0. The first frame is aligned to the next
    /// power of two, at most to 1 GiB.
    #[must_use]
    pub fn alloc(&self, count: usize) -> Option<usize> {
        self.allocate(count, 1)
    }

    /// Allocates as many frames as `layout` has bytes, aligned to as many frames as its alignment
    /// has bytes, at most 1 GiB.
    #[must_use]
    pub fn alloc_aligned(&self, layout: Layout) -> Option<usize> {
        self.allocate(layout.size(), layout.align())
    }

    fn allocate(&self, count: usize, align: usize) -> Option<usize> {
        if align as u64 > Order::MAX.pages() {
            return None;
        }
        let count = count.max(1);
        let align = count.checked_next_power_of_two()?.max(align) as u64;
        // Longer runs begin at a multiple of 1 GiB.
        let align = Order::for_pages(align).unwrap_or(Order::MAX);
        let taken = self.frames.allocate_pages(count as u64, align).ok()?;
        usize::try_from(taken.start.0).ok()
    }

    /// Allocates `count` frames from `start` on. With `count` rounded up to a power of two, `start`
    /// must be aligned to it, and all frames of that run must be free, and none of them in another
    /// CPU's cache if the caller cannot wait ([`Platform::can_wait`]).
    #[must_use]
    pub fn alloc_at(&self, start: usize, count: usize) -> Option<usize> {
        let order = Order::for_pages(count.checked_next_power_of_two()? as u64)?;
        let first = Pfn(start as u64);
        let range = PfnRange { start: first, end: Pfn(first.0.checked_add(order.pages())?) };
        if !first.is_aligned(order) {
            return None;
        }
        let end = first.add(count.max(1) as u64);
        // Not `allocate_range`, which moves what is in use and has to wait for other CPUs.
        let manager = self.frames.bring_up().ok()?;
        manager.allocate_at(first, order, MigrateType::Movable).ok()?;
        if end < range.end {
            // SAFETY: these were allocated just now, and nobody knows of them (invariant 42).
            let _ = unsafe { self.frames.free_pages(end, range.end.0 - end.0) };
        }
        Some(start)
    }

    /// Frees `count` frames, from `start_frame` on.
    pub fn dealloc(&self, start_frame: usize, count: usize) {
        let start = Pfn(start_frame as u64);
        // SAFETY: the caller of `new` answers for these frames (invariant 42). Refused frames are
        // counted.
        let _ = unsafe { self.frames.free_pages(start, count.max(1) as u64) };
    }

    /// Frees what [`alloc_aligned`](Self::alloc_aligned) allocated for this layout.
    pub fn dealloc_aligned(&self, start_frame: usize, layout: Layout) {
        self.dealloc(start_frame, layout.size());
    }
}
