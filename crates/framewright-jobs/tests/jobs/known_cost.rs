//! Jobs with a known cost per unit, right or wrong: how they use it, and what they record for the
//! next job. The chunks advance the clock.

use crate::common::starved::Starved;
use crate::common::{Log, assert_covers};
use framewright_jobs::{
    Cancel, DoneCount, Helpers, Job, JobError, NoHelpers, Part, UnitCost, WorkerStats,
};
use framewright_testkit::HelperPool;
use proptest::prelude::*;
use std::convert::Infallible;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

/// What one run of a job did.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    /// Readings of the clock.
    readings: usize,
    chunks: Vec<Range<u64>>,
    /// Helpers that were woken.
    woken: usize,
    /// Helpers that were woken before the first chunk.
    at_once: usize,
}

/// Runs `job`, whose units take `unit_ns` each.
fn run(platform: &Starved, job: &Job<'_>, unit_ns: u64) -> Run {
    let log = Log::default();
    let (before, at_once) = (platform.readings.load(Ordering::Relaxed), AtomicUsize::new(0));
    job.run(platform, |range, _| {
        if log.len() == 0 {
            at_once.store(platform.woken.lock().expect("nobody panicked").len(), Ordering::Relaxed);
        }
        platform.now_ns.fetch_add((range.end - range.start) * unit_ns, Ordering::Relaxed);
        log.add(range);
        Ok::<_, Infallible>(())
    })
    .expect("nothing fails");
    let readings = platform.readings.load(Ordering::Relaxed) - before;
    Run {
        readings,
        chunks: log.sorted(),
        woken: platform.take_woken().len(),
        at_once: at_once.into_inner(),
    }
}

/// Returns the cost that is learnt from a job of two units of `unit_ns` each, with two clock
/// readings of 20 ns.
fn taught(unit_ns: u64) -> UnitCost {
    let cost = UnitCost::new();
    run(&Starved::new(1), &Job::new(0..2).learning_in(&cost), unit_ns);
    cost
}

#[test]
fn fifteen_of_sixteen_small_jobs_do_not_look_at_the_clock() {
    let platform = Starved::new(1);
    let cost = UnitCost::new();
    for turn in 0..80 {
        let seen = run(&platform, &Job::new(50..150).learning_in(&cost), 1);
        assert_eq!((seen.woken, platform.asked_allowance.load(Ordering::Relaxed)), (0, 0));
        if turn % 16 == 0 {
            assert!((2..=3).contains(&seen.readings), "{seen:?}");
        } else {
            assert_eq!(
                (seen.readings, seen.chunks.len(), &seen.chunks[0]),
                (0, 1, &(50..150)),
                "turn {turn}"
            );
        }
        // The learnt cost includes the readings themselves.
        let known = cost.ns_of(100).expect("it was taught");
        assert!((100..=160).contains(&known), "{known}");
    }
}

#[test]
fn nothing_known_is_as_without() {
    for (units, unit_ns) in [(100, 1), (100, 10), (1000, 20), (100_000, 3), (7, 100_000)] {
        let (cost, job) = (UnitCost::new(), Job::new(3..3 + units));
        let (with, without) = (Starved::new(2), Starved::new(2));
        let (seen, expected) =
            (run(&with, &job.learning_in(&cost), unit_ns), run(&without, &job, unit_ns));
        assert_eq!((&seen.chunks, seen.woken), (&expected.chunks, expected.woken));
        // There may be one more reading, at the end of the last chunk.
        assert!((expected.readings..=expected.readings + 1).contains(&seen.readings));
        assert!(cost.ns_of(units).is_some_and(|ns| ns >= units * unit_ns));
    }
}

#[test]
fn a_job_that_is_known_to_be_worth_helpers_asks_at_once() {
    // A helper is worth two start costs of 10 us.
    for (units, unit_ns, helpers) in [(1000, 1000, 9), (30_000, 1, 1), (100, 1000, 5)] {
        let cost = UnitCost::new();
        let job = Job::new(0..units).learning_in(&cost);
        assert_eq!(run(&Starved::new(9), &job, unit_ns).at_once, 0);
        // A platform on which every earlier request was answered.
        let seen = run(&Starved::new(9), &job, unit_ns);
        assert!(
            seen.at_once == seen.woken && seen.woken.abs_diff(helpers) <= 1,
            "{seen:?}, not {helpers}"
        );
    }
    // A job of medium size asks for no helper, and reads the clock once along the way.
    let cost = taught(100);
    let seen = run(&Starved::new(9), &Job::new(0..100).learning_in(&cost), 100);
    assert_eq!((seen.woken, seen.readings), (0, 2));
    assert_eq!((seen.chunks.len(), &seen.chunks[0]), (2, &(0..50)));
}

#[test]
fn units_that_became_dear_are_found_out_after_fifteen_jobs_at_most() {
    let platform = Starved::new(3);
    let cost = UnitCost::new();
    let job = Job::new(0..100).learning_in(&cost);
    run(&platform, &job, 1);
    for _ in 0..15 {
        assert_eq!(
            (run(&platform, &job, 100_000).woken, cost.ns_of(1_000_000).is_some()),
            (0, true)
        );
    }
    let sixteenth = run(&platform, &job, 100_000);
    assert!(
        sixteenth.woken == 3 && sixteenth.at_once == 0 && sixteenth.chunks[0].end == 50,
        "{sixteenth:?}"
    );
    // 10 ms is a large job, so it asks for helpers although none came before.
    assert_eq!(run(&platform, &job, 100_000).at_once, 3);
    // A job of more such units is not small; the first one finds that out.
    let cost = taught(1);
    let job = Job::new(0..100_000).learning_in(&cost);
    assert!(run(&platform, &job, 1000).woken == 3 && cost.ns_of(1).is_some_and(|ns| ns >= 1000));
}

#[test]
fn units_that_became_cheap_wake_helpers_once() {
    let platform = Starved::new(1);
    let cost = taught(100_000);
    let job = Job::new(0..100).learning_in(&cost);
    let woken: Vec<_> = (0..40).map(|_| run(&platform, &job, 1).woken).collect();
    assert_eq!((woken[0], woken.iter().sum::<usize>()), (1, 1));
    assert!(cost.ns_of(100).is_some_and(|ns| ns < 300), "{cost:?}");
}

#[test]
fn helpers_that_do_not_come_are_asked_for_less_and_less() {
    let platform = Starved::new(1);
    let cost = taught(1);
    let job = Job::new(0..200_000).learning_in(&cost);
    let asked: Vec<usize> = (0..61).filter(|_| run(&platform, &job, 1).woken != 0).collect();
    assert_eq!(asked, [0, 2, 6, 14, 30, 46]);
}

#[test]
fn only_a_job_that_was_done_teaches() {
    let platform = Starved::new(1);
    for unit_ns in [1, 1_000, 100_000] {
        let cost = taught(unit_ns);
        let known = cost.ns_of(1 << 20);
        let work = |range: Range<u64>| {
            platform.now_ns.fetch_add((range.end - range.start) * 77, Ordering::Relaxed)
        };
        for size in [40_u64, 100_000] {
            let job = Job::new(0..size).learning_in(&cost);
            for _ in 0..20 {
                let failed = job.run(&platform, |range, _| {
                    work(range.clone());
                    if range.end == size { Err(()) } else { Ok(()) }
                });
                assert!(matches!(failed, Err(JobError::Failed { .. })));
                let cancel = Cancel::new();
                let cancelled = job.cancelled_by(&cancel).run(&platform, |range, _| {
                    work(range);
                    cancel.cancel();
                    Ok::<_, ()>(())
                });
                assert!(cancelled.is_err());
                let panicked = catch_unwind(AssertUnwindSafe(|| {
                    job.run(&platform, |range, _| {
                        work(range);
                        if size != 0 { panic!("as is meant") } else { Ok::<_, ()>(()) }
                    })
                }));
                assert!(panicked.is_err());
                // Jobs that have no units, are invalid, or are a single call by their fields, and a
                // job without a clock and helpers.
                assert!(
                    Job::new(5..5)
                        .learning_in(&cost)
                        .run(&platform, |_, _| Ok::<_, ()>(()))
                        .is_ok()
                );
                assert!(job.align(0).run(&platform, |_, _| Ok::<_, ()>(())).is_err());
                assert!(
                    job.max_threads(1)
                        .recording_in(&[])
                        .run(&NoHelpers, |_, _| Ok::<_, ()>(()))
                        .is_ok()
                );
            }
        }
        assert_eq!(cost.ns_of(1 << 20), known);
    }
    platform.take_woken();
    // A job with a smallest chunk neither uses nor learns the cost.
    let (cost, unknown) = (taught(1), UnitCost::new());
    let known = cost.ns_of(1 << 20);
    for cost in [&cost, &unknown] {
        let seen = run(&platform, &Job::new(0..1000).min_chunk(100).guided().learning_in(cost), 9);
        let without = run(&platform, &Job::new(0..1000).min_chunk(100).guided(), 9);
        assert_eq!(seen, without);
    }
    assert_eq!((cost.ns_of(1 << 20), unknown.ns_of(1)), (known, None));
    let mut blind = Starved::new(1);
    blind.has_clock = false;
    run(&blind, &Job::new(0..1000).learning_in(&unknown), 9);
    assert_eq!(unknown.ns_of(1), None);
}

#[test]
fn a_small_job_that_fails_leaves_nothing_to_undo() {
    let platform = Starved::new(1);
    let cost = taught(1);
    let undone = Log::default();
    let job = Job::new(10..110).learning_in(&cost);
    let result =
        job.run_or_undo(&platform, |range, _| Err::<(), _>(range.end), |range| undone.add(range));
    assert_eq!(result, Err(JobError::Failed { error: 110, range: 10..110 }));
    assert_eq!(undone.len(), 0);
}

#[test]
fn watched_jobs_and_jobs_of_parts_learn_too() {
    let parts = [Part { node: 1, range: 0..600 }, Part { node: 3, range: 600..1000 }];
    let (cancel, done, workers) = (Cancel::new(), DoneCount::new(), [WorkerStats::new()]);
    let watched = Job::new(0..1000).cancelled_by(&cancel).counting_in(&done).recording_in(&workers);
    for job in [watched, Job::of_parts(&parts)] {
        let cost = UnitCost::new();
        let job = job.learning_in(&cost);
        assert_eq!(run(&Starved::new(2), &job, 1000).at_once, 0);
        assert!(cost.ns_of(1).is_some_and(|ns| (1000..1100).contains(&ns)), "{cost:?}");
        assert_eq!(run(&Starved::new(2), &job, 1000).at_once, 2);
        // They are divided however small they are.
        let seen = run(&Starved::new(2), &job, 0);
        assert!(seen.chunks.len() > 1 && seen.readings > 1, "{seen:?}");
    }
}

#[test]
fn what_it_takes_to_wake_helpers_is_no_units() {
    /// A platform on which a wake-up takes a millisecond.
    struct Slow(Starved);
    impl Helpers for Slow {
        fn workers(&self) -> Option<framewright_jobs::Workers<'_>> {
            self.0.workers()
        }
        fn wake(&self, _helper: usize) {
            self.0.now_ns.fetch_add(1_000_000, Ordering::Relaxed);
        }
        fn now_ns(&self) -> Option<u64> {
            self.0.now_ns()
        }
    }
    let platform = Slow(Starved::new(2));
    let cost = UnitCost::new();
    for _ in 0..5 {
        let summary = Job::new(0..1000).learning_in(&cost).run(&platform, |range, _| {
            platform.0.now_ns.fetch_add((range.end - range.start) * 1000, Ordering::Relaxed);
            Ok::<_, Infallible>(())
        });
        assert!(summary.is_ok() && cost.ns_of(1000).is_some_and(|ns| ns < 1_100_000), "{cost:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn every_unit_is_done_once_whatever_is_known(
        (start, size) in (prop_oneof![0_u64..2000, Just(u64::MAX - 20_000)], 0_u64..20_000),
        (align, max_threads, helpers) in (1_u64..200, 1_u32..8, 0_usize..5),
        unit_ns in prop_oneof![0_u64..5, 0_u64..1_000_000, any::<u64>()],
        work in 0_u32..40,
    ) {
        let pool = HelperPool::new(helpers);
        let cost = taught(unit_ns / 2);
        for _ in 0..3 {
            let log = Log::default();
            let job = Job::with_size(start, size).align(align).max_threads(max_threads);
            let job = job.learning_in(&cost);
            let summary = job.run(&pool, |range, worker| {
                assert!(worker.index() < max_threads);
                for turn in 0..(range.end - range.start) * u64::from(work) {
                    std::hint::black_box(turn);
                }
                log.add(range);
                Ok::<_, Infallible>(())
            }).expect("nothing fails");
            let chunks = log.sorted();
            assert_covers(&chunks, start..start + size, align);
            prop_assert_eq!((summary.chunks, summary.units), (chunks.len() as u64, size));
            prop_assert!(summary.threads as usize <= (1 + helpers).min(max_threads as usize));
            prop_assert!(pool.is_idle());
        }
    }
}
