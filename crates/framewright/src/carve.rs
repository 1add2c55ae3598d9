//! Makes slices over memory from the memblock allocator: the only place where raw metadata memory
//! becomes typed.

use crate::block::{BlockEntry, FreeMap};
use crate::platform::Platform;
use crate::sync::table_atomic::AtomicU64;
use crate::units::PhysRange;
use core::mem::MaybeUninit;
use core::{ptr, slice};

/// A type for which any bytes are a valid value.
///
/// # Safety
/// Every bit pattern is a value, there is no padding, and dropping a value does nothing.
pub(crate) unsafe trait AnyContent {}

// SAFETY: an integer (invariant 4).
unsafe impl AnyContent for AtomicU64 {}
// SAFETY: three integers without padding, as the assertion that its size is 16 shows (invariant 4).
unsafe impl AnyContent for BlockEntry {}
// SAFETY: an array of integers (invariant 4).
unsafe impl<const WORDS: usize> AnyContent for FreeMap<WORDS> {}

/// Hands out parts of one reserved range, front to back. Each part is handed out once, so no two
/// alias.
pub(crate) struct Carver<'a, P: Platform> {
    platform: &'a P,
    next: u64,
    end: u64,
}

impl<'a, P: Platform> Carver<'a, P> {
    /// # Safety
    /// `range` is reserved for the caller for ever, is used by nobody else, and lies in one range
    /// of the memory map and below the direct limit (invariants 1, 3 and 15).
    pub(crate) const unsafe fn new(platform: &'a P, range: PhysRange) -> Self {
        Self { platform, next: range.start, end: range.end }
    }

    fn place<T>(&mut self, count: usize) -> *mut T {
        self.bytes(align_of::<T>() as u64, (count * size_of::<T>()) as u64).cast()
    }

    /// Not generic, so that there is one copy for all types.
    #[inline(never)]
    fn bytes(&mut self, align: u64, bytes: u64) -> *mut u8 {
        // The alignment is a power of two, so this needs no division.
        let start = (self.next + (align - 1)) & !(align - 1);
        let end = start + bytes;
        assert!(end <= self.end, "the plan of a table and its memory differ");
        self.next = end;
        self.platform.direct(start).as_ptr()
    }

    /// Returns `count` values, each made by `make(index)`.
    pub(crate) fn values<T>(
        &mut self,
        count: usize,
        mut make: impl FnMut(usize) -> T,
    ) -> &'static mut [T] {
        let first = self.place::<T>(count);
        for index in 0..count {
            // SAFETY: inside the part that was just handed out, which nobody else has (invariants 1
            // and 3).
            let slot = unsafe { first.add(index) };
            // SAFETY: as for `slot`; the old content needs no drop.
            unsafe { ptr::write(slot, make(index)) };
        }
        // SAFETY: all values were written; the part is ours for ever and handed out once
        // (invariants 1, 3 and 15).
        unsafe { slice::from_raw_parts_mut(first, count) }
    }

    /// Returns `count` values, each written in place by `write`.
    pub(crate) fn in_place<T>(
        &mut self,
        count: usize,
        write: impl Fn(&mut MaybeUninit<T>) -> &mut T,
    ) -> &'static mut [T] {
        let places = self.places::<T>(count);
        for place in places.iter_mut() {
            let first = place.as_ptr();
            assert!(ptr::eq(write(place), first), "another place was written");
        }
        // SAFETY: all values were written; the part is ours for ever and handed out once
        // (invariants 1, 3 and 15).
        unsafe { slice::from_raw_parts_mut(places.as_mut_ptr().cast(), count) }
    }

    /// Returns one value, which is moved into place: for small values.
    pub(crate) fn one<T>(&mut self, value: T) -> &'static mut T {
        let place = self.place::<T>(1);
        // SAFETY: inside the part that was just handed out, which nobody else has (invariants 1 and
        // 3).
        unsafe { ptr::write(place, value) };
        // SAFETY: it was written; the part is ours for ever and handed out once (invariants 1, 3
        // and 15).
        unsafe { &mut *place }
    }

    /// Returns room for one value.
    pub(crate) fn place_for<T>(&mut self) -> &'static mut MaybeUninit<T> {
        let place = self.place::<MaybeUninit<T>>(1);
        // SAFETY: as for [`places`](Self::places) (invariants 1, 3 and 15).
        unsafe { &mut *place }
    }

    /// Returns room for `count` values.
    pub(crate) fn places<T>(&mut self, count: usize) -> &'static mut [MaybeUninit<T>] {
        let first = self.place::<T>(count);
        // SAFETY: a `MaybeUninit` may have any content; the part is ours for ever and handed out
        // once (invariants 1, 3 and 15).
        unsafe { slice::from_raw_parts_mut(first.cast(), count) }
    }

    /// Returns `count` values with whatever content the memory has.
    pub(crate) fn any<T: AnyContent>(&mut self, count: usize) -> &'static [T] {
        let first = self.place::<T>(count);
        // SAFETY: any content is a value; the part is ours for ever and handed out once (invariants
        // 1, 3, 4 and 15).
        unsafe { slice::from_raw_parts(first, count) }
    }
}

/// The most bytes that `count` values of `T` take, including alignment, when they follow something
/// else.
pub(crate) const fn room<T>(count: u64) -> u64 {
    count * size_of::<T>() as u64 + align_of::<T>() as u64 - 1
}
