//! Lets idle CPUs be the helpers of jobs.
//!
//! Orders of memory: the SeqCst fences are in `Waiters` and `sleep_until`. Nothing else is ordered
//! here.

use super::sleep::sleep_until;
use super::{MAX_CPUS, count, cpu, index, online};
use crate::platform::PLATFORM;
use framewright::platform::Platform;
use framewright_arch::ipi::Waiters;
use framewright_jobs::{Helpers, NodeSet, SchedulerState, WorkerSlot, Workers};

/// Helper `i` is CPU `i + 1`: CPU 0 has work of its own.
static SLOTS: [WorkerSlot; MAX_CPUS - 1] = [const { WorkerSlot::new() }; MAX_CPUS - 1];
static SCHEDULER: SchedulerState = SchedulerState::new();
/// The CPUs that sleep until a helper has finished, for each helper.
static WAITERS: [Waiters; MAX_CPUS - 1] = [const { Waiters::new() }; MAX_CPUS - 1];
/// How often a caller polls a helper before it sleeps.
const POLLS: u32 = 20_000;

/// Returns the slot where CPU `index` finds work.
pub fn slot_of(index: u32) -> Option<&'static WorkerSlot> {
    SLOTS.get((index as usize).checked_sub(1)?)
}

/// Does the work at the slot of CPU `index`, if there is any, and wakes the CPUs that sleep until
/// it is done. Returns whether there was work.
pub fn serve(index: u32) -> bool {
    let Some(helper) = (index as usize).checked_sub(1) else { return false };
    if !SLOTS.get(helper).is_some_and(WorkerSlot::serve) {
        return false;
    }
    // By now the next caller may have found the slot free, and may be waiting as well.
    if let Some(waiters) = WAITERS.get(helper) {
        waiters.wake(|caller| {
            if let Some(caller) = cpu(caller) {
                caller.wake();
            }
        });
    }
    true
}

fn cpu_of(helper: usize) -> Option<&'static super::Cpu> {
    cpu(u32::try_from(helper).ok()?.checked_add(1)?)
}

/// All CPUs but the first; each stays on its node for ever. A CPU that does not run never takes
/// work, and the job withdraws its offer.
#[derive(Clone, Copy, Debug, Default)]
pub struct GuestHelpers;

impl Helpers for GuestHelpers {
    fn workers(&self) -> Option<Workers<'_>> {
        let slots = SLOTS.get(..(count() as usize).checked_sub(1)?)?;
        Some(Workers { slots, scheduler: &SCHEDULER })
    }

    fn wake(&self, helper: usize) {
        // A parked CPU would not come.
        if let Some(cpu) = cpu_of(helper).filter(|cpu| cpu.is_online()) {
            cpu.wake();
        }
    }

    fn allowance(&self) -> usize {
        online().without(0).without(index()).count() as usize
    }

    fn wait_for(&self, helper: usize, done: &dyn Fn() -> bool) {
        for _ in 0..POLLS {
            if done() {
                return;
            }
            PLATFORM.relax();
        }
        let Some(waiters) = WAITERS.get(helper) else { return };
        waiters.add(index());
        sleep_until(done);
        waiters.remove(index());
    }

    fn relax(&self) {
        PLATFORM.relax();
    }

    fn now_ns(&self) -> Option<u64> {
        PLATFORM.now_ns()
    }

    fn nodes(&self) -> NodeSet {
        online()
            .iter()
            .filter_map(cpu)
            .fold(NodeSet::EMPTY, |nodes, cpu| nodes.with(node_number(cpu)))
    }

    fn node_of(&self, helper: usize) -> Option<u32> {
        cpu_of(helper).map(node_number)
    }

    fn current_node(&self) -> u32 {
        node_number(super::this())
    }
}

fn node_number(cpu: &super::Cpu) -> u32 {
    u32::try_from(cpu.node().index()).unwrap_or(0)
}
