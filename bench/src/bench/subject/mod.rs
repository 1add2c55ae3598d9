//! Allocators that are measured, behind one small interface.
//!
//! Everything that measures is generic over [`Subject`], so that a call ends up in the allocator
//! without a detour.

mod buddy;
mod depot;
mod ours;

pub use buddy::Buddy;
pub use depot::Depot;
pub use ours::Ours;

use framewright::units::Order;
use framewright_cli::error::Error;

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

/// An allocator with memory to give.
pub trait Subject: Sync {
    /// What it is called in results.
    const NAME: &'static str;

    /// Proof that the calling thread is a CPU.
    type Seat<'a>
    where
        Self: 'a;

    /// Makes the calling thread CPU `cpu` for as long as the result lives.
    ///
    /// # Errors
    /// There is no such CPU, or the thread or the number is taken.
    fn sit(&self, cpu: u32) -> Result<Self::Seat<'_>, Error>;

    /// Allocates, and says which frame is the first.
    fn get(&self, order: Order) -> Option<u64>;

    /// Frees what [`Subject::get`] of the same order gave.
    fn put(&self, pfn: u64, order: Order);

    /// Takes back what is cached for CPUs. No thread allocates meanwhile.
    fn drain(&self);

    /// What the allocator itself counts as free, if it can tell.
    fn free(&self) -> Option<Free> {
        None
    }
}

/// Free memory as an allocator counts it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Free {
    /// All free pages.
    pub pages: u64,
    /// Those of them in whole 2 MiB blocks.
    pub whole_pages: u64,
}
