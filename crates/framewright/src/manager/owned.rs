//! Frames with an owner: the safe way to have memory.
//!
//! A number can be copied and freed twice; [`Frames`] cannot. It is a range and a reference to the
//! manager and nothing else: no heap, no flag, and dropping it is the free that one would have
//! written.

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

/// Frames that belong to whoever has this. Dropping it frees them.
///
/// What is in them is reached through addresses, which the compiler does not follow: writing
/// through [`Platform::direct`] is unsafe, and whoever does it keeps this until it is done
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
    /// As [`allocate`](Self::allocate), with an owner.
    ///
    /// # Errors
    /// As there.
    #[inline]
    #[track_caller]
    pub fn frames(&self, request: &Request) -> Result<Frames<'_, P>, AllocateError> {
        let range = self.allocate(request)?;
        Ok(Frames { manager: self, range })
    }

    /// As [`allocate_order`](Self::allocate_order), the short way through the CPU's cache, with an
    /// owner.
    ///
    /// # Errors
    /// As there.
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
    /// Owns frames that somebody had by number: the way back from [`into_range`](Self::into_range).
    /// Nothing for an empty range.
    ///
    /// # Safety
    /// See [*Owning memory*](super#owning-memory): the caller owns all frames of `range`, which
    /// `manager` gave out, and gives them to what this returns.
    #[inline]
    pub unsafe fn from_range(manager: &'m Manager<P>, range: PfnRange) -> Option<Self> {
        // A value that is made is dropped, so none is made of an empty range.
        if range.is_empty() { None } else { Some(Self { manager, range }) }
    }

    /// Which frames.
    #[inline]
    #[must_use]
    pub const fn range(&self) -> PfnRange {
        self.range
    }

    /// The first.
    #[inline]
    #[must_use]
    pub const fn start(&self) -> Pfn {
        self.range.start
    }

    /// Whose memory it is.
    #[inline]
    #[must_use]
    pub const fn manager(&self) -> &'m Manager<P> {
        self.manager
    }

    /// Keeps the first `pages` pages and returns the others, each to be freed by itself. Nothing,
    /// and nothing changed, unless both have pages.
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

    /// Gives the frames away for ever, as words of zero. Asked for zeroed, so that they can be
    /// reached.
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

    /// Gives up ownership by name: the frames stay allocated and the caller owns them by number.
    /// Forgetting the number leaks them.
    #[inline]
    #[must_use = "who forgets the number leaks the frames"]
    pub const fn into_range(self) -> PfnRange {
        let range = self.range;
        core::mem::forget(self);
        range
    }

    /// Frees them, as dropping does, and says what came of it: `page_owner=on` notes the line of
    /// this call, and damage that another one did is reported here.
    ///
    /// # Errors
    /// See [`FreeError`]. The frames are leaked then: somebody else has freed them, in breach of
    /// *Owning memory*, or what the manager knows of them is damaged. One that is not
    /// [about them](FreeError::concerns) tells of others, and these are free.
    #[inline]
    #[track_caller]
    pub fn free(self) -> Result<(), FreeError> {
        ManuallyDrop::new(self).give_back()
    }

    /// To be called once, last.
    #[inline]
    #[track_caller]
    fn give_back(&self) -> Result<(), FreeError> {
        let (manager, range, place) = (self.manager, self.range, Location::caller());
        match range.as_order() {
            // As `free_order`, but the range may be of several allocations.
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
    /// Frees the frames. Should that fail, which only a breach of *Owning memory* elsewhere makes
    /// it do, they are leaked; builds with debug assertions panic. [`Frames::free`] says more.
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
