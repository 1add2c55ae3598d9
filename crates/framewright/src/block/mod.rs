//! The block tier: free memory of 2 MiB to 1 GiB.
//!
//! [`BlockState`] is the word that says what a block is, `table` holds an entry of 16 bytes for
//! each block, and a [`Segment`] is a run of blocks with consecutive entries. `buddy` is the buddy
//! system over them: `list` has its lists, `split` takes from them, `merge` gives back,
//! `deferred_merge` notes blocks that are to be merged later and `coalesce` merges them, `shuffle`
//! puts the lists into a `random` order, and `placement` chooses at random where `careful=` asks
//! for it. `reported` knows which free blocks were reported to the hypervisor, `in_flight` which
//! runs the hypervisor holds at the moment, and `free_heads` where in memory free blocks are;
//! `heads` walks over a range. `migrate_type` says what blocks are used for, and `page_list` has
//! the free pages of a pool as `chain`s. For blocks that are split into pages, `free_map` has the
//! free frames, and `free_index` finds a block with a free run of an order. `lots` says where in a
//! CPU's cache freed frames go.
//!
//! All of it is safe code over tables whose memory `carve` obtains, and nearly all of it runs under
//! the zone lock.

pub(crate) mod bit_sets;
pub(crate) mod buddy;
mod chain;
mod coalesce;
pub(crate) mod deferred_merge;
pub(crate) mod free_heads;
pub(crate) mod free_index;
mod free_map;
pub(crate) mod heads;
pub(crate) mod in_flight;
pub(crate) mod list;
pub(crate) mod lots;
mod merge;
mod migrate_type;
mod page_list;
pub(crate) mod placement;
pub(crate) mod random;
pub(crate) mod reported;
pub(crate) mod segment;
pub(crate) mod shuffle;
pub(crate) mod split;
mod state;
pub(crate) mod table;

pub(crate) use chain::{Chain, IN_USE, LENT, RESTORE, first_link, is_in_use};
pub use free_map::FreeMap;
pub use list::BLOCK_ORDERS;
pub(crate) use lots::Lot;
pub use migrate_type::MigrateType;
pub(crate) use page_list::{FreeList, PageList, Search};
pub use segment::Segment;
pub(crate) use state::ACCEPTS;
pub use state::{BlockState, DescriptorForm, State};
pub use table::BlockEntry;
