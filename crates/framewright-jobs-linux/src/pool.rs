//! The helper threads of one process: [`Pool`].
//!
//! Memory ordering: the flags by which threads find one another (`closing`, `keeps_priority`,
//! `ended`, `awaited`) are SeqCst, because each side stores its own flag before it loads the
//! other's. Each Release names the Acquire that it pairs with. Hints and counts are Relaxed: a
//! helper gets its work through its slot.

use super::context::{Adopted, Context};
use super::loan::Loan;
use super::nodes::Nodes;
use super::parking::{Call, Parking, lock, try_lock};
use super::per_process::generation;
use super::priority::Priority;
use super::progress::Progress;
use super::quota::CpuQuota;
use super::system::{self, CpuMask, IDLE_LEVEL, LOWEST_NICE, Schedule};
use super::thread::Thread;
use framewright_jobs::{SchedulerState, WorkerSlot};
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a helper looks for more work before it sleeps, and how long a caller waits before it
/// lends its priority.
const SPIN_NS: u64 = 20_000;
/// How long a caller waits before it sleeps: as long as it takes to wake it on a sleeping virtual
/// CPU.
const CALLER_SPIN_NS: u64 = 60_000;
/// How many times to look between two clock readings while spinning.
const LOOKS: u32 = 16;
/// How old the known quota may become. Reading it takes about 50 us.
const QUOTA_AGE_NS: u64 = 1_000_000_000;
/// How long a caller waits at most while another one starts threads, which takes some 20 us each.
/// That other one may be a helper, at the lowest priority, that has lost its CPU.
const LONGEST_START_NS: u64 = 1_000_000;
/// A helper may itself wait for a helper of its own. While it has no priority to lend, it checks
/// this often whether it was lent one.
const LOOK_FOR_LOAN: Duration = Duration::from_millis(1);

thread_local! {
    static IS_HELPER: Cell<bool> = const { Cell::new(false) };
    /// Whether this helper runs at the lowest priority.
    static IS_LOWERED: Cell<bool> = const { Cell::new(false) };
}

pub(super) type Payload = Box<dyn Any + Send>;

/// What one helper shares with its callers, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct HelperState {
    /// Where the helper sleeps, and what the job in the slot says; its caller writes that before
    /// the offer.
    parking: Parking,
    panic: Mutex<Option<Payload>>,
    /// Counts how often the helper's work has ended; callers sleep on it.
    ended: AtomicU32,
    /// Whether a caller sleeps on `ended`, or is about to.
    awaited: AtomicBool,
    loan: Loan,
    tid: AtomicI32,
}

/// The helper threads of one process, and what they share with callers.
pub(super) struct Pool {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Threads {
    /// The threads by helper number.
    handles: Vec<Thread>,
    /// Threads that end because priorities cannot be raised any more, by helper number. Each of
    /// them is taken by its successor, which waits until it has ended, so a slot never has two
    /// threads.
    ending: Vec<Option<Thread>>,
}

struct Shared {
    generation: u32,
    slots: Vec<WorkerSlot>,
    scheduler: SchedulerState,
    states: Vec<HelperState>,
    nodes: Nodes,
    threads: Mutex<Threads>,
    closing: AtomicBool,
    /// Whether `keeps_priority` is known, because it was probed or chosen.
    priority_is_known: AtomicBool,
    /// Set at most once, under the lock of `threads`. Helpers at lowered priority then end.
    keeps_priority: AtomicBool,
    /// The number of threads, without those that are ending. Changed under the lock of `threads`.
    started: AtomicUsize,
    /// When to try again after a thread could not be started. Changed under the same lock as
    /// `started`.
    not_before_ns: AtomicU64,
    /// The number of helpers that work now.
    working: AtomicUsize,
    /// How many helpers the quota allows; `usize::MAX` without a quota.
    quota_helpers: AtomicUsize,
    quota_read_ns: AtomicU64,
    /// Whether the quota was read at least once.
    quota_is_known: AtomicBool,
}

impl Pool {
    /// Creates a pool of up to `helpers` threads, none of which runs yet.
    pub fn new(helpers: usize, priority: Option<Priority>) -> Self {
        let shared = Shared {
            generation: generation(),
            slots: (0..helpers).map(|_| WorkerSlot::new()).collect(),
            scheduler: SchedulerState::new(),
            states: (0..helpers).map(|_| HelperState::default()).collect(),
            nodes: Nodes::read(Path::new("/")),
            threads: Mutex::default(),
            closing: AtomicBool::new(false),
            priority_is_known: AtomicBool::new(priority.is_some()),
            keeps_priority: AtomicBool::new(priority == Some(Priority::Kept)),
            started: AtomicUsize::new(0),
            not_before_ns: AtomicU64::new(0),
            working: AtomicUsize::new(0),
            quota_helpers: AtomicUsize::new(usize::MAX),
            quota_read_ns: AtomicU64::new(0),
            quota_is_known: AtomicBool::new(false),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The slots in which work of this thread can find a helper: those with threads, and those for
    /// which its [allowance](Self::allowance) will start some. A job that reserved any other slot
    /// would wait in vain, and would still count as having its share of helpers. There is always at
    /// least one slot, so that a thread which could have no helper the last time asks again: quota
    /// and mask are read again only by `allowance`.
    pub fn slots_with_threads(&self) -> &[WorkerSlot] {
        let shared = &self.shared;
        let not_before_ns = shared.not_before_ns.load(Ordering::Relaxed);
        let can_start = not_before_ns == 0 || system::now_ns() >= not_before_ns;
        // Only its CPUs are wanted, so any will do.
        let context = Context::last(false).filter(|_| can_start);
        let wanted = context.map_or(0, |context| self.most_helpers(&context));
        shared.slots.get(..wanted.max(self.started()).max(1)).unwrap_or(&shared.slots)
    }

    /// How many helpers a thread with this context may have, going by the quota as it was last
    /// read.
    fn most_helpers(&self, context: &Context) -> usize {
        let quota = self.shared.quota_helpers.load(Ordering::Relaxed);
        context.cpus.count().saturating_sub(1).min(quota).min(self.shared.slots.len())
    }

    pub fn scheduler(&self) -> &SchedulerState {
        &self.shared.scheduler
    }

    pub fn nodes(&self) -> &Nodes {
        &self.shared.nodes
    }

    /// How helpers are scheduled. The first call finds out, which takes two thread switches. `None`
    /// if the thread that finds out could not be started; it is tried again after a pause, as with
    /// helpers.
    pub fn priority(&self) -> Option<Priority> {
        let shared = &self.shared;
        if !shared.priority_is_known.load(Ordering::Acquire) {
            let _one_probe = lock(&shared.threads);
            if !shared.priority_is_known.load(Ordering::Acquire) {
                let now = system::now_ns();
                if now < shared.not_before_ns.load(Ordering::Relaxed) {
                    return None;
                }
                let Some(found) = Priority::probe() else {
                    shared.not_before_ns.store(now + QUOTA_AGE_NS, Ordering::Relaxed);
                    return None;
                };
                shared.keeps_priority.store(found == Priority::Kept, Ordering::Relaxed);
                // Release pairs with the Acquire loads above.
                shared.priority_is_known.store(true, Ordering::Release);
            }
        }
        Some(if shared.keeps_priority() { Priority::Kept } else { Priority::Lent })
    }

    /// Whether helpers keep their priority, so that chunks must be short.
    pub fn keeps_priority(&self) -> bool {
        self.shared.keeps_priority()
    }

    /// The number of threads that run.
    pub fn started(&self) -> usize {
        self.shared.started.load(Ordering::Relaxed)
    }

    /// How many helpers a job of this thread may have; helpers that do not run yet are started.
    pub fn allowance(&self) -> usize {
        self.shared.read_quota();
        let Some(priority) = self.priority() else { return 0 };
        let context = Context::of_this_thread(priority == Priority::Kept);
        let Some(context) = context else { return 0 };
        let wanted = self.most_helpers(&context);
        if wanted > self.started() { wanted.min(self.start(wanted)) } else { wanted }
    }

    /// Whether the helper that a job would get first is asleep or has not been started yet.
    pub fn first_sleeps(&self) -> bool {
        self.started() == 0
            || self.shared.states.first().is_some_and(|state| state.parking.is_asleep())
    }

    /// Starts helpers until there are `wanted`; returns how many there are now.
    #[cold]
    fn start(&self, wanted: usize) -> usize {
        let shared = &self.shared;
        let began = system::now_ns();
        let mut threads = loop {
            if let Some(threads) = try_lock(&shared.threads) {
                break threads;
            }
            if self.started() >= wanted || system::now_ns().saturating_sub(began) > LONGEST_START_NS
            {
                return self.started();
            }
            std::thread::yield_now();
        };
        let lowered = !shared.keeps_priority();
        if !lowered && IS_LOWERED.get() {
            // A thread inherits its creator's priority, which would be too low here.
            return self.started();
        }
        let now = system::now_ns();
        for index in self.started()..wanted {
            if now < shared.not_before_ns.load(Ordering::Relaxed) {
                break;
            }
            let own = Arc::clone(shared);
            match Thread::start(&format!("jobs-{index}"), move || own.help(index, lowered)) {
                Ok(handle) => {
                    threads.handles.push(handle);
                    shared.started.store(index + 1, Ordering::Relaxed);
                }
                Err(_) => shared.not_before_ns.store(now + QUOTA_AGE_NS, Ordering::Relaxed),
            }
        }
        self.started()
    }

    /// Records the call of a job of this thread that has reserved slot `helper`.
    pub fn prepare(&self, helper: usize) {
        if let Some(state) = self.shared.states.get(helper) {
            let context = Context::last(self.shared.keeps_priority());
            let node = self.shared.slots.get(helper).and_then(WorkerSlot::node);
            state.parking.prepare(context.map(|context| Call::from_here(context, node)));
        }
    }

    pub fn wake(&self, helper: usize) {
        if let Some(state) = self.shared.states.get(helper) {
            state.wake(&self.shared.nodes);
        }
    }

    pub fn take_panic(&self, helper: usize) -> Option<Payload> {
        lock(&self.shared.states.get(helper)?.panic).take()
    }

    /// Waits until `done` returns true, which `helper` brings about.
    pub fn wait_for(&self, helper: usize, done: &dyn Fn() -> bool) {
        let Some(state) = self.shared.states.get(helper) else { return };
        if spin_until(SPIN_NS, done) {
            return;
        }
        let mut progress = Progress::of(state.tid.load(Ordering::Relaxed));
        let mut lent = self.shared.lend(state, done);
        if spin_until(CALLER_SPIN_NS - SPIN_NS, done) {
            return;
        }
        let mut moved = false;
        while !done() {
            // A helper that works for the job holds its slot until `done`. If it does not, the
            // helper exists only in the parent process.
            if self.shared.slots.get(helper).is_none_or(WorkerSlot::is_idle) && !done() {
                forked_inside_a_job();
            }
            lent = lent || self.shared.lend(state, done);
            moved = moved || progress.stands_still() && self.shared.lend_cpu(state, done);
            let seen = state.ended.load(Ordering::Acquire);
            if done() {
                return;
            }
            state.awaited.store(true, Ordering::SeqCst);
            let look = (!moved).then(|| progress.until_next_look());
            let longest = if IS_HELPER.get() && !lent { Some(LOOK_FOR_LOAN) } else { look };
            system::sleep_while(&state.ended, seen, longest);
        }
    }
}

/// Aborts a forked child that waits for a thread of its parent in the middle of a job.
#[cold]
fn forked_inside_a_job() -> ! {
    // The standard library's functions are avoided, because a thread of the parent may have held
    // their lock at the fork.
    system::write_stderr(
        "framewright: a child forked inside a job continued the job, whose other threads it does \
         not have\n",
    );
    std::process::abort()
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        self.shared.states.iter().for_each(|state| state.wake(&self.shared.nodes));
        let Threads { handles, ending, .. } = std::mem::take(&mut *lock(&self.shared.threads));
        for thread in handles.into_iter().chain(ending.into_iter().flatten()) {
            thread.join();
        }
    }
}

/// Spins for a short while until `done` returns true. Returns whether it did.
fn spin_until(most_ns: u64, done: &dyn Fn() -> bool) -> bool {
    let began = system::now_ns();
    loop {
        for _ in 0..LOOKS {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        if system::now_ns().saturating_sub(began) > most_ns {
            return done();
        }
    }
}

impl HelperState {
    fn wake(&self, nodes: &Nodes) {
        self.parking.wake(&self.tid, nodes);
    }

    /// Keeps the panic payload of a chunk, and drops the payload that an earlier job may have left
    /// here. That drop may panic again.
    fn keep_panic(&self, payload: Payload) {
        let left = lock(&self.panic).replace(payload);
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(left))) {
            std::mem::forget(again);
        }
    }

    /// Tells the caller that the helper's work has ended.
    fn tell_end(&self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
        if self.awaited.swap(false, Ordering::SeqCst) {
            system::wake_one(&self.ended);
        }
    }
}

impl Shared {
    fn keeps_priority(&self) -> bool {
        self.keeps_priority.load(Ordering::Relaxed)
    }

    /// Makes sure that the number of helpers that the quota allows is known, and not too old.
    ///
    /// Only one of several callers reads the quota again. While it is not known, each of them reads
    /// it for itself: whoever reads it may have lost its CPU, and a caller that did not wait would
    /// do its whole job alone.
    fn read_quota(&self) {
        let (now, read) = (system::now_ns(), self.quota_read_ns.load(Ordering::Relaxed));
        // Acquire pairs with the Release below.
        let is_known = self.quota_is_known.load(Ordering::Acquire);
        if is_known && now.saturating_sub(read) <= QUOTA_AGE_NS {
            return;
        }
        let mine = self
            .quota_read_ns
            .compare_exchange(read, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        if mine || !is_known {
            let helpers =
                CpuQuota::read(Path::new("/")).map_or(usize::MAX, |quota| quota.cpus() - 1);
            self.quota_helpers.store(helpers, Ordering::Relaxed);
            self.quota_is_known.store(true, Ordering::Release);
        }
    }

    /// Lends the caller's priority to the helper of `state`.
    fn lend(&self, state: &HelperState, done: &dyn Fn() -> bool) -> bool {
        if self.keeps_priority() {
            return false;
        }
        let Ok(own) = Schedule::of_this_thread() else { return false };
        // A helper that was lent nothing itself has nothing to pass on yet.
        if own.is_idle() || IS_LOWERED.get() && own.is_lowered() {
            return false;
        }
        state.loan.lend(done, || {
            let raised = own.give_to(state.tid.load(Ordering::Relaxed)).is_ok();
            if !raised {
                self.keep_priority();
            }
            raised
        })
    }

    /// Moves the helper of `state` to the calling thread's CPU, which the caller is about to leave.
    /// A helper that has lost its own CPU in the middle of a chunk continues there at once. It may
    /// be moved away again.
    fn lend_cpu(&self, state: &HelperState, done: &dyn Fn() -> bool) -> bool {
        state.loan.lend_cpu(done, || {
            let tid = state.tid.load(Ordering::Relaxed);
            let Some(context) = Context::last(false) else { return false };
            let moved = CpuMask::of([system::cpu()]).give_to(tid).is_ok();
            // From now on the helper may use the whole mask, which it adopts again before its next
            // stint.
            let _ = context.cpus.give_to(tid);
            moved
        })
    }

    /// Called when priorities cannot be raised any more: helpers at lowered priority end, and the
    /// next job starts others.
    #[cold]
    fn keep_priority(&self) {
        let mut threads = lock(&self.threads);
        if !self.keeps_priority.swap(true, Ordering::SeqCst) {
            threads.ending = std::mem::take(&mut threads.handles).into_iter().map(Some).collect();
            self.started.store(0, Ordering::SeqCst);
            self.states.iter().for_each(|state| state.wake(&self.nodes));
        }
    }

    /// The body of a helper thread, from its start to its end.
    fn help(&self, index: usize, lowered: bool) {
        let (Some(slot), Some(state)) = (self.slots.get(index), self.states.get(index)) else {
            return;
        };
        if !lowered {
            let predecessor = lock(&self.threads).ending.get_mut(index).and_then(Option::take);
            if let Some(thread) = predecessor {
                thread.join();
            }
        }
        IS_HELPER.set(true);
        IS_LOWERED.set(lowered);
        state.tid.store(system::tid(), Ordering::Relaxed);
        let _ = if lowered { system::set_level(LOWEST_NICE) } else { Ok(()) };
        let level = system::level().unwrap_or(0);
        let mut is_idle = false;
        let mut adopted = Adopted::default();
        let mut has_whole_mask = true;
        while !self.is_over(lowered) {
            let worked = slot.serve_with(|work| {
                let Some(_working) = Working::enter(self) else { return };
                let (call, narrowed) = state.parking.begin();
                has_whole_mask &= !narrowed;
                let call = call.filter(|call| lowered || call.context.allows(level));
                let Some(Call { context, node, .. }) = call else { return };
                // A helper never runs above its caller. A caller at this level has nothing to lend,
                // so this undoes no loan.
                is_idle = lowered && context.is_idle();
                if is_idle && system::set_level(IDLE_LEVEL).is_err() {
                    return;
                }
                let node = node.and_then(|node| Some((node, self.nodes.cpus(node)?)));
                has_whole_mask = adopted.adopt(&context, node, !has_whole_mask);
                if !has_whole_mask {
                    return;
                }
                if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
                    state.keep_panic(payload);
                }
            });
            if generation() != self.generation {
                // This is the only thread of a child that was forked inside a chunk.
                forked_inside_a_job();
            }
            if worked {
                state.tell_end();
                let moved = state.loan.end_stint(|| {
                    let _ = system::set_level(LOWEST_NICE);
                });
                has_whole_mask &= !moved;
                adopted.check();
                if std::mem::take(&mut is_idle) {
                    let _ = system::set_level(LOWEST_NICE);
                }
                // Do not spin if a quota counts the CPU time, or after the helper was moved to its
                // caller's CPU.
                if self.quota_helpers.load(Ordering::Relaxed) == usize::MAX && !moved {
                    spin_until(SPIN_NS, &|| slot.has_work() || self.is_over(lowered));
                }
                continue;
            }
            state.parking.sleep(&self.nodes, || slot.has_work() || self.is_over(lowered));
        }
    }

    /// Whether the helper must end.
    fn is_over(&self, lowered: bool) -> bool {
        self.closing.load(Ordering::SeqCst) || lowered && self.keeps_priority.load(Ordering::SeqCst)
    }
}

/// Counts a helper as working until this is dropped.
struct Working<'a>(&'a Shared);

impl<'a> Working<'a> {
    /// `None` if as many helpers already work as the quota allows.
    fn enter(shared: &'a Shared) -> Option<Self> {
        let working = Self(shared);
        let before = shared.working.fetch_add(1, Ordering::Relaxed);
        (before < shared.quota_helpers.load(Ordering::Relaxed)).then_some(working)
    }
}

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.working.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
