//! Threads in the place of CPUs: each target serves every call exactly once, whatever the others
//! do, and sees the memory that the caller wrote.

use framewright_arch::ipi::CrossCalls;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

const CPUS: usize = 5;
const ROUNDS: u32 = 3000;

std::thread_local! {
    static ME: Cell<u32> = const { Cell::new(0) };
}

/// The calls, and for each CPU a flag that says that it has been interrupted.
struct Machine {
    calls: CrossCalls<CPUS>,
    notices: [AtomicBool; CPUS],
    finished: AtomicU32,
}

impl Machine {
    fn new() -> Self {
        let notices = [const { AtomicBool::new(false) }; CPUS];
        Self { calls: CrossCalls::new(), notices, finished: AtomicU32::new(0) }
    }

    /// Takes a pending interrupt; a call is served only by an interrupt.
    fn interrupt(&self, me: u32) {
        if self.notices[me as usize].swap(false, Ordering::AcqRel) {
            self.calls.serve(me, |_| ());
        } else {
            thread::yield_now();
        }
    }

    fn call(
        &self,
        me: u32,
        targets: impl Iterator<Item = u32>,
        function: &(dyn Fn() + Sync),
    ) -> u32 {
        let notify = |target: u32| self.notices[target as usize].store(true, Ordering::Release);
        self.calls.caller(me).call(targets, function, notify, |done| {
            if !done() {
                self.interrupt(me);
            }
        })
    }
}

#[test]
fn all_call_all_and_each_is_called_once() {
    let machine = Machine::new();
    thread::scope(|scope| {
        for me in 0..u32::try_from(CPUS).expect("few") {
            let machine = &machine;
            scope.spawn(move || {
                ME.set(me);
                for round in 0..ROUNDS {
                    // On this stack, so it is gone when the call is over.
                    let called = [const { AtomicU32::new(0) }; CPUS];
                    // All others or some of them; some are named twice, some do not exist.
                    let targets: Vec<u32> = (0..5)
                        .filter(|&cpu| cpu != me && (round % 3 == 0 || (cpu + round) % 2 == 0))
                        .collect();
                    let named = targets.iter().copied().chain([900]);
                    let count = machine.call(me, named, &|| {
                        called[ME.get() as usize].fetch_add(round + 1, Ordering::Relaxed);
                    });
                    assert_eq!(count as usize, targets.len());
                    for (cpu, called) in (0u32..).zip(&called) {
                        let expected = if targets.contains(&cpu) { round + 1 } else { 0 };
                        assert_eq!(
                            called.load(Ordering::Relaxed),
                            expected,
                            "CPU {cpu} in round {round} of CPU {me}"
                        );
                    }
                }
                machine.finished.fetch_add(1, Ordering::AcqRel);
                while machine.finished.load(Ordering::Acquire) as usize != CPUS {
                    machine.interrupt(me);
                }
            });
        }
    });
    assert!((0..5).all(|cpu| !machine.calls.is_wanted(cpu)));
}

#[test]
fn a_target_that_is_named_twice_calls_once() {
    let calls = CrossCalls::<2>::new();
    let called = AtomicU32::new(0);
    let count = calls.caller(0).call(
        [1, 1, 2, 1].into_iter(),
        &|| {
            called.fetch_add(1, Ordering::Relaxed);
        },
        |_| (),
        |_| {
            assert!(calls.is_wanted(1) && !calls.is_wanted(0));
            let mut woken = Vec::new();
            assert!(calls.serve(1, |caller| woken.push(caller)));
            assert_eq!(woken, [0]);
            assert!(!calls.serve(1, |_| ()) && !calls.serve(0, |_| ()) && !calls.serve(7, |_| ()));
        },
    );
    assert_eq!((count, called.into_inner()), (1, 1));
}

/// A target may serve its call while the caller still names others.
#[test]
fn a_target_that_is_named_again_after_it_has_called_calls_once() {
    let calls = CrossCalls::<200>::new();
    let called = AtomicU32::new(0);
    let serve = |target| assert!(calls.serve(target, |_| ()));
    let count = calls.caller(0).call(
        [1, 1, 199, 135, 199, 1].into_iter(),
        &|| {
            called.fetch_add(1, Ordering::Relaxed);
        },
        serve,
        |_| (),
    );
    assert_eq!((count, called.into_inner()), (3, 3));
}

#[test]
fn two_callers_share_a_notice() {
    let calls = CrossCalls::<3>::new();
    let mut notices = 0;
    calls.caller(0).call(
        [2].into_iter(),
        &|| (),
        |_| notices += 1,
        |_| {
            // While CPU 2 has not served the first call, the second sends no interrupt, and CPU 2
            // serves both at once.
            calls.caller(1).call(
                [2].into_iter(),
                &|| (),
                |_| panic!("a notice is on its way"),
                |_| {
                    let mut woken = Vec::new();
                    calls.serve(2, |caller| woken.push(caller));
                    assert_eq!(woken, [0, 1]);
                },
            );
        },
    );
    assert_eq!(notices, 1);
}

#[test]
fn nobody_to_call_is_no_wait() {
    let calls = CrossCalls::<2>::new();
    assert_eq!(
        calls.caller(0).call(
            [5].into_iter(),
            &|| panic!("nobody is there"),
            |_| panic!(),
            |_| panic!()
        ),
        0
    );
}

#[test]
fn a_call_inside_a_call_is_refused() {
    let calls = CrossCalls::<2>::new();
    let nested = calls.caller(0).call(
        [1].into_iter(),
        &|| (),
        |_| (),
        |_| {
            let again = catch_unwind(AssertUnwindSafe(|| {
                calls.caller(0).call([1].into_iter(), &|| (), |_| (), |_| ())
            }));
            assert!(again.is_err());
            calls.serve(1, |_| ());
        },
    );
    assert_eq!(nested, 1);
}
