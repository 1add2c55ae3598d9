//! Guarantees for platforms with resource control: a slot is prepared before its helper can see the
//! work, and chunks are as short as requested.

use framewright_jobs::{Helpers, Job, SchedulerState, WorkerSlot, Workers};
use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Two helpers, run by hand on the caller's thread, and a clock that only work advances.
struct ByHand {
    slots: [WorkerSlot; 2],
    scheduler: SchedulerState,
    now_ns: AtomicU64,
    longest_ns: u64,
    events: Mutex<Vec<(&'static str, usize)>>,
}

impl ByHand {
    fn new(longest_ns: u64) -> Self {
        let slots = [const { WorkerSlot::new() }; 2];
        Self {
            slots,
            scheduler: SchedulerState::new(),
            now_ns: AtomicU64::new(1),
            longest_ns,
            events: Mutex::default(),
        }
    }

    fn note(&self, event: &'static str, helper: usize) {
        self.events.lock().unwrap().push((event, helper));
    }
}

impl Helpers for ByHand {
    fn workers(&self) -> Option<Workers<'_>> {
        Some(Workers { slots: &self.slots, scheduler: &self.scheduler })
    }

    fn wake(&self, helper: usize) {
        assert!(self.slots[helper].has_work());
        self.note("wake", helper);
    }

    fn prepare(&self, helper: usize) {
        let slot = &self.slots[helper];
        // The slot is reserved for this job but not offered yet, so no helper can take it.
        assert!(!slot.is_idle() && !slot.has_work() && !slot.serve());
        self.note("prepare", helper);
    }

    fn longest_chunk_ns(&self) -> u64 {
        self.longest_ns
    }

    fn now_ns(&self) -> Option<u64> {
        Some(self.now_ns.load(Ordering::Relaxed))
    }
}

#[test]
fn a_slot_is_prepared_before_its_helper_is_woken() {
    let helpers = ByHand::new(u64::MAX);
    assert!(helpers.slots.iter().all(WorkerSlot::is_idle));
    for _ in 0..2 {
        let result = Job::new(0..30).min_chunk(1).run(&helpers, |_, _| Ok::<_, Infallible>(()));
        assert!(result.is_ok() && helpers.slots.iter().all(WorkerSlot::is_idle));
        let events = std::mem::take(&mut *helpers.events.lock().unwrap());
        assert_eq!(events, [("prepare", 0), ("prepare", 1), ("wake", 0), ("wake", 1)]);
    }
}

/// Returns the time of the longest chunk of a job with units of 100 us, ignoring each worker's
/// first chunk.
fn dearest_ns(longest_ns: u64, min_chunk: u64) -> u64 {
    const UNIT_NS: u64 = 100_000;
    let helpers = ByHand::new(longest_ns);
    let (served, dearest) = (AtomicU64::new(0), AtomicU64::new(0));
    let first = [const { AtomicU64::new(0) }; 3];
    let result =
        Job::new(0..10_000).min_chunk(min_chunk).guided().run(&helpers, |chunk, worker| {
            // Both helpers come during the caller's first chunk, one inside the other.
            let next = served.fetch_add(1, Ordering::Relaxed);
            if next < 2 {
                assert!(helpers.slots[usize::try_from(next).unwrap()].serve());
            }
            let cost = (chunk.end - chunk.start) * UNIT_NS;
            helpers.now_ns.fetch_add(cost, Ordering::Relaxed);
            if first[worker.index() as usize].fetch_add(1, Ordering::Relaxed) != 0 {
                dearest.fetch_max(cost, Ordering::Relaxed);
            }
            Ok::<_, Infallible>(())
        });
    assert_eq!(result.map(|summary| summary.units), Ok(10_000));
    dearest.into_inner()
}

#[test]
fn a_chunk_takes_no_longer_than_the_platform_allows() {
    assert!(dearest_ns(u64::MAX, 1) > 2_000_000);
    assert!(dearest_ns(1_000_000, 1) <= 1_000_000);
    // The smallest chunk is a promise to the caller, so it wins over the time limit.
    assert_eq!(dearest_ns(1_000_000, 50), 5_000_000);
}
