//! The boot log, written to a console (step 5 of `docs/porting.md`).

use framewright::bootlog::{self, BootLog, Intake};
use framewright::{Manager, Platform};

/// The serial port.
#[derive(Debug)]
pub struct Console;

impl BootLog for Console {
    fn line(&mut self, line: core::fmt::Arguments<'_>) {
        let _ = line; // to your serial port, with a time before it
    }
}

/// Map and topology as they were given to the memblock allocator.
pub fn boot_log<P: Platform>(intake: &Intake<'_>, manager: &Manager<P>) {
    bootlog::firmware_map(&mut Console, intake.map.ranges());
    bootlog::topology(&mut Console, intake.topology);
    bootlog::bring_up(&mut Console, intake, manager);
}
