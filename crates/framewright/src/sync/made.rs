//! A value that is made once from data that was collected for it. Afterwards everybody reads it at
//! the cost of one load.
//!
//! ```text
//!   collecting ──claim──> claimed ──make──> made, claimed ──> made
//!        ^                   │
//!        └──────drop─────────┘
//! ```
//!
//! Nothing in here waits: a caller that finds the value claimed decides what to do. The value is
//! never dropped: a `Made` is meant for statics.
//!
//! Orders of memory: a claim Acquires what the previous one Released; `get` Acquires what `make`
//! Released. Relaxed: a thread that fails to claim reads nothing.

#[cfg(loom)]
use super::atomics::UnsafeCell;
use super::atomics::atomic::{AtomicBool, Ordering};
#[cfg(not(loom))]
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;

/// See the module documentation.
pub struct Made<C, T> {
    is_made: AtomicBool,
    is_claimed: AtomicBool,
    collected: UnsafeCell<C>,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: the collected data is reached only through the one claim; the value is shared once it was
// made, and comes from the thread that made it (invariant 52).
unsafe impl<C: Send, T: Send + Sync> Sync for Made<C, T> {}

/// Returns a cell's place for reading; the model checker records the access.
#[cfg(not(loom))]
#[inline(always)]
const fn read<T>(cell: &UnsafeCell<T>) -> *const T {
    cell.get()
}

#[cfg(loom)]
fn read<T>(cell: &UnsafeCell<T>) -> *const T {
    cell.with(|place| place)
}

/// Returns a cell's place for writing.
#[cfg(not(loom))]
const fn written<T>(cell: &UnsafeCell<T>) -> *mut T {
    cell.get()
}

#[cfg(loom)]
fn written<T>(cell: &UnsafeCell<T>) -> *mut T {
    cell.with_mut(|place| place)
}

impl<C, T> Made<C, T> {
    /// Makes a `Made` whose value was not made yet.
    #[cfg(not(loom))]
    pub const fn new(collected: C) -> Self {
        Self {
            is_made: AtomicBool::new(false),
            is_claimed: AtomicBool::new(false),
            collected: UnsafeCell::new(collected),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Makes a `Made` whose value was not made yet.
    #[cfg(loom)]
    pub fn new(collected: C) -> Self {
        Self {
            is_made: AtomicBool::new(false),
            is_claimed: AtomicBool::new(false),
            collected: UnsafeCell::new(collected),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Returns the value, or `None` until it was made.
    #[inline(always)]
    pub fn get(&self) -> Option<&T> {
        if !self.is_made.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: it was written before, and nobody changes it any more (invariant 52).
        let value = unsafe { &*read(&self.value) };
        // SAFETY: see above (invariant 52).
        Some(unsafe { value.assume_init_ref() })
    }

    /// Takes the right to collect and to make the value, unless another claim has it.
    pub fn claim(&self) -> Option<Claim<'_, C, T>> {
        let claimed =
            self.is_claimed.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        // A `Claim` exists only where this claimed it, because dropping one releases the claim.
        claimed.is_ok().then(|| Claim { of: self })
    }
}

/// The right to collect and to make the value, until it is dropped.
pub struct Claim<'a, C, T> {
    of: &'a Made<C, T>,
}

impl<'a, C, T> Claim<'a, C, T> {
    /// Returns the collected data.
    pub fn collected(&mut self) -> &mut C {
        // SAFETY: there is only one claim, and it is borrowed exclusively (invariant 52).
        unsafe { &mut *written(&self.of.collected) }
    }

    /// Makes the value: `write` writes it where it stays, then `begin` sees it, with the data it
    /// was made from, before anybody else does. If there is a value already, that one stays and
    /// neither is called.
    ///
    /// # Errors
    /// Those of `write`; there is no value then.
    pub fn make<E>(
        &mut self,
        write: impl for<'p> FnOnce(&'p mut MaybeUninit<T>) -> Result<&'p mut T, E>,
        begin: impl FnOnce(&T, &C),
    ) -> Result<&'a T, E> {
        if let Some(there) = self.of.get() {
            return Ok(there);
        }
        // SAFETY: there is only one claim, and nobody looks at the value before it was made
        // (invariant 52).
        let place = unsafe { &mut *written(&self.of.value) };
        let there = place.as_ptr();
        let value = write(place)?;
        assert!(core::ptr::eq(value, there), "another place was written");
        begin(value, self.collected());
        self.of.is_made.store(true, Ordering::Release);
        // SAFETY: it was just written, and nobody changes it any more (invariant 52).
        let value = unsafe { &*read(&self.of.value) };
        // SAFETY: see above (invariant 52).
        Ok(unsafe { value.assume_init_ref() })
    }
}

impl<C, T> Drop for Claim<'_, C, T> {
    fn drop(&mut self) {
        self.of.is_claimed.store(false, Ordering::Release);
    }
}
