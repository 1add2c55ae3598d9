//! Intake: turns what firmware says about memory and nodes into data that can be trusted.
//!
//! [`MapBuilder`] turns firmware ranges of any quality into a [`MemoryMap`]; [`Topology`] collects
//! nodes; [`node_ranges`] combines the two. Nothing here allocates: the caller provides the
//! storage.

mod efi_accept;
mod kind;
mod map;
mod merge;
mod movable;
mod overlay;
mod steps;
mod topology;
mod unaccepted;

pub use efi_accept::EfiAccept;
pub use kind::MemoryKind;
pub use map::{MapBuilder, MapError, MapRange, MemoryMap};
pub use movable::{
    CoreSize, KernelCore, MirrorNote, MovableSetting, MovableStarts, movable_starts,
};
pub use overlay::{MemoryRun, NodeRange, NodeRanges, node_ranges};
pub use topology::{
    LOCAL_DISTANCE, MemoryAffinity, Owner, REMOTE_DISTANCE, Topology, TopologyError,
    UNREACHABLE_DISTANCE,
};
pub use unaccepted::{UNACCEPTED_TABLE_GUID, UnacceptedTable, UnacceptedTableError};
