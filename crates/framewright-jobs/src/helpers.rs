//! Where helpers come from: the trait [`Helpers`], which a platform implements, and [`Desk`], which
//! the platform's jobs share.

use crate::nodes::{NodeCursor, NodeSet};
use crate::raw::Post;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::const_fn;

/// Posts beyond this many are not used: a worker has one of 256 numbers, and the caller has the
/// first.
pub const MAX_HELPERS: usize = 255;

/// A start cost that is assumed until one was measured.
const FIRST_START_COST_NS: u64 = 20_000;

/// So many jobs at most ask for no helper after one that asked in vain.
const MOST_REFRAIN: u32 = 15;

/// What the jobs of one platform share: the node cursor, who is short of helpers, and how long
/// helpers take to start.
///
/// All its atomics are Relaxed. They are hints and counts: a stale one costs time and orders
/// nothing.
pub struct Desk {
    pub(crate) cursor: NodeCursor,
    jobs: AtomicU32,
    hungry: AtomicU32,
    start_cost_ns: AtomicU64,
    /// Jobs in a row whose helpers had the time to come and did not.
    vain: AtomicU32,
    /// Jobs that had to decide because of that whether to ask, since the last of them.
    refrained: AtomicU32,
}

impl Default for Desk {
    fn default() -> Self {
        Self::new()
    }
}

impl Desk {
    const_fn! {
        /// No job, and 20 us for a helper's start until some have started.
        #[must_use]
        pub fn new() -> Self {
            Self {
                cursor: NodeCursor::new(),
                jobs: AtomicU32::new(0),
                hungry: AtomicU32::new(0),
                start_cost_ns: AtomicU64::new(FIRST_START_COST_NS),
                vain: AtomicU32::new(0),
                refrained: AtomicU32::new(0),
            }
        }
    }

    /// From asking for helpers to the first claim of one of them: a moving average over the helpers
    /// that came, nanoseconds.
    #[must_use]
    pub fn start_cost_ns(&self) -> u64 {
        self.start_cost_ns.load(Ordering::Relaxed)
    }

    /// Whether a job that is not large should ask for helpers: not while they come to none, but for
    /// one job in 2, 4, 8, at most [`MOST_REFRAIN`] + 1. To be asked once a job.
    pub(crate) fn should_ask(&self) -> bool {
        let vain = self.vain.load(Ordering::Relaxed);
        if vain == 0 {
            return true;
        }
        let refrain =
            1_u32.checked_shl(vain).map_or(MOST_REFRAIN, |jobs| (jobs - 1).min(MOST_REFRAIN));
        self.refrained.fetch_add(1, Ordering::Relaxed) >= refrain
    }

    /// A job ended whose helpers had the time to come and did not.
    pub(crate) fn learn_vain(&self) {
        let vain = self.vain.load(Ordering::Relaxed);
        self.vain.store(vain.saturating_add(1), Ordering::Relaxed);
        self.refrained.store(0, Ordering::Relaxed);
    }

    /// Counts one helper's start in, as an eighth. One that was kept waiting by a busy CPU counts
    /// as eight times the average at most.
    pub(crate) fn learn_start_cost(&self, sample_ns: u64) {
        if self.vain.load(Ordering::Relaxed) != 0 {
            self.vain.store(0, Ordering::Relaxed);
        }
        let old = self.start_cost_ns();
        let sample = sample_ns.min(old.saturating_mul(8)).max(8);
        self.start_cost_ns.store(old - old / 8 + sample / 8, Ordering::Relaxed);
    }

    /// Jobs that asked for helpers and have not ended.
    #[must_use]
    pub fn jobs(&self) -> u32 {
        self.jobs.load(Ordering::Relaxed)
    }

    /// How many jobs have fewer helpers than their share and than they want.
    pub(crate) fn hungry(&self) -> u32 {
        self.hungry.load(Ordering::Relaxed)
    }

    /// How many helpers each job may keep while another is short of some. One at least: a single
    /// helper stays where it is.
    pub(crate) fn share(&self, posts: usize) -> u32 {
        let posts = u32::try_from(posts.min(MAX_HELPERS)).unwrap_or(u32::MAX);
        (posts / self.jobs().max(1)).max(1)
    }
}

/// A job that the desk counts, until this is dropped.
pub(crate) struct Registration<'a> {
    desk: &'a Desk,
    hungry: bool,
}

impl<'a> Registration<'a> {
    pub(crate) fn new(desk: &'a Desk) -> Self {
        desk.jobs.fetch_add(1, Ordering::Relaxed);
        Self { desk, hungry: false }
    }

    pub(crate) fn set_hungry(&mut self, hungry: bool) {
        if hungry != self.hungry {
            if hungry {
                self.desk.hungry.fetch_add(1, Ordering::Relaxed);
            } else {
                self.desk.hungry.fetch_sub(1, Ordering::Relaxed);
            }
            self.hungry = hungry;
        }
    }

    pub(crate) fn others_hungry(&self) -> bool {
        self.desk.hungry() > u32::from(self.hungry)
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.set_hungry(false);
        self.desk.jobs.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The helpers of a platform: helper `i` serves `posts[i]`.
#[derive(Clone, Copy)]
pub struct Crew<'a> {
    /// One for each helper; those from [`MAX_HELPERS`] on are not used.
    pub posts: &'a [Post],
    /// What all jobs that use these posts share.
    pub desk: &'a Desk,
}

/// What a job needs of the platform. [`NoHelpers`] is one without helpers.
///
/// # For an implementer
///
/// 1. A [`Post`] for each helper and one [`Desk`], in static memory or in a pool:
///    [`crew`](Self::crew).
/// 2. Each helper, a thread or an idle CPU, loops as shown at [`Post`].
/// 3. [`wake`](Self::wake): a futex call, or an interrupt to the CPU.
/// 4. If helpers cost more to wait for than a busy wait: [`wait_for`](Self::wait_for). A platform
///    with priorities lends the caller's here.
/// 5. With resource control: [`allowance`](Self::allowance), [`prepare`](Self::prepare).
/// 6. With a clock: [`now_ns`](Self::now_ns), which makes small jobs cheap. It is read at the
///    borders of chunks, so it should take some ten nanoseconds.
/// 7. With nodes: [`nodes`](Self::nodes), [`node_of`](Self::node_of),
///    [`current_node`](Self::current_node).
/// 8. Where panics unwind: [`Post::serve_with`] and [`resume_panic`](Self::resume_panic).
///
/// Nothing in it is `unsafe`. An implementation that answers nonsense makes jobs slow, never wrong;
/// one whose helper takes work and never returns from it makes its job wait for ever.
///
/// Contexts: everything but `current_node`, `relax`, `now_ns` and `longest_chunk_ns` is called on
/// the thread that runs the job; `wake` on helpers too.
pub trait Helpers: Sync {
    /// The posts and the desk; nothing when there are no helpers at all. Called once a job.
    fn crew(&self) -> Option<Crew<'_>>;

    /// Work was offered at post `helper`. May be called when the helper has seen it already, or has
    /// done it.
    fn wake(&self, helper: usize);

    /// At most how many helpers a job of the calling context may have at once: the CPUs that it may
    /// run on, what its group's quota is worth. Called when a job first wants one.
    fn allowance(&self) -> usize {
        MAX_HELPERS
    }

    /// Post `helper` was reserved for a job of the calling context; its helper does not see the
    /// work yet. A platform whose helpers take on what their caller may do (its CPUs, its memory
    /// policy) writes it down here, and the helper adopts it in [`Post::serve_with`].
    fn prepare(&self, helper: usize) {
        let _ = helper;
    }

    /// How long a chunk may take while others take part, as far as its cost is known: for a
    /// platform on which a caller that waits for a helper cannot hurry it. Heeded by chunks that
    /// adapt, where there is a clock; a `min_chunk` is not undercut.
    fn longest_chunk_ns(&self) -> u64 {
        u64::MAX
    }

    /// Waits for `helper`, which still works for the calling job when all is claimed; called for
    /// one helper after the other. `done` says whether it has ended: it must be asked until it says
    /// so, or the job asks again. What a helper did to make `done` true comes before
    /// [`Post::serve_with`] returns there, so a waiter that sleeps is woken by the helper's loop
    /// after that call.
    ///
    /// A platform with priorities lends the caller's to this one helper here and takes it back at
    /// the end: so exactly one thread of the job has it at any time (SPEC 1.4).
    fn wait_for(&self, helper: usize, done: &dyn Fn() -> bool) {
        let _ = helper;
        while !done() {
            self.relax();
        }
    }

    /// One turn of a busy wait.
    fn relax(&self) {
        crate::sync::relax();
    }

    /// A monotonic clock in nanoseconds that all CPUs share, when there is one.
    fn now_ns(&self) -> Option<u64> {
        None
    }

    /// What one helper costs before it does its first unit, nanoseconds, when the platform knows
    /// better than [`Desk::start_cost_ns`].
    fn start_cost_ns(&self) -> Option<u64> {
        None
    }

    /// The nodes that have CPUs.
    fn nodes(&self) -> NodeSet {
        NodeSet::EMPTY.with(0)
    }

    /// The node on which `helper` always runs; nothing when it goes where [`Post::node`] says.
    fn node_of(&self, helper: usize) -> Option<u32> {
        let _ = helper;
        None
    }

    /// The node of the CPU that calls.
    fn current_node(&self) -> u32 {
        0
    }

    /// Throws on, in the caller of the job, what a chunk threw on `helper`. Called when all workers
    /// have stopped, and before the post is given to another job.
    ///
    /// # Panics
    /// That is what it is for.
    fn resume_panic(&self, helper: usize) -> ! {
        panic!("a chunk panicked on helper {helper}")
    }
}

/// A platform without helpers: every job runs on its caller.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHelpers;

impl Helpers for NoHelpers {
    fn crew(&self) -> Option<Crew<'_>> {
        None
    }

    fn wake(&self, _helper: usize) {}
}
