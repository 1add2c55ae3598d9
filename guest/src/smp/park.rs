//! Stops CPUs and lets them go on later.
//!
//! ```text
//!   RUNS --ask--> ASKED --leaves the set--> PARKED --call--> CALLED --enters it--> RUNS
//!        others         the CPU itself              others          the CPU itself
//! ```
//!
//! A CPU stops where it holds nothing: in its idle loop, or where a long command checks whether it
//! is to end. It leaves the set of running CPUs, so that no new call, barrier, flush or job
//! includes it, and sleeps until it is called. A CPU that found it in the set before it left may
//! still want something from it. A call arrives as an interrupt, which the parked CPU takes as
//! usual; for a task it enters the set again meanwhile.
//!
//! Orders of memory: each step is a Release (AcqRel where it is also a test), and an Acquire waits
//! for it: the CPU that parks another sees all that the other did, and the parked CPU sees what was
//! done before it is called. The first check is Relaxed, because it is repeated. The SeqCst fence
//! of a CPU that comes back is the partner of the one in `barrier` and of those around changes of
//! page tables: either the other CPU finds it in the set, or it finds what the other CPU did.

use super::call::{has_tasks, serve_tasks};
use super::sleep::{sleep_until, wake_all, with_interrupts_off};
use super::{Cpu, ONLINE, cpu, index, this};
use core::sync::atomic::{Ordering, fence};
use framewright_arch::paging::{FlushRequest, LocalTlb};

/// The CPU runs normally.
pub const RUNS: u32 = 0;
/// Another CPU wants it to stop.
const ASKED: u32 = 1;
/// It is not in the set of running CPUs, and sleeps.
const PARKED: u32 = 2;
/// Another CPU wants it to go on.
const CALLED: u32 = 3;

/// Stops CPU `number`, and returns once it is parked. Returns false if it does not run, or is this
/// CPU. To be called where waiting is allowed.
pub fn park(number: u32) -> bool {
    let Some(target) = cpu(number).filter(|cpu| cpu.is_online() && number != index()) else {
        return false;
    };
    if !target.step(RUNS, ASKED) {
        return false;
    }
    target.wake();
    sleep_until(&|| target.parking.load(Ordering::Acquire) == PARKED);
    // It may still be waking others; once it sleeps, it is done with that. Relaxed: nothing else is
    // read because of this.
    while !target.asleep.load(Ordering::Relaxed) {
        core::hint::spin_loop();
    }
    true
}

/// Lets CPU `number` go on, and returns once it runs. Returns false if it is not parked.
pub fn unpark(number: u32) -> bool {
    let Some(target) = cpu(number).filter(|target| target.step(PARKED, CALLED)) else {
        return false;
    };
    target.wake();
    sleep_until(&|| target.parking.load(Ordering::Acquire) == RUNS);
    true
}

/// Whether another CPU wants this one to stop.
pub fn is_asked() -> bool {
    this().parking.load(Ordering::Relaxed) == ASKED
}

/// Parks this CPU if another CPU wants it. This CPU must hold nothing that others wait for, and
/// interrupts must be on.
pub fn park_if_asked() {
    if is_asked() {
        stand(this());
    }
}

#[cold]
fn stand(me: &Cpu) {
    leave(me);
    me.parking.store(PARKED, Ordering::Release);
    wake_all();
    loop {
        let is_called = || me.parking.load(Ordering::Acquire) == CALLED;
        sleep_until(&|| is_called() || has_tasks());
        ONLINE.insert(me.index());
        fence(Ordering::SeqCst);
        // This CPU was left out of flushes while it was parked. It has used none of those
        // translations.
        LocalTlb::flush_local(FlushRequest::Everything, true);
        if is_called() {
            break;
        }
        // This is a task from a CPU that found this one in the set before it left.
        serve_tasks();
        leave(me);
    }
    me.parking.store(RUNS, Ordering::Release);
    wake_all();
}

/// Leaves the set of running CPUs. From here on no flush includes this CPU, so it must keep nothing
/// that leads to page tables which may be freed, not even for walks that it begins on its own.
/// Interrupts must be on.
fn leave(me: &Cpu) {
    // No handler may run between the two: other CPUs no longer flush here, and old translations are
    // still there.
    with_interrupts_off(|| {
        ONLINE.remove(me.index());
        fence(Ordering::SeqCst);
        LocalTlb::flush_local(FlushRequest::Everything, true);
    });
}

impl Cpu {
    /// Takes a step of the state that other CPUs take. Returns false if the state is not `from`.
    fn step(&self, from: u32, to: u32) -> bool {
        self.parking.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}
