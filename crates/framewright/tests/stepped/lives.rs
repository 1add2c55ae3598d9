//! Two managers, one after the other, over one memory that is not cleared in between. Random calls
//! of the whole interface are interrupted by signals whose handlers allocate and free through the
//! same manager, under every policy and with debug aids.
//!
//! A model records who owns each frame. A frame that is handed out while it has an owner, or that
//! lies in an isolated block, fails the test at once. Stamps in memory find what the model cannot
//! see: a manager, or the host behind the reporting device, that writes where it must not.

use super::life::{Aids, Life, machine};

/// Steps of a life. `LIVES_STEPS` in the environment overrides the number.
fn steps() -> u32 {
    std::env::var("LIVES_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(1500)
}

/// Runs three lives over one memory: each finds what the previous one left, including tables.
fn lives(seed: u64, lines: [&str; 3], aids: Aids) {
    let mut before = None;
    for (number, line) in lines.into_iter().enumerate() {
        let machine = machine(before);
        let life = Life::begin(machine, line, aids, seed * 10 + number as u64);
        life.run(steps());
        before = Some(machine);
    }
    if let Some(machine) = before {
        // SAFETY: the last manager is gone with its life.
        unsafe { machine.retire() };
    }
}

const EAGER: &str = "memmap_init=eager";
const DEFERRED: &str = "memmap_init=deferred";
const ON_DEMAND: &str = "memmap_init=on-demand";
const INSIDE: &str = "pages=inside";
const NONE: &str = "pages=none";

#[test]
fn without_descriptors() {
    lives(1, [NONE, NONE, NONE], Aids::Off);
}

#[test]
fn with_descriptors_where_blocks_are_split() {
    lives(2, [INSIDE, NONE, INSIDE], Aids::Off);
}

#[test]
fn with_the_array_described_at_once_and_later() {
    lives(3, [EAGER, DEFERRED, ON_DEMAND], Aids::Off);
}

#[test]
fn deferred_after_traffic_without_an_array() {
    lives(4, [NONE, DEFERRED, DEFERRED], Aids::Off);
}

#[test]
fn with_page_owners_and_poison() {
    lives(5, [NONE, DEFERRED, INSIDE], Aids::OwnersAndPoison);
}

#[test]
fn with_memory_cleared_at_both_ends() {
    lives(6, [INSIDE, EAGER, DEFERRED], Aids::Clearing);
}

#[test]
fn shuffled() {
    lives(7, [NONE, ON_DEMAND, DEFERRED], Aids::Shuffle);
}
