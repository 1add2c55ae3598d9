//! Numbers as texts, in one copy for all who read some: `core` has one for each kind of number, and
//! puts it wherever one is read.

/// A number with digits of a base, perhaps with a plus sign before them, as `core` reads it.
#[inline(never)]
pub(crate) fn parse_radix(text: &str, radix: u32) -> Option<u64> {
    u64::from_str_radix(text, radix).ok()
}

/// A decimal number, as [`str::parse`] reads one.
pub(crate) fn parse_decimal<T: TryFrom<u64>>(text: &str) -> Option<T> {
    T::try_from(parse_radix(text, 10)?).ok()
}
