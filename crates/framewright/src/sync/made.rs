//! A value that is made once, of what was collected for it; afterwards everybody looks at it for
//! the price of one load.
//!
//! ```text
//!   collecting ──claim──> claimed ──make──> made, claimed ──> made
//!        ^                   │
//!        └──────drop─────────┘
//! ```
//!
//! Nobody waits in here: who finds it claimed decides what to do. There is no destructor for the
//! value, which is meant for statics.
//!
//! Orders of memory: a claim Acquires what the last one Released; `get` Acquires what `make`
//! Released. Relaxed: who fails to claim reads nothing.

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

// SAFETY: what is collected is reached through the one claim that there is; the value is shared
// once it was made, and comes from the thread that made it (invariant 52).
unsafe impl<C: Send, T: Send + Sync> Sync for Made<C, T> {}

/// A place that is read; the model checker looks on.
#[cfg(not(loom))]
#[inline(always)]
const fn read<T>(cell: &UnsafeCell<T>) -> *const T {
    cell.get()
}

#[cfg(loom)]
fn read<T>(cell: &UnsafeCell<T>) -> *const T {
    cell.with(|place| place)
}

/// A place that is written.
#[cfg(not(loom))]
const fn written<T>(cell: &UnsafeCell<T>) -> *mut T {
    cell.get()
}

#[cfg(loom)]
fn written<T>(cell: &UnsafeCell<T>) -> *mut T {
    cell.with_mut(|place| place)
}

impl<C, T> Made<C, T> {
    /// Nothing made yet.
    #[cfg(not(loom))]
    pub const fn new(collected: C) -> Self {
        Self {
            is_made: AtomicBool::new(false),
            is_claimed: AtomicBool::new(false),
            collected: UnsafeCell::new(collected),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// Nothing made yet.
    #[cfg(loom)]
    pub fn new(collected: C) -> Self {
        Self {
            is_made: AtomicBool::new(false),
            is_claimed: AtomicBool::new(false),
            collected: UnsafeCell::new(collected),
            value: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// The value, once it was made.
    #[inline(always)]
    pub fn get(&self) -> Option<&T> {
        if !self.is_made.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: it was written before, and nobody changes it any more (invariant 52).
        let value = unsafe { &*read(&self.value) };
        // SAFETY: the same.
        Some(unsafe { value.assume_init_ref() })
    }

    /// The right to collect and to make, unless somebody else has it.
    pub fn claim(&self) -> Option<Claim<'_, C, T>> {
        let claimed =
            self.is_claimed.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        // Made only where it was claimed: dropping one gives it up.
        claimed.is_ok().then(|| Claim { of: self })
    }
}

/// The right to collect and to make, until it is dropped.
pub struct Claim<'a, C, T> {
    of: &'a Made<C, T>,
}

impl<'a, C, T> Claim<'a, C, T> {
    /// What was collected.
    pub fn collected(&mut self) -> &mut C {
        // SAFETY: there is one claim, and it is borrowed for itself (invariant 52).
        unsafe { &mut *written(&self.of.collected) }
    }

    /// Makes the value, which `write` writes where it stays, and `begin` sees before anybody else
    /// does, with what it was made of. If there is one already it stays, and neither is called.
    ///
    /// # Errors
    /// That of `write`: there is no value.
    pub fn make<E>(
        &mut self,
        write: impl for<'p> FnOnce(&'p mut MaybeUninit<T>) -> Result<&'p mut T, E>,
        begin: impl FnOnce(&T, &C),
    ) -> Result<&'a T, E> {
        if let Some(there) = self.of.get() {
            return Ok(there);
        }
        // SAFETY: there is one claim, and nobody looks before the value was made (invariant 52).
        let place = unsafe { &mut *written(&self.of.value) };
        let there = place.as_ptr();
        let value = write(place)?;
        assert!(core::ptr::eq(value, there), "another place was written");
        begin(value, self.collected());
        self.of.is_made.store(true, Ordering::Release);
        // SAFETY: it was just written, and nobody changes it any more (invariant 52).
        let value = unsafe { &*read(&self.of.value) };
        // SAFETY: the same.
        Ok(unsafe { value.assume_init_ref() })
    }
}

impl<C, T> Drop for Claim<'_, C, T> {
    fn drop(&mut self) {
        self.of.is_claimed.store(false, Ordering::Release);
    }
}
