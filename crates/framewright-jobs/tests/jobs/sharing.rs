//! Jobs inside jobs, concurrent jobs, helpers that never come, and which worker gets which chunk.

use crate::common::{Log, assert_covers};
use framewright_jobs::{
    Helpers, Job, JobError, NoHelpers, Part, Placement, SchedulerState, Worker, WorkerSlot,
    WorkerStats, Workers,
};
use framewright_testkit::HelperPool;
use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};

#[test]
fn a_helper_that_does_not_come_delays_nobody() {
    let pool = HelperPool::new(3);
    pool.hold();
    for job in [Job::new(0..1000).min_chunk(1), Job::new(0..1000).min_chunk(1).guided()] {
        let workers = [const { WorkerStats::new() }; 4];
        let summary = job.recording_in(&workers).run(&pool, |_, worker| {
            assert_eq!(worker.index(), 0);
            Ok::<_, Infallible>(())
        });
        assert_eq!(summary.expect("nothing fails").threads, 1);
    }
    assert_eq!(pool.waits(), 0);
    // When the helpers come at last, no work waits for them: what the job borrowed is gone.
    assert!(pool.is_idle());
    pool.release();
    let summary = Job::new(0..1000).min_chunk(1).run(&pool, |_, _| Ok::<_, Infallible>(()));
    assert_eq!(summary.expect("nothing fails").units, 1000);
}

#[test]
fn helpers_that_come_work_at_the_same_time() {
    let pool = HelperPool::new(3);
    for job in [
        Job::new(0..4).min_chunk(1),
        Job::new(0..4).min_chunk(1).guided(),
        Job::new(0..400).min_chunk(100).max_threads(4).align(100),
    ] {
        // No worker goes on before all four have arrived, so each has one chunk.
        let barrier = Barrier::new(4);
        let indices = Mutex::new(Vec::new());
        let summary = job.run(&pool, |_, worker| {
            indices.lock().expect("nobody panicked").push(worker.index());
            barrier.wait();
            Ok::<_, Infallible>(())
        });
        assert_eq!(summary.expect("nothing fails").threads, 4);
        let mut indices = indices.into_inner().expect("nobody panicked");
        indices.sort_unstable();
        assert_eq!(indices, [0, 1, 2, 3]);
    }
}

#[test]
fn no_two_workers_have_one_number_at_a_time() {
    let pool = HelperPool::new(5);
    let busy = [const { AtomicBool::new(false) }; 4];
    for _ in 0..200 {
        let job = Job::new(0..500).min_chunk(1).max_threads(4);
        let summary = job.run(&pool, |_, worker| {
            let mine = &busy[worker.index() as usize];
            assert!(!mine.swap(true, Ordering::Relaxed));
            mine.store(false, Ordering::Relaxed);
            Ok::<_, Infallible>(())
        });
        summary.expect("nothing fails");
    }
}

#[test]
fn jobs_run_inside_jobs() {
    fn nested(
        pool: &HelperPool,
        depth: u32,
        count: &AtomicU64,
    ) -> Result<(), JobError<Infallible>> {
        if depth == 0 {
            count.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let job = Job::new(0..5).min_chunk(1);
        let run = job.run(pool, |range, _| {
            for _ in range {
                nested(pool, depth - 1, count).map_err(|why| panic!("{why}"))?;
            }
            Ok::<_, Infallible>(())
        });
        run.map(|_| ())
    }
    for helpers in [0, 1, 3] {
        let pool = HelperPool::new(helpers);
        let count = AtomicU64::new(0);
        nested(&pool, 5, &count).expect("nothing fails");
        assert_eq!(count.load(Ordering::Relaxed), 5_u64.pow(5));
        assert!(pool.is_idle());
    }
}

#[test]
fn jobs_beside_each_other_are_each_done() {
    let pool = HelperPool::new(2);
    std::thread::scope(|scope| {
        for number in 0..4_u64 {
            let pool = &pool;
            scope.spawn(move || {
                for turn in 0..200 {
                    let log = Log::default();
                    let job = Job::with_size(number * 1000, 100 + turn).min_chunk(1 + turn % 7);
                    let job = if turn % 2 == 0 { job.guided() } else { job };
                    job.run(pool, |range, _| {
                        log.add(range);
                        Ok::<_, Infallible>(())
                    })
                    .expect("nothing fails");
                    assert_covers(&log.sorted(), number * 1000..number * 1000 + 100 + turn, 1);
                }
            });
        }
    });
    assert!(pool.is_idle());
}

/// Helpers that run when the test calls them, on the test's own thread.
struct ByHand {
    slots: [WorkerSlot; 2],
    scheduler: SchedulerState,
}

impl Helpers for ByHand {
    fn workers(&self) -> Option<Workers<'_>> {
        Some(Workers { slots: &self.slots, scheduler: &self.scheduler })
    }

    fn wake(&self, _helper: usize) {}
}

#[test]
fn a_job_gives_up_a_helper_that_another_is_short_of() {
    let platform =
        ByHand { slots: [WorkerSlot::new(), WorkerSlot::new()], scheduler: SchedulerState::new() };
    let first = Mutex::new(Vec::new());
    let second = Mutex::new(Vec::new());
    let log = |log: &Mutex<Vec<u32>>, worker: &Worker<'_>| {
        log.lock().expect("nobody panicked").push(worker.index())
    };
    // The first job has both helpers. A second job starts inside the first chunk of one of them.
    Job::new(0..40)
        .min_chunk(1)
        .max_threads(3)
        .run(&platform, |_, worker| {
            log(&first, worker);
            if worker.index() == 0 {
                platform.slots[0].serve();
                return Ok::<_, Infallible>(());
            }
            if second.lock().expect("nobody panicked").is_empty() {
                Job::new(0..40)
                    .min_chunk(1)
                    .run(&platform, |_, worker| {
                        log(&second, worker);
                        // In the first chunk this is the first job's helper, which leaves without a
                        // chunk; after that it is the second's.
                        if worker.index() == 0 {
                            platform.slots[1].serve();
                        }
                        Ok::<_, Infallible>(())
                    })
                    .expect("nothing fails");
            }
            Ok(())
        })
        .expect("nothing fails");
    assert_eq!(*second.lock().expect("nobody panicked"), [0, 0, 1, 1]);
    // Twelve or thirteen chunks: one by the caller, then one helper does the rest inside it.
    let first = first.into_inner().expect("nobody panicked");
    assert_eq!(first.iter().filter(|&&index| index == 0).count(), 1);
    assert!(first.iter().all(|&index| index < 2), "the helper that left did nothing: {first:?}");
    assert!(!platform.slots.iter().any(WorkerSlot::has_work));
    assert_eq!(platform.scheduler.jobs(), 0);
}

#[test]
fn a_worker_begins_with_the_part_of_its_node() {
    let pool = HelperPool::on_nodes(&[1, 2]);
    let parts = [0, 1, 2]
        .map(|node| Part { node, range: u64::from(node) * 1000..u64::from(node) * 1000 + 900 });
    // No worker leaves its first chunk before all have one.
    let barrier = Barrier::new(3);
    let began = [const { AtomicBool::new(false) }; 3];
    let work = |range: Range<u64>, worker: &Worker<'_>| {
        if !began[worker.index() as usize].swap(true, Ordering::Relaxed) {
            assert_eq!(range.start / 1000, u64::from(worker.node()));
            barrier.wait();
        }
        Ok::<_, Infallible>(())
    };
    let job = Job::of_parts(&parts).min_chunk(1).placement(Placement::Spread);
    assert_eq!(job.run(&pool, work).expect("nothing fails").units, 2700);
}

/// However high the units are numbered.
#[test]
fn a_caller_of_another_node_begins_with_the_largest_part() {
    let parts = [Part { node: 1, range: 0..900 }, Part { node: 2, range: 2000..2010 }];
    for job in [Job::of_parts(&parts), Job::of_parts(&parts).min_chunk(1)] {
        let starts = Mutex::new(Vec::new());
        let run = job.run(&NoHelpers, |range, _| {
            starts.lock().expect("nobody panicked").push(range.start);
            Ok::<_, Infallible>(())
        });
        assert_eq!(run.expect("nothing fails").units, 910);
        assert_eq!(starts.into_inner().expect("nobody panicked")[0], 0);
    }
}

#[test]
fn what_chunks_wrote_is_seen_by_caller_and_undo() {
    let pool = HelperPool::new(3);
    for turn in 0..300 {
        // Relaxed atomics, each written once, so that only the job itself orders them.
        let cells: Vec<AtomicU64> = (0..256).map(|_| AtomicU64::new(0)).collect();
        let cell = |unit: u64| &cells[usize::try_from(unit).expect("it is below 256")];
        let result = Job::new(0..256).min_chunk(1).run_or_undo(
            &pool,
            |range, _| {
                if turn % 2 == 0 && range.contains(&200) {
                    return Err("no");
                }
                range.for_each(|unit| cell(unit).store(unit + 1, Ordering::Relaxed));
                Ok(())
            },
            |range| {
                for unit in range {
                    assert_eq!(cell(unit).swap(0, Ordering::Relaxed), unit + 1);
                }
            },
        );
        let expected = |unit: u64| if result.is_ok() { unit + 1 } else { 0 };
        assert!((0..256).all(|unit| cell(unit).load(Ordering::Relaxed) == expected(unit)));
    }
}

#[test]
fn a_slot_without_work_serves_nothing() {
    let pool = HelperPool::new(1);
    let workers = pool.workers().expect("it has one");
    assert!(!workers.slots[0].serve() && !workers.slots[0].has_work());
    assert_eq!(workers.scheduler.jobs(), 0);
}
