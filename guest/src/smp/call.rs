//! One CPU has others call a function and waits: in an interrupt ([`call_on`]), or in their idle
//! loops, with interrupts on ([`run_on`]). The protocol is [`CrossCalls`]; this module interrupts
//! CPUs and waits.
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

/// How often a caller polls before it sleeps until the last target wakes it: longer than a call
/// takes when all CPUs run. Where virtual CPUs share real ones, a caller that keeps polling keeps
/// its targets from running.
const POLLS: u32 = 20_000;

/// Calls in interrupts.
static CALLS: CrossCalls<MAX_CPUS> = CrossCalls::new();
/// Calls in idle loops.
static TASKS: CrossCalls<MAX_CPUS> = CrossCalls::new();

/// Has all of `targets` that run, except this CPU, call `function` in an interrupt, and waits for
/// them. Returns how many they are. What this CPU wrote before is visible to them, and what they
/// wrote is visible to it afterwards; each of them executes a full barrier.
///
/// `function` runs with interrupts off: it is short, takes no lock that is held with interrupts on,
/// and calls nobody.
///
/// # Panics
/// When interrupts are off: two CPUs that wait for one another would wait for ever.
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

/// Has all of `targets` that run, except this CPU, call `function` in their idle loops, as soon as
/// each has nothing else to do; `own` runs here meanwhile. Waits for all, and returns how many
/// others they are.
///
/// # Panics
/// When it is called inside itself on one CPU, or with interrupts off.
pub fn run_on(targets: CpuSet, function: Function<'_>, own: impl FnOnce()) -> u32 {
    let wake = |target| {
        if let Some(target) = cpu(target) {
            target.wake();
        }
    };
    let targets = reachable(targets);
    let mut own = Some(own);
    // When all have called already, `call` does not wait.
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

/// A full barrier on all CPUs.
pub fn barrier() {
    fence(Ordering::SeqCst);
    // Taking the interrupt is a barrier; the fence says so once more.
    call_on(others(), &|| fence(Ordering::SeqCst));
    fence(Ordering::SeqCst);
}

/// Serves calls in an interrupt.
pub fn serve_calls() {
    CALLS.serve(index(), wake_caller);
}

/// Serves calls in the idle loop; returns whether there was any.
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
