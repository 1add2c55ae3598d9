//! The manager's state for memory that has to be accepted before use.
//!
//! Orders of memory: Relaxed: all of it is counters.

use crate::memblock::EarlyAccepted;
use crate::parameters::AcceptPolicy;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::{Pfn, PfnRange};

/// Counts of accepted memory, including what the memblock allocator accepted before bring-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AcceptEvents {
    /// How often the platform was asked to accept memory.
    pub calls: u64,
    /// Pages that the platform accepted.
    pub accepted_pages: u64,
    /// Those of `accepted_pages` that were accepted because a request found too little free memory.
    pub demand_pages: u64,
    /// How often the platform could not accept all that it was asked to.
    pub failures: u64,
    /// The frame of the last failure.
    pub last_failed: Option<Pfn>,
}

impl AcceptEvents {
    pub(crate) fn of_early(early: &EarlyAccepted) -> Self {
        let &EarlyAccepted { calls, accepted_pages, failures, last_failed } = early;
        Self { calls, accepted_pages, demand_pages: 0, failures, last_failed }
    }
}

pub(crate) struct AcceptState {
    pub(crate) policy: AcceptPolicy,
    calls: AtomicU64,
    accepted_pages: AtomicU64,
    demand_pages: AtomicU64,
    /// Those of `demand_pages` that were accepted for requests of at most one block.
    small_pages: AtomicU64,
    failures: AtomicU64,
    /// The frame's number plus one; 0: none.
    last_failed: AtomicU64,
}

impl AcceptState {
    /// Returns the state that continues `early`, the counts from before bring-up.
    pub(crate) fn new(policy: AcceptPolicy, early: &AcceptEvents) -> Self {
        Self {
            policy,
            calls: AtomicU64::new(early.calls),
            accepted_pages: AtomicU64::new(early.accepted_pages),
            demand_pages: AtomicU64::new(0),
            small_pages: AtomicU64::new(0),
            failures: AtomicU64::new(early.failures),
            last_failed: AtomicU64::new(early.last_failed.map_or(0, |pfn| pfn.0 + 1)),
        }
    }

    /// Notes that the platform was asked for `range` and accepted its first `accepted_pages` pages.
    pub(crate) fn note_call(&self, range: PfnRange, accepted_pages: u64) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.accepted_pages.fetch_add(accepted_pages, Ordering::Relaxed);
        if accepted_pages < range.pages() {
            self.failures.fetch_add(1, Ordering::Relaxed);
            self.last_failed.store(range.start.0 + accepted_pages + 1, Ordering::Relaxed);
        }
    }

    /// Notes that `pages` pages were accepted for a request. Returns how many had been accepted for
    /// small requests before.
    pub(crate) fn note_demand(&self, pages: u64, is_small: bool) -> u64 {
        self.demand_pages.fetch_add(pages, Ordering::Relaxed);
        self.small_pages.fetch_add(if is_small { pages } else { 0 }, Ordering::Relaxed)
    }

    pub(crate) fn events(&self) -> AcceptEvents {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        AcceptEvents {
            calls: read(&self.calls),
            accepted_pages: read(&self.accepted_pages),
            demand_pages: read(&self.demand_pages),
            failures: read(&self.failures),
            last_failed: read(&self.last_failed).checked_sub(1).map(Pfn),
        }
    }
}
