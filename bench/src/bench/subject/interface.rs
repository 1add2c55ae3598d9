//! What is asked of every allocator that is measured.

use framewright::units::Order;
use framewright_cli::error::Error;

/// An allocator with memory to give.
pub trait Subject: Sync {
    /// What it is called in results.
    const NAME: &'static str;

    /// What the patterns are called in results: fill and free in order, at random, and a pair.
    const PATTERNS: [&'static str; 3] = ["bulk", "random", "pair"];

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
