//! Jobs that do not succeed: errors with undo, cancellation, panics, and invalid descriptions.

use crate::common::{Log, joined};
use framewright_jobs::{
    Cancel, DoneCount, InvalidJob, Job, JobError, MAX_NODES, MAX_PARTS, NoHelpers, Part, Placement,
    Summary, Worker, WorkerStats,
};
use framewright_testkit::HelperPool;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Runs `job` with chunks that fail if they contain a unit of `bad`, and checks the promises about
/// errors and undo.
fn fail_and_undo(
    job: &Job<'_>,
    pool: &HelperPool,
    bad: &BTreeSet<u64>,
    size: u64,
) -> Result<Summary, JobError<u64>> {
    let (good, failed) = (Log::default(), Log::default());
    let mut undone = Vec::new();
    let caller = std::thread::current().id();
    let result = job.run_or_undo(
        pool,
        |range, _| match bad.range(range.clone()).next() {
            Some(&unit) => {
                failed.add(range);
                Err(unit)
            }
            None => {
                good.add(range);
                Ok(())
            }
        },
        |range| {
            assert_eq!(std::thread::current().id(), caller);
            undone.push(range);
        },
    );
    let (good, failed) = (good.sorted(), failed.sorted());
    match &result {
        Ok(summary) => {
            assert!(failed.is_empty() && undone.is_empty());
            assert_eq!(summary.units, size);
        }
        Err(JobError::Failed { error, range }) => {
            assert!(range.contains(error) && failed.contains(range));
            assert_eq!(undone, joined(good), "undone in this order, against what succeeded");
        }
        Err(other) => panic!("{other:?}"),
    }
    assert!(pool.is_idle());
    result
}

#[test]
fn an_error_in_any_chunk_undoes_what_succeeded() {
    for helpers in 0..3 {
        let pool = HelperPool::new(helpers);
        for guided in [false, true] {
            let job = Job::with_size(3, 60).align(2).min_chunk(2);
            let job = if guided { job.guided() } else { job };
            for unit in 3..63 {
                let result = fail_and_undo(&job, &pool, &BTreeSet::from([unit]), 60);
                assert!(matches!(result, Err(JobError::Failed { error, .. }) if error == unit));
            }
            assert!(fail_and_undo(&job, &pool, &BTreeSet::new(), 60).is_ok());
        }
        for unit in 3..63 {
            let result = fail_and_undo(&Job::with_size(3, 60), &pool, &BTreeSet::from([unit]), 60);
            assert!(matches!(result, Err(JobError::Failed { error, .. }) if error == unit));
        }
    }
}

#[test]
fn alone_no_chunk_is_called_after_an_error() {
    let log = Log::default();
    let mut undone = Vec::new();
    let failing = |range: Range<u64>, _: &Worker<'_>| {
        log.add(range.clone());
        if range.start == 500 { Err("no") } else { Ok(()) }
    };
    let result = Job::new(0..1000)
        .min_chunk(10)
        .run_or_undo(&NoHelpers, failing, |range| undone.push(range));
    assert_eq!(result, Err(JobError::Failed { error: "no", range: 500..750 }));
    assert_eq!(log.sorted(), [0..250, 250..500, 500..750]);
    assert!(undone.len() == 1 && undone[0] == (0..500), "{undone:?}");
    // A single call for the whole range: it did not succeed, so nothing is undone.
    let result =
        Job::new(0..7).run_or_undo(&NoHelpers, |_, _| Err("no"), |_| panic!("nothing to undo"));
    assert_eq!(result, Err(JobError::Failed { error: "no", range: 0..7 }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn random_errors_undo_what_succeeded(
        helpers in 0_usize..4,
        size in 1_u64..2000,
        align in 1_u64..30,
        min_chunk in proptest::option::of(0_u64..60),
        guided in any::<bool>(),
        clock in any::<bool>(),
        bad in proptest::collection::btree_set(0_u64..4000, 0..6),
        sizes in proptest::collection::vec(0_u64..600, 0..6),
    ) {
        let pool = HelperPool::new(helpers);
        let pool = if clock { pool } else { pool.without_clock() };
        let cut = |job: Job<'_>| -> Result<(), JobError<u64>> {
            let job = job.align(align);
            let job = if guided { job.guided() } else { job };
            let job = min_chunk.map_or(job, |units| job.min_chunk(units));
            fail_and_undo(&job, &pool, &bad, job.size()?).map(|_| ())
        };
        let _ = cut(Job::with_size(0, size));
        // Some parts are adjacent, others are not.
        let mut at = 0;
        let parts: Vec<_> = (0..).zip(&sizes).map(|(index, size)| {
            let start = at + if index % 2 == 0 { 0 } else { 7 };
            at = start + size;
            Part { node: index % 3, range: start..at }
        }).collect();
        let _ = cut(Job::of_parts(&parts));
    }
}

#[test]
fn cancelling_stops_claims_and_undoes() {
    let pool = HelperPool::new(2);
    for guided in [false, true] {
        let (cancel, done, log) = (Cancel::new(), DoneCount::new(), Log::default());
        let mut undone = Vec::new();
        let job = Job::new(0..1 << 40)
            .min_chunk(1 << 4)
            .max_threads(3)
            .cancelled_by(&cancel)
            .counting_in(&done);
        let job = if guided { job.guided() } else { job };
        let work = |range: Range<u64>, worker: &Worker<'_>| {
            log.add(range);
            cancel.cancel();
            assert!(worker.should_stop());
            Ok::<_, Infallible>(())
        };
        let result = job.run_or_undo(&pool, work, |range| undone.push(range));
        let chunks = log.sorted();
        let units = chunks.iter().map(|chunk| chunk.end - chunk.start).sum();
        assert_eq!(result, Err(JobError::Cancelled { units }));
        assert_eq!(done.units(), units);
        // Each worker had at most one chunk.
        assert!((1..=3).contains(&chunks.len()));
        assert_eq!(undone, joined(chunks));
        // A token that is already cancelled stops a job before its first chunk, whatever its shape.
        for job in [Job::new(0..10), Job::new(0..10).min_chunk(1)] {
            let result =
                job.cancelled_by(&cancel).run(&pool, |_, _| -> Result<(), ()> { panic!("called") });
            assert_eq!(result, Err(JobError::Cancelled { units: 0 }));
        }
    }
    // A job that is cancelled in its last chunk is complete.
    let cancel = Cancel::new();
    let last = |range: Range<u64>, _: &Worker<'_>| {
        if range.end == 100 {
            cancel.cancel();
        }
        Ok::<_, Infallible>(())
    };
    let job = Job::new(0..100).cancelled_by(&cancel);
    let summary = job.run_or_undo(&NoHelpers, last, |_| panic!("complete")).expect("all was done");
    assert!(summary.chunks > 10, "a job that can be cancelled is cut: {summary:?}");
}

#[test]
fn a_panic_anywhere_reaches_the_caller_with_its_payload() {
    let pool = HelperPool::new(2);
    for unit in 0..40 {
        let running = AtomicU64::new(0);
        let log = Log::default();
        let result = catch_unwind(AssertUnwindSafe(|| {
            Job::new(0..40).min_chunk(1).run_or_undo(
                &pool,
                |range, _| {
                    running.fetch_add(1, Ordering::SeqCst);
                    log.add(range.clone());
                    if range.contains(&unit) {
                        running.fetch_sub(1, Ordering::SeqCst);
                        std::panic::panic_any(unit);
                    }
                    running.fetch_sub(1, Ordering::SeqCst);
                    Ok::<_, Infallible>(())
                },
                |_| unreachable!("a panic is no error"),
            )
        }));
        assert_eq!(result.expect_err("it panicked").downcast_ref::<u64>(), Some(&unit));
        assert_eq!(running.load(Ordering::SeqCst), 0, "all have stopped");
        assert!(pool.is_idle());
    }
    // The pool still works.
    let summary = Job::new(0..1000).min_chunk(1).run(&pool, |_, _| Ok::<_, Infallible>(()));
    assert_eq!(summary.expect("nothing fails").units, 1000);
}

#[test]
fn a_panic_on_a_helper_reaches_the_caller() {
    let pool = HelperPool::new(1);
    let panicked = AtomicBool::new(false);
    let result = catch_unwind(AssertUnwindSafe(|| {
        Job::new(0..1 << 40).min_chunk(1).run(&pool, |_, worker| {
            if worker.index() != 0 {
                panicked.store(true, Ordering::SeqCst);
                panic!("on a helper");
            }
            // The caller must not take all chunks before the helper comes.
            while !panicked.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            Ok::<_, Infallible>(())
        })
    }));
    assert_eq!(result.expect_err("it panicked").downcast_ref::<&str>(), Some(&"on a helper"));
    assert!(pool.is_idle());
}

#[test]
fn what_makes_no_sense_is_refused_and_named() {
    let never = |_: Range<u64>, _: &Worker<'_>| -> Result<(), ()> { panic!("called") };
    let pool = HelperPool::new(1);
    let part = |node, start, end| Part { node, range: Range { start, end } };
    let reversed = [part(0, 0, 5), part(0, 9, 8)];
    let crossing = [part(0, 0, 5), part(1, 4, 8)];
    let nowhere = [part(0, 0, 5), part(MAX_NODES, 5, 8)];
    let many = vec![part(0, 0, 0); MAX_PARTS + 1];
    let cases = [
        (
            Job::new(Range { start: 5, end: 3 }),
            InvalidJob::RangeReversed { start: 5, end: 3 },
            "range",
        ),
        (
            Job::with_size(5, u64::MAX - 4),
            InvalidJob::SizeOverflows { start: 5, size: u64::MAX - 4 },
            "size",
        ),
        (Job::new(0..5).align(0), InvalidJob::AlignZero, "align"),
        (Job::new(0..0).align(0), InvalidJob::AlignZero, "align"),
        (Job::new(0..5).max_threads(0), InvalidJob::MaxThreadsZero, "max_threads"),
        (
            Job::new(0..5).placement(Placement::Node(MAX_NODES)),
            InvalidJob::PlacementNode { node: MAX_NODES },
            "placement",
        ),
        (Job::of_parts(&reversed), InvalidJob::PartReversed { index: 1 }, "parts"),
        (Job::of_parts(&crossing), InvalidJob::PartOutOfOrder { index: 1 }, "parts"),
        (Job::of_parts(&nowhere), InvalidJob::PartNode { index: 1, node: MAX_NODES }, "parts"),
        (Job::of_parts(&many), InvalidJob::TooManyParts { count: MAX_PARTS + 1 }, "parts"),
    ];
    for (job, why, field) in cases {
        assert_eq!(job.run(&pool, never), Err(JobError::Invalid(why)));
        assert!(why.to_string().starts_with(field), "{why}");
    }
    let empty = [part(0, 3, 3)];
    let nothing = Ok(Summary { threads: 0, chunks: 0, units: 0 });
    for job in
        [Job::new(7..7), Job::with_size(u64::MAX, 0), Job::of_parts(&[]), Job::of_parts(&empty)]
    {
        assert_eq!(job.run(&pool, never), nothing);
        assert_eq!(job.min_chunk(0).run(&pool, never), nothing);
    }
}

#[test]
fn odd_input_that_is_allowed_is_covered() {
    let pool = HelperPool::new(3);
    let everything = Job::with_size(0, u64::MAX);
    for job in [
        everything.min_chunk(u64::MAX),
        everything.min_chunk(1),
        everything.min_chunk(0).align(u64::MAX),
        everything.align(u64::MAX),
        everything.align(1 << 63).min_chunk(1),
        everything.align(3).guided().min_chunk(1 << 50),
        everything.align(1 << 50),
        Job::with_size(u64::MAX - 5, 5).align(1 << 60),
        Job::with_size(u64::MAX - 5, 5).align(2).min_chunk(0),
    ] {
        let log = Log::default();
        // There is room for the caller's statistics only.
        let own = [WorkerStats::new()];
        let result = job.recording_in(&own).run(&pool, |range, _| {
            log.add(range);
            Ok::<_, Infallible>(())
        });
        let size = job.size().expect("it makes sense");
        assert_eq!(result.expect("nothing fails").units, size);
        assert_eq!(joined(log.sorted()).len(), 1);
        assert!(own[0].units() <= size);
    }
}
