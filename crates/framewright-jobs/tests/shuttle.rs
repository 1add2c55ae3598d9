//! Larger jobs than loom can exhaust, under many random schedules: several helpers and callers,
//! nesting, errors, cancellation, panics, all at once.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test --release -p framewright-jobs --test shuttle_jobs
//! --target-dir target/shuttle`
#![cfg(shuttle)]

use framewright_jobs::{
    Cancel, Helpers, Job, JobError, Part, SchedulerState, Worker, WorkerSlot, Workers,
};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shuttle::sync::{Arc, Mutex, MutexGuard, PoisonError};
use shuttle::thread;
use std::any::Any;
use std::convert::Infallible;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

const SCHEDULES: usize = 3000;

/// Helpers that look for work until they are told to end. A random schedule may let one sleep most
/// of the time.
struct Platform {
    slots: Vec<WorkerSlot>,
    scheduler: SchedulerState,
    /// Advances by one at each reading.
    clock: Option<AtomicU64>,
    panics: Vec<Mutex<Option<Box<dyn Any + Send>>>>,
    over: AtomicBool,
}

impl Platform {
    /// All tasks of shuttle are one thread to the standard library, so any lock that is released
    /// while one of them unwinds is poisoned.
    fn payload(&self, helper: usize) -> MutexGuard<'_, Option<Box<dyn Any + Send>>> {
        self.panics[helper].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Helpers for Platform {
    fn workers(&self) -> Option<Workers<'_>> {
        Some(Workers { slots: &self.slots, scheduler: &self.scheduler })
    }

    fn wake(&self, _helper: usize) {}

    fn now_ns(&self) -> Option<u64> {
        self.clock.as_ref().map(|clock| clock.fetch_add(2000, Ordering::Relaxed))
    }

    fn start_cost_ns(&self) -> Option<u64> {
        Some(1000)
    }

    fn resume_panic(&self, helper: usize) -> ! {
        let payload = self.payload(helper).take();
        resume_unwind(payload.expect("it panicked"))
    }
}

/// Runs `test` on a platform of `helpers` helpers under many schedules; all slots must be idle at
/// the end.
fn explore(helpers: usize, clock: bool, test: impl Fn(&Arc<Platform>) + Send + Sync + 'static) {
    let body = move || {
        let platform = Arc::new(Platform {
            slots: (0..helpers).map(|_| WorkerSlot::new()).collect(),
            scheduler: SchedulerState::new(),
            clock: clock.then(|| AtomicU64::new(0)),
            panics: (0..helpers).map(|_| Mutex::new(None)).collect(),
            over: AtomicBool::new(false),
        });
        let helper = |index: usize| {
            let platform = Arc::clone(&platform);
            thread::spawn(move || {
                while !platform.over.load(Ordering::Relaxed) {
                    platform.slots[index].serve_with(|work| {
                        if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
                            *platform.payload(index) = Some(payload);
                        }
                    });
                    thread::yield_now();
                }
            })
        };
        let threads: Vec<_> = (0..helpers).map(helper).collect();
        test(&platform);
        assert!(platform.slots.iter().all(|slot| !slot.has_work() && !slot.serve()));
        assert_eq!(platform.scheduler.jobs(), 0);
        platform.over.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().expect("it caught its panics"));
    };
    shuttle::check_random(body, SCHEDULES);
}

/// One count for each unit.
struct Counts(Vec<AtomicU64>);

impl Counts {
    fn new(units: u64) -> Self {
        Self((0..units).map(|_| AtomicU64::new(0)).collect())
    }

    fn unit(&self, unit: u64) -> &AtomicU64 {
        &self.0[usize::try_from(unit).expect("units are few")]
    }

    fn add(&self, range: Range<u64>) {
        for unit in range {
            self.unit(unit).fetch_add(1, Ordering::Relaxed);
        }
    }

    fn undo(&self, range: Range<u64>) {
        for unit in range {
            assert_eq!(self.unit(unit).swap(0, Ordering::Relaxed), 1, "unit {unit} was not done");
        }
    }

    fn all_are(&self, count: u64) -> bool {
        self.0.iter().all(|unit| unit.load(Ordering::Relaxed) == count)
    }
}

/// Returns a job over 0..24 of any shape.
fn any_shape<'a>(parts: &'a [Part]) -> Job<'a> {
    match thread_rng().gen_range(0..4) {
        0 => Job::new(0..24).min_chunk(1),
        1 => Job::new(0..24).min_chunk(2).guided(),
        2 => Job::new(0..24).align(3),
        _ => Job::of_parts(parts).min_chunk(1),
    }
}

fn three_parts() -> [Part; 3] {
    [Part { node: 0, range: 0..5 }, Part { node: 1, range: 5..20 }, Part { node: 0, range: 20..24 }]
}

#[test]
fn every_unit_is_done_once() {
    for clock in [false, true] {
        explore(3, clock, |platform| {
            let (counts, parts) = (Counts::new(24), three_parts());
            let work = |range: Range<u64>, worker: &Worker<'_>| {
                assert!(worker.index() < 4);
                counts.add(range);
                Ok::<_, Infallible>(())
            };
            assert_eq!(any_shape(&parts).run(&**platform, work).expect("nothing fails").units, 24);
            assert!(counts.all_are(1));
        });
    }
}

/// Runs a job that may fail, be cancelled or panic at random, and checks the result.
fn unlucky(platform: &Arc<Platform>) {
    let (counts, parts, cancel) = (Counts::new(24), three_parts(), Cancel::new());
    let fate = thread_rng().gen_range(0..4);
    let bad = thread_rng().gen_range(0..24);
    let result = catch_unwind(AssertUnwindSafe(|| {
        any_shape(&parts).cancelled_by(&cancel).run_or_undo(
            &**platform,
            |range, _| {
                match fate {
                    0 if range.contains(&bad) => return Err(bad),
                    1 if range.contains(&bad) => cancel.cancel(),
                    // Panics without the panic hook's message.
                    2 if range.contains(&bad) => resume_unwind(Box::new(bad)),
                    _ => {}
                }
                counts.add(range);
                Ok(())
            },
            |range| counts.undo(range),
        )
    }));
    match (fate, result) {
        (0, Ok(Err(JobError::Failed { error, range }))) => {
            assert!(error == bad && range.contains(&bad));
            assert!(counts.all_are(0), "all was undone");
        }
        (1, Ok(Err(JobError::Cancelled { .. }))) => assert!(counts.all_are(0), "all was undone"),
        (1 | 3, Ok(Ok(summary))) => assert!(summary.units == 24 && counts.all_are(1)),
        (2, Err(payload)) => assert_eq!(payload.downcast_ref::<u64>(), Some(&bad)),
        (fate, result) => panic!("fate {fate}: {result:?}"),
    }
}

#[test]
fn errors_cancellation_and_panics() {
    for clock in [false, true] {
        explore(3, clock, unlucky);
    }
}

#[test]
fn callers_compete_for_helpers() {
    explore(2, false, |platform| {
        let callers: Vec<_> = (0..2)
            .map(|_| {
                let platform = Arc::clone(platform);
                thread::spawn(move || {
                    for _ in 0..2 {
                        unlucky(&platform);
                    }
                })
            })
            .collect();
        unlucky(platform);
        callers.into_iter().for_each(|caller| caller.join().expect("it ends well"));
    });
}

#[test]
fn jobs_in_jobs() {
    explore(3, false, |platform| {
        let counts = Counts::new(64);
        let outer = |range: Range<u64>, _: &Worker<'_>| {
            let middle = Job::new(range.start * 16..range.end * 16).min_chunk(4);
            let run = middle.run(&**platform, |range, _| {
                let inner = Job::new(range).min_chunk(1);
                let run = inner.run(&**platform, |range, _| {
                    counts.add(range);
                    Ok::<_, Infallible>(())
                });
                run.map(|_| ())
            });
            run.map(|_| ())
        };
        Job::new(0..4).min_chunk(1).run(&**platform, outer).expect("nothing fails");
        assert!(counts.all_are(1));
    });
}
