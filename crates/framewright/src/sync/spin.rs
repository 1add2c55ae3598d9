//! A spin lock that keeps interrupts off while held and backs off exponentially while waiting.
//!
//! Two threads on one plain lock cost 67 to 94 ns an operation, with backing off 22: a waiter
//! that polls less leaves the cache line to the owner, which then runs several sections in a row.

#[cfg(loom)]
use super::atomics::UnsafeCell;
use super::atomics::atomic::{AtomicBool, Ordering};
use crate::platform::{IrqState, Platform};
#[cfg(not(loom))]
use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};

/// Most turns of one wait before the lock is looked at again. The model checker tries every
/// interleaving of every turn, and turns of waiting change nothing.
const BACKOFF_LIMIT: u32 = if cfg!(loom) { 1 } else { 256 };

/// Turns of the first wait for a lock that its owner wants again at once: some thirty times what
/// such a section takes, so that the owner runs that many.
const SHORT_SECTIONS_WAIT: u32 = if cfg!(loom) { 1 } else { 32 };

/// A flag on cache lines of its own: those who look at it do not take away what the owner works on,
/// which made two threads on one lock three times slower.
#[repr(align(128))]
struct Flag(AtomicBool);

/// A lock over a [`Platform`] that adopters and drivers may use, too: interrupts are off while it
/// is held, and waiters back off exponentially.
pub struct SpinLock<T> {
    locked: Flag,
    value: UnsafeCell<T>,
}

// SAFETY: the flag lets one guard exist at a time, and only guards reach the value (invariant 2).
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// An open lock around `value`.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Self {
        Self { locked: Flag(AtomicBool::new(false)), value: UnsafeCell::new(value) }
    }

    /// An open lock around `value`.
    #[cfg(loom)]
    pub fn new(value: T) -> Self {
        Self { locked: Flag(AtomicBool::new(false)), value: UnsafeCell::new(value) }
    }

    /// [`new`](Self::new) in place: `write` writes the value.
    #[cfg(not(loom))]
    pub(crate) fn write(
        place: &mut MaybeUninit<Self>,
        write: impl FnOnce(&mut MaybeUninit<T>) -> &mut T,
    ) -> &mut Self {
        let lock = place.as_mut_ptr();
        // SAFETY: a field of a place that this has for itself.
        let flag = unsafe { &raw mut (*lock).locked };
        // SAFETY: the same.
        let cell = unsafe { &raw mut (*lock).value };
        // SAFETY: the same; what was there needs no drop.
        unsafe { flag.write(Flag(AtomicBool::new(false))) };
        // SAFETY: the same; a cell has the layout of what is in it.
        let value = unsafe { &mut *cell.cast::<MaybeUninit<T>>() };
        let written = core::ptr::from_mut(write(value));
        debug_assert!(core::ptr::eq(written, cell.cast()), "another place was written");
        // SAFETY: both fields were written, the second as the reference to its value says.
        unsafe { place.assume_init_mut() }
    }

    /// [`new`](Self::new) in place, where the model checker has cells of its own.
    #[cfg(loom)]
    pub(crate) fn write(
        place: &mut MaybeUninit<Self>,
        write: impl FnOnce(&mut MaybeUninit<T>) -> &mut T,
    ) -> &mut Self {
        let mut value = MaybeUninit::uninit();
        write(&mut value);
        // SAFETY: it was just written.
        place.write(Self::new(unsafe { value.assume_init() }))
    }

    /// The value, when nobody else can have the lock.
    #[cfg(not(loom))]
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    /// The value, when nobody else can have the lock.
    #[cfg(loom)]
    pub fn get_mut(&mut self) -> &mut T {
        // SAFETY: the exclusive reference to the lock proves that there is no guard (invariant 2).
        self.value.with_mut(|value| unsafe { &mut *value })
    }

    /// Calls `body` with the value, alone, and with interrupts off. A function, and no guard that
    /// could be dropped after another's: interrupts come back in turn (invariant 2).
    pub fn with<P: Platform, R>(&self, platform: &P, body: impl FnOnce(&mut T) -> R) -> R {
        body(&mut *self.lock(platform))
    }

    /// Turns interrupts off and waits until the lock is ours. Guards are dropped in turn.
    pub(crate) fn lock<'a, P: Platform>(&'a self, platform: &'a P) -> SpinGuard<'a, T, P> {
        self.lock_from(platform, 1)
    }

    /// [`lock`](Self::lock) where the lock is mostly taken for sections of some nanoseconds, one
    /// after another: longer waits leave more of them to the owner, whose caches have what is
    /// guarded.
    pub(crate) fn lock_between_short_sections<'a, P: Platform>(
        &'a self,
        platform: &'a P,
    ) -> SpinGuard<'a, T, P> {
        self.lock_from(platform, SHORT_SECTIONS_WAIT)
    }

    /// `wait` turns are waited first.
    #[inline]
    fn lock_from<'a, P: Platform>(&'a self, platform: &'a P, mut wait: u32) -> SpinGuard<'a, T, P> {
        let irq = platform.irq_save();
        // Acquire pairs with the Release store in SpinGuard::drop. Relaxed, also where the flag is
        // looked at: who does not get the lock reads nothing.
        while self
            .locked
            .0
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            for _ in 0..wait {
                platform.relax();
            }
            wait = if wait < BACKOFF_LIMIT { wait * 2 } else { BACKOFF_LIMIT };
            while self.locked.0.load(Ordering::Relaxed) {
                platform.relax();
            }
        }
        SpinGuard { lock: self, platform, irq, stays: PhantomData }
    }

    /// The lock if it is open: for a short way that has a long one beside it, which need then not
    /// carry what waiting takes.
    #[inline]
    pub(crate) fn try_lock<'a, P: Platform>(
        &'a self,
        platform: &'a P,
    ) -> Option<SpinGuard<'a, T, P>> {
        let irq = platform.irq_save();
        // A look first leaves the flag's cache line with the owner. Acquire pairs with the Release
        // store in SpinGuard::drop. Relaxed: who does not get the lock reads nothing.
        if self.locked.0.load(Ordering::Relaxed)
            || self
                .locked
                .0
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                .is_err()
        {
            // SAFETY: saved just now, and nothing was saved since.
            unsafe { platform.irq_restore(irq) };
            return None;
        }
        Some(SpinGuard { lock: self, platform, irq, stays: PhantomData })
    }
}

/// The locked value, until it is dropped: neither `Send` nor `Sync`, because interrupts come back
/// on the CPU, and in the task, in which they went off.
pub(crate) struct SpinGuard<'a, T, P: Platform> {
    lock: &'a SpinLock<T>,
    platform: &'a P,
    irq: IrqState,
    /// Makes it neither `Send` nor `Sync`.
    stays: PhantomData<*mut T>,
}

impl<T, P: Platform> Deref for SpinGuard<'_, T, P> {
    type Target = T;

    #[cfg(not(loom))]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one, so nobody has a mutable reference (invariant 2).
        unsafe { &*self.lock.value.get() }
    }

    #[cfg(loom)]
    fn deref(&self) -> &T {
        // SAFETY: as above; loom checks it (invariant 2).
        self.lock.value.with(|value| unsafe { &*value })
    }
}

impl<T, P: Platform> DerefMut for SpinGuard<'_, T, P> {
    #[cfg(not(loom))]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard is the only one and it is borrowed mutably (invariant 2).
        unsafe { &mut *self.lock.value.get() }
    }

    #[cfg(loom)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; loom checks it (invariant 2).
        self.lock.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T, P: Platform> Drop for SpinGuard<'_, T, P> {
    fn drop(&mut self) {
        // Release pairs with the Acquires of those who take it.
        self.lock.locked.0.store(false, Ordering::Release);
        // SAFETY: saved when this guard was made, on this CPU; no lock is taken inside a lock, so
        // that nothing is left to restore that was saved since (invariant 11).
        unsafe { self.platform.irq_restore(self.irq) };
    }
}
