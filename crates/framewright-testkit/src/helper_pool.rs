//! Threads that help with jobs: [`HelperPool`]. They can be held back, so that a job has to do
//! without them or gets them late.

use crate::lock::lock;
use framewright_jobs::{Helpers, NodeSet, SchedulerState, WorkerSlot, Workers};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

/// Helper threads for tests. They end when the pool is dropped.
pub struct HelperPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    clock: Option<Instant>,
    allowance: usize,
    waits: AtomicUsize,
}

struct Shared {
    helpers: Vec<Helper>,
    slots: Vec<WorkerSlot>,
    scheduler: SchedulerState,
    nodes: Vec<u32>,
    gate: Mutex<Gate>,
    /// Notified if helpers should look for work, or a helper has finished some.
    changed: Condvar,
}

#[derive(Default)]
struct Helper {
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// What helpers may do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    Open,
    Held,
    Closing,
}

std::thread_local! {
    /// The node of this thread, if it is a helper.
    static NODE: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

impl HelperPool {
    /// Starts `count` helpers on node 0, with a clock.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self::on_nodes(&vec![0; count])
    }

    /// Starts one helper for each entry, on the node that the entry names, with a clock.
    #[must_use]
    pub fn on_nodes(nodes: &[u32]) -> Self {
        let shared = Arc::new(Shared {
            helpers: nodes.iter().map(|_| Helper::default()).collect(),
            slots: nodes.iter().map(|_| WorkerSlot::new()).collect(),
            scheduler: SchedulerState::new(),
            nodes: nodes.to_vec(),
            gate: Mutex::new(Gate::Open),
            changed: Condvar::new(),
        });
        let threads = (0..nodes.len())
            .map(|index| {
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || shared.helper(index))
            })
            .collect();
        Self {
            shared,
            threads,
            clock: Some(Instant::now()),
            allowance: usize::MAX,
            waits: AtomicUsize::new(0),
        }
    }

    /// Removes the clock.
    #[must_use]
    pub fn without_clock(mut self) -> Self {
        self.clock = None;
        self
    }

    /// Lets a job have at most `helpers` helpers.
    #[must_use]
    pub fn with_allowance(mut self, helpers: usize) -> Self {
        self.allowance = helpers;
        self
    }

    /// From now on keeps helpers from taking work.
    pub fn hold(&self) {
        self.shared.set(Gate::Held);
    }

    /// Ends [`hold`](Self::hold): helpers take the work that waits for them.
    pub fn release(&self) {
        self.shared.set(Gate::Open);
    }

    /// Whether no helper has work or is offered any.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.shared.scheduler.jobs() == 0 && !self.shared.slots.iter().any(WorkerSlot::has_work)
    }

    /// How often a caller waited for a helper.
    #[must_use]
    pub fn waits(&self) -> usize {
        self.waits.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn gate(&self) -> MutexGuard<'_, Gate> {
        lock(&self.gate)
    }

    fn set(&self, gate: Gate) {
        *self.gate() = gate;
        self.changed.notify_all();
    }

    fn helper(&self, index: usize) {
        let (Some(slot), Some(helper)) = (self.slots.get(index), self.helpers.get(index)) else {
            return;
        };
        NODE.set(self.nodes.get(index).copied().unwrap_or(0));
        loop {
            let mut gate = self.gate();
            while !(*gate == Gate::Closing || *gate == Gate::Open && slot.has_work()) {
                gate = self.changed.wait(gate).unwrap_or_else(PoisonError::into_inner);
            }
            if *gate == Gate::Closing {
                return;
            }
            drop(gate);
            slot.serve_with(|work| {
                if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
                    *lock(&helper.panic) = Some(payload);
                }
            });
            // Notify with the lock held, so that a caller cannot fall asleep between its check and
            // this.
            let _gate = self.gate();
            self.changed.notify_all();
        }
    }
}

impl Helpers for HelperPool {
    fn workers(&self) -> Option<Workers<'_>> {
        Some(Workers { slots: &self.shared.slots, scheduler: &self.shared.scheduler })
    }

    fn wake(&self, _helper: usize) {
        let _gate = self.shared.gate();
        self.shared.changed.notify_all();
    }

    fn allowance(&self) -> usize {
        self.allowance
    }

    fn wait_for(&self, _helper: usize, done: &dyn Fn() -> bool) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let mut gate = self.shared.gate();
        while !done() {
            gate = self.shared.changed.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn now_ns(&self) -> Option<u64> {
        self.clock.map(|start| u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn nodes(&self) -> NodeSet {
        self.shared.nodes.iter().copied().collect()
    }

    fn node_of(&self, helper: usize) -> Option<u32> {
        self.shared.nodes.get(helper).copied()
    }

    fn current_node(&self) -> u32 {
        NODE.get()
    }

    fn resume_panic(&self, helper: usize) -> ! {
        let helper = self.shared.helpers.get(helper);
        let payload = helper.and_then(|helper| lock(&helper.panic).take());
        resume_unwind(payload.unwrap_or_else(|| Box::new("a helper panicked without a payload")))
    }
}

impl Drop for HelperPool {
    fn drop(&mut self) {
        self.shared.set(Gate::Closing);
        for thread in self.threads.drain(..) {
            // The panics of a helper were caught.
            let _ = thread.join();
        }
    }
}
