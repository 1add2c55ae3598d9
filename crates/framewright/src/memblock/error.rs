//! Why the memblock allocator refused a call.

use super::NodeChoice;
use crate::units::{NodeId, PAGE_SIZE, PhysRange};
use core::fmt;

/// One of the allocator's two sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetName {
    /// The set of memory.
    Memory,
    /// The set of reservations.
    Reserved,
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Reserved => "reserved",
        })
    }
}

/// Why a call failed. The sets are then exactly as they were before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemblockError {
    /// Zero bytes were asked for.
    ZeroSize,
    /// The alignment is not a power of two.
    BadAlignment {
        /// Bytes, as given.
        align_bytes: u64,
    },
    /// No free run fits, not even without the lower limit.
    OutOfMemory {
        /// Bytes wanted.
        size_bytes: u64,
        /// Alignment in bytes, after 0 became a cache line.
        align_bytes: u64,
        /// One past the highest address that was allowed: the caller's, or where the direct map
        /// ends.
        max_address: u64,
        /// The node wanted.
        node: NodeChoice,
        /// Bytes in the largest free run that the request allows, before alignment.
        largest_bytes: u64,
    },
    /// A set is full, and there is no free memory for a larger array.
    NoRoomToGrow {
        /// The set.
        set: SetName,
        /// Regions in it.
        regions: usize,
        /// Bytes of the array that found no place.
        needed_bytes: u64,
    },
    /// [`Platform::direct`](crate::Platform::direct) maps a frame to an address that cannot hold an
    /// array.
    MisalignedDirectMap {
        /// Physical address of the frame.
        address: u64,
    },
    /// Nothing in the range is reserved, so there is nothing to free.
    NotReserved {
        /// The range, clipped at the end of the address space.
        range: PhysRange,
    },
    /// Frame 0 cannot be freed: it stays reserved for ever.
    FrameZero,
    /// The range to free holds one of the allocator's own arrays.
    OwnStorage {
        /// The array.
        storage: PhysRange,
    },
    /// [`Memblock::start`](super::Memblock::start) was called on an allocator that is
    /// not empty.
    AlreadyStarted,
    /// Memory was to be added on a node that the topology does not have.
    UnknownNode {
        /// The node.
        node: NodeId,
        /// Nodes of the topology, numbered from 0.
        nodes: usize,
    },
    /// The allocator was discarded after hand-over.
    Discarded,
}

impl fmt::Display for MemblockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroSize => f.write_str("an early allocation of 0 bytes: ask for at least 1"),
            Self::BadAlignment { align_bytes } => {
                write!(
                    f,
                    "an early allocation aligned to {align_bytes:#x} bytes: give a power of two, \
                     or 0 for a cache line"
                )
            }
            Self::OutOfMemory { size_bytes, align_bytes, max_address, node, largest_bytes } => {
                write!(
                    f,
                    "no {size_bytes:#x} bytes aligned to {align_bytes:#x} are free below \
                     {max_address:#x} on {node}: the largest free run there has \
                     {largest_bytes:#x} bytes"
                )
            }
            Self::NoRoomToGrow { set, regions, needed_bytes } => write!(
                f,
                "the {set} set is full with {regions} regions and nothing below the direct map's \
                 end has {needed_bytes:#x} free bytes in whole frames for a larger array: free \
                 some, or keep fewer regions"
            ),
            Self::MisalignedDirectMap { address } => write!(
                f,
                "Platform::direct({address:#x}) is not a multiple of 8: the direct map must keep \
                 the alignment of frames"
            ),
            Self::NotReserved { range } => {
                write!(f, "cannot free {range}: nothing in it is reserved; was it freed before?")
            }
            Self::FrameZero => write!(
                f,
                "cannot free frame 0: it stays reserved; free from \
                {PAGE_SIZE:#x} up"
            ),
            Self::OwnStorage { storage } => {
                write!(
                    f,
                    "cannot free {storage}: the memblock allocator keeps its own regions there; \
                     free what is around it"
                )
            }
            Self::AlreadyStarted => f.write_str(
                "the memblock allocator knows memory or \
                reservations already: give start an empty one, or use add_memory and reserve",
            ),
            Self::UnknownNode { node, nodes } => write!(
                f,
                "cannot add memory to node {node}: the topology has {nodes} nodes; declare the \
                 node in it first"
            ),
            Self::Discarded => f.write_str(
                "the memblock allocator was discarded after hand-over: ask the manager \
                    instead",
            ),
        }
    }
}

impl core::error::Error for MemblockError {}
