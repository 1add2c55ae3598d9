//! Giving memory back in tests.
//!
//! A test plays everybody who owns memory of a machine at once, and often gives back what it does not own to see what the
//! manager says. [`Owner`] is where tests do so, under names of its own, so that the rules of the manager's interface for
//! those who own memory can change without every test.

use framewright::manager::Pool;
use framewright::pools::PoolError;
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

    /// `Manager::put`.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    fn give_back_reference(&self, pfn: Pfn) -> Result<(), ReferenceError>;

    /// `Manager::free_frozen`.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    fn give_back_frozen(&self, pfn: Pfn) -> Result<(), ReferenceError>;
}

impl<P: Platform> Owner for Manager<P> {
    #[track_caller]
    fn give_back(&self, range: PfnRange) -> Result<(), FreeError> {
        self.free(range)
    }

    #[track_caller]
    fn give_back_order(&self, start: Pfn, order: Order) -> Result<(), FreeError> {
        self.free_order(start, order)
    }

    #[track_caller]
    fn give_back_reference(&self, pfn: Pfn) -> Result<(), ReferenceError> {
        self.put(pfn)
    }

    #[track_caller]
    fn give_back_frozen(&self, pfn: Pfn) -> Result<(), ReferenceError> {
        self.free_frozen(pfn)
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
        self.free(page)
    }
}
