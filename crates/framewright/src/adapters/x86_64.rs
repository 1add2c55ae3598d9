//! Implements the frame allocator of the crate `x86_64`: pass `&mut &manager` to `Mapper::map_to`.
//!
//! The traits are implemented for `&Manager`, so the `&mut self` that they require is a mutable
//! borrow of the caller's own reference. The manager stays shared, and any CPU can map at any time.
//!
//! ```
//! # use framewright::{Manager, Platform};
//! use x86_64::structures::paging::mapper::{MapToError, MapperFlush};
//! use x86_64::structures::paging::{FrameAllocator, Mapper, Page, PageTableFlags, Size2MiB};
//!
//! /// Backs a huge page; frames for the tables on the way come from the manager too.
//! fn back<P: Platform>(
//!     mut manager: &Manager<P>,
//!     tables: &mut impl Mapper<Size2MiB>,
//!     page: Page<Size2MiB>,
//! ) -> Result<MapperFlush<Size2MiB>, MapToError<Size2MiB>> {
//!     let frame = manager.allocate_frame().ok_or(MapToError::FrameAllocationFailed)?;
//!     let flags = PageTableFlags::PRESENT | PageTableFlags::WRITABLE;
//!     // SAFETY: the frame is new, and the caller gave us the page to back.
//!     unsafe { tables.map_to(page, frame, flags, &mut manager) }
//! }
//! ```

use crate::block::MigrateType;
use crate::platform::Platform;
use crate::units::{Order, PAGE_SIZE, Pfn, PfnRange};
use crate::{Manager, Request};
use ::x86_64::PhysAddr;
use ::x86_64::structures::paging::{FrameAllocator, FrameDeallocator, PageSize, PhysFrame};

/// The order of a page of size `S`; each of the processor's three page sizes is an order.
const fn order_of<S: PageSize>() -> Order {
    match Order::for_pages(S::SIZE / PAGE_SIZE) {
        Some(order) => order,
        None => panic!("a page is at most 1 GiB"),
    }
}

// SAFETY: the manager hands out a frame once until it is freed; its start is aligned to its order,
// so it is one whole frame of size S.
unsafe impl<P: Platform, S: PageSize> FrameAllocator<S> for &Manager<P> {
    /// Allocates unmovable memory near the calling CPU, with any content, below the end of the
    /// direct map. `None` when only the emergency reserve is left, or no free run is that large.
    fn allocate_frame(&mut self) -> Option<PhysFrame<S>> {
        let order = const { order_of::<S>() };
        let limit = self.platform().direct_limit();
        let mut start = self.allocate_order(order, MigrateType::Unmovable).ok()?;
        // A mapper writes tables through the direct map. It is almost always complete; while it is
        // still being built, the frame has to be chosen below its end.
        if start.add(order.pages()).address() > limit {
            // SAFETY: this was allocated just now, and nobody else knows of it (invariant 42). So
            // the free cannot fail either.
            let _ = unsafe { self.free_order(start, order) };
            let request = Request {
                migrate_type: MigrateType::Unmovable,
                max_address: limit,
                ..Request::new(order)
            };
            start = self.allocate(&request).ok()?.start;
        }
        Some(PhysFrame::containing_address(PhysAddr::new(start.address())))
    }
}

/// The trait has no way to report an error, so a frame that the manager refuses **stays as it is**:
/// a frame that it does not manage (the boot loader's, a device's) is given to nobody, and a frame
/// that is already free is not freed twice. With debug assertions the refusal panics, because both
/// are mistakes of the caller. A caller that needs the error calls [`Manager::free_order`].
///
/// Parts of a larger frame may be freed: the 512 frames of a 2 MiB page that was split up may come
/// back one by one.
impl<P: Platform, S: PageSize> FrameDeallocator<S> for &Manager<P> {
    unsafe fn deallocate_frame(&mut self, frame: PhysFrame<S>) {
        let start = Pfn::containing(frame.start_address().as_u64());
        // SAFETY: passed on to the caller, which gives up an unused frame (invariant 42).
        let freed = unsafe { self.free_order(start, const { order_of::<S>() }) };
        let range = PfnRange::of_order(start, const { order_of::<S>() });
        let refused = freed.is_err_and(|error| error.concerns(range));
        debug_assert!(!refused, "a frame was given back that is not in use: {freed:?}");
    }
}
