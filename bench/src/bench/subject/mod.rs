//! Allocators that are measured, behind one small interface.
//!
//! Everything that measures is generic over [`Subject`], so that a call ends up in the allocator
//! without a detour.

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

/// Names of all subjects, ours first.
pub const NAMES: [&str; 3] = [Ours::NAME, Buddy::NAME, Depot::NAME];

/// Ours, when each thread has one of its own: what the threads cost one another without sharing
/// anything.
pub const APART: &str = "framewright, one for each thread";

/// What was done to the others so that they can be measured, in words that go with the numbers.
pub const CONDITIONS: &str = "\
framewright: a synthetic machine with one node and per-CPU caches, min_free_kbytes=128 \
watermark_scale_factor=1; \
buddy_system_allocator 0.13: FrameAllocator<19> behind its own spin lock, sets of free frames on \
the process's heap; \
frame-alloc 0.1: SummaryBuddyAllocator<19> under DepotAllocator with 64 slots, interrupts not \
handled, bitmaps in the process's memory; \
both are given one range that begins at frame 0";
