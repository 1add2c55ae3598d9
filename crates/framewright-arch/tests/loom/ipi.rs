//! Calls between CPUs under every interleaving that the memory model allows. The data that a call
//! passes is plain memory here, so the model fails if it is seen too early; a CPU that is not
//! notified of a call waits for ever, and the model reports that.

use framewright_arch::ipi::CrossCalls;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;

const CPUS: usize = 3;

struct Machine {
    calls: CrossCalls<CPUS>,
    /// A CPU sleeps until its bell rings, which means an interrupt or that the last target of its
    /// call has served it. Writes from before the ring are visible afterwards.
    bells: [Notify; CPUS],
    /// The number of calls that each CPU has served; only that CPU counts and reads it.
    served: [AtomicU32; CPUS],
    /// Hands over the role of CPU 0: its next holder learns of its turn here and nothing else.
    turn: AtomicU32,
    /// What the previous holder has left.
    left: Plain,
}

/// One CPU.
struct Cpu {
    machine: Arc<Machine>,
    me: usize,
}

impl Cpu {
    fn sleep(&self) {
        self.machine.bells[self.me].wait();
        self.machine
            .calls
            .serve(self.me as u32, |caller| self.machine.bells[caller as usize].notify());
    }

    /// Makes `target` call a function, with plain memory in both directions.
    fn call(&self, target: u32) {
        let there = Plain(UnsafeCell::new(0));
        let back = Plain(UnsafeCell::new(0));
        there.write(7);
        let function = || {
            back.write(there.read() + 1);
            self.machine.served[target as usize].fetch_add(1, Ordering::Relaxed);
        };
        let notify = |target: u32| self.machine.bells[target as usize].notify();
        let count = self.machine.calls.caller(self.me as u32).call(
            [target].into_iter(),
            &function,
            notify,
            |done| {
                if !done() {
                    self.sleep();
                }
            },
        );
        assert_eq!((count, back.read()), (1, 8));
    }

    /// Sleeps until this many calls were served in all.
    fn serve(&self, calls: u32) {
        let served = || self.machine.served[self.me].load(Ordering::Relaxed);
        while served() < calls {
            self.sleep();
        }
        assert_eq!(served(), calls);
    }
}

/// Memory whose accesses the model checks.
struct Plain(UnsafeCell<u32>);

// SAFETY: the model finds out whether accesses exclude each other.
unsafe impl Sync for Plain {}

impl Plain {
    fn read(&self) -> u32 {
        // SAFETY: as above.
        self.0.with(|value| unsafe { *value })
    }

    fn write(&self, new: u32) {
        // SAFETY: as above.
        self.0.with_mut(|value| unsafe { *value = new });
    }
}

/// Runs one function for each CPU. Two CPUs are explored with three preemptions, three CPUs with
/// two, because more would take minutes.
fn model(cpus: &'static [fn(&Cpu)]) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(if cpus.len() > 2 { 2 } else { 3 });
    builder.check(move || {
        let bells = [Notify::new(), Notify::new(), Notify::new()];
        let served = [AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0)];
        let (turn, left) = (AtomicU32::new(0), Plain(UnsafeCell::new(0)));
        let machine = Arc::new(Machine { calls: CrossCalls::new(), bells, served, turn, left });
        let start = |me: usize, life: fn(&Cpu)| {
            let machine = Arc::clone(&machine);
            thread::spawn(move || life(&Cpu { machine, me }))
        };
        let threads: Vec<_> = (0..).zip(cpus).map(|(me, life)| start(me, *life)).collect();
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn two_cpus_call_each_other() {
    model(&[
        |cpu| {
            cpu.call(1);
            cpu.serve(1);
        },
        |cpu| {
            cpu.call(0);
            cpu.serve(1);
        },
    ]);
}

#[test]
fn two_cpus_call_a_third_with_one_notice_or_two() {
    model(&[|cpu| cpu.call(2), |cpu| cpu.call(2), |cpu| cpu.serve(2)]);
}

#[test]
fn a_cpu_calls_again_at_once() {
    model(&[
        |cpu| {
            cpu.call(1);
            cpu.call(1);
        },
        |cpu| cpu.serve(2),
    ]);
}

#[test]
fn two_threads_are_one_cpu_by_turns() {
    model(&[
        |cpu| {
            cpu.machine.left.write(5);
            cpu.call(2);
            cpu.machine.turn.store(1, Ordering::Relaxed);
        },
        |other| {
            while other.machine.turn.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            let cpu = Cpu { machine: Arc::clone(&other.machine), me: 0 };
            let notify = |target: u32| {
                assert_eq!(cpu.machine.left.read(), 5);
                cpu.machine.bells[target as usize].notify();
            };
            let served = || {
                cpu.machine.served[2].fetch_add(1, Ordering::Relaxed);
            };
            let calls = &cpu.machine.calls;
            calls.caller(0).call([2].into_iter(), &served, notify, |done| {
                if !done() {
                    cpu.sleep();
                }
            });
        },
        |cpu| cpu.serve(2),
    ]);
}
