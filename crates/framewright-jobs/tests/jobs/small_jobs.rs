//! When a job wakes helpers, on a platform whose clock the chunks advance and whose helpers never
//! come.

use crate::common::Log;
use crate::common::starved::Starved;
use framewright_jobs::{
    Cancel, Helpers, Job, JobError, NoHelpers, Placement, SchedulerState, WorkerStats,
};
use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn a_small_job_touches_neither_helpers_nor_much_of_the_clock() {
    for (units, unit_ns) in
        [(1, 1_000_000_000), (1000, 1), (1000, 20), (19_000, 1), (19, 1000), (2, 9000)]
    {
        let platform = Starved::new(4);
        assert_eq!(
            platform.run(&Job::new(0..units), |_| unit_ns),
            0,
            "{units} units of {unit_ns} ns"
        );
        assert_eq!(platform.asked_allowance.load(Ordering::Relaxed), 0);
        let readings = platform.readings.load(Ordering::Relaxed) as u64;
        let total = units * unit_ns;
        assert!(
            readings * 20 <= (total / 20).max(100),
            "{readings} readings in a job of {total} ns"
        );
    }
    // A job of one unit or one thread does not read the clock at all.
    let platform = Starved::new(4);
    platform.run(&Job::new(0..1), |_| 5);
    platform.run(&Job::new(0..1000).max_threads(1), |_| 5);
    platform.run(&Job::new(0..1000).align(1000), |_| 5);
    platform.run(&Job::new(0..1000).min_chunk(501), |_| 5);
    assert_eq!(platform.readings.load(Ordering::Relaxed), 0);
}

#[test]
fn a_job_gets_as_many_helpers_as_pay() {
    // A helper is worth two start costs: 1 ms justifies about 50 helpers.
    for (total_us, least, most) in
        [(19, 0, 0), (25, 1, 1), (100, 4, 5), (1000, 45, 55), (100_000, 99, 99)]
    {
        let platform = Starved::new(200);
        let woken = platform.run(&Job::new(0..total_us * 1000).max_threads(100), |_| 1);
        assert!((least..=most).contains(&woken), "{total_us} us: {woken} helpers");
    }
    // No more helpers are woken than there are chunks for them.
    let platform = Starved::new(200);
    assert!(platform.run(&Job::new(0..8), |_| 100_000_000) <= 7);
    // Dear units after cheap ones are found; 16 us in a million units stay 16 us.
    let hole = |unit| if unit < 5000 { 1 } else { 10_000 };
    assert_eq!(Starved::new(20).run(&Job::new(0..10_000), hole), 20);
    assert_eq!(Starved::new(20).run(&Job::new(0..1 << 20), |unit| u64::from(unit % 64 == 0)), 0);
}

/// The platform may be about to find out how many helpers there are.
#[test]
fn a_job_that_may_have_no_helper_asks_again() {
    let run = |refusals, ms: u64| {
        let platform = Starved { refusals, ..Starved::new(3) };
        let woken = platform.run(&Job::new(0..ms * 1000), |_| 1000);
        (woken, platform.asked_allowance.into_inner())
    };
    assert_eq!([0, 1, 5].map(|refusals| run(refusals, 10)), [(3, 1), (3, 2), (3, 6)]);
    // Where there is none, it asks between chunks that soon take a millisecond, and not at all if
    // it is small.
    let (woken, asked) = run(usize::MAX, 100);
    assert!(woken == 0 && asked < 130, "{asked} times");
    assert_eq!(run(usize::MAX, 2), (0, 1));
}

#[test]
fn helpers_that_do_not_come_are_asked_for_less_and_less() {
    let platform = Starved::new(1);
    let (small, large) = (Job::new(0..200_000), Job::new(0..10_000_000));
    let asks = |job: &Job<'_>| platform.run(job, |_| 1) != 0;
    // Between two jobs that ask for helpers, 1, 3, 7 and then always 15 do not.
    let asked: Vec<usize> = (0..61).filter(|_| asks(&small)).collect();
    assert_eq!(asked, [0, 2, 6, 14, 30, 46]);
    // A large job always asks, and so does a job that is known to justify helpers.
    assert!((0..20).all(|_| asks(&large)));
    assert!((0..20).all(|_| asks(&small.min_chunk(1000))));
    assert!(!asks(&small));
    // A helper that comes, here on the caller's own thread, ends this.
    let has_come = AtomicUsize::new(0);
    let summary = large.run(&platform, |range, _| {
        platform.now_ns.fetch_add(range.end - range.start, Ordering::Relaxed);
        if platform.slots[0].serve() {
            has_come.fetch_add(1, Ordering::Relaxed);
        }
        Ok::<_, Infallible>(())
    });
    assert_eq!((summary.map(|summary| summary.threads), has_come.into_inner()), (Ok(2), 1));
    platform.take_woken();
    assert!(asks(&small) && !asks(&small) && asks(&small));
}

#[test]
fn a_job_that_ended_before_its_helper_could_come_did_not_ask_in_vain() {
    // A dear beginning: the rest is estimated at 200 us and takes 10 us.
    let platform = Starved::new(1);
    for _ in 0..20 {
        assert_eq!(platform.run(&Job::new(0..1000), |unit| if unit < 16 { 200 } else { 10 }), 1);
    }
}

#[test]
fn what_was_done_before_helpers_were_called_counts_and_is_undone() {
    // At 40 us a unit, helpers are woken after the first chunk; at 20 ns, never.
    for (unit_ns, is_small) in [(20, true), (40_000, false)] {
        let platform = Starved::new(2);
        let work = |range: Range<u64>| {
            platform.now_ns.fetch_add(unit_ns * (range.end - range.start), Ordering::Relaxed)
        };
        let log = Log::default();
        let all = Job::new(10..110).align(3).run(&platform, |range, _| {
            work(range.clone());
            log.add(range);
            Ok::<_, Infallible>(())
        });
        let chunks = log.sorted();
        let summary = all.expect("nothing fails");
        assert_eq!((summary.threads, summary.units, summary.chunks), (1, 100, chunks.len() as u64));
        assert_eq!(platform.take_woken().is_empty(), is_small);
        for bad in &chunks {
            let mut undone = Vec::new();
            let failing = |range: Range<u64>, _: &framewright_jobs::Worker<'_>| {
                work(range.clone());
                if range == *bad { Err("no") } else { Ok(()) }
            };
            // Chunks depend on measured times, which are equal except for the start of the clock.
            let result = Job::new(10..110)
                .align(3)
                .run_or_undo(&platform, failing, |range| undone.push(range));
            assert_eq!(result, Err(JobError::Failed { error: "no", range: bad.clone() }));
            let succeeded: Vec<_> =
                std::iter::once(10..bad.start).filter(|range| !range.is_empty()).collect();
            assert_eq!(undone, succeeded, "{bad:?} of {chunks:?}");
        }
    }
}

#[test]
fn without_a_clock_helpers_are_called_at_once() {
    let mut platform = Starved::new(10);
    platform.has_clock = false;
    assert_eq!(platform.run(&Job::new(0..1000), |_| 1), 10);
    assert_eq!(platform.run(&Job::new(0..1000).max_threads(4), |_| 1), 3);
    assert_eq!(platform.run(&Job::new(0..1000).align(256), |_| 1), 2);
    assert_eq!(platform.run(&Job::new(0..1), |_| 1), 0);
}

#[test]
fn one_thread_without_a_smallest_chunk_is_one_call_unless_it_is_watched() {
    let calls = |job: Job<'_>| {
        job.run(&NoHelpers, |_, _| Ok::<_, Infallible>(())).expect("nothing fails").chunks
    };
    assert_eq!(calls(Job::new(0..1 << 30)), 1);
    let cancel = Cancel::new();
    assert_eq!(calls(Job::new(0..1 << 30).cancelled_by(&cancel)), 64);
    assert_eq!(calls(Job::new(0..1 << 30).cancelled_by(&cancel).min_chunk(1 << 30)), 1);
}

#[test]
fn helpers_are_placed_as_wished() {
    let platform = Starved::new(6);
    let nodes = || platform.take_woken().into_iter().map(|(_, node)| node).collect::<Vec<_>>();
    let run = |job: Job<'_>| {
        job.run(&platform, |_, _| Ok::<_, Infallible>(())).map(|_| ()).expect("nothing fails")
    };
    let job = Job::new(0..64).min_chunk(16);
    run(job);
    assert_eq!(nodes(), [None; 3]);
    // The job goes round the nodes that have CPUs; the next job goes on where this one stopped.
    run(job.placement(Placement::Spread));
    let mut first = nodes();
    first.sort_unstable();
    assert_eq!(first, [Some(1), Some(1), Some(3)]);
    run(job.placement(Placement::Spread).max_threads(2));
    assert_eq!(nodes(), [Some(3)]);
    run(job.placement(Placement::Node(3)).max_threads(3));
    assert_eq!(platform.take_woken(), [(1, Some(3)), (3, Some(3))]);
    // Three helpers run on that node; any more come from other nodes.
    run(Job::new(0..64).min_chunk(1).max_threads(6).placement(Placement::Node(1)));
    let mut helpers: Vec<_> = platform.take_woken().into_iter().map(|(helper, _)| helper).collect();
    helpers.sort_unstable();
    assert_eq!(helpers, [0, 1, 2, 3, 4]);
}

#[test]
fn statistics_know_time_and_node() {
    let platform = Starved::new(1);
    let workers = [WorkerStats::new(), WorkerStats::new()];
    for job in [Job::new(0..100).min_chunk(1), Job::new(0..100).max_threads(1)] {
        let job = job.recording_in(&workers);
        let before = workers[0].busy_ns();
        let work = |range: Range<u64>, _: &framewright_jobs::Worker<'_>| {
            platform.now_ns.fetch_add((range.end - range.start) * 1000, Ordering::Relaxed);
            Ok::<_, Infallible>(())
        };
        job.run(&platform, work).expect("nothing fails");
        assert!((100_000..101_000).contains(&(workers[0].busy_ns() - before)));
    }
    assert_eq!((workers[0].units(), workers[0].chunks(), workers[0].node()), (200, 9 + 1, 0));
    assert_eq!((workers[1].units(), workers[1].chunks()), (0, 0));
}

#[test]
fn the_start_of_helpers_is_measured() {
    let scheduler = SchedulerState::new();
    assert_eq!(scheduler.start_cost_ns(), 20_000);
    let pool = framewright_testkit::HelperPool::new(2);
    let workers = pool.workers().expect("it has helpers");
    for _ in 0..50 {
        Job::new(0..64)
            .min_chunk(16)
            .run(&pool, |_, _| Ok::<_, Infallible>(()))
            .expect("nothing fails");
    }
    let measured = workers.scheduler.start_cost_ns();
    assert!((1..1_000_000_000_000).contains(&measured), "{measured} ns");
}
