//! Writes large values field by field at their final place. Building them on the stack would make
//! several copies of each, and the stack of a booting kernel is small.

/// Writes all fields of a value of `$type` at `$place`, a `&mut MaybeUninit<$type>`, and returns a
/// reference to the value. The fields in the second pair of braces are large themselves: each has a
/// function that takes a `&mut MaybeUninit` for its field and returns the reference to the written
/// field. A call that names a field twice or leaves one out does not compile.
macro_rules! write_fields {
    (
        $type:ident at $place:expr,
        { $($field:ident: $value:expr),* $(,)? },
        { $($large:ident: $write:expr),* $(,)? } $(,)?
    ) => {{
        let place: &mut core::mem::MaybeUninit<$type> = $place;
        // Never called: makes the compiler check that every field is named.
        let _all = |$type { $($field: _,)* $($large: _,)* }: &$type| {};
        let first: *mut $type = place.as_mut_ptr();
        $(
            let value = $value;
            // SAFETY: a field of a place that is borrowed exclusively.
            let field = unsafe { &raw mut (*first).$field };
            // SAFETY: as for `field`; the old content needs no drop.
            unsafe { field.write(value) };
        )*
        $({
            // SAFETY: as above.
            let field = unsafe { &raw mut (*first).$large };
            // SAFETY: as for `field`; a `MaybeUninit` may hold anything, and the field is reached
            // through this reference alone until it is written.
            let field = unsafe { &mut *field.cast() };
            let written = core::ptr::from_mut($crate::sync::in_place::give(field, $write));
            debug_assert!(core::ptr::eq(written, first.wrapping_byte_add(
                core::mem::offset_of!($type, $large)).cast()), "another place was written");
        })*
        // SAFETY: all fields were written: the pattern above names every one, and each large
        // field's function returned a reference to its value.
        unsafe { place.assume_init_mut() }
    }};
}
pub(crate) use write_fields;

use core::mem::MaybeUninit;

/// Calls `write` with `place`, whose type is inferred from `write`.
pub(crate) fn give<T>(
    place: &mut MaybeUninit<T>,
    write: impl FnOnce(&mut MaybeUninit<T>) -> &mut T,
) -> &mut T {
    write(place)
}

/// Writes an array in place, each item with `write`.
pub(crate) fn each<T, const COUNT: usize>(
    place: &mut MaybeUninit<[T; COUNT]>,
    write: impl Fn(&mut MaybeUninit<T>) -> &mut T,
) -> &mut [T; COUNT] {
    // SAFETY: these are the bytes of `place`, and each item may be uninitialised.
    let items: &mut [MaybeUninit<T>; COUNT] = unsafe { &mut *core::ptr::from_mut(place).cast() };
    for item in items {
        let first = item.as_ptr();
        let written = core::ptr::from_mut(write(item));
        debug_assert!(core::ptr::eq(written, first), "another place was written");
    }
    // SAFETY: all items were written: `write` returned a reference to the value of each.
    unsafe { place.assume_init_mut() }
}
