//! Small jobs under every interleaving that the memory model allows: claims, the end, withdrawal,
//! errors, cancellation, nesting, panics.
//!
//! Chunks write plain memory here, so the model fails if the caller, an undo or the next worker
//! could see it too early.
//!
//! `cargo xtask test --only loom` runs them.
#![cfg(loom)]

use framewright_jobs::{
    Cancel, Helpers, Job, JobError, SchedulerState, Worker, WorkerSlot, Workers,
};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;
use std::convert::Infallible;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Helpers of the model. Each is a thread that serves its slot `turns` times at most and ends, so
/// the interleavings include a helper that comes late, once, or never.
struct Platform {
    slots: Vec<WorkerSlot>,
    scheduler: SchedulerState,
    /// Rings when a helper has served, so that a waiting caller looks again.
    bells: Vec<Notify>,
    panicked: AtomicBool,
}

impl Platform {
    fn new(helpers: usize) -> Arc<Self> {
        Arc::new(Self {
            slots: (0..helpers).map(|_| WorkerSlot::new()).collect(),
            scheduler: SchedulerState::new(),
            bells: (0..helpers).map(|_| Notify::new()).collect(),
            panicked: AtomicBool::new(false),
        })
    }

    fn start(platform: &Arc<Self>, turns: u32) -> Vec<thread::JoinHandle<()>> {
        let helper = |index: usize| {
            let platform = Arc::clone(platform);
            thread::spawn(move || {
                for _ in 0..turns {
                    platform.slots[index].serve_with(|work| {
                        if catch_unwind(AssertUnwindSafe(work)).is_err() {
                            platform.panicked.store(true, Ordering::Relaxed);
                        }
                    });
                    platform.bells[index].notify();
                }
            })
        };
        (0..platform.slots.len()).map(helper).collect()
    }
}

impl Helpers for Platform {
    fn workers(&self) -> Option<Workers<'_>> {
        Some(Workers { slots: &self.slots, scheduler: &self.scheduler })
    }

    fn wake(&self, _helper: usize) {}

    fn wait_for(&self, helper: usize, done: &dyn Fn() -> bool) {
        while !done() {
            self.bells[helper].wait();
        }
    }
}

/// Plain memory, a cell for each unit.
struct Cells(Vec<UnsafeCell<u32>>);

// SAFETY: loom checks that no two threads use a cell at the same time.
unsafe impl Sync for Cells {}
// SAFETY: the cells are numbers, which any thread may own.
unsafe impl Send for Cells {}

impl Cells {
    fn new(count: u64) -> Self {
        Self((0..count).map(|_| UnsafeCell::new(0)).collect())
    }

    fn cell(&self, unit: u64) -> &UnsafeCell<u32> {
        &self.0[usize::try_from(unit).expect("units are few")]
    }

    fn add(&self, range: Range<u64>) {
        for unit in range {
            // SAFETY: loom fails the test if another thread uses the cell.
            self.cell(unit).with_mut(|cell| unsafe { *cell += 1 });
        }
    }

    fn get(&self, unit: u64) -> u32 {
        // SAFETY: as above.
        self.cell(unit).with(|cell| unsafe { *cell })
    }
}

/// Runs `test` with `helpers` helpers that serve up to `turns` times, and checks that no slot is
/// left with work.
fn model(
    helpers: usize,
    turns: u32,
    preemptions: Option<usize>,
    test: impl Fn(&Platform) + Sync + Send + 'static,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.check(move || {
        let platform = Platform::new(helpers);
        let threads = Platform::start(&platform, turns);
        test(&platform);
        assert!(platform.slots.iter().all(|slot| !slot.has_work()), "everything is withdrawn");
        assert_eq!(platform.scheduler.jobs(), 0);
        for thread in threads {
            thread.join().expect("it caught its panics");
        }
    });
}

/// Returns a job of three units in three chunks, with any number of helpers.
fn three<'a>() -> Job<'a> {
    Job::new(0..3).min_chunk(1)
}

#[test]
fn every_chunk_is_called_once_and_seen() {
    for guided in [false, true] {
        model(1, 1, Some(5), move |platform| {
            let cells = Cells::new(3);
            let job = if guided { three().guided() } else { three() };
            let summary = job.run(platform, |range, _| {
                cells.add(range);
                Ok::<_, Infallible>(())
            });
            assert_eq!(summary.expect("nothing fails").units, 3);
            assert!((0..3).all(|unit| cells.get(unit) == 1));
        });
    }
}

#[test]
fn two_chunks_without_any_bound() {
    model(1, 1, None, run_two_units);
}

#[test]
fn two_helpers_share_the_chunks() {
    model(2, 1, Some(2), |platform| {
        let cells = Cells::new(3);
        let summary = three().run(platform, |range, worker| {
            assert!(worker.index() < 3);
            cells.add(range);
            Ok::<_, Infallible>(())
        });
        assert_eq!(summary.expect("nothing fails").units, 3);
        assert!((0..3).all(|unit| cells.get(unit) == 1));
    });
}

#[test]
fn a_helper_serves_one_job_after_the_other() {
    // What the first job borrowed is gone when the second runs: a late helper must not see it.
    model(1, 2, Some(3), |platform| {
        for _ in 0..2 {
            run_two_units(platform);
        }
    });
}

#[test]
fn two_jobs_compete_for_a_helper() {
    model(1, 1, Some(2), |platform| {
        // The second job runs on a thread of its own; the model's threads cannot borrow, so the
        // platform is passed as an address.
        let shared = std::ptr::from_ref(platform).expose_provenance();
        let other = thread::spawn(move || {
            // SAFETY: the thread is joined before the platform goes.
            let platform = unsafe { &*std::ptr::with_exposed_provenance::<Platform>(shared) };
            run_two_units(platform);
        });
        run_two_units(platform);
        other.join().expect("it ends well");
    });
}

fn run_two_units(platform: &Platform) {
    let cells = Cells::new(2);
    let summary = Job::new(0..2).min_chunk(1).run(platform, |range, _| {
        cells.add(range);
        Ok::<_, Infallible>(())
    });
    assert_eq!(summary.expect("nothing fails").units, 2);
    assert!((0..2).all(|unit| cells.get(unit) == 1));
}

#[test]
fn what_succeeded_is_undone_after_an_error() {
    for bad in 0..3 {
        model(1, 1, Some(5), move |platform| {
            let (cells, done) = (Cells::new(3), AtomicU32::new(0));
            let mut undone = 0;
            let result = three().run_or_undo(
                platform,
                |range, _| {
                    if range.contains(&bad) {
                        return Err(bad);
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                    cells.add(range);
                    Ok(())
                },
                |range| {
                    undone += range.end - range.start;
                    range.for_each(|unit| assert_eq!(cells.get(unit), 1));
                },
            );
            assert_eq!(result, Err(JobError::Failed { error: bad, range: bad..bad + 1 }));
            assert_eq!(undone, u64::from(done.load(Ordering::Relaxed)));
        });
    }
}

#[test]
fn the_first_of_two_errors_wins() {
    model(1, 1, Some(5), |platform| {
        // What the error owns must reach the caller, too.
        let result = three().run_or_undo(
            platform,
            |range, _| Err(UnsafeCell::new(range.start)),
            |range| panic!("{range:?} did not succeed"),
        );
        let Err(JobError::Failed { error, range }) = result else { panic!("it failed") };
        // SAFETY: loom fails the test if the chunk's write is not seen.
        assert_eq!(error.with(|unit| unsafe { *unit }), range.start);
    });
}

#[test]
fn cancelling_leaves_whole_chunks() {
    model(1, 1, Some(5), |platform| {
        let (cells, cancel) = (Cells::new(3), Cancel::new());
        let mut undone = 0;
        let result = three().cancelled_by(&cancel).run_or_undo(
            platform,
            |range, _| {
                cells.add(range.clone());
                if range.start == 1 {
                    cancel.cancel();
                }
                Ok::<_, Infallible>(())
            },
            |range| {
                undone += range.end - range.start;
                range.for_each(|unit| assert_eq!(cells.get(unit), 1));
            },
        );
        match result {
            Ok(summary) => assert_eq!((summary.units, undone), (3, 0)),
            Err(JobError::Cancelled { units }) => assert_eq!(units, undone),
            Err(other) => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_job_in_a_job_ends() {
    model(1, 2, Some(1), |platform| {
        let cells = Cells::new(4);
        let inner = |outer: u64| {
            let inner = Job::new(outer * 2..outer * 2 + 2).min_chunk(1);
            inner.run(platform, |range: Range<u64>, _: &Worker<'_>| {
                cells.add(range);
                Ok::<_, Infallible>(())
            })
        };
        let outer = Job::new(0..2).min_chunk(1);
        let summary = outer.run(platform, |range, _| inner(range.start).map(|_| ()));
        assert_eq!(summary.expect("nothing fails").units, 2);
        assert!((0..4).all(|unit| cells.get(unit) == 1));
    });
}

#[test]
fn a_panic_reaches_the_caller_when_all_have_stopped() {
    model(1, 1, Some(5), |platform| {
        let cells = Cells::new(3);
        let result = catch_unwind(AssertUnwindSafe(|| {
            three().run(platform, |range, _| {
                cells.add(range.clone());
                // Panics without the panic hook's message.
                if range.start == 1 {
                    std::panic::resume_unwind(Box::new("in a chunk"));
                }
                Ok::<_, Infallible>(())
            })
        }));
        assert!(result.is_err());
        // No helper is in the job any more.
        assert!((0..3).all(|unit| cells.get(unit) <= 1) && cells.get(1) == 1);
    });
}

/// A platform whose helper sleeps, with a flag that says so.
struct Sleeper {
    slots: [WorkerSlot; 1],
    scheduler: SchedulerState,
    asleep: AtomicBool,
    bell: Notify,
}

impl Helpers for Sleeper {
    fn workers(&self) -> Option<Workers<'_>> {
        Some(Workers { slots: &self.slots, scheduler: &self.scheduler })
    }

    fn wake(&self, _helper: usize) {
        if self.asleep.load(Ordering::Relaxed) {
            self.bell.notify();
        }
    }
}

#[test]
fn no_wake_is_lost() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let platform = Arc::new(Sleeper {
            slots: [WorkerSlot::new()],
            scheduler: SchedulerState::new(),
            asleep: AtomicBool::new(false),
            bell: Notify::new(),
        });
        let helper = {
            let platform = Arc::clone(&platform);
            thread::spawn(move || {
                if !platform.slots[0].serve() {
                    platform.asleep.store(true, Ordering::Relaxed);
                    while !platform.slots[0].has_work() {
                        platform.bell.wait();
                    }
                    platform.slots[0].serve();
                }
            })
        };
        // The caller waits until the helper had a chunk: if a wake-up were lost, both would sleep
        // for ever.
        let (came, bell) = (AtomicBool::new(false), Notify::new());
        let summary = Job::new(0..2).min_chunk(1).run(&*platform, |_, worker| {
            if worker.index() != 0 {
                came.store(true, Ordering::Release);
                bell.notify();
            }
            while !came.load(Ordering::Acquire) {
                bell.wait();
            }
            Ok::<_, Infallible>(())
        });
        assert!(summary.expect("nothing fails").threads >= 1);
        helper.join().expect("it ends well");
    });
}
