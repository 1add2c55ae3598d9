//! The memblock allocator: hands out memory before there is a manager, from nothing but the memory
//! map. It corresponds to Linux's memblock.
//!
//! Two sets of regions say which memory exists (*memory*) and which is taken (*reserved*); free
//! memory is the first minus the second. An allocation reserves a free range, and the hand-over
//! walks what is left free. The sets begin in storage that the adopter lends ([`MemblockStorage`])
//! and move to larger arrays in the memory that they describe.
//!
//! | file | contains |
//! |---|---|
//! | `region` | an entry of a set |
//! | `set` | a sorted, disjoint, joined array of them |
//! | `edges` | places that cost no 1 GiB page |
//! | `search` | free memory, and searches for places in it |
//! | `grow` | moves to larger arrays |
//! | `mirror` | mirrored memory |
//! | `hot_pluggable` | memory that may be removed, and nodes that cannot |
//! | `storage` | the only code that touches memory |
//! | `runs` | all memory, as bring-up walks it |
//! | `hand_over`, `pieces` | the hand-over to the manager |
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
