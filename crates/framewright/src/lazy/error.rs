//! Errors of a lazy manager: why memory was not added, or why there is no manager yet.

use crate::manager::{BringUpError, HotplugError};
use crate::memblock::MemblockError;
use crate::units::PfnRange;
use core::fmt;

/// Why memory was not added. No part of the range was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddError {
    /// There is no room for another range.
    Full(PfnRange),
    /// These frames were added before.
    Overlaps(PfnRange),
    /// The range ends above the largest physical address.
    TooHigh(PfnRange),
    /// Another CPU is adding memory or bringing the manager up, and the caller cannot wait for it
    /// here; or the caller itself is, as it calls from a
    /// [`HotplugNotifier`](crate::manager::HotplugNotifier).
    Busy,
    /// The manager is up, and without the feature `hotplug` it takes no more memory.
    Late(PfnRange),
    /// The manager is up and does not know this memory, which has no whole block of 2 MiB.
    NoBlock(PfnRange),
    /// The manager is up and refused the memory.
    Refused(HotplugError),
}

impl fmt::Display for AddError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Full(range) => write!(f, "no room for {range:?}: too many ranges"),
            Self::Overlaps(range) => write!(f, "{range:?} was added before"),
            Self::TooHigh(range) => write!(f, "{range:?} is beyond all physical addresses"),
            Self::Busy => f.write_str("memory is being added, or the manager brought up, already"),
            Self::Late(range) => {
                write!(f, "the manager is up, and was built without adding {range:?} now")
            }
            Self::NoBlock(range) => write!(
                f,
                "the manager is up, and {range:?} has no whole block of 2 MiB that could be added"
            ),
            Self::Refused(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for AddError {}

impl From<HotplugError> for AddError {
    fn from(error: HotplugError) -> Self {
        Self::Refused(error)
    }
}

/// Why there is no manager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotUp {
    /// Another CPU is adding memory or bringing the manager up, and the caller cannot wait for it
    /// here.
    ComingUp,
    /// No memory was added.
    NoMemory,
    /// The memblock allocator refused the memory that was added.
    Memblock(MemblockError),
    /// Bring-up failed. More memory may help.
    BringUp(BringUpError),
}

impl fmt::Display for NotUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ComingUp => f.write_str("the manager is being brought up already"),
            Self::NoMemory => f.write_str("memory was requested before any was added"),
            Self::Memblock(error) => error.fmt(f),
            Self::BringUp(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for NotUp {}

impl From<MemblockError> for NotUp {
    fn from(error: MemblockError) -> Self {
        Self::Memblock(error)
    }
}

impl From<BringUpError> for NotUp {
    fn from(error: BringUpError) -> Self {
        Self::BringUp(error)
    }
}
