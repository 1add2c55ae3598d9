//! The interface of every measured allocator.

use framewright::units::Order;
use framewright_cli::error::Error;

/// An allocator that owns memory.
pub trait Subject: Sync {
    /// The allocator's name in results.
    const NAME: &'static str;

    /// The names of the patterns in results: fill and free in order, at random, and a pair.
    const PATTERNS: [&'static str; 3] = ["bulk", "random", "pair"];

    /// Proof that the calling thread is a CPU.
    type Seat<'a>
    where
        Self: 'a;

    /// Makes the calling thread CPU `cpu` as long as the result lives.
    ///
    /// # Errors
    /// Fails if there is no such CPU, or the thread or the number is taken.
    fn sit(&self, cpu: u32) -> Result<Self::Seat<'_>, Error>;

    /// Allocates a run and returns its first frame.
    fn get(&self, order: Order) -> Option<u64>;

    /// Frees what [`Subject::get`] of this order returned.
    fn put(&self, pfn: u64, order: Order);

    /// Drains what is cached for CPUs. No thread allocates meanwhile.
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
    /// The free pages in whole 2 MiB blocks.
    pub whole_pages: u64,
}
