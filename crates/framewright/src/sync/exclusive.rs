//! Marks data that one thread at a time may touch. In a kernel this compiles to nothing; in the
//! model checkers' builds it proves that the rule holds.
//!
//! Orders of memory: Relaxed: shuttle orders everything sequentially.

#[cfg(loom)]
use super::atomics::UnsafeCell;
#[cfg(shuttle)]
use super::atomics::atomic::{AtomicBool, Ordering};

/// Stands beside plain data that some protocol gives to one thread at a time.
pub(crate) struct Exclusive {
    /// loom fails when two touches are not ordered by a happens-before relation.
    #[cfg(loom)]
    cell: UnsafeCell<()>,
    #[cfg(shuttle)]
    touched: AtomicBool,
}

#[cfg(loom)]
// SAFETY: the cell holds nothing; the model reports two threads that are in it at once (invariant
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

    /// Called wherever the data is read or written; fails in a model when another thread is there.
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
            // shuttle lets other threads run between the swap and the store.
            assert!(
                !self.touched.swap(true, Ordering::Relaxed),
                "two threads have one CPU's cache"
            );
            self.touched.store(false, Ordering::Relaxed);
        }
    }
}
