//! Helpers that are replaced when priorities turn out not to be raised any more.

use super::super::HostedHelpers;
use super::*;
use framewright_jobs::Job;
use std::convert::Infallible;
use std::sync::atomic::AtomicBool;

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

/// A job whose helper stays in its chunk until `leave`; `inside` says that it has begun.
fn job(helpers: &HostedHelpers, inside: &AtomicBool, leave: &AtomicBool) {
    let begun = AtomicBool::new(false);
    let result = Job::new(0..2).min_chunk(1).max_threads(2).run(helpers, |_, worker| {
        if worker.index() != 0 {
            inside.store(true, Ordering::SeqCst);
            // Otherwise it might do both chunks before the caller begins one.
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

/// Whether there can be a helper, with the CPUs and the quota of this process.
fn is_possible() -> bool {
    let possible = HostedHelpers::new().pool().allowance() > 0;
    if !possible {
        eprintln!(
            "\nNOT POSSIBLE HERE: a helper that is replaced: this process may use one CPU only"
        );
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
    // The helper that is there now works, and ends.
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
