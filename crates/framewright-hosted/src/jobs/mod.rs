//! Threads that help with [jobs](framewright_jobs), under the resource control of their caller.
//!
//! ```
//! use framewright_hosted::HostedHelpers;
//! use framewright_jobs::Job;
//! use std::sync::atomic::{AtomicU64, Ordering};
//!
//! let sum = AtomicU64::new(0);
//! Job::new(0..1_000_000).run(HostedHelpers::shared(), |chunk, _worker| {
//!     sum.fetch_add(chunk.sum(), Ordering::Relaxed);
//!     Ok::<_, std::convert::Infallible>(())
//! })?;
//! assert_eq!(sum.into_inner(), 499_999_500_000);
//! # Ok::<(), framewright_jobs::JobError<std::convert::Infallible>>(())
//! ```
//!
//! | a helper | how |
//! |---|---|
//! | stays on the CPUs that its caller may use | it takes over the caller's affinity mask, which its cpuset is part of, before it does anything for the job; if it cannot, it does nothing |
//! | starts on another CPU than its caller's | it sleeps with that CPU left out of its mask, and takes over the whole mask before it works: a thread that is woken is not always put on an idle CPU |
//! | gets memory where its caller does | the same with the NUMA memory policy, where the system has such |
//! | does not use more CPU time than the process's control groups allow | at most as many run, in all jobs together, as the smallest quota is CPUs, rounded, less one for the caller; it is read anew once a second |
//! | disturbs nobody, and is not starved while it is waited for | [`Priority`]; one whose CPU time stands still is sent to the CPU of its caller, which leaves it |
//! | sees no signal that is meant for the program | they are blocked, but for those that a chunk itself raises |
//!
//! Threads are started when a job first wants them, spin for 20 us after their work (not under a
//! quota) and then sleep. A child process made with `fork` has none of its parent's threads; it
//! starts its own when it needs them. A process that forks inside a chunk must not return from that
//! chunk in the child; if it does, the child is ended with a message.
//!
//! What is not done: quotas of threaded control groups that only some threads of the process are
//! in; and what the caller changes about itself while its job runs reaches only helpers that come
//! later.

mod clock;
mod context;
mod loan;
mod nodes;
mod parking;
mod per_process;
mod pool;
mod priority;
mod progress;
pub mod quota;
mod system;
mod thread;

pub use priority::{LONGEST_CHUNK_NS, Priority};
pub use quota::CpuQuota;

use framewright_jobs::{Helpers, MAX_HELPERS, NodeSet, Workers};
use per_process::PerProcess;
use pool::Pool;
use std::fmt;

/// What a helper is taken to cost at least and at most before it does its first unit. With the
/// least a job asks for none while less than 20 us are left: one that spins comes sooner, but a job
/// of 16 us of work that shared it with one took 27 us instead of 16 while the CPUs were busy. One
/// that sleeps costs its caller 7 us for the wake-up, where that interrupts another virtual CPU,
/// and comes after 25.
const LEAST_START_NS: u64 = 10_000;
const LEAST_ASLEEP_NS: u64 = 25_000;
const MOST_START_NS: u64 = 40_000;

/// See the module documentation. Dropping it ends its threads; no job can be running then.
pub struct HostedHelpers {
    pool: PerProcess<Pool>,
    /// At most so many; `None`: one for each CPU of the system but one.
    most: Option<usize>,
    /// `None`: what is possible.
    priority: Option<Priority>,
}

impl Default for HostedHelpers {
    fn default() -> Self {
        Self::new()
    }
}

impl HostedHelpers {
    /// As many helpers as the system has CPUs, less one for the caller. None is started before it
    /// is wanted.
    #[must_use]
    pub const fn new() -> Self {
        Self { pool: PerProcess::new(), most: None, priority: None }
    }

    /// At most so many helpers, and more than the system has CPUs if so many are asked for; a job
    /// gets no more than its caller may use CPUs all the same.
    #[must_use]
    pub const fn with_helpers(mut self, most: usize) -> Self {
        self.most = Some(most);
        self
    }

    /// Has helpers scheduled so, rather than as is found to be possible. [`Priority::Lent`] turns
    /// into [`Priority::Kept`] when a loan is refused.
    #[must_use]
    pub const fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }

    /// The helpers that all of the program can share. They live as long as the process.
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: HostedHelpers = HostedHelpers::new();
        &SHARED
    }

    fn pool(&self) -> &Pool {
        self.pool.get_or_make(|| {
            let most = self.most.unwrap_or_else(|| system::cpus() - 1);
            Pool::new(most.min(MAX_HELPERS), self.priority)
        })
    }

    /// How helpers are scheduled. Finds out what is possible if no job has.
    #[must_use]
    pub fn priority(&self) -> Priority {
        self.pool().priority()
    }

    /// Threads that were started in this process.
    #[must_use]
    pub fn started(&self) -> usize {
        self.pool.get().map_or(0, Pool::started)
    }

    /// How long it took helpers lately to come, nanoseconds.
    #[must_use]
    pub fn mean_start_ns(&self) -> u64 {
        self.pool().scheduler().start_cost_ns()
    }
}

impl fmt::Debug for HostedHelpers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostedHelpers")
            .field("most", &self.most)
            .field("started", &self.started())
            .finish_non_exhaustive()
    }
}

impl Helpers for HostedHelpers {
    fn workers(&self) -> Option<Workers<'_>> {
        let pool = self.pool();
        Some(Workers { slots: pool.slots(), scheduler: pool.scheduler() })
    }

    fn wake(&self, helper: usize) {
        self.pool().wake(helper);
    }

    fn allowance(&self) -> usize {
        self.pool().allowance()
    }

    fn prepare(&self, helper: usize) {
        self.pool().prepare(helper);
    }

    fn longest_chunk_ns(&self) -> u64 {
        if self.pool().keeps_priority() { LONGEST_CHUNK_NS } else { u64::MAX }
    }

    fn wait_for(&self, helper: usize, done: &dyn Fn() -> bool) {
        self.pool().wait_for(helper, done);
    }

    fn now_ns(&self) -> Option<u64> {
        Some(clock::now_ns())
    }

    /// What was measured, within bounds. While CPUs are busy helpers come late or never and the
    /// mean grows; a job that therefore asks for none would never find out that they are free
    /// again. Asking in vain costs a wake-up call, a few microseconds.
    fn start_cost_ns(&self) -> Option<u64> {
        let least = if self.pool().first_sleeps() { LEAST_ASLEEP_NS } else { LEAST_START_NS };
        Some(self.mean_start_ns().clamp(least, MOST_START_NS))
    }

    fn nodes(&self) -> NodeSet {
        self.pool().nodes().set()
    }

    fn current_node(&self) -> u32 {
        self.pool().nodes().current()
    }

    fn resume_panic(&self, helper: usize) -> ! {
        let payload = self.pool().take_panic(helper);
        std::panic::resume_unwind(
            payload.unwrap_or_else(|| Box::new("a chunk panicked on a helper")),
        )
    }
}
