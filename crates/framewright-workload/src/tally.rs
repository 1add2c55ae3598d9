//! Counts of what workers did.

use core::fmt;
use core::ops::AddAssign;

/// What workers did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Steps of workers.
    pub operations: u64,
    /// Requests that were served.
    pub allocations: u64,
    /// Requests that failed for lack of memory.
    pub refusals: u64,
    /// Runs, and parts of runs, that were freed.
    pub frees: u64,
    /// Runs that passed from one worker to another.
    pub exchanges: u64,
    /// Deliberately wrong calls. Each of them was refused.
    pub wrong_calls: u64,
    /// How often the caches were drained.
    pub drains: u64,
    /// How often all tables were recounted.
    pub recounts: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.allocations += other.allocations;
        self.refusals += other.refusals;
        self.frees += other.frees;
        self.exchanges += other.exchanges;
        self.wrong_calls += other.wrong_calls;
        self.drains += other.drains;
        self.recounts += other.recounts;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operations: {} allocations, {} refused, {} frees, {} exchanges, {} wrong calls, \
             {} drains, {} recounts",
            self.operations,
            self.allocations,
            self.refusals,
            self.frees,
            self.exchanges,
            self.wrong_calls,
            self.drains,
            self.recounts,
        )
    }
}
