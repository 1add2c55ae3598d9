//! Tests of helpers that are replaced when it turns out that priorities cannot be raised any more.

use super::super::HostedHelpers;
use super::*;
use framewright_jobs::Job;
use std::convert::Infallible;
use std::sync::atomic::AtomicBool;

/// Reports what could not be tested here. It bypasses the test harness, which hides the output of
/// tests that pass; `cargo xtask test` counts these lines.
fn not_possible(what: &str) {
    use std::io::Write;
    let line = format!("\nNOT POSSIBLE HERE: {what}\n");
    // Standard error may be closed.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

fn breathe() {
    std::thread::sleep(Duration::from_micros(50));
}

fn one_lowered_helper() -> HostedHelpers {
    let helpers = HostedHelpers::new().with_helpers(1).with_priority(Priority::Lent);
    assert_eq!(helpers.pool().start(1), 1);
    helpers
}

fn tid(helpers: &HostedHelpers) -> i32 {
    helpers.pool().shared.states[0].tid.load(Ordering::SeqCst)
}

/// Runs a job whose helper stays in its chunk until `leave`; `inside` says that the helper has
/// begun.
fn job(helpers: &HostedHelpers, inside: &AtomicBool, leave: &AtomicBool) {
    let begun = AtomicBool::new(false);
    let result = Job::new(0..2).min_chunk(1).max_threads(2).run(helpers, |_, worker| {
        if worker.index() != 0 {
            inside.store(true, Ordering::SeqCst);
            // Otherwise the helper might do both chunks before the caller begins one.
            while !leave.load(Ordering::SeqCst) || !begun.load(Ordering::SeqCst) {
                breathe();
            }
        }
        begun.store(true, Ordering::SeqCst);
        while !inside.load(Ordering::SeqCst) {
            breathe();
        }
        Ok::<_, Infallible>(())
    });
    assert_eq!(result.map(|summary| summary.threads), Ok(2));
}

/// Whether the CPUs and the quota of this process allow a helper.
fn is_possible() -> bool {
    let possible = HostedHelpers::new().pool().allowance() > 0;
    if !possible {
        not_possible("a helper that is replaced: this process may use one CPU only");
    }
    possible
}

/// Two helpers in one slot would end each other's sleep without a wake-up.
#[test]
fn a_successor_begins_when_its_predecessor_has_left() {
    if !is_possible() {
        return;
    }
    let helpers = one_lowered_helper();
    let (inside, leave) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| job(&helpers, &inside, &leave));
        while !inside.load(Ordering::SeqCst) {
            breathe();
        }
        let first = tid(&helpers);
        helpers.pool().shared.keep_priority();
        assert_eq!((helpers.started(), helpers.pool().start(1)), (0, 1));
        let stays = (0..100).all(|_| {
            std::thread::sleep(Duration::from_millis(1));
            tid(&helpers) == first
        });
        leave.store(true, Ordering::SeqCst);
        assert!(stays, "the successor is there, its predecessor as well");
        while tid(&helpers) == first {
            breathe();
        }
    });
    // The helper that now runs works and then ends.
    let second = tid(&helpers);
    job(&helpers, &AtomicBool::new(false), &leave);
    assert_eq!((tid(&helpers), helpers.started()), (second, 1));
}

/// A helper that is replaced at any moment, asleep or about to sleep, has a successor that works.
#[test]
fn a_helper_that_is_replaced_is_not_lost() {
    if !is_possible() {
        return;
    }
    let leave = AtomicBool::new(true);
    for round in 0..500 {
        let helpers = one_lowered_helper();
        if round % 2 == 0 {
            job(&helpers, &AtomicBool::new(false), &leave);
        }
        (0..round * 40).for_each(|_| std::hint::spin_loop());
        helpers.pool().shared.keep_priority();
        assert_eq!(helpers.pool().start(1), 1);
        if round % 3 == 0 {
            job(&helpers, &AtomicBool::new(false), &leave);
        }
    }
}

/// A helper at lowered priority starts no successors, because they would run at its priority.
#[test]
fn a_lowered_helper_starts_no_helper_that_keeps_a_priority() {
    if !is_possible() {
        return;
    }
    let helpers = one_lowered_helper();
    let (inside, leave, started) =
        (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(usize::MAX));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let result = Job::new(0..2).min_chunk(1).max_threads(2).run(&helpers, |_, worker| {
                if worker.index() != 0 {
                    inside.store(true, Ordering::SeqCst);
                    while !leave.load(Ordering::SeqCst) {
                        breathe();
                    }
                    started.store(helpers.pool().start(1), Ordering::SeqCst);
                }
                while !inside.load(Ordering::SeqCst) {
                    breathe();
                }
                Ok::<_, Infallible>(())
            });
            assert!(result.is_ok());
        });
        while !inside.load(Ordering::SeqCst) {
            breathe();
        }
        helpers.pool().shared.keep_priority();
        leave.store(true, Ordering::SeqCst);
    });
    assert_eq!(started.into_inner(), 0);
    assert_eq!(helpers.pool().start(1), 1);
}

/// A helper's panic payload may stay with the helper if its caller panicked as well.
#[test]
fn what_throws_again_when_it_is_dropped_ends_no_helper() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::resume_unwind(Box::new("again"));
        }
    }
    if !is_possible() {
        return;
    }
    let helpers = one_lowered_helper();
    // Both threads are in a chunk; `own` and `helps` are what each of them does there.
    let run = |own: fn(), helps: fn()| {
        let inside = [const { AtomicBool::new(false) }; 2];
        catch_unwind(AssertUnwindSafe(|| {
            let two = Job::new(0..2).min_chunk(1).max_threads(2);
            two.run(&helpers, |_, worker| {
                inside[usize::from(worker.index() != 0)].store(true, Ordering::SeqCst);
                while !inside.iter().all(|is| is.load(Ordering::SeqCst)) {
                    breathe();
                }
                if worker.index() == 0 {
                    own()
                } else {
                    helps()
                }
                Ok::<_, Infallible>(())
            })
        }))
    };
    let throw = || std::panic::resume_unwind(Box::new("once"));
    let both = run(
        || std::panic::resume_unwind(Box::new("once")),
        || std::panic::resume_unwind(Box::new(Bomb)),
    );
    assert!(both.is_err());
    assert!(run(|| {}, throw).is_err());
    let whole = run(|| {}, || {});
    assert!(matches!(whole, Ok(Ok(summary)) if summary.threads == 2));
}

#[test]
fn a_helper_that_was_lent_nothing_lends_nothing() {
    let pool = Pool::new(1, Some(Priority::Lent));
    // On a separate thread, because its priority changes.
    let lent = || {
        IS_LOWERED.set(true);
        system::set_level(LOWEST_NICE).expect("any thread may");
        let state = HelperState::default();
        state.tid.store(system::tid(), Ordering::Relaxed);
        pool.shared.lend(&state, &|| false)
    };
    let lent = std::thread::scope(|scope| scope.spawn(lent).join().expect("no panic"));
    assert!(!lent, "whoever lends its priority later would think that it has passed it on");
}

#[test]
fn jobs_see_slots_that_have_threads() {
    let helpers = HostedHelpers::new().with_helpers(3).with_priority(Priority::Lent);
    let slots = || helpers.pool().slots_with_threads().len();
    let own = CpuMask::of_this_thread().expect("the system says").count() - 1;
    assert_eq!(slots(), own.clamp(1, 3), "the first job that wants them starts these");
    for threads in 1..=3 {
        assert_eq!(helpers.pool().start(threads), threads);
        assert_eq!(slots(), threads.max(own.min(3)));
    }
    // A thread that may use one CPU sees the slots that have threads.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            CpuMask::of([system::cpu()]).adopt().expect("it is there");
            assert_eq!(slots(), 3);
        });
    });
}

#[test]
fn realtime_threads_are_above_all_others() {
    let own = || {
        let before = system::level().expect("the system says");
        let realtime = system::set_realtime(7).ok().map(|()| system::level());
        (before, realtime)
    };
    let (before, realtime) = std::thread::scope(|scope| scope.spawn(own).join().expect("it ends"));
    assert!((-20..=IDLE_LEVEL).contains(&before));
    match realtime {
        Some(level) => assert_eq!(level.expect("the system says"), -27),
        None => not_possible("a realtime thread: it takes CAP_SYS_NICE"),
    }
}

/// The number of threads that run a job worth some helpers: the most in fifty attempts.
fn most_threads(helpers: &HostedHelpers) -> u32 {
    let threads = || {
        let result = Job::new(0..20).run(helpers, |_, _| {
            std::thread::sleep(Duration::from_millis(1));
            Ok::<_, Infallible>(())
        });
        result.map_or(0, |summary| summary.threads)
    };
    (0..50).map(|_| threads()).find(|&threads| threads > 1).unwrap_or(1)
}

/// A thread that the quota denied a helper looks again, even if no thread was started since.
#[test]
fn a_quota_that_is_raised_is_noticed() {
    if !is_possible() {
        return;
    }
    let helpers = HostedHelpers::new().with_priority(Priority::Lent);
    let shared = &helpers.pool().shared;
    // The result of a quota of one CPU that was read two seconds ago.
    shared.quota_helpers.store(0, Ordering::Relaxed);
    shared.quota_read_ns.store(system::now_ns() - 2 * QUOTA_AGE_NS, Ordering::Relaxed);
    assert!(most_threads(&helpers) > 1);
}

/// A caller starts threads only by a quota that was read, and does not wait for who reads it.
#[test]
fn a_quota_that_is_being_read_for_the_first_time_delays_nobody() {
    let [helpers, others] =
        [(); 2].map(|()| HostedHelpers::new().with_helpers(3).with_priority(Priority::Lent));
    let (pool, expected) = (helpers.pool(), others.pool().allowance());
    // Another caller has announced that it is reading the quota.
    pool.shared.quota_read_ns.store(system::now_ns(), Ordering::Relaxed);
    pool.shared.quota_helpers.store(2, Ordering::Relaxed);
    assert_eq!((pool.allowance(), pool.started()), (expected, expected));
    let read = [pool, others.pool()].map(|pool| pool.shared.quota_helpers.load(Ordering::Relaxed));
    assert_eq!(read[0], read[1]);
}

/// Whoever starts threads may be a helper that has lost its CPU.
#[test]
fn nobody_waits_long_for_another_who_starts_threads() {
    let pool = Pool::new(1, Some(Priority::Lent));
    std::thread::scope(|scope| {
        let busy = lock(&pool.shared.threads);
        let (send, started) = std::sync::mpsc::channel();
        let pool = &pool;
        scope.spawn(move || send.send(pool.start(1)));
        let before = started.recv_timeout(Duration::from_secs(60));
        drop(busy);
        assert_eq!((before, pool.start(1)), (Ok(0), 1));
    });
}

/// Meanwhile jobs have no helpers, whichever priority those would have.
#[test]
fn a_priority_that_cannot_be_found_out_is_asked_for_later() {
    let pool = Pool::new(1, None);
    pool.shared.not_before_ns.store(u64::MAX, Ordering::Relaxed);
    assert_eq!((pool.priority(), pool.allowance(), pool.started()), (None, 0, 0));
    pool.shared.not_before_ns.store(1, Ordering::Relaxed);
    assert_eq!(pool.priority(), Priority::probe());
}

/// A job on a pool whose helpers are lowered may run inside one on a pool whose helpers are not.
#[test]
fn the_level_of_a_caller_is_not_forgotten_in_another_pool() {
    let pools = [Priority::Kept, Priority::Lent].map(|priority| Pool::new(1, Some(priority)));
    // On a separate thread, because its priority changes.
    let check = || {
        let began = Schedule::of_this_thread().expect("the system says").nice;
        system::set_level(LOWEST_NICE).expect("any thread may go down");
        let [kept, lent] = &pools;
        // Each job asks for its allowance first, and prepares a helper after that.
        let asked = [true, false].map(|keeps| Context::of_this_thread(keeps).is_some());
        assert_eq!(asked, [true; 2]);
        kept.prepare(0);
        let context = kept.shared.states[0].parking.begin().0.expect("a call").context;
        assert!(context.allows(LOWEST_NICE) && (began == LOWEST_NICE || !context.allows(began)));
        // The pool of lowered helpers turns to others in the middle of a job.
        Context::of_this_thread(false).expect("the system says");
        lent.shared.keep_priority();
        lent.prepare(0);
        let context = lent.shared.states[0].parking.begin().0.expect("a call").context;
        assert!(context.allows(LOWEST_NICE) && (began == LOWEST_NICE || !context.allows(began)));
    };
    std::thread::scope(|scope| scope.spawn(check).join().expect("no panic"));
}

/// Slots without threads would hold up jobs that other helpers could help with.
#[test]
fn jobs_see_no_slots_whose_threads_cannot_be_started() {
    let helpers = HostedHelpers::new().with_helpers(3).with_priority(Priority::Lent);
    let slots = || helpers.pool().slots_with_threads().len();
    let shared = &helpers.pool().shared;
    shared.not_before_ns.store(u64::MAX, Ordering::Relaxed);
    assert_eq!((helpers.pool().start(2), slots()), (0, 1));
    shared.not_before_ns.store(1, Ordering::Relaxed);
    assert_eq!(helpers.pool().start(2), 2);
    shared.not_before_ns.store(u64::MAX, Ordering::Relaxed);
    assert_eq!((helpers.pool().start(3), slots()), (2, 2));
}
