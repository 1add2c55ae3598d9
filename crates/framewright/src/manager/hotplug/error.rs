//! Why memory was not added or removed.

use crate::manager::moving::RangeError;
use crate::manager::state::hotplug::Veto;
use crate::units::{NodeId, Pfn, PhysRange};
use core::fmt;

/// Why memory was not added or removed. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HotplugError {
    /// There is no byte in the range.
    Empty(PhysRange),
    /// The range does not begin and end at multiples of 2 MiB.
    NotAligned(PhysRange),
    /// The size of pieces must be a multiple of 2 MiB, and at least one piece must be asked for.
    BadPieces {
        /// The most bytes that were asked for.
        most_bytes: u64,
        /// The size of the pieces.
        align_bytes: u64,
    },
    /// The range ends beyond the highest possible physical address.
    TooHigh(PhysRange),
    /// The range begins with frame 0, which is never handed out.
    FrameZero,
    /// There was no such node at bring-up.
    NoNode(NodeId),
    /// The block at this frame is memory already, or offline.
    Present(Pfn),
    /// The block at this frame lies in a place for memory of another node.
    OtherNode(Pfn, NodeId),
    /// The block at this frame is no memory, or not in the state that the call needs.
    Absent(Pfn),
    /// There are as many windows as `hotplug_windows=` allows.
    NoWindow(PhysRange),
    /// There is no memory for the tables.
    NoRoomForTables {
        /// How many bytes of tables are needed.
        bytes: u64,
    },
    /// This range holds tables of memory that is still in use.
    Tables(PhysRange),
    /// Tables would lie in this range, which the platform's direct map does not reach.
    NotReached(PhysRange),
    /// This frame, which tables need, could not be accepted.
    NotAccepted(Pfn),
    /// Another caller adds or removes memory and cannot be waited for from this context, or this
    /// task is already doing so in an outer call.
    Busy,
    /// This frame belongs to a reserve area, which is never removed.
    Area(Pfn),
    /// The notifier refused.
    Veto(Veto),
    /// The range could not be vacated.
    Range(RangeError),
}

impl fmt::Display for HotplugError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty(PhysRange { start, end }) => {
                write!(f, "{start:#x} to {end:#x} is not a range")
            }
            Self::BadPieces { most_bytes, align_bytes } => write!(
                f,
                "at most {most_bytes} bytes in pieces of {align_bytes}: pieces are multiples of \
                 2 MiB, and one is the least"
            ),
            Self::NotAligned(range) => {
                write!(f, "{range} does not begin and end at multiples of 2 MiB")
            }
            Self::TooHigh(range) => write!(f, "{range} is beyond all physical addresses"),
            Self::FrameZero => f.write_str("frame 0 is never handed out, nor its block added"),
            Self::NoNode(node) => write!(f, "node {node} was not known at boot"),
            Self::Present(pfn) => write!(f, "there is memory at pfn {pfn} already"),
            Self::OtherNode(pfn, node) => {
                write!(f, "pfn {pfn} is in a place for memory of node {node}")
            }
            Self::Absent(pfn) => write!(f, "there is no such memory at pfn {pfn}"),
            Self::NoWindow(range) => {
                write!(f, "no window is left for {range}: see hotplug_windows=")
            }
            Self::NoRoomForTables { bytes } => {
                write!(f, "no memory for {bytes} bytes of tables")
            }
            Self::Tables(range) => {
                write!(f, "{range} holds the tables of memory in use")
            }
            Self::NotReached(range) => {
                write!(f, "tables cannot lie in {range}: the direct map ends before it")
            }
            Self::NotAccepted(pfn) => write!(f, "pfn {pfn} could not be accepted"),
            Self::Busy => f.write_str("memory is being added or removed already"),
            Self::Area(pfn) => write!(f, "pfn {pfn} belongs to a reserve area"),
            Self::Veto(veto) => veto.fmt(f),
            Self::Range(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for HotplugError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn a_range_that_ends_where_it_begins_is_named() {
        let error = HotplugError::Empty(PhysRange::new(1 << 24, 1 << 24));
        assert_eq!(error.to_string(), "0x1000000 to 0x1000000 is not a range");
    }
}
