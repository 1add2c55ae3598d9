//! `framewright boot`: brings up the memory of a machine and shows what became of it.
//!
//! Both ways end in one JSON object, and what people see is rendered from it.

mod hosted;
mod policies;
mod qemu;
mod snapshot;
mod table;

pub use hosted::{Deadline, machine};
pub use qemu::{Attempts, explained};

use crate::args::{Boot, Target, Where};
use crate::error::Error;
use crate::file::{self, Kind};
use crate::output::Output;
use serde_json::Value;

/// Does what the options say, and gives the exit status.
///
/// # Errors
/// Options that contradict one another, and everything that can go wrong on the way.
pub fn run(boot: &Boot) -> Result<u8, Error> {
    check(&boot.target)?;
    if let Some(path) = &boot.snapshot {
        file::check("--snapshot", path)?;
        file::claim("--snapshot", path, Kind::Snapshot)?;
    }
    match boot.target.on {
        Where::Hosted => hosted::run(boot),
        Where::Qemu => qemu::run(boot),
    }
}

/// Refuses options that contradict one another.
///
/// # Errors
/// Which do.
pub fn check(target: &Target) -> Result<(), Error> {
    contradiction(target).map_or(Ok(()), |message| Err(Error::Usage(message.into())))
}

fn contradiction(boot: &Target) -> Option<&'static str> {
    if boot.map.is_some() && boot.on == Where::Qemu {
        Some(
            "--map cannot be used with --on qemu: QEMU makes its own memory map; use --memory and \
             --nodes to shape it",
        )
    } else if boot.map.is_some() && boot.memory.is_some() {
        Some(
            "--memory cannot be used with --map: the memory is what the file says; the parameter \
             mem=SIZE limits it",
        )
    } else if boot.accel.is_some() && boot.on == Where::Hosted {
        Some("--accel is an option of QEMU: add --on qemu")
    } else if boot.machine.is_some() && boot.on == Where::Hosted {
        Some("--machine is an option of QEMU: add --on qemu")
    } else if !boot.qemu.is_empty() && boot.on == Where::Hosted {
        Some("--qemu passes arguments to QEMU: add --on qemu")
    } else if boot.balloon.is_some() && boot.on == Where::Hosted {
        Some("--balloon is an option of QEMU: add --on qemu")
    } else if boot.reporting.is_some() && boot.on == Where::Qemu {
        Some(
            "--reporting is for machines in this process; --balloon gives one on QEMU a device for \
             reports",
        )
    } else {
        None
    }
}

/// The boot parameters as one command line.
pub fn command_line(target: &Target) -> String {
    target.parameters.join(" ")
}

/// Shows what became of the machine; the log has been shown already.
fn show(output: &mut Output, boot: &Boot, report: &Value) -> Result<(), Error> {
    if boot.json {
        return output.line(&report.to_string());
    }
    table::render(report, output.style()).iter().try_for_each(|line| output.line(line))
}
