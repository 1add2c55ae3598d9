//! Frees memory in tests.
//!
//! A test owns all memory of its machine, and often frees memory that it has not allocated, to see
//! what the manager says. [`Owner`] has safe methods for this, so that the safety rules of the
//! manager's interface can change without a change to every test.

use framewright::hugetlb::PoolError;
use framewright::manager::{Pool, VmemmapChange, VmemmapError};
use framewright::units::{Order, Pfn, PfnRange};
use framewright::zone::FreeError;
use framewright::{Manager, Platform, ReferenceError};

/// Frees frames of a manager.
pub trait Owner {
    /// Calls `Manager::free`.
    ///
    /// # Errors
    /// The errors of `Manager::free`.
    #[track_caller]
    fn give_back(&self, range: PfnRange) -> Result<(), FreeError>;

    /// Calls `Manager::free` and empties all caches: the frames are then in their zone, where they
    /// merge and are counted.
    ///
    /// # Errors
    /// The errors of `Manager::free`.
    #[track_caller]
    fn give_back_to_zone(&self, range: PfnRange) -> Result<(), FreeError>;

    /// Calls `Manager::free_order`.
    ///
    /// # Errors
    /// The errors of `Manager::free_order`.
    #[track_caller]
    fn give_back_order(&self, start: Pfn, order: Order) -> Result<(), FreeError>;

    /// Calls `Manager::free_pages`.
    ///
    /// # Errors
    /// The errors of `Manager::free_pages`.
    #[track_caller]
    fn give_back_pages(&self, start: Pfn, pages: u64) -> Result<(), FreeError>;

    /// Calls `Manager::free_bulk`.
    ///
    /// # Errors
    /// The errors of `Manager::free_bulk`.
    #[track_caller]
    fn give_back_bulk(&self, pages: &[Pfn]) -> Result<(), FreeError>;

    /// Calls `References::put`.
    ///
    /// # Errors
    /// The errors of `References::put`.
    #[track_caller]
    fn give_back_reference(&self, pfn: Pfn) -> Result<(), ReferenceError>;

    /// Calls `References::free_frozen`.
    ///
    /// # Errors
    /// The errors of `References::free_frozen`.
    #[track_caller]
    fn give_back_frozen(&self, pfn: Pfn) -> Result<(), ReferenceError>;

    /// Calls `References::put_testzero`.
    ///
    /// # Errors
    /// The errors of `References::put_testzero`.
    fn give_back_testzero(&self, pfn: Pfn) -> Result<Option<PfnRange>, ReferenceError>;

    /// Calls `References::start`.
    ///
    /// # Errors
    /// The errors of `References::start`.
    fn begin_references(&self, range: PfnRange) -> Result<(), ReferenceError>;

    /// Calls `References::freeze`.
    ///
    /// # Errors
    /// The errors of `References::freeze`.
    fn freeze_references(&self, pfn: Pfn, expected: u32) -> Result<(), ReferenceError>;

    /// Calls `References::unfreeze`.
    ///
    /// # Errors
    /// The errors of `References::unfreeze`.
    fn unfreeze_references(&self, pfn: Pfn, count: u32) -> Result<(), ReferenceError>;

    /// Calls `Vmemmap::optimize`.
    ///
    /// # Errors
    /// The errors of `Vmemmap::optimize`.
    fn optimize_vmemmap(&self, runs: &[PfnRange]) -> Result<VmemmapChange, VmemmapError>;

    /// Calls `Vmemmap::restore`.
    ///
    /// # Errors
    /// The errors of `Vmemmap::restore`.
    fn restore_vmemmap(&self, runs: &[PfnRange]) -> Result<VmemmapChange, VmemmapError>;
}

impl<P: Platform> Owner for Manager<P> {
    #[track_caller]
    fn give_back(&self, range: PfnRange) -> Result<(), FreeError> {
        // SAFETY: see the head of this file (invariant 42).
        unsafe { self.free(range) }
    }

    #[track_caller]
    fn give_back_to_zone(&self, range: PfnRange) -> Result<(), FreeError> {
        self.give_back(range)?;
        self.drain().map(drop)
    }

    #[track_caller]
    fn give_back_order(&self, start: Pfn, order: Order) -> Result<(), FreeError> {
        // SAFETY: see the head of this file (invariant 42).
        unsafe { self.free_order(start, order) }
    }

    #[track_caller]
    fn give_back_pages(&self, start: Pfn, pages: u64) -> Result<(), FreeError> {
        // SAFETY: see the head of this file (invariant 42).
        unsafe { self.free_pages(start, pages) }
    }

    #[track_caller]
    fn give_back_bulk(&self, pages: &[Pfn]) -> Result<(), FreeError> {
        // SAFETY: see the head of this file (invariant 42).
        unsafe { self.free_bulk(pages) }
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

    fn optimize_vmemmap(&self, runs: &[PfnRange]) -> Result<VmemmapChange, VmemmapError> {
        // SAFETY: see the head of this file (invariant 42).
        unsafe { self.vmemmap().optimize(runs) }
    }

    fn restore_vmemmap(&self, runs: &[PfnRange]) -> Result<VmemmapChange, VmemmapError> {
        // SAFETY: see the head of this file (invariant 42).
        unsafe { self.vmemmap().restore(runs) }
    }
}

/// Gives huge pages back to their pool.
pub trait PoolOwner {
    /// Calls `Pool::free`.
    ///
    /// # Errors
    /// The errors of `Pool::free`.
    fn give_back_page(&self, page: Pfn) -> Result<(), PoolError>;
}

impl<P: Platform> PoolOwner for Pool<'_, P> {
    fn give_back_page(&self, page: Pfn) -> Result<(), PoolError> {
        // SAFETY: see the head of this file (invariant 42).
        unsafe { self.free(page) }
    }
}
