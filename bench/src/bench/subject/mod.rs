//! The measured allocators, behind one small interface.
//!
//! All measurements are generic over [`Subject`], so that a call reaches the allocator without
//! indirection.

mod buddy;
mod depot;
mod interface;
mod ours;
mod requests;
mod unmovable;

pub use buddy::Buddy;
pub use depot::Depot;
pub use interface::{Free, Subject};
pub use ours::Ours;
pub use requests::Requests;
pub use unmovable::Unmovable;

/// The names of all subjects, ours first.
pub const NAMES: [&str; 3] = [Ours::NAME, Buddy::NAME, Depot::NAME];

/// The name of ours if each thread has an allocator of its own, which shows what threads cost one
/// another without sharing anything.
pub const APART: &str = "framewright, one for each thread";

/// How the allocators were set up for the measurement, for readers of the numbers.
pub const CONDITIONS: &str = "\
framewright: a synthetic machine with one node and per-CPU caches, min_free_kbytes=128 \
watermark_scale_factor=1; \
buddy_system_allocator 0.13: FrameAllocator<19> behind its own spin lock, sets of free frames on \
the process's heap; \
frame-alloc 0.1: SummaryBuddyAllocator<19> under DepotAllocator with 64 slots, interrupts not \
handled, bitmaps in the process's memory; \
both are given one range that begins at frame 0";
