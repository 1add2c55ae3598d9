//! Two CPUs that wait one after the other for one helper, under every interleaving that the memory
//! model allows. A waiter that is never woken sleeps for ever, and the model reports that.

use framewright_arch::ipi::Waiters;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Notify};
use loom::thread;

/// The numbers of the waiting CPUs, in different words of the set.
const CALLERS: [u32; 2] = [1, 70];

struct Machine {
    waiters: Waiters,
    /// Whether the helper has done each caller's work. The slot has room for one request: the
    /// second caller posts its own when the first one's work is done.
    done: [AtomicBool; 2],
    /// A CPU sleeps until its bell rings.
    bells: [Notify; 2],
    /// Rings when the second caller's work is in the slot.
    posted: Notify,
}

impl Machine {
    fn wait(&self, caller: usize) {
        let done = || self.done[caller].load(Ordering::Acquire);
        if done() {
            return;
        }
        self.waiters.add(CALLERS[caller]);
        while !done() {
            self.bells[caller].wait();
        }
        self.waiters.remove(CALLERS[caller]);
    }

    fn finish(&self, caller: usize) {
        self.done[caller].store(true, Ordering::Release);
    }

    fn wake(&self) {
        self.waiters.wake(|cpu| {
            let caller =
                CALLERS.iter().position(|&caller| caller == cpu).expect("a CPU that waits");
            self.bells[caller].notify();
        });
    }
}

#[test]
fn nobody_sleeps_on_because_somebody_else_waited_for_the_helper_before() {
    // An unbounded search takes minutes.
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(3);
    bounded.check(|| {
        let machine = Arc::new(Machine {
            waiters: Waiters::new(),
            done: [AtomicBool::new(false), AtomicBool::new(false)],
            bells: [Notify::new(), Notify::new()],
            posted: Notify::new(),
        });
        let first = {
            let machine = Arc::clone(&machine);
            thread::spawn(move || machine.wait(0))
        };
        machine.finish(0);
        // The slot is free from here on, but the first caller is still to be woken.
        let second = {
            let machine = Arc::clone(&machine);
            thread::spawn(move || {
                machine.posted.notify();
                machine.wait(1);
            })
        };
        machine.wake();
        machine.posted.wait();
        machine.finish(1);
        machine.wake();
        first.join().expect("the first caller goes on");
        second.join().expect("the second caller goes on");
    });
}
