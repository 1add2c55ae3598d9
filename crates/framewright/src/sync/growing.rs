//! A list in memory of its own that only grows. Its values never move, so everybody may look at
//! them without a lock.
//!
//! Orders of memory: Relaxed: `push` reads a length that only it changes; `room` is a hint.

use super::table_atomic::{AtomicBool, AtomicUsize, Ordering};
use core::mem::MaybeUninit;
use core::slice;

/// See the module documentation.
pub(crate) struct Growing<T: 'static> {
    first: *mut T,
    room: usize,
    /// A thread is appending.
    grows: AtomicBool,
    /// The number of values in the list, all of them written before this counts them.
    len: AtomicUsize,
}

// SAFETY: only values that are in the list are shared, as `&T`; `push` adds values from any thread
// (invariant 48).
unsafe impl<T: Send + Sync> Sync for Growing<T> {}
// SAFETY: the memory belongs to the list alone (invariant 48).
unsafe impl<T: Send + Sync> Send for Growing<T> {}

/// There is no room for more, or another thread is appending at this moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Full;

impl<T: Sync> Growing<T> {
    /// Makes an empty list with room for as many values as `storage` has. Also returns the first
    /// `begun` values, which `write` writes in place; they enter the list with
    /// [`begin`](Self::begin).
    pub(crate) fn new(
        storage: &'static mut [MaybeUninit<T>],
        begun: usize,
        write: impl Fn(&mut MaybeUninit<T>) -> &mut T,
    ) -> (Self, &'static mut [T]) {
        let room = storage.len();
        let begun = begun.min(room);
        for place in storage.iter_mut().take(begun) {
            let first = place.as_ptr();
            assert!(core::ptr::eq(write(place), first), "another place was written");
        }
        let first: *mut T = storage.as_mut_ptr().cast();
        // SAFETY: these were just written, and the list shows none of them until `begin` gets them
        // back (invariant 48).
        let begun = unsafe { slice::from_raw_parts_mut(first, begun) };
        (Self { first, room, grows: AtomicBool::new(false), len: AtomicUsize::new(0) }, begun)
    }

    /// Makes an empty list with room for as many values as `storage` has.
    pub(crate) fn empty(storage: &'static mut [MaybeUninit<T>]) -> Self {
        let (room, first) = (storage.len(), storage.as_mut_ptr().cast());
        Self { first, room, grows: AtomicBool::new(false), len: AtomicUsize::new(0) }
    }

    /// Takes the list out, and leaves an empty one without room in its place.
    pub(crate) fn take(&mut self) -> Self {
        core::mem::replace(self, Self::empty(&mut []))
    }

    /// Puts the values that [`new`](Self::new) returned into the list, now that they are complete.
    pub(crate) fn begin(&mut self, begun: &'static mut [T]) {
        assert!(core::ptr::eq(begun.as_ptr(), self.first), "the values of another list");
        *self.len.get_mut() = begun.len();
    }

    /// All values in the list.
    #[inline]
    pub(crate) fn as_slice(&self) -> &'static [T] {
        // Acquire pairs with the Release in `push`.
        let len = self.len.load(Ordering::Acquire);
        // SAFETY: `len` values were written, and nobody changes them any more (invariant 48).
        unsafe { slice::from_raw_parts(self.first, len) }
    }

    /// How many more values fit.
    pub(crate) fn room(&self) -> usize {
        self.room - self.len.load(Ordering::Relaxed)
    }

    /// Appends a value.
    pub(crate) fn push(&self, value: T) -> Result<&'static T, Full> {
        // Acquire and Release, so that the next appending thread finds the length that this one
        // left.
        if self.grows.swap(true, Ordering::Acquire) {
            return Err(Full);
        }
        let pushed = self.push_alone(value);
        self.grows.store(false, Ordering::Release);
        pushed
    }

    fn push_alone(&self, value: T) -> Result<&'static T, Full> {
        let len = self.len.load(Ordering::Relaxed);
        if len == self.room {
            return Err(Full);
        }
        // SAFETY: `len` is below `room`, and nobody looks at the place before the length covers it
        // (invariant 48).
        let place = unsafe { self.first.add(len) };
        // SAFETY: as for `place`; the old content needs no drop.
        unsafe { place.write(value) };
        self.len.store(len + 1, Ordering::Release);
        // SAFETY: it was just written (invariant 48).
        Ok(unsafe { &*place })
    }
}
