//! One CPU has others call a function and waits: in an interrupt ([`call_on`]), or in their idle
//! loops, with interrupts on ([`run_on`]). The protocol is [`CrossCalls`]; here is how a CPU is
//! interrupted and how it waits.
//!
//! Orders of memory: The SeqCst fences are the barrier itself, on every CPU.

use super::interrupts::send;
use super::{CpuSet, MAX_CPUS, cpu, index, others, sleep_until};
use crate::platform::PLATFORM;
use core::sync::atomic::{Ordering, fence};
use framewright::platform::Platform;
use framewright_arch::ipi::{CrossCalls, Function};
use framewright_arch::x86_64::interrupts::{CALL, are_enabled};

/// Looks before a caller sleeps until the last one it waits for wakes it: more than a call takes
/// when all run. Where CPUs are virtual and share real ones, one that waits awake keeps those it
/// waits for from running.
const LOOKS: u32 = 20_000;

/// What is called in interrupts.
static CALLS: CrossCalls<MAX_CPUS> = CrossCalls::new();
/// What is called in idle loops.
static TASKS: CrossCalls<MAX_CPUS> = CrossCalls::new();

/// Has all of `targets` that run, but for this CPU, call `function` in an interrupt, and waits
/// until they have. Returns how many they are. What this CPU wrote before is visible to them, and
/// what they wrote to this CPU afterwards; each of them executes a full barrier.
///
/// `function` runs with interrupts off: it is short, takes no lock that is held with interrupts on,
/// and calls nobody.
///
/// Panics when interrupts are off: two CPUs that wait for one another would wait for ever.
pub fn call_on(targets: CpuSet, function: Function<'_>) -> u32 {
    let interrupt = |target| {
        if let Some(target) = cpu(target) {
            send(target, CALL);
        }
    };
    let targets = awaited(targets);
    if targets == CpuSet::EMPTY {
        0
    } else {
        CALLS.call(index(), targets.iter(), function, interrupt, wait)
    }
}

/// Has all of `targets` that run, but for this CPU, call `function` in their idle loops, as soon as
/// each has nothing else to do; `own` runs here meanwhile. Waits until all have. Returns how many
/// others they are.
///
/// Not to be called inside itself on one CPU. Panics when interrupts are off.
pub fn run_on(targets: CpuSet, function: Function<'_>, own: impl FnOnce()) -> u32 {
    let wake = |target| {
        if let Some(target) = cpu(target) {
            target.wake();
        }
    };
    let targets = awaited(targets);
    let mut own = Some(own);
    // All done before we look: `call` then has nothing to wait for.
    let count = TASKS.call(index(), targets.iter(), function, wake, |done| {
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
    // Who takes the interrupt executes one, and says so here once more.
    call_on(others(), &|| fence(Ordering::SeqCst));
    fence(Ordering::SeqCst);
}

/// Does what others want called in an interrupt.
pub fn serve_calls() {
    CALLS.serve(index(), wake_caller);
}

/// Does what others want called in the idle loop; returns whether there was anything.
pub fn serve_tasks() -> bool {
    TASKS.serve(index(), wake_caller)
}

/// Whether there is something to do in the idle loop.
pub fn has_tasks() -> bool {
    TASKS.is_wanted(index())
}

fn wake_caller(caller: u32) {
    if let Some(caller) = cpu(caller) {
        caller.wake();
    }
}

fn awaited(targets: CpuSet) -> CpuSet {
    let targets = targets.and(others());
    assert!(
        targets == CpuSet::EMPTY || are_enabled(),
        "a CPU that waits for others lets interrupts in"
    );
    targets
}

fn wait(done: &dyn Fn() -> bool) {
    for _ in 0..LOOKS {
        if done() {
            return;
        }
        PLATFORM.relax();
    }
    sleep_until(done);
}
