//! CPUs that are stopped and go on later.
//!
//! ```text
//!   RUNS --ask--> ASKED --leaves the set--> PARKED --call--> CALLED --enters it--> RUNS
//!        others         the CPU itself              others          the CPU itself
//! ```
//!
//! A CPU stops where it has nothing in its hands: in its idle loop, or where a long command looks
//! whether it is to end. It leaves the set of CPUs that run, so that no call, barrier, flush or job
//! begins with it any more, and sleeps until it is called. Who has found it in the set before it
//! left may still want something: a call comes as an interrupt, which it takes as it always does,
//! and for a task it enters the set meanwhile.
//!
//! Orders of memory: each step is a Release (AcqRel where it is also a test) and is waited for by
//! an Acquire: whoever parks a CPU sees all that it did, and it sees what was done before it is
//! called. The first look is Relaxed: it is repeated. The SeqCst fence of a CPU that comes back is
//! the partner of that in `barrier` and of those around changes of page tables: either the other
//! finds it in the set, or it finds what the other did.

use super::call::{has_tasks, serve_tasks};
use super::sleep::{sleep_until, wake_all};
use super::{Cpu, ONLINE, cpu, index, this};
use core::sync::atomic::{Ordering, fence};
use framewright_arch::paging::{FlushRequest, LocalTlb};

/// It does what it does.
pub const RUNS: u32 = 0;
/// Somebody wants it to stop.
const ASKED: u32 = 1;
/// It is in no set, and sleeps.
const PARKED: u32 = 2;
/// Somebody wants it to go on.
const CALLED: u32 = 3;

/// Stops CPU `number`, and returns when it stands. False if it does not run, or is this one. To be
/// called where waiting is allowed.
pub fn park(number: u32) -> bool {
    let Some(target) = cpu(number).filter(|cpu| cpu.is_online() && number != index()) else {
        return false;
    };
    if !target.step(RUNS, ASKED) {
        return false;
    }
    target.wake();
    sleep_until(&|| target.parking.load(Ordering::Acquire) == PARKED);
    // It still wakes others, which it is done with when it sleeps. Relaxed: nothing is read for it.
    while !target.asleep.load(Ordering::Relaxed) {
        core::hint::spin_loop();
    }
    true
}

/// Lets CPU `number` go on, and returns when it runs. False if it does not stand.
pub fn unpark(number: u32) -> bool {
    let Some(target) = cpu(number).filter(|target| target.step(PARKED, CALLED)) else {
        return false;
    };
    target.wake();
    sleep_until(&|| target.parking.load(Ordering::Acquire) == RUNS);
    true
}

/// Whether somebody wants this CPU to stop.
pub fn is_asked() -> bool {
    this().parking.load(Ordering::Relaxed) == ASKED
}

/// Stops here if somebody wants it. Nothing may be in this CPU's hands that others wait for;
/// interrupts are on.
pub fn park_if_asked() {
    if is_asked() {
        stand(this());
    }
}

#[cold]
fn stand(me: &Cpu) {
    ONLINE.remove(me.index());
    me.parking.store(PARKED, Ordering::Release);
    wake_all();
    loop {
        let is_called = || me.parking.load(Ordering::Acquire) == CALLED;
        sleep_until(&|| is_called() || has_tasks());
        ONLINE.insert(me.index());
        fence(Ordering::SeqCst);
        // What others flushed meanwhile was not asked of this one, and nothing of it was used.
        LocalTlb::flush_local(FlushRequest::Everything, true);
        if is_called() {
            break;
        }
        // Of somebody who found it in the set before it left.
        serve_tasks();
        ONLINE.remove(me.index());
    }
    me.parking.store(RUNS, Ordering::Release);
    wake_all();
}

impl Cpu {
    /// Takes a step that others take; false if it is not at `from`.
    fn step(&self, from: u32, to: u32) -> bool {
        self.parking.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}
