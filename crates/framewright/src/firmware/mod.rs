//! Intake: what firmware says about memory and nodes, made trustworthy.
//!
//! [`MapBuilder`] turns firmware ranges of any quality into a [`MemoryMap`]; [`Topology`] collects
//! nodes; [`node_ranges`] lays one over the other. Nothing here allocates: the caller gives the
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
