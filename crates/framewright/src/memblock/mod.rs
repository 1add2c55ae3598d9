//! The memblock allocator: hands out memory before there is a manager, from nothing but the memory
//! map. It is to the manager what memblock is to Linux's.
//!
//! Two sets of regions say what is *memory* and what is *reserved*; free is the one minus the
//! other. Allocating is reserving a free range, and hand-over walks what is left. The sets begin in
//! storage that the adopter lends ([`MemblockStorage`]) and move to larger arrays in the memory
//! that they describe.
//!
//! | file | is |
//! |---|---|
//! | `region` | an entry of a set |
//! | `set` | a sorted, disjoint, joined array of them |
//! | `edges` | places that cost no 1 GiB page |
//! | `search` | memory minus reserved, and places in it |
//! | `grow` | larger arrays |
//! | `mirror` | memory that is mirrored |
//! | `hot_pluggable` | memory that may go, and that the kernel's cannot |
//! | `storage` | the only code that touches memory |
//! | `runs` | memory as bring-up walks it |
//! | `hand_over`, `pieces` | the end |
//!
//! A call that fails leaves both sets exactly as they were.

mod accept;
mod allocator;
mod edges;
mod end;
mod error;
mod grow;
mod hand_over;
mod hot_pluggable;
mod mirror;
mod pieces;
mod region;
mod request;
mod runs;
mod search;
mod set;
mod storage;

pub use accept::EarlyAccepted;
pub use allocator::{Memblock, MemblockStorage};
pub use error::{MemblockError, SetName};
pub use pieces::{LargestPieces, largest_pieces};
pub use region::{Region, RegionFlags};
pub(crate) use request::Tables;
pub use request::{MemblockRequest, NodeChoice};
pub(crate) use runs::MemoryRuns;
