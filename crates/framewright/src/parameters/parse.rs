//! Parses words, switches, numbers and sizes as Linux does.

use crate::units::parse_radix;
use core::fmt;

/// Parses a switch as Linux does: by its first letter (1, y or t for on; 0, n or f for off), or by
/// the first two letters of `on` and `off`.
pub(crate) fn parse_bool(value: &str) -> Option<bool> {
    let mut letters = value.bytes().map(|byte| byte.to_ascii_lowercase());
    match letters.next()? {
        b'1' | b'y' | b't' => Some(true),
        b'0' | b'n' | b'f' => Some(false),
        b'o' => match letters.next()? {
            b'n' => Some(true),
            b'f' => Some(false),
            _ => None,
        },
        _ => None,
    }
}

/// [`str::split_once`]. Not inlined, as that is much code at each of its calls.
#[inline(never)]
pub(super) fn split_once(text: &str, at: char) -> Option<(&str, &str)> {
    text.split_once(at)
}

/// Returns the radix of a number and its digits, as Linux determines them: decimal, `0x`
/// hexadecimal, or octal after a leading zero (`lib/kstrtox.c`, `_parse_integer_fixup_radix`).
#[inline(never)]
fn radix_of(text: &str) -> (u32, &str) {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (16, digits),
        None => (if text.starts_with('0') { 8 } else { 10 }, text),
    }
}

/// Returns the first word of a command line, unchanged, and the rest of the line; the word is empty
/// when there is none. Blanks between quotes do not end a word (Linux: `lib/cmdline.c`,
/// `next_arg`).
#[must_use]
pub fn next_word(line: &str) -> (&str, &str) {
    let line = line.trim_ascii_start();
    let mut in_quotes = false;
    let ends = |byte: u8| {
        in_quotes ^= byte == b'"';
        byte.is_ascii_whitespace() && !in_quotes
    };
    line.split_at(line.bytes().position(ends).unwrap_or(line.len()))
}

/// Strips a leading quote from a word or a value and, if there was one, a trailing quote.
pub(super) fn unquoted(text: &str) -> &str {
    text.strip_prefix('"').map_or(text, |rest| rest.strip_suffix('"').unwrap_or(rest))
}

/// Parses a number as Linux does in parameters and control files.
pub(crate) fn parse_integer(text: &str) -> Option<u64> {
    let (radix, digits) = radix_of(text);
    // The conversion would accept a sign.
    if digits.starts_with('+') { None } else { parse_radix(digits, radix) }
}

/// Parses a number of 32 bits.
pub(super) fn parse_number(text: &str) -> Option<u32> {
    u32::try_from(parse_integer(text)?).ok()
}

/// Why a text is not a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeError {
    /// There is no digit at the start.
    NotANumber,
    /// Something other than one of K, M, G, T, P, E follows the number.
    BadSuffix,
    /// It does not fit in 64 bits.
    TooLarge,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotANumber => "not a number; write bytes such as 4096, 0x1000, 512M or 8G",
            Self::BadSuffix => "unknown suffix; use K, M, G, T, P or E, or nothing for bytes",
            Self::TooLarge => "does not fit in 64 bits",
        })
    }
}

impl core::error::Error for SizeError {}

/// Parses a number of bytes as Linux does: decimal, `0x` hexadecimal, or octal after a leading
/// zero, then perhaps K, M, G, T, P or E (either case) for powers of 1024. As an extension, `B` or
/// `iB` may follow the letter.
///
/// # Errors
/// See [`SizeError`].
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    // `E` is a hexadecimal digit, so a hexadecimal size cannot have that suffix.
    let (radix, rest) = radix_of(text);
    let digits = rest.bytes().take_while(|&byte| char::from(byte).is_digit(radix)).count();
    if digits == 0 {
        return Err(SizeError::NotANumber);
    }
    let number = parse_radix(&rest[..digits], radix).ok_or(SizeError::TooLarge)?;
    let shift = match &rest.as_bytes()[digits..] {
        [] => 0,
        [letter] | [letter, b'B'] | [letter, b'i', b'B'] => {
            let place = b"KMGTPE".iter().position(|known| letter.eq_ignore_ascii_case(known));
            10 * (place.ok_or(SizeError::BadSuffix)? + 1)
        }
        _ => return Err(SizeError::BadSuffix),
    };
    number.checked_mul(1 << shift).ok_or(SizeError::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parameters::{Parameters, Policy, Problem};
    use crate::units::Order;
    use std::vec::Vec;

    fn parse(line: &str) -> (Parameters, Vec<Problem<'_>>) {
        let mut problems = Vec::new();
        let parameters = Parameters::parse(line, &mut |problem| problems.push(problem));
        (parameters, problems)
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("0x10k"), Ok(16 << 10));
        assert_eq!(parse_size("24T"), Ok(24 << 40));
        assert_eq!(parse_size("0100M"), Ok(64 << 20));
        assert_eq!(parse_size("00"), Ok(0));
        assert_eq!(parse_size("0K"), Ok(0));
        // A digit that is not octal is not a suffix either.
        assert_eq!(parse_size("018M"), Err(SizeError::BadSuffix));
        assert_eq!(parse_size("09"), Err(SizeError::BadSuffix));
        assert_eq!(parse_size("15E"), Ok(15 << 60));
        assert_eq!(parse_size("16E"), Err(SizeError::TooLarge));
        assert_eq!(parse_size("99999999999999999999"), Err(SizeError::TooLarge));
        assert_eq!(parse_size("12Q"), Err(SizeError::BadSuffix));
        assert_eq!(parse_size("1GB"), Ok(1 << 30));
        assert_eq!(parse_size("2KiB"), Ok(2048));
        for bad in ["1B", "1iB", "1Gi", "1 G", "1.5G", "8é", "1GG", "1K1"] {
            assert_eq!(parse_size(bad), Err(SizeError::BadSuffix), "{bad}");
        }
        for bad in ["", "G", "-1", "0x", "+5", "é"] {
            assert_eq!(parse_size(bad), Err(SizeError::NotANumber), "{bad}");
        }
    }

    /// Linux: `lib/cmdline.c`, `next_arg`; `kernel/params.c`, `parameq`.
    #[test]
    fn quotes_keep_words_together_and_hyphens_are_underscores() {
        let (parameters, problems) = parse("dyndbg=\"file mm/x mem=64M +p\" numa=off");
        assert_eq!((parameters.memory_limit, parameters.numa), (None, false));
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].word, "dyndbg=\"file mm/x mem=64M +p\"");
        for line in [
            "\"mem=64M\"",
            "mem=\"64M\"",
            "\"mem=64M",
            "mem=\"64M",
            "\"mem=64M\" -- mem=1G",
            "\"quiet -- splash\" mem=64M",
            "a=\"b\"c\"\" mem=64M",
            "mem=64M -- \"mem=1G\"",
        ] {
            assert_eq!(parse(line).0.memory_limit, Some(64 << 20), "{line}");
        }
        for line in ["a=\"b mem=64M", "\"--\" mem=64M", "mem=6\"4\"M", "\"a\"b mem=64M\""] {
            assert_eq!(parse(line).0.memory_limit, None, "{line}");
        }
        let (parameters, problems) = parse(
            "page-owner=on page-alloc.shuffle=1 min-free_kbytes=7 \
             page-reporting.page-reporting-order=3 hugetlb-free-vmemmap=on cma-pernuma=16M \
             memory-hotplug.memmap-on-memory=Y watermark-scale-factor=11",
        );
        assert_eq!(problems, []);
        assert!(parameters.page_owner && parameters.shuffle);
        assert_eq!(
            (parameters.min_free_kbytes, parameters.reporting.order),
            (Some(7), Order::new(3))
        );
        assert_eq!(parameters.watermark_scale_factor, 11);
        // Hyphens are underscores in names only, not in values.
        assert!(parse("memmap-init=on_demand").1[0].reason.is_some());
        assert_eq!(parse("memmap-init=on-demand").0.policy, Policy::OnDemand);
    }
}
