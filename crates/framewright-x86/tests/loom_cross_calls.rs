//! Calls between CPUs under every interleaving that the memory model allows. What crosses is plain memory here, so the model fails when it is seen
//! too early; a call that nobody is notified of never ends, and the model says so.
//! `RUSTFLAGS="--cfg loom" cargo test --release -p framewright-x86 --test loom_cross_calls --target-dir target/loom`
#![cfg(loom)]

use framewright_x86::cross_calls::CrossCalls;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;

struct Machine {
    calls: CrossCalls<3>,
    notices: [AtomicBool; 3],
    finished: AtomicU32,
}

impl Machine {
    fn new() -> Arc<Self> {
        let notices = [AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false)];
        Arc::new(Self { calls: CrossCalls::new(), notices, finished: AtomicU32::new(0) })
    }

    /// An interrupt: nothing is served without one. What was written before it was sent is visible to its handler.
    fn interrupt(&self, me: usize) -> bool {
        self.notices[me].swap(false, Ordering::AcqRel) && self.calls.serve(me as u32, |_| ())
    }

    /// Calls `target` with plain memory in both directions.
    fn call(&self, me: usize, target: u32) {
        let there = Plain(UnsafeCell::new(0));
        let back = Plain(UnsafeCell::new(0));
        there.0.with_mut(|value| unsafe { *value = 7 });
        let function = || {
            let seen = there.read();
            back.0.with_mut(|value| unsafe { *value = seen + 1 });
        };
        let notify = |target: u32| self.notices[target as usize].store(true, Ordering::Release);
        let count = self.calls.call(me as u32, [target].into_iter(), &function, notify, |done| {
            while !done() {
                self.interrupt(me);
                thread::yield_now();
            }
        });
        assert_eq!((count, back.read()), (1, 8));
    }

    /// Is interrupted until all have finished.
    fn finish(&self, me: usize, all: u32) {
        self.finished.fetch_add(1, Ordering::Relaxed);
        while self.finished.load(Ordering::Relaxed) != all {
            self.interrupt(me);
            thread::yield_now();
        }
    }
}

/// Memory whose accesses the model checks.
struct Plain(UnsafeCell<u32>);

// The model finds out whether that is so.
unsafe impl Sync for Plain {}

impl Plain {
    fn read(&self) -> u32 {
        self.0.with(|value| unsafe { *value })
    }
}

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

#[test]
fn two_cpus_call_each_other() {
    model(|| {
        let machine = Machine::new();
        let other = {
            let machine = Arc::clone(&machine);
            thread::spawn(move || {
                machine.call(1, 0);
                machine.finish(1, 2);
            })
        };
        machine.call(0, 1);
        machine.finish(0, 2);
        other.join().unwrap();
    });
}

#[test]
fn two_cpus_call_a_third_with_one_notice_or_two() {
    model(|| {
        let machine = Machine::new();
        let callers: Vec<_> = (0..2)
            .map(|me| {
                let machine = Arc::clone(&machine);
                thread::spawn(move || {
                    machine.call(me, 2);
                    machine.finished.fetch_add(1, Ordering::Relaxed);
                })
            })
            .collect();
        while machine.finished.load(Ordering::Relaxed) != 2 {
            machine.interrupt(2);
            thread::yield_now();
        }
        for caller in callers {
            caller.join().unwrap();
        }
    });
}

#[test]
fn a_cpu_calls_again_at_once() {
    model(|| {
        let machine = Machine::new();
        let other = {
            let machine = Arc::clone(&machine);
            thread::spawn(move || machine.finish(1, 2))
        };
        machine.call(0, 1);
        machine.call(0, 1);
        machine.finish(0, 2);
        other.join().unwrap();
    });
}
