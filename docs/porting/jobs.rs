//! Idle CPUs that help with jobs, and the calls that want their help (step 12 of
//! `docs/porting.md`).

use framewright::{Manager, Parameters, Platform};
use framewright_jobs::{Helpers, NoHelpers, SchedulerState, WorkerSlot, Workers};

const HELPERS: usize = 3;
static SLOTS: [WorkerSlot; HELPERS] = [const { WorkerSlot::new() }; HELPERS];
static SCHEDULER: SchedulerState = SchedulerState::new();

/// Helper `i` is CPU `i + 1`.
#[derive(Debug)]
pub struct IdleCpus;

impl Helpers for IdleCpus {
    fn workers(&self) -> Option<Workers<'_>> {
        Some(Workers { slots: &SLOTS, scheduler: &SCHEDULER })
    }
    fn wake(&self, helper: usize) {
        let _ = helper; // send CPU helper + 1 an interrupt, which ends its `hlt`
    }
}

/// What CPU `helper + 1` does when it has nothing to do.
pub fn idle(helper: usize) -> ! {
    loop {
        while SLOTS[helper].serve() {}
        // Interrupts off; then, because work may have come in between:
        if !SLOTS[helper].has_work() {
            // sti; hlt
        }
    }
}

/// Once, when the caller may wait.
pub fn all_memory<P: Platform>(manager: &Manager<P>, parameters: &Parameters, others_are_up: bool) {
    if others_are_up {
        manager.vmemmap().initialise_deferred(&IdleCpus);
        manager.hugetlb().fill(parameters, &IdleCpus);
    } else {
        manager.vmemmap().initialise_deferred(&NoHelpers);
        manager.hugetlb().fill(parameters, &NoHelpers);
    }
}
