//! Static memory that is handed out once, because there is no heap.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

/// A value that somebody may take for ever.
pub struct Once<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the flag gives the value to one taker, and nobody else reaches it.
unsafe impl<T: Send> Sync for Once<T> {}

impl<T> Once<T> {
    /// A value to take.
    pub const fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// The value; panics when it was taken before, which is an error in this program.
    #[expect(clippy::mut_from_ref, reason = "the flag lets one reference be made")]
    pub fn take(&'static self) -> &'static mut T {
        assert!(!self.taken.swap(true, Ordering::AcqRel), "static storage is taken once");
        // SAFETY: only the first caller gets here, so the reference is the only one.
        unsafe { &mut *self.value.get() }
    }
}
