//! Parses numbers, with one copy of the code for all callers: `core` has one for each integer type
//! and inlines it wherever a number is parsed.

/// Parses a number in base `radix`, perhaps with a plus sign before it, as `core` does.
#[inline(never)]
pub(crate) fn parse_radix(text: &str, radix: u32) -> Option<u64> {
    u64::from_str_radix(text, radix).ok()
}

/// Parses a decimal number, as [`str::parse`] does.
pub(crate) fn parse_decimal<T: TryFrom<u64>>(text: &str) -> Option<T> {
    T::try_from(parse_radix(text, 10)?).ok()
}
