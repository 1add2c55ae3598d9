//! Errors of calls to a pool.

use crate::units::PoolSize;
use crate::units::{NodeId, Pfn, parse_radix};
use core::fmt;

/// Why a pool refused a request. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolError {
    /// There is no node of this number.
    NoNode(NodeId),
    /// The text is not a number (`EINVAL`).
    NotANumber,
    /// The size does not support it: overcommit of 1 GiB pages, demotion of 2 MiB pages, or
    /// demotion to an equal or larger size (`EINVAL`).
    NotPossible(PoolSize),
    /// No page is available: all free ones are reserved or on other nodes, and overcommit or memory
    /// allows no surplus page (`ENOMEM`).
    NoPage(PoolSize),
    /// Nothing could be demoted: pages are not free, reserved, or held by something else (`EBUSY`).
    NothingToDemote,
    /// Somebody else is resizing a pool, and this context may not wait, or may itself be the one
    /// that resizes, which only [`current_task`](crate::Platform::current_task) can tell (`EBUSY`).
    Busy,
    /// There are fewer reservations than the call gives back.
    NotReserved {
        /// The reservations to be given back.
        pages: u64,
        /// The reservations that there are.
        reserved: u64,
    },
    /// The frame is not the first of a page that was allocated from this pool: it is free already,
    /// of another size, or not in a pool.
    NotAllocated(Pfn),
}

impl PoolError {
    /// Returns the number of the error in Linux.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::NoNode(_)
            | Self::NotANumber
            | Self::NotPossible(_)
            | Self::NotReserved { .. }
            | Self::NotAllocated(_) => 22,
            Self::NoPage(_) => 12,
            Self::NothingToDemote | Self::Busy => 16,
        }
    }
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNode(node) => write!(f, "there is no node {node}"),
            Self::NotANumber => f.write_str("not a number of pages; write a decimal number"),
            Self::NotPossible(size) => write!(f, "the {size} pool does not support this"),
            Self::NoPage(size) => {
                write!(f, "no unreserved {size} page is free on these nodes, and none can be added")
            }
            Self::NothingToDemote => f.write_str("no page could be demoted"),
            Self::Busy => f.write_str("a pool is being resized and this context cannot wait"),
            Self::NotReserved { pages, reserved } => {
                write!(f, "cannot cancel {pages} reservations: there are only {reserved}")
            }
            Self::NotAllocated(pfn) => {
                write!(f, "no page allocated from this pool begins at pfn {pfn}")
            }
        }
    }
}

impl core::error::Error for PoolError {}

/// Parses a number of pages as it is written to one of Linux's files in `/sys`: decimal, with an
/// optional plus sign before it and an optional newline after it.
///
/// # Errors
/// [`PoolError::NotANumber`] for anything else.
pub fn parse_count(text: &str) -> Result<u64, PoolError> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let digits = text.strip_prefix('+').unwrap_or(text);
    // The conversion below would accept another sign.
    if !digits.starts_with(|first: char| first.is_ascii_digit()) {
        return Err(PoolError::NotANumber);
    }
    parse_radix(digits, 10).ok_or(PoolError::NotANumber)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_as_linux_reads_them() {
        for (text, count) in [
            ("0", 0),
            ("12\n", 12),
            ("+7", 7),
            ("010", 10),
            ("08", 8),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_count(text), Ok(count), "{text:?}");
        }
        for text in [
            "",
            "\n",
            "-1",
            "12 ",
            " 12",
            "12\n\n",
            "many",
            "1.5",
            "18446744073709551616",
            "0x10",
            "+",
            "++1",
            "1k",
            "\u{661}",
        ] {
            assert_eq!(parse_count(text), Err(PoolError::NotANumber), "{text:?}");
        }
    }
}
