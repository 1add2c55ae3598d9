//! Threads that help with [jobs](framewright_jobs) within the resource limits of their caller.
//!
#![doc = include_str!("../README.md")]
//!
//! # Kinds of jobs
//!
//! * [`Job::indices`]: units are indices, and chunks get a `Range<usize>`; the units of
//!   [`Job::new`] are `u64`.
//! * [`Job::for_each`]: chunks that cannot fail.
//! * [`Job::for_slice_mut`], [`Job::try_for_slice_mut`], [`Job::for_slice_mut_or_undo`]: each chunk
//!   gets its part of a slice.
//! * [`Job::map_into`]: writes a value to each element of a slice.
//! * [`Job::reduce`], [`Job::with_states`]: each worker has a state of its own.
//! * [`Job::run`], [`Job::run_or_undo`]: chunks of units, with errors and with undo.
//! * [`Job::cancelled_by`], [`Job::counting_in`], [`Job::max_threads`], [`Job::align`]: stop,
//!   progress, limits.
//!
//! The caller works as well, and threads help only if a job is worth their start: a loop of a
//! microsecond stays a loop. [`Job`] documents the other settings. `parallel_prefault` and
//! `parallel_checksum` are examples.
//!
//! # What a helper does
//!
//! A helper
//!
//! * **stays on the CPUs that its caller may use**: it adopts the caller's affinity mask, which
//!   includes its cpuset, before it does anything for the job; if it cannot, it does nothing;
//! * **starts on another CPU than its caller's**, because the scheduler does not always put a woken
//!   thread on an idle CPU: it sleeps with the caller's CPU left out of its mask, and adopts the
//!   whole mask before it works;
//! * **allocates memory where its caller does**: it adopts the NUMA memory policy in the same way,
//!   if the system has one;
//! * **stays within the CPU quota** of the process's control groups: at most as many helpers run in
//!   all jobs together as the smallest quota has CPUs (rounded), less one for the caller; the quota
//!   is read when a job first wants helpers, unless that was done in the last second, and what was
//!   read counts for helpers that begin to work from then on: those at work when it falls stay;
//! * **disturbs no other thread, and does not starve while its caller waits**: see [`Priority`]; a
//!   helper whose CPU time stands still is moved to the CPU of its caller, which then goes to
//!   sleep;
//! * **gets no signal that is meant for the program**: all signals are blocked, except those that
//!   report faults of a chunk (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS).
//!
//! A helper is a thread for all jobs, so a chunk must leave it as it found it: priority, signal
//! mask and whatever else the system or a library keeps for a thread. Two changes are found and
//! undone before the next job, because libraries that bind threads make them: CPUs and memory
//! policy.
//!
//! A process or thread that is started in a chunk inherits what the helper has: blocked signals, so
//! that a process ignores Ctrl-C and SIGTERM, and nice 19 with `SCHED_BATCH`, which it may not be
//! allowed to raise. Start it outside jobs. Where that cannot be, unblock signals between fork and
//! exec (`pthread_sigmask` in `CommandExt::pre_exec`), and use helpers with [`Priority::Kept`].
//!
//! Helpers have stacks of 2 MiB, whatever `RUST_MIN_STACK` says. A chunk that needs more ends the
//! process without the standard library's message.
//!
//! Threads are started when a job first wants them. After their work they spin for 20 us (but not
//! under a quota) and then sleep. A child process made with `fork` has none of its parent's
//! threads; it starts its own when it needs them. A process that forks inside a chunk must not
//! return from that chunk in the child. The child would continue the job, on memory that it may
//! share with the parent, and then wait for threads that it does not have; it is then aborted with
//! a message.
//!
//! Quotas of threaded control groups, which contain only some threads of the process, are not taken
//! into account. If the caller changes its own settings while its job runs, the change reaches only
//! helpers that come later.

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
mod sysfs;
mod system;
mod thread;

pub use framewright_jobs::{
    Cancel, DoneCount, Helpers, InvalidJob, Job, JobError, NoHelpers, Part, Placement, Summary,
    UnitCost, Worker, WorkerStats,
};
pub use priority::{LONGEST_CHUNK_NS, Priority};
pub use quota::CpuQuota;

use framewright_jobs::{MAX_HELPERS, NodeSet, Workers};
use per_process::PerProcess;
use pool::Pool;
use std::fmt;

/// Bounds for the assumed cost of a helper before it does its first unit. With the lower bound, a
/// job does not ask for helpers while less than 20 us of work are left. A helper that spins comes
/// sooner, but on busy CPUs a job of 16 us took 27 us with one. A helper that sleeps costs its
/// caller 7 us for the wake-up if that interrupts another virtual CPU, and it comes after 25 us.
const MIN_START_NS: u64 = 10_000;
const MIN_ASLEEP_NS: u64 = 25_000;
const MAX_START_NS: u64 = 40_000;

/// Threads that help with jobs; see the module documentation. Dropping it ends its threads; no job
/// can be running then.
pub struct HostedHelpers {
    pool: PerProcess<Pool>,
    /// The most helpers; `None` means one for each CPU of the system except one.
    limit: Option<usize>,
    /// `None` means [`Priority::Lent`] if it is possible, else [`Priority::Kept`].
    priority: Option<Priority>,
}

impl Default for HostedHelpers {
    fn default() -> Self {
        Self::new()
    }
}

impl HostedHelpers {
    /// Creates as many helpers as the system has CPUs, less one for the caller. Their threads are
    /// started when a job first wants them.
    #[must_use]
    pub const fn new() -> Self {
        Self { pool: PerProcess::new(), limit: None, priority: None }
    }

    /// Sets the most helpers, which may be more than the system has CPUs. A job still gets fewer
    /// helpers than the number of CPUs that its caller may use.
    #[must_use]
    pub const fn with_helpers(mut self, limit: usize) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Fixes how helpers are scheduled, instead of finding out what is possible. [`Priority::Lent`]
    /// turns into [`Priority::Kept`] if a loan is refused.
    #[must_use]
    pub const fn with_priority(mut self, priority: Priority) -> Self {
        self.priority = Some(priority);
        self
    }

    /// The helpers that the whole program can share. They live as long as the process.
    #[must_use]
    pub fn shared() -> &'static Self {
        static SHARED: HostedHelpers = HostedHelpers::new();
        &SHARED
    }

    fn pool(&self) -> &Pool {
        self.pool.get_or_make(|| {
            let limit = self.limit.unwrap_or_else(|| system::cpus() - 1);
            Pool::new(limit.min(MAX_HELPERS), self.priority)
        })
    }

    /// How helpers are scheduled. The first call, or the first job, finds out what is possible, on
    /// a thread of its own. [`Priority::Kept`] while no thread can be started: jobs then have no
    /// helpers, and later calls and jobs try again, once a second.
    #[must_use]
    pub fn priority(&self) -> Priority {
        self.pool().priority().unwrap_or(Priority::Kept)
    }

    /// The number of helper threads that were started in this process, without those that a change
    /// of priority has replaced.
    #[must_use]
    pub fn started(&self) -> usize {
        self.pool.get().map_or(0, Pool::started)
    }

    /// How long helpers have recently taken to start: a moving average in nanoseconds.
    #[must_use]
    pub fn mean_start_ns(&self) -> u64 {
        self.pool().scheduler().start_cost_ns()
    }
}

impl fmt::Debug for HostedHelpers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostedHelpers")
            .field("limit", &self.limit)
            .field("started", &self.started())
            .finish_non_exhaustive()
    }
}

impl Helpers for HostedHelpers {
    fn workers(&self) -> Option<Workers<'_>> {
        let pool = self.pool();
        Some(Workers { slots: pool.slots_with_threads(), scheduler: pool.scheduler() })
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

    /// The measured start cost, within bounds. While CPUs are busy, helpers come late or never and
    /// the mean grows. Without an upper bound no job would ask any more, and none would find out
    /// that CPUs are free again. A request that is not answered costs a wake-up call, a few
    /// microseconds.
    fn start_cost_ns(&self) -> Option<u64> {
        let least = if self.pool().first_sleeps() { MIN_ASLEEP_NS } else { MIN_START_NS };
        Some(self.mean_start_ns().clamp(least, MAX_START_NS))
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
