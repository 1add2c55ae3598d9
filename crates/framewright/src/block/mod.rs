//! The block tier: 2 MiB to 1 GiB.
//!
//! [`BlockState`] is the word that says what a block is; `table` holds one 16-byte entry a block;
//! `lists` links free heads; `loose` has the free blocks of 2 MiB that are not merged yet; `marks`
//! knows which of them the hypervisor was told of and `outside` which runs it has at this moment;
//! `buddy` splits and merges; [`Segment`] is a run of blocks with consecutive entries. All is safe
//! code over tables whose memory `carve` obtains.

pub(crate) mod bit_sets;
pub(crate) mod buddy;
mod chain;
pub(crate) mod deferred_merge;
pub(crate) mod free_index;
mod free_map;
pub(crate) mod in_flight;
pub(crate) mod lists;
mod page_list;
pub(crate) mod placement;
pub(crate) mod reported;
pub(crate) mod segment;
pub(crate) mod shuffle;
mod state;
pub(crate) mod table;

pub(crate) use chain::{Chain, IN_USE, LENT, RESTORE, first_link, is_in_use};
pub use free_map::FreeMap;
pub use lists::BLOCK_ORDERS;
pub(crate) use page_list::{FreeList, Lot, Search};
pub use segment::Segment;
pub use state::{BlockState, MapForm, MigrateType, State};
pub use table::BlockEntry;
