//! Frames with an owner: the safe way to hold memory.
//!
//! A number can be copied and freed twice; [`Frames`] cannot. It is a range and a reference to the
//! manager and nothing else: no heap, no flag, and dropping it is the free that one would otherwise
//! write by hand.

use crate::block::MigrateType;
use crate::manager::request::{AllocateError, Request};
use crate::manager::state::Manager;
use crate::platform::Platform;
use crate::sync::table_atomic::AtomicU64;
use crate::units::{Order, PAGE_SIZE, Pfn, PfnRange};
use crate::zone::FreeError;
use core::fmt;
use core::mem::ManuallyDrop;
use core::panic::Location;

/// Frames that belong to the holder of this value. Dropping it frees them.
///
/// Their content is reached through addresses, which the compiler does not track: writing through
/// [`Platform::direct`] is unsafe, and the code that does it must keep this value until it is done
/// (invariant 42).
///
/// ```
/// # use framewright::{AllocateError, Manager, Platform, Request};
/// # fn example<P: Platform>(manager: &Manager<P>) -> Result<(), AllocateError> {
/// let mut buffer = manager.frames(&Request::pages(16))?;
/// let rest = buffer.split_off(4).expect("16 pages are more than 4");
/// assert_eq!((buffer.range().pages(), rest.range().pages()), (4, 12));
/// let for_the_device = rest.into_range(); // Nobody frees these until somebody says so.
/// # let _ = for_the_device;
/// # Ok(())
/// # } // The first four are free again.
/// ```
#[must_use = "dropping it frees the frames"]
pub struct Frames<'m, P: Platform> {
    manager: &'m Manager<P>,
    /// Not empty.
    range: PfnRange,
}

impl<P: Platform> Manager<P> {
    /// [`allocate`](Self::allocate) with an owner.
    ///
    /// # Errors
    /// As for [`allocate`](Self::allocate).
    #[inline]
    #[track_caller]
    pub fn frames(&self, request: &Request) -> Result<Frames<'_, P>, AllocateError> {
        let range = self.allocate(request)?;
        Ok(Frames { manager: self, range })
    }

    /// [`allocate_order`](Self::allocate_order) with an owner: the fast path through the CPU's
    /// cache.
    ///
    /// # Errors
    /// As for [`allocate_order`](Self::allocate_order).
    #[inline]
    #[track_caller]
    pub fn frames_of_order(
        &self,
        order: Order,
        migrate_type: MigrateType,
    ) -> Result<Frames<'_, P>, AllocateError> {
        let start = self.allocate_order(order, migrate_type)?;
        Ok(Frames { manager: self, range: PfnRange::of_order(start, order) })
    }
}

impl<'m, P: Platform> Frames<'m, P> {
    /// Takes ownership of frames that were owned by number: the reverse of
    /// [`into_range`](Self::into_range). Returns `None` for an empty range.
    ///
    /// # Safety
    /// See [*Owning memory*](super#owning-memory): the caller owns all frames of `range`, which
    /// `manager` gave out, and passes them on to the returned value.
    #[inline]
    pub unsafe fn from_range(manager: &'m Manager<P>, range: PfnRange) -> Option<Self> {
        // Every value that is built gets dropped, so none is built for an empty range.
        if range.is_empty() { None } else { Some(Self { manager, range }) }
    }

    /// The frames.
    #[inline]
    #[must_use]
    pub const fn range(&self) -> PfnRange {
        self.range
    }

    /// The first frame.
    #[inline]
    #[must_use]
    pub const fn start(&self) -> Pfn {
        self.range.start
    }

    /// The manager that the frames come from.
    #[inline]
    #[must_use]
    pub const fn manager(&self) -> &'m Manager<P> {
        self.manager
    }

    /// Keeps the first `pages` pages and returns the rest; the two are freed independently. Returns
    /// `None`, and changes nothing, unless both would have pages.
    #[must_use = "dropping it frees the frames"]
    pub fn split_off(&mut self, pages: u64) -> Option<Self> {
        if pages == 0 || pages >= self.range.pages() {
            return None;
        }
        let middle = self.range.start.add(pages);
        let rest = PfnRange { start: middle, end: self.range.end };
        self.range.end = middle;
        Some(Self { manager: self.manager, range: rest })
    }

    /// Gives the frames away for ever, as words of zero. They must have been requested zeroed, so
    /// that they lie below the direct limit.
    pub(super) fn into_words(self) -> &'static [AtomicU64] {
        let platform = self.manager.platform;
        let range = self.into_range();
        let words = usize::try_from(range.pages() * (PAGE_SIZE / 8)).unwrap_or(0);
        let first = platform.direct(range.start.address());
        // SAFETY: nobody else has these frames, nobody frees them any more, and they are memory
        // without a hole below the direct limit, aligned to a page; any content is a value
        // (invariants 1, 4, 15 and 42).
        unsafe { core::slice::from_raw_parts(first.as_ptr().cast(), words) }
    }

    /// Gives up ownership: the frames stay allocated, and the caller owns them by number.
    /// Forgetting the number leaks them.
    #[inline]
    #[must_use = "who forgets the number leaks the frames"]
    pub const fn into_range(self) -> PfnRange {
        let range = self.range;
        core::mem::forget(self);
        range
    }

    /// Frees the frames, as dropping does, and returns the result. With `page_owner=on` the source
    /// line of this call is recorded; damage done by somebody else is reported here.
    ///
    /// # Errors
    /// See [`FreeError`]. The frames are leaked then: somebody else has freed them, in breach of
    /// *Owning memory*, or the manager's records of them are damaged. An error that is not [about
    /// them](FreeError::concerns) reports other frames, and these are free.
    #[inline]
    #[track_caller]
    pub fn free(self) -> Result<(), FreeError> {
        ManuallyDrop::new(self).give_back()
    }

    /// Must be called once, as the last call.
    #[inline]
    #[track_caller]
    fn give_back(&self) -> Result<(), FreeError> {
        let (manager, range, place) = (self.manager, self.range, Location::caller());
        match range.as_order() {
            // As in `free_order`, but the range may consist of several allocations.
            Some(order) if order > Order::BLOCK => {
                manager.free_large(range.start, order, true, place)
            }
            Some(order) => {
                manager.check_order_when_debugging(range.start, order)?;
                manager.free_near::<true>(range.start, order, place)
            }
            // SAFETY: owned by this value, which ends here (invariant 42).
            None => unsafe { manager.free(range) },
        }
    }
}

impl<P: Platform> Drop for Frames<'_, P> {
    /// Frees the frames. Only a breach of *Owning memory* elsewhere can make that fail; then they
    /// are leaked, and builds with debug assertions panic. See also [`Frames::free`].
    #[inline]
    fn drop(&mut self) {
        let freed = self.give_back();
        debug_assert!(
            !freed.is_err_and(|error| error.concerns(self.range)),
            "{:?} was owned and could not be freed: {freed:?}",
            self.range
        );
    }
}

impl<P: Platform> fmt::Debug for Frames<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Frames").field(&self.range).finish()
    }
}
