//! Data that one thread at a time may touch. In a kernel this is nothing at all; the model
//! checkers' builds prove it.
//!
//! Orders of memory: Relaxed: shuttle has one order of everything.

#[cfg(loom)]
use super::atomics::UnsafeCell;
#[cfg(shuttle)]
use super::atomics::atomic::{AtomicBool, Ordering};

/// Stands beside data of plain words that some protocol gives to one thread at a time.
pub(crate) struct Exclusive {
    /// loom fails when two touches are not ordered by what happened between them.
    #[cfg(loom)]
    cell: UnsafeCell<()>,
    #[cfg(shuttle)]
    touched: AtomicBool,
}

#[cfg(loom)]
// SAFETY: the cell holds nothing; two threads in it at once is what the model reports (invariant
// 16).
unsafe impl Sync for Exclusive {}

impl Exclusive {
    pub(crate) fn new() -> Self {
        Self {
            #[cfg(loom)]
            cell: UnsafeCell::new(()),
            #[cfg(shuttle)]
            touched: AtomicBool::new(false),
        }
    }

    /// Called wherever the data is read or written.
    #[inline]
    #[cfg_attr(
        not(any(loom, shuttle)),
        expect(clippy::unused_self, reason = "there is something to check only in a model")
    )]
    pub(crate) fn touch(&self) {
        #[cfg(loom)]
        self.cell.with_mut(|_| ());
        #[cfg(shuttle)]
        {
            // Other threads run between the two.
            assert!(
                !self.touched.swap(true, Ordering::Relaxed),
                "two threads have one CPU's cache"
            );
            self.touched.store(false, Ordering::Relaxed);
        }
    }
}
