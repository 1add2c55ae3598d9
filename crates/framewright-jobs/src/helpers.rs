//! Where helpers come from: the trait [`Helpers`], which a platform implements.

use crate::nodes::NodeSet;
#[cfg(doc)]
use crate::raw::WorkerSlot;
#[cfg(doc)]
use crate::scheduler::SchedulerState;
use crate::scheduler::{MAX_HELPERS, Workers};

/// What a job needs from the platform. [`NoHelpers`] is a platform without helpers.
///
/// # Implementing it
///
/// 1. Provide a [`WorkerSlot`] for each helper and one [`SchedulerState`], in static memory or in a
///    pool, and return them from [`workers`](Self::workers).
/// 2. Each helper, a thread or an idle CPU, loops as shown at [`WorkerSlot`].
/// 3. [`wake`](Self::wake) is a futex call, or an interrupt to the CPU.
/// 4. If a busy wait for helpers is too expensive, implement [`wait_for`](Self::wait_for). A
///    platform with priorities lends the caller's priority here.
/// 5. With resource control, implement [`allowance`](Self::allowance) and
///    [`prepare`](Self::prepare).
/// 6. With a clock, implement [`now_ns`](Self::now_ns), which makes small jobs cheap. It is read
///    between chunks, so it should take no more than some tens of nanoseconds.
/// 7. With NUMA nodes, implement [`nodes`](Self::nodes), [`node_of`](Self::node_of) and
///    [`current_node`](Self::current_node).
/// 8. Where panics unwind, use [`WorkerSlot::serve_with`] and implement
///    [`resume_panic`](Self::resume_panic).
///
/// A kernel lends its idle CPUs in this way: a `static` array of slots, an idle loop that serves
/// the CPU's slot before it halts, and a [`wake`](Self::wake) that sends an interrupt.
///
/// Nothing here is `unsafe`. An implementation that returns nonsense makes jobs slow, never wrong.
/// A helper that takes work and never returns from it makes its job wait for ever.
///
/// All methods are called on the thread that runs the job; `current_node`, `relax`, `now_ns`,
/// `longest_chunk_ns` and `wake` are called on helpers as well.
///
/// An example whose helpers are threads that spin:
///
/// ```
/// use framewright_jobs::{Helpers, Job, SchedulerState, WorkerSlot, Workers};
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// struct Threads { slots: [WorkerSlot; 3], scheduler: SchedulerState, over: AtomicBool }
///
/// impl Helpers for Threads {
///     fn workers(&self) -> Option<Workers<'_>> {
///         Some(Workers { slots: &self.slots, scheduler: &self.scheduler })
///     }
///     fn wake(&self, _helper: usize) {} // they never sleep
/// }
///
/// let threads = Threads {
///     slots: [const { WorkerSlot::new() }; 3],
///     scheduler: SchedulerState::new(),
///     over: AtomicBool::new(false),
/// };
/// std::thread::scope(|scope| {
///     for slot in &threads.slots {
///         scope.spawn(|| while !threads.over.load(Ordering::Relaxed) { slot.serve(); });
///     }
///     let job = Job::new(0..1_000_000).min_chunk(1000);
///     let summary = job.run(&threads, |_chunk, _worker| Ok::<_, ()>(()));
///     assert_eq!(summary.map(|summary| summary.units), Ok(1_000_000));
///     threads.over.store(true, Ordering::Relaxed);
/// });
/// ```
pub trait Helpers: Sync {
    /// The helpers' slots and the state that jobs share, or `None` if there are no helpers at all.
    /// Called once per job.
    fn workers(&self) -> Option<Workers<'_>>;

    /// Tells helper `helper` that work was offered in its slot. May be called when the helper has
    /// already seen the work, or has done it.
    fn wake(&self, helper: usize);

    /// The most helpers that a job of the calling context may have at once, given its CPUs and the
    /// quota of its group. Called when a job first wants a helper. If the answer is 0, a job whose
    /// chunks adapt asks again between chunks while 2 ms or more of work are left.
    fn allowance(&self) -> usize {
        MAX_HELPERS
    }

    /// Called after slot `helper` was reserved for a job of the calling context and before its
    /// helper sees the work. A platform whose helpers adopt the caller's CPUs and memory policy
    /// records them here, and the helper adopts them in [`WorkerSlot::serve_with`].
    fn prepare(&self, helper: usize) {
        let _ = helper;
    }

    /// How long a chunk should take at most while helpers take part, in nanoseconds. This is for a
    /// platform on which a caller that waits for a helper cannot speed that helper up. It applies
    /// to guided chunks where there is a clock and the cost of units is known; chunks never get
    /// smaller than `min_chunk` because of it.
    fn longest_chunk_ns(&self) -> u64 {
        u64::MAX
    }

    /// Waits for `helper`, which still works for the calling job although everything is claimed.
    /// Called for one helper after the other. `done` says whether the helper has ended; if this
    /// returns earlier, it is called again. `done` becomes true before [`WorkerSlot::serve_with`]
    /// returns on the helper, so the helper's loop can wake a sleeping waiter after that call.
    ///
    /// A platform with priorities lends the caller's priority to this one helper here and takes it
    /// back at the end, so that exactly one thread of the job has that priority at any time.
    fn wait_for(&self, helper: usize, done: &dyn Fn() -> bool) {
        let _ = helper;
        while !done() {
            self.relax();
        }
    }

    /// Performs one iteration of a busy wait.
    fn relax(&self) {
        crate::sync::relax();
    }

    /// A monotonic clock in nanoseconds that all CPUs share, if there is one.
    fn now_ns(&self) -> Option<u64> {
        None
    }

    /// The time that a helper costs before it does its first unit, in nanoseconds, if the platform
    /// knows better than [`SchedulerState::start_cost_ns`].
    fn start_cost_ns(&self) -> Option<u64> {
        None
    }

    /// The nodes that have CPUs.
    fn nodes(&self) -> NodeSet {
        NodeSet::EMPTY.with(0)
    }

    /// The node on which `helper` always runs, or `None` if it goes where [`WorkerSlot::node`]
    /// says.
    fn node_of(&self, helper: usize) -> Option<u32> {
        let _ = helper;
        None
    }

    /// The node of the calling CPU.
    fn current_node(&self) -> u32 {
        0
    }

    /// Resumes, in the caller of the job, the panic of a chunk on `helper`. Called when all workers
    /// have stopped, and before another job gets the slot.
    ///
    /// # Panics
    /// Always.
    fn resume_panic(&self, helper: usize) -> ! {
        panic!("a chunk panicked on helper {helper}")
    }
}

/// Lets one copy of the job engine serve helpers of all types: pass `&helpers` as a `&dyn Helpers`.
impl<H: Helpers + ?Sized> Helpers for &H {
    fn workers(&self) -> Option<Workers<'_>> {
        (**self).workers()
    }

    fn wake(&self, helper: usize) {
        (**self).wake(helper);
    }

    fn allowance(&self) -> usize {
        (**self).allowance()
    }

    fn prepare(&self, helper: usize) {
        (**self).prepare(helper);
    }

    fn longest_chunk_ns(&self) -> u64 {
        (**self).longest_chunk_ns()
    }

    fn wait_for(&self, helper: usize, done: &dyn Fn() -> bool) {
        (**self).wait_for(helper, done);
    }

    fn relax(&self) {
        (**self).relax();
    }

    fn now_ns(&self) -> Option<u64> {
        (**self).now_ns()
    }

    fn start_cost_ns(&self) -> Option<u64> {
        (**self).start_cost_ns()
    }

    fn nodes(&self) -> NodeSet {
        (**self).nodes()
    }

    fn node_of(&self, helper: usize) -> Option<u32> {
        (**self).node_of(helper)
    }

    fn current_node(&self) -> u32 {
        (**self).current_node()
    }

    fn resume_panic(&self, helper: usize) -> ! {
        (**self).resume_panic(helper)
    }
}

/// A platform without helpers: every job runs on its caller.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHelpers;

impl Helpers for NoHelpers {
    fn workers(&self) -> Option<Workers<'_>> {
        None
    }

    fn wake(&self, _helper: usize) {}
}
