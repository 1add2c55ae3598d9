//! Giving memory back in tests.
//!
//! A test owns all memory of its machine, and often gives back what it does not own to see what the
//! manager says. [`Owner`] has safe methods for this, so that the safety rules of the manager's
//! interface can change without every test.

use framewright::hugetlb::PoolError;
use framewright::manager::{Pool, VmemmapChange, VmemmapError};
use framewright::units::{Order, Pfn, PfnRange};
use framewright::zone::FreeError;
use framewright::{Manager, Platform, ReferenceError};

/// Gives frames back to a manager.
pub trait Owner {
    /// `Manager::free`, with its errors.
    ///
    /// # Errors
    /// Those of `Manager::free`.
    #[track_caller]
    fn give_back(&self, range: PfnRange) -> Result<(), FreeError>;

    /// `Manager::free`, and all caches emptied: the frames are in their zone then, where they
    /// merge and are counted.
    ///
    /// # Errors
    /// Those of `Manager::free`.
    #[track_caller]
    fn give_back_to_zone(&self, range: PfnRange) -> Result<(), FreeError>;

    /// `Manager::free_order`, with its errors.
    ///
    /// # Errors
    /// Those of `Manager::free_order`.
    #[track_caller]
    fn give_back_order(&self, start: Pfn, order: Order) -> Result<(), FreeError>;

    /// `Manager::free_pages`, with its errors.
    ///
    /// # Errors
    /// Those of `Manager::free_pages`.
    #[track_caller]
    fn give_back_pages(&self, start: Pfn, pages: u64) -> Result<(), FreeError>;

    /// `Manager::free_bulk`, with its errors.
    ///
    /// # Errors
    /// Those of `Manager::free_bulk`.
    #[track_caller]
    fn give_back_bulk(&self, pages: &[Pfn]) -> Result<(), FreeError>;

    /// `References::put`, with its errors.
    ///
    /// # Errors
    /// Those of `References::put`.
    #[track_caller]
    fn give_back_reference(&self, pfn: Pfn) -> Result<(), ReferenceError>;

    /// `References::free_frozen`, with its errors.
    ///
    /// # Errors
    /// Those of `References::free_frozen`.
    #[track_caller]
    fn give_back_frozen(&self, pfn: Pfn) -> Result<(), ReferenceError>;

    /// `References::put_testzero`, with its errors.
    ///
    /// # Errors
    /// Those of `References::put_testzero`.
    fn give_back_testzero(&self, pfn: Pfn) -> Result<Option<PfnRange>, ReferenceError>;

    /// `References::start`, with its errors.
    ///
    /// # Errors
    /// Those of `References::start`.
    fn begin_references(&self, range: PfnRange) -> Result<(), ReferenceError>;

    /// `References::freeze`, with its errors.
    ///
    /// # Errors
    /// Those of `References::freeze`.
    fn freeze_references(&self, pfn: Pfn, expected: u32) -> Result<(), ReferenceError>;

    /// `References::unfreeze`, with its errors.
    ///
    /// # Errors
    /// Those of `References::unfreeze`.
    fn unfreeze_references(&self, pfn: Pfn, count: u32) -> Result<(), ReferenceError>;

    /// `Vmemmap::optimize`, with its errors.
    ///
    /// # Errors
    /// Those of `Vmemmap::optimize`.
    fn optimize_vmemmap(&self, runs: &[PfnRange]) -> Result<VmemmapChange, VmemmapError>;

    /// `Vmemmap::restore`, with its errors.
    ///
    /// # Errors
    /// Those of `Vmemmap::restore`.
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
    /// `Pool::free`, with its errors.
    ///
    /// # Errors
    /// Those of `Pool::free`.
    fn give_back_page(&self, page: Pfn) -> Result<(), PoolError>;
}

impl<P: Platform> PoolOwner for Pool<'_, P> {
    fn give_back_page(&self, page: Pfn) -> Result<(), PoolError> {
        // SAFETY: see the head of this file (invariant 42).
        unsafe { self.free(page) }
    }
}
