//! Numbers and switches as they are written to control files, and text that several files share.

use super::FileError;
use core::fmt::{Display, Write};

/// The result of reading or writing a file.
pub(super) type Shown = Result<(), FileError>;

/// Writes a value and an end of line.
#[inline(never)]
pub(super) fn show(out: &mut dyn Write, value: &dyn Display) -> Shown {
    Ok(writeln!(out, "{value}")?)
}

/// Writes a switch as Linux's module parameters show it.
#[inline(never)]
pub(super) fn show_switch(out: &mut dyn Write, on: bool) -> Shown {
    show(out, &if on { "Y" } else { "N" })
}

/// Parses one number, which may have blanks or an end of line around it: decimal, hexadecimal after
/// `0x`, or octal after a leading zero.
///
/// # Errors
/// [`FileError::Invalid`] for anything else, and for what does not fit in 64 bits.
pub fn parse_number(text: &str) -> Result<u64, FileError> {
    crate::parameters::parse_integer(text.trim_ascii()).ok_or(FileError::Invalid)
}

/// Parses numbers with blanks between them into the first places of `numbers`. The other places
/// stay as they are, as with Linux's vectors.
///
/// # Errors
/// [`FileError::Invalid`] if there is no number, if there are too many, or if a word is not a
/// number; `numbers` may then have changed.
pub fn parse_numbers(text: &str, numbers: &mut [u64]) -> Result<(), FileError> {
    parse_words(text, numbers, parse_number)
}

/// [`parse_numbers`] with another function for each word.
pub(super) fn parse_words(
    text: &str,
    numbers: &mut [u64],
    parse: fn(&str) -> Result<u64, FileError>,
) -> Result<(), FileError> {
    let mut places = numbers.iter_mut();
    let mut some = false;
    for word in text.split_ascii_whitespace() {
        *places.next().ok_or(FileError::Invalid)? = parse(word)?;
        some = true;
    }
    if some { Ok(()) } else { Err(FileError::Invalid) }
}

/// Parses a switch as Linux's module parameters take it.
///
/// # Errors
/// [`FileError::Invalid`] for anything else.
pub fn parse_bool(text: &str) -> Result<bool, FileError> {
    crate::parameters::parse_bool(text.trim_ascii()).ok_or(FileError::Invalid)
}

/// Writes one line of a `meminfo`: the name with its colon in 16 columns, KiB in 8. For a node's
/// file `prefix` is `Node n `.
///
/// # Errors
/// [`FileError::Output`].
#[inline(never)]
pub fn write_kib(
    out: &mut dyn Write,
    prefix: core::fmt::Arguments<'_>,
    name: &str,
    kib: u64,
) -> Result<(), FileError> {
    // The colon follows the name, so the padding follows both.
    let padding = 15_usize.saturating_sub(name.len());
    Ok(writeln!(out, "{prefix}{name}:{:padding$}{kib:>8} kB", "")?)
}

/// Writes ascending numbers as Linux lists CPUs and nodes: `0-3,8`, and an end of line.
///
/// # Errors
/// [`FileError::Output`].
pub fn write_cpu_list(
    out: &mut dyn Write,
    mut numbers: impl Iterator<Item = u32>,
) -> Result<(), FileError> {
    write_list(out, &mut numbers)
}

/// [`write_cpu_list`], not generic, so that all callers share one copy.
#[inline(never)]
fn write_list(
    out: &mut dyn Write,
    numbers: &mut dyn Iterator<Item = u32>,
) -> Result<(), FileError> {
    let mut numbers = numbers.peekable();
    let mut comma = "";
    while let Some(first) = numbers.next() {
        let mut last = first;
        while let Some(next) = numbers.next_if(|&next| Some(next) == last.checked_add(1)) {
            last = next;
        }
        write!(out, "{comma}{first}")?;
        if last != first {
            write!(out, "-{last}")?;
        }
        comma = ",";
    }
    Ok(writeln!(out)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;

    #[test]
    fn numbers_are_numbers_and_nothing_else() {
        for (text, number) in [
            ("0", 0),
            (" 12\n", 12),
            ("0x1F", 31),
            ("\t18446744073709551615", u64::MAX),
            ("007", 7),
            ("010", 8),
            ("0", 0),
            ("00", 0),
            ("0X10\n", 16),
            ("01777777777777777777777", u64::MAX),
        ] {
            assert_eq!(parse_number(text), Ok(number), "{text:?}");
        }
        for text in [
            "",
            "\n",
            "-1",
            "+1",
            "1 2",
            "0x",
            "0x+1",
            "09",
            "0-1",
            "0+1",
            "02000000000000000000000",
            "12k",
            "1.5",
            "18446744073709551616",
            "\u{663}",
            "1\0",
        ] {
            assert_eq!(parse_number(text), Err(FileError::Invalid), "{text:?}");
        }
    }

    #[test]
    fn a_vector_may_be_shorter_and_not_longer() {
        let mut numbers = [1, 2, 3];
        assert_eq!((parse_numbers(" 7\t8\n", &mut numbers), numbers), (Ok(()), [7, 8, 3]));
        for text in ["", "  ", "1 2 3 4", "1 x"] {
            assert_eq!(parse_numbers(text, &mut numbers), Err(FileError::Invalid), "{text:?}");
        }
    }

    #[test]
    fn lists_and_lines_are_those_of_linux() {
        for (numbers, expected) in
            [(&[][..], "\n"), (&[0], "0\n"), (&[0, 1, 2, 5, 7, 8], "0-2,5,7-8\n")]
        {
            let mut text = String::new();
            assert_eq!(write_cpu_list(&mut text, numbers.iter().copied()), Ok(()));
            assert_eq!(text, expected);
        }
        let mut text = String::new();
        assert_eq!(write_kib(&mut text, format_args!("Node 3 "), "MemTotal", 24_684_092), Ok(()));
        assert_eq!(write_kib(&mut text, format_args!(""), "MemAvailable", 1), Ok(()));
        assert_eq!(text, "Node 3 MemTotal:       24684092 kB\nMemAvailable:          1 kB\n");
        assert_eq!(
            (parse_bool("Y\n"), parse_bool("off"), parse_bool("2")),
            (Ok(true), Ok(false), Err(FileError::Invalid))
        );
    }
}
