//! Switches, numbers and sizes as Linux reads them.

use crate::units::parse_radix;
use core::fmt;

/// A switch as Linux reads it: by its first letter (1, y or t for on, 0, n or f for off), or the
/// first two of `on` and `off`.
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

/// A number as Linux's parameters have them: decimal, `0x` hexadecimal, or octal after a leading
/// zero.
pub(super) fn parse_number(text: &str) -> Option<u32> {
    let hexadecimal = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (radix, digits) = match (hexadecimal, text.strip_prefix('0')) {
        (Some(digits), _) => (16, digits),
        (None, Some(digits)) if !digits.is_empty() => (8, digits),
        _ => (10, text),
    };
    let plain = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if plain { u32::try_from(parse_radix(digits, radix)?).ok() } else { None }
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

/// A number of bytes: decimal or `0x` hexadecimal, then perhaps K, M, G, T, P or E (either case)
/// for powers of 1024, as Linux reads sizes; people may put `B` or `iB` after the letter.
///
/// # Errors
/// See [`SizeError`].
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let (radix, rest) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        // `E` is a hexadecimal digit there, so exbibytes can be written in decimal only.
        Some(hexadecimal) => (16, hexadecimal),
        None => (10, text),
    };
    let digits = rest.bytes().take_while(|&byte| char::from(byte).is_digit(radix)).count();
    if digits == 0 {
        return Err(SizeError::NotANumber);
    }
    let number = parse_radix(&rest[..digits], radix).ok_or(SizeError::TooLarge)?;
    let unit = &rest[digits..];
    let letter = unit
        .strip_suffix("iB")
        .or_else(|| unit.strip_suffix('B'))
        .filter(|letter| !letter.is_empty());
    let shift = match letter.unwrap_or(unit) {
        "" => 0,
        "K" | "k" => 10,
        "M" | "m" => 20,
        "G" | "g" => 30,
        "T" | "t" => 40,
        "P" | "p" => 50,
        "E" | "e" => 60,
        _ => return Err(SizeError::BadSuffix),
    };
    number.checked_mul(1 << shift).ok_or(SizeError::TooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("0"), Ok(0));
        assert_eq!(parse_size("0x10k"), Ok(16 << 10));
        assert_eq!(parse_size("24T"), Ok(24 << 40));
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
}
