//! Memory that comes and goes while the machine runs, and frames that were reserved for boot.
#![cfg(not(any(loom, shuttle)))]

#[path = "../common/mod.rs"]
mod common;

use framewright::Platform;
use framewright::units::{Pfn, PfnRange, PhysRange};

/// Writes to memory that only the test uses.
fn fill(manager: &common::Fake, range: PhysRange, byte: u8) {
    for page in (range.start..range.end).step_by(4096) {
        let start = manager.platform().direct(page).as_ptr();
        // SAFETY: a page of the machine's memory, which belongs to the test.
        unsafe { start.write_bytes(byte, 4096) };
    }
}

/// Copies a run that only the test uses to frames that nobody uses.
fn copy(manager: &common::Fake, from: PfnRange, to: PfnRange) {
    for (from, to) in (from.start.0..from.end.0).zip(to.start.0..) {
        let at = |pfn| manager.platform().direct(Pfn(pfn).address()).as_ptr();
        // SAFETY: two pages of the machine's memory, which belong to the test.
        unsafe { at(from).copy_to_nonoverlapping(at(to), 4096) };
    }
}

mod accepted;
mod accepted_borders;
mod accepted_windows;
mod add;
mod adopt;
mod behind;
mod edges;
mod everything;
mod everything_owners;
mod everything_world;
mod files;
mod gone;
mod grading;
mod hammer_accept;
mod isolated;
mod mishaps;
mod model;
mod odd;
mod one_page;
mod pools;
mod release;
mod remove;
mod some;
mod some_parts;
mod tally;
