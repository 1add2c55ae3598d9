//! The idle loop: a CPU helps with jobs, runs what other CPUs want it to run, and otherwise sleeps
//! until an interrupt.

use super::call::{has_tasks, serve_tasks};
use super::helpers;
use super::park::{is_asked, park_if_asked};
use super::sleep::sleep_until;
use super::this;

/// The idle loop of every CPU but the first. Runs with interrupts on.
pub fn idle() -> ! {
    let me = this();
    let slot = helpers::slot_of(me.index());
    loop {
        if serve_tasks() || helpers::serve(me.index()) {
            continue;
        }
        park_if_asked();
        sleep_until(&|| {
            is_asked() || has_tasks() || slot.is_some_and(framewright_jobs::WorkerSlot::has_work)
        });
    }
}
