//! A list in memory of its own that only grows: what it has stays where it is, so that everybody
//! may look without a lock.
//!
//! Orders of memory: Relaxed: who appends reads a length that only it changes; `room` is a hint.

use super::table_atomic::{AtomicBool, AtomicUsize, Ordering};
use core::mem::MaybeUninit;
use core::slice;

/// See the module documentation.
pub(crate) struct Growing<T: 'static> {
    first: *mut T,
    room: usize,
    /// Somebody appends.
    grows: AtomicBool,
    /// How many there are: their values were written before.
    len: AtomicUsize,
}

// SAFETY: shared are values that are there, as `&T`; values come by `push` from any thread
// (invariant 48).
unsafe impl<T: Send + Sync> Sync for Growing<T> {}
// SAFETY: the memory is the list's alone (invariant 48).
unsafe impl<T: Send + Sync> Send for Growing<T> {}

/// There is no room for more, or somebody else appends at this moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Full;

impl<T: Sync> Growing<T> {
    /// An empty list with room for as many as `storage` has, and the places of the first `begun`,
    /// which `write` writes in place. They are in the list after [`begin`](Self::begin).
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
        // SAFETY: these were just written, and the list shows none of them until it gets them back
        // (invariant 48).
        let begun = unsafe { slice::from_raw_parts_mut(first, begun) };
        (Self { first, room, grows: AtomicBool::new(false), len: AtomicUsize::new(0) }, begun)
    }

    /// An empty list with room for as many as `storage` has.
    pub(crate) fn empty(storage: &'static mut [MaybeUninit<T>]) -> Self {
        let (room, first) = (storage.len(), storage.as_mut_ptr().cast());
        Self { first, room, grows: AtomicBool::new(false), len: AtomicUsize::new(0) }
    }

    /// The list, in whose place an empty one is left that has no room.
    pub(crate) fn take(&mut self) -> Self {
        core::mem::replace(self, Self::empty(&mut []))
    }

    /// The values that [`new`](Self::new) gave out are as they should be.
    pub(crate) fn begin(&mut self, begun: &'static mut [T]) {
        assert!(core::ptr::eq(begun.as_ptr(), self.first), "the values of another list");
        *self.len.get_mut() = begun.len();
    }

    /// All that there are.
    #[inline]
    pub(crate) fn as_slice(&self) -> &'static [T] {
        // Acquire pairs with the Release in `push`.
        let len = self.len.load(Ordering::Acquire);
        // SAFETY: so many were written, and nobody changes them any more (invariant 48).
        unsafe { slice::from_raw_parts(self.first, len) }
    }

    /// How many more there may be.
    pub(crate) fn room(&self) -> usize {
        self.room - self.len.load(Ordering::Relaxed)
    }

    /// Appends a value.
    pub(crate) fn push(&self, value: T) -> Result<&'static T, Full> {
        // Acquire and Release, so that the next one finds the length that this one left.
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
        // SAFETY: below the room, and nobody looks at it before the length says so (invariant 48).
        let place = unsafe { self.first.add(len) };
        // SAFETY: the same; what was there needs no drop.
        unsafe { place.write(value) };
        self.len.store(len + 1, Ordering::Release);
        // SAFETY: it was just written (invariant 48).
        Ok(unsafe { &*place })
    }
}
