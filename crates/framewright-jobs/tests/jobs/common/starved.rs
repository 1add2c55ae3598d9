//! A platform whose clock the chunks advance, and whose helpers never come.

use super::{Log, assert_covers};
use framewright_jobs::{Helpers, Job, NodeSet, SchedulerState, WorkerSlot, Workers};
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Helpers that never come.
pub struct Starved {
    pub slots: Vec<WorkerSlot>,
    pub scheduler: SchedulerState,
    pub has_clock: bool,
    pub now_ns: AtomicU64,
    pub readings: AtomicUsize,
    pub asked_allowance: AtomicUsize,
    /// How often the platform says first that a job may have no helper.
    pub refusals: usize,
    /// The helpers that the platform was told to wake, and the nodes where the work should run.
    pub woken: Mutex<Vec<(usize, Option<u32>)>>,
}

impl Starved {
    pub fn new(helpers: usize) -> Self {
        Self {
            slots: (0..helpers).map(|_| WorkerSlot::new()).collect(),
            scheduler: SchedulerState::new(),
            has_clock: true,
            now_ns: AtomicU64::new(1),
            readings: AtomicUsize::new(0),
            asked_allowance: AtomicUsize::new(0),
            refusals: 0,
            woken: Mutex::default(),
        }
    }

    /// Runs `job`, whose units take `unit_ns`; returns how many helpers were woken.
    pub fn run(&self, job: &Job<'_>, unit_ns: impl Fn(u64) -> u64 + Sync) -> usize {
        let log = Log::default();
        job.run(self, |range, _| {
            self.now_ns.fetch_add(range.clone().map(&unit_ns).sum(), Ordering::Relaxed);
            log.add(range);
            Ok::<_, Infallible>(())
        })
        .expect("nothing fails");
        let end = job.size().expect("it makes sense");
        assert_covers(&log.sorted(), 0..end, 1);
        assert!(
            !self.slots.iter().any(|slot| slot.has_work() || slot.serve()),
            "all are withdrawn"
        );
        let woken: BTreeSet<usize> =
            self.take_woken().into_iter().map(|(helper, _)| helper).collect();
        woken.len()
    }

    pub fn take_woken(&self) -> Vec<(usize, Option<u32>)> {
        std::mem::take(&mut *self.woken.lock().expect("nobody panicked"))
    }
}

impl Helpers for Starved {
    fn workers(&self) -> Option<Workers<'_>> {
        Some(Workers { slots: &self.slots, scheduler: &self.scheduler })
    }

    fn wake(&self, helper: usize) {
        self.woken.lock().expect("nobody panicked").push((helper, self.slots[helper].node()));
    }

    fn allowance(&self) -> usize {
        let asked = self.asked_allowance.fetch_add(1, Ordering::Relaxed);
        if asked < self.refusals { 0 } else { self.slots.len() }
    }

    fn wait_for(&self, helper: usize, _done: &dyn Fn() -> bool) {
        panic!("nobody came, so nobody waits for {helper}");
    }

    /// Reading the clock takes 20 ns.
    fn now_ns(&self) -> Option<u64> {
        self.readings.fetch_add(1, Ordering::Relaxed);
        self.has_clock.then(|| self.now_ns.fetch_add(20, Ordering::Relaxed))
    }

    fn start_cost_ns(&self) -> Option<u64> {
        Some(10_000)
    }

    fn nodes(&self) -> NodeSet {
        NodeSet::from_iter([1, 3])
    }

    fn node_of(&self, helper: usize) -> Option<u32> {
        Some(if helper.is_multiple_of(2) { 1 } else { 3 })
    }
}
