//! Giving memory back in tests.
//!
//! A test plays everybody who owns memory of a machine at once, and often gives back what it does
//! not own to see what the manager says. [`Owner`] is where tests do so, under names of its own, so
//! that the rules of the manager's interface for those who own memory can change without every
//! test.

use framewright::hugetlb::PoolError;
use framewright::manager::{MapChange, MapError, Pool};
use framewright::units::{Order, Pfn, PfnRange};
use framewright::zone::FreeError;
use framewright::{Manager, Platform, ReferenceError};

/// What gives frames back to a manager.
pub trait Owner {
    /// `Manager::free`.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    fn give_back(&self, range: PfnRange) -> Result<(), FreeError>;

    /// `Manager::free_order`.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    fn give_back_order(&self, start: Pfn, order: Order) -> Result<(), FreeError>;

    /// `References::put`.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    fn give_back_reference(&self, pfn: Pfn) -> Result<(), ReferenceError>;

    /// `References::free_frozen`.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    fn give_back_frozen(&self, pfn: Pfn) -> Result<(), ReferenceError>;

    /// `References::put_testzero`.
    ///
    /// # Errors
    /// As there.
    fn give_back_testzero(&self, pfn: Pfn) -> Result<Option<PfnRange>, ReferenceError>;

    /// `References::start`.
    ///
    /// # Errors
    /// As there.
    fn begin_references(&self, range: PfnRange) -> Result<(), ReferenceError>;

    /// `References::freeze`.
    ///
    /// # Errors
    /// As there.
    fn freeze_references(&self, pfn: Pfn, expected: u32) -> Result<(), ReferenceError>;

    /// `References::unfreeze`.
    ///
    /// # Errors
    /// As there.
    fn unfreeze_references(&self, pfn: Pfn, count: u32) -> Result<(), ReferenceError>;

    /// `Vmemmap::optimize`.
    ///
    /// # Errors
    /// As there.
    fn give_up_map(&self, runs: &[PfnRange]) -> Result<MapChange, MapError>;

    /// `Vmemmap::restore`.
    ///
    /// # Errors
    /// As there.
    fn bring_back_map(&self, runs: &[PfnRange]) -> Result<MapChange, MapError>;
}

impl<P: Platform> Owner for Manager<P> {
    #[track_caller]
    fn give_back(&self, range: PfnRange) -> Result<(), FreeError> {
        // SAFETY: see the head of this file (invariant 42).
        unsafe { self.free(range) }
    }

    #[track_caller]
    fn give_back_order(&self, start: Pfn, order: Order) -> Result<(), FreeError> {
        // SAFETY: see the head of this file (invariant 42).
        unsafe { self.free_order(start, order) }
    }

    #[track_caller]
    fn give_back_reference(&self, pfn: Pfn) -> Result<(), ReferenceError> {
        // SAFETY: see the head of this file (invariant 42).
        unsafe { self.references().put(pfn) }
    }

    #[track_caller]
    fn give_back_frozen(&self, pfn: Pfn) -> Result<(), ReferenceError> {
        // SAFETY: see the head of this file (invariant 42).
        unsafe { self.references().free_frozen(pfn) }
    }

    fn give_back_testzero(&self, pfn: Pfn) -> Result<Option<PfnRange>, ReferenceError> {
        // SAFETY: see the head of this file (invariant 42).
        unsafe { self.references().put_testzero(pfn) }
    }

    fn begin_references(&self, range: PfnRange) -> Result<(), ReferenceError> {
        // SAFETY: see the head of this file (invariant 42).
        unsafe { self.references().start(range) }
    }

    fn freeze_references(&self, pfn: Pfn, expected: u32) -> Result<(), ReferenceError> {
        // SAFETY: see the head of this file (invariant 42).
        unsafe { self.references().freeze(pfn, expected) }
    }

    fn unfreeze_references(&self, pfn: Pfn, count: u32) -> Result<(), ReferenceError> {
        // SAFETY: see the head of this file (invariant 42).
        unsafe { self.references().unfreeze(pfn, count) }
    }

    fn give_up_map(&self, runs: &[PfnRange]) -> Result<MapChange, MapError> {
        // SAFETY: see the head of this file (invariant 42).
        unsafe { self.vmemmap().optimize(runs) }
    }

    fn bring_back_map(&self, runs: &[PfnRange]) -> Result<MapChange, MapError> {
        // SAFETY: see the head of this file (invariant 42).
        unsafe { self.vmemmap().restore(runs) }
    }
}

/// What gives huge pages back to their pool.
pub trait PoolOwner {
    /// `Pool::free`.
    ///
    /// # Errors
    /// As there.
    fn give_back_page(&self, page: Pfn) -> Result<(), PoolError>;
}

impl<P: Platform> PoolOwner for Pool<'_, P> {
    fn give_back_page(&self, page: Pfn) -> Result<(), PoolError> {
        // SAFETY: see the head of this file (invariant 42).
        unsafe { self.free(page) }
    }
}
