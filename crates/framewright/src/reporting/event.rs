//! What an adopter may want to log about free page reporting: why a device was refused, and what
//! happened to one.

use crate::units::{Order, PAGE_SIZE};
use core::fmt;

/// Why a device was not registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RegisterError {
    /// There is a device already, or one was dropped while it had memory.
    Busy,
    /// Free memory holds a pattern (`page_poison=1`, `init_on_free=1`) and the device does not
    /// promise to leave it there.
    Content,
}

impl fmt::Display for RegisterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Busy => "another device for free page reports is registered",
            Self::Content => {
                "the device would not leave in free memory what page_poison or \
                init_on_free put there"
            }
        })
    }
}

impl core::error::Error for RegisterError {}

/// An event that is worth a line in a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A device was registered.
    Enabled {
        /// The smallest order that is reported.
        order: Order,
    },
    /// A submission failed, for the first time in a row.
    Failing {
        /// The time until the next attempt, in milliseconds.
        retry_ms: u64,
    },
    /// A whole pass succeeded, after submissions that had failed.
    Recovered,
    /// The device did not answer in time and keeps what it has.
    Silent {
        /// The number of pages that it keeps.
        pages: u64,
    },
    /// The device answered after all.
    Answered,
    /// The device was reset, and its memory is back.
    Reset,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Enabled { order } => write!(f, "Free page reporting enabled, from {order:?} on"),
            Self::Failing { retry_ms } => write!(f, "report failed, next attempt in {retry_ms} ms"),
            Self::Recovered => f.write_str("reports succeed again"),
            Self::Silent { pages } => {
                write!(f, "device does not answer, {} KiB stay with it", pages * PAGE_SIZE / 1024)
            }
            Self::Answered => f.write_str("device answers again"),
            Self::Reset => f.write_str("device was reset"),
        }
    }
}
