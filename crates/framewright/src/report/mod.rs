//! The boot log in Linux's style and the JSON object, the same on every platform.

use crate::firmware::{MapRange, Topology};
use crate::manager::{BringUp, Manager};
use crate::parameters::Problem;
use crate::platform::Platform;
use core::fmt;

/// Where log lines go. The implementer adds time stamps and the end of line.
pub trait BootLog {
    /// One line, without its end.
    fn line(&mut self, line: fmt::Arguments<'_>);
}

/// Logs what firmware said, before anything is made of it: `BIOS-e820: [mem 0x...-0x...] usable` and so on.
pub fn firmware_map(_log: &mut dyn BootLog, _ranges: &[MapRange]) {
    unimplemented!()
}

/// Logs the nodes: claims as `ACPI: SRAT: Node 0 PXM 0 [mem ...]`, CPUs, distances.
pub fn topology(_log: &mut dyn BootLog, _topology: &Topology<'_>) {
    unimplemented!()
}

/// Logs one ignored parameter.
pub fn parameter_problem(_log: &mut dyn BootLog, _problem: Problem<'_>) {
    unimplemented!()
}

/// Logs zone ranges, early node ranges, unavailable pages, fallback order and the memory summary.
pub fn bring_up<P: Platform>(_log: &mut dyn BootLog, _input: &BringUp<'_>, _manager: &Manager<P>) {
    unimplemented!()
}

/// Writes the JSON object of `framewright boot --json` without its `log` and `qemu` members.
///
/// # Errors
/// Those of `out`.
pub fn json<P: Platform>(_out: &mut dyn fmt::Write, _platform_name: &str, _manager: &Manager<P>) -> fmt::Result {
    unimplemented!()
}
