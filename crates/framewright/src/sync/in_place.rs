//! Large values are written where they will stay, field by field: on their way through the stack,
//! which is small in a kernel that boots, there would be several copies of each.

/// Writes all fields of a value of `$type` at `$place`, a `&mut MaybeUninit<$type>`, and gives a
/// reference to it. Fields in the second pair of braces are large themselves: each has a function
/// that is given a `&mut MaybeUninit` of its own and returns the reference that comes of it. What
/// names a field twice or leaves one out is not compiled.
macro_rules! write_fields {
    (
        $type:ident at $place:expr,
        { $($field:ident: $value:expr),* $(,)? },
        { $($large:ident: $write:expr),* $(,)? } $(,)?
    ) => {{
        let place: &mut core::mem::MaybeUninit<$type> = $place;
        // Never called.
        let _all = |$type { $($field: _,)* $($large: _,)* }: &$type| {};
        let first: *mut $type = place.as_mut_ptr();
        $(
            let value = $value;
            // SAFETY: a field of a place that this has for itself.
            let field = unsafe { &raw mut (*first).$field };
            // SAFETY: the same; what was there needs no drop.
            unsafe { field.write(value) };
        )*
        $({
            // SAFETY: as above.
            let field = unsafe { &raw mut (*first).$large };
            // SAFETY: the same; what may be uninitialised has no other rules, and the field is
            // reached through this alone until it is written.
            let field = unsafe { &mut *field.cast() };
            let written = core::ptr::from_mut($crate::sync::in_place::give(field, $write));
            debug_assert!(core::ptr::eq(written, first.wrapping_byte_add(
                core::mem::offset_of!($type, $large)).cast()), "another place was written");
        })*
        // SAFETY: all fields were written: the pattern above names every one, and a function has a
        // reference to the value of each large one.
        unsafe { place.assume_init_mut() }
    }};
}
pub(crate) use write_fields;

use core::mem::MaybeUninit;

/// Lets a function write at a place, of whose type the function says what it is.
pub(crate) fn give<T>(
    place: &mut MaybeUninit<T>,
    write: impl FnOnce(&mut MaybeUninit<T>) -> &mut T,
) -> &mut T {
    write(place)
}

/// Writes an array, each item by `write`.
pub(crate) fn each<T, const COUNT: usize>(
    place: &mut MaybeUninit<[T; COUNT]>,
    write: impl Fn(&mut MaybeUninit<T>) -> &mut T,
) -> &mut [T; COUNT] {
    // SAFETY: the same bytes, each item of which may be uninitialised.
    let items: &mut [MaybeUninit<T>; COUNT] = unsafe { &mut *core::ptr::from_mut(place).cast() };
    for item in items {
        let first = item.as_ptr();
        let written = core::ptr::from_mut(write(item));
        debug_assert!(core::ptr::eq(written, first), "another place was written");
    }
    // SAFETY: all items were written: the function returned a reference to the value of each.
    unsafe { place.assume_init_mut() }
}
