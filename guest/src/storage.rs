//! Static memory that is handed out once, because there is no heap.
//!
//! Orders of memory: a value's flag is stored with Release and loaded with Acquire, and taking is
//! AcqRel, so that code that finds a value finds all of it.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

/// A value that can be taken once, for ever.
pub struct Once<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the flag gives the value to one taker, and nobody else can access it.
unsafe impl<T: Send> Sync for Once<T> {}

impl<T> Once<T> {
    /// A value that has not been taken.
    pub const fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Takes the value. Panics if it was taken before, which is an error in this program.
    #[expect(clippy::mut_from_ref, reason = "the flag lets one reference be made")]
    pub fn take(&'static self) -> &'static mut T {
        assert!(!self.taken.swap(true, Ordering::AcqRel), "static storage is taken once");
        // SAFETY: only the first caller gets here, so the reference is the only one.
        unsafe { &mut *self.value.get() }
    }
}

/// A value that is set once and then read by all CPUs.
pub struct Settled<T> {
    is_set: AtomicBool,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: the value is written once, before the flag says so, and only read afterwards.
unsafe impl<T: Send + Sync> Sync for Settled<T> {}

impl<T> Settled<T> {
    /// A value that is not settled yet.
    pub const fn new() -> Self {
        Self { is_set: AtomicBool::new(false), value: UnsafeCell::new(None) }
    }

    /// The value, if it is settled.
    pub fn get(&'static self) -> Option<&'static T> {
        if !self.is_set.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: nobody writes once the flag is set.
        unsafe { (*self.value.get()).as_ref() }
    }

    /// Settles the value. Only CPU 0 does this, while no other CPU runs. Panics if the value is
    /// settled already, which is an error in this program.
    pub fn settle(&'static self, value: T) -> &'static T {
        assert!(self.get().is_none(), "settled once");
        // SAFETY: nobody reads before the flag is set, and nobody else writes (see the function's
        // contract).
        let slot = unsafe { &mut *self.value.get() };
        let value = slot.insert(value);
        self.is_set.store(true, Ordering::Release);
        value
    }
}
