//! Lets one CPU make others call a function, and waits for them. They call it in an interrupt
//! ([`call_on`]), or in their idle loops with interrupts on ([`run_on`]). [`CrossCalls`] is the
//! protocol; this module interrupts the CPUs and waits.
//!
//! Orders of memory: the SeqCst fences are the barrier itself, on every CPU.

use super::controller::send;
use super::sleep::sleep_until;
use super::{CpuSet, MAX_CPUS, cpu, index, others};
use crate::platform::PLATFORM;
use core::sync::atomic::{Ordering, fence};
use framewright::platform::Platform;
use framewright_arch::ipi::{CrossCalls, Function};
use framewright_arch::x86_64::interrupts::{CALL, are_enabled};

/// How often a caller polls before it sleeps until the last target wakes it. This takes longer than
/// a call takes if all CPUs run. If virtual CPUs share real ones, a caller that keeps polling keeps
/// its targets from running.
const POLLS: u32 = 20_000;

/// Calls that are made in interrupts.
static CALLS: CrossCalls<MAX_CPUS> = CrossCalls::new();
/// Calls that are made in idle loops.
static TASKS: CrossCalls<MAX_CPUS> = CrossCalls::new();

/// Makes all running CPUs of `targets`, except this one, call `function` in an interrupt, and waits
/// for them. Returns how many CPUs that are. What this CPU wrote before is visible to them, and
/// what they wrote is visible to this CPU afterwards. Each of them executes a full barrier.
///
/// `function` runs with interrupts off. It must be short, must not take a lock that is held with
/// interrupts on, and must not call other CPUs.
///
/// # Panics
/// If interrupts are off: two CPUs that wait for each other would wait for ever.
pub fn call_on(targets: CpuSet, function: Function<'_>) -> u32 {
    let interrupt = |target| {
        if let Some(target) = cpu(target) {
            send(target, CALL);
        }
    };
    let targets = reachable(targets);
    if targets == CpuSet::EMPTY {
        0
    } else {
        CALLS.caller(index()).call(targets.iter(), function, interrupt, wait)
    }
}

/// Makes all running CPUs of `targets`, except this one, call `function` in their idle loops, each
/// as soon as it has nothing else to do. `own` runs here meanwhile. Waits for all of them, and
/// returns how many other CPUs that are.
///
/// # Panics
/// If a CPU calls it inside itself, or with interrupts off.
pub fn run_on(targets: CpuSet, function: Function<'_>, own: impl FnOnce()) -> u32 {
    let wake = |target| {
        if let Some(target) = cpu(target) {
            target.wake();
        }
    };
    let targets = reachable(targets);
    let mut own = Some(own);
    // If all targets have called already, `call` does not wait, and `own` has not run yet.
    let count = TASKS.caller(index()).call(targets.iter(), function, wake, |done| {
        if let Some(own) = own.take() {
            own();
        }
        wait(done);
    });
    if let Some(own) = own {
        own();
    }
    count
}

/// Executes a full barrier on all CPUs.
pub fn barrier() {
    fence(Ordering::SeqCst);
    // Taking the interrupt is a barrier already; the fence states it explicitly.
    call_on(others(), &|| fence(Ordering::SeqCst));
    fence(Ordering::SeqCst);
}

/// Serves calls in an interrupt.
pub fn serve_calls() {
    CALLS.serve(index(), wake_caller);
}

/// Serves calls in the idle loop. Returns whether there were any.
pub fn serve_tasks() -> bool {
    TASKS.serve(index(), wake_caller)
}

/// Whether there are calls to serve in the idle loop.
pub fn has_tasks() -> bool {
    TASKS.is_wanted(index())
}

fn wake_caller(caller: u32) {
    if let Some(caller) = cpu(caller) {
        caller.wake();
    }
}

fn reachable(targets: CpuSet) -> CpuSet {
    let targets = targets.and(others());
    assert!(
        targets == CpuSet::EMPTY || are_enabled(),
        "a CPU that waits for others lets interrupts in"
    );
    targets
}

fn wait(done: &dyn Fn() -> bool) {
    for _ in 0..POLLS {
        if done() {
            return;
        }
        PLATFORM.relax();
    }
    sleep_until(done);
}
