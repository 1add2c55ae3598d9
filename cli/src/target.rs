//! The machine that the options describe, and how long it may take.

use crate::args::{Target, Where};
use crate::attach;
use crate::error::Error;
use framewright_hosted::Machine;
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Refuses options that contradict one another.
///
/// # Errors
/// Says which options contradict.
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
    } else if boot.virtio_mem.is_some() && boot.on == Where::Hosted {
        Some("--virtio-mem is an option of QEMU: add --on qemu")
    } else if boot.unaccepted.is_some() && boot.on == Where::Qemu {
        Some("--unaccepted works only with --on hosted")
    } else if boot.accept_delay.is_some() && boot.on == Where::Qemu {
        Some("--accept-delay works only with --on hosted")
    } else if boot.accept_delay.is_some() && boot.unaccepted.is_none() && boot.map.is_none() {
        Some("--accept-delay needs unaccepted memory: add --unaccepted PERCENT")
    } else if boot.reporting.is_some() && boot.on == Where::Qemu {
        Some(
            "--reporting works only with --on hosted; on QEMU, --balloon adds a device for reports",
        )
    } else {
        None
    }
}

/// The boot parameters as one command line.
pub fn command_line(target: &Target) -> String {
    target.parameters.join(" ")
}

/// A part of a command line, with an open quote closed so that it does not swallow what follows.
pub fn closed(line: &str) -> Cow<'_, str> {
    let is_open = !line.matches('"').count().is_multiple_of(2);
    if is_open { format!("{line}\"").into() } else { line.into() }
}

/// Parses a percentage below 100, with or without the sign.
///
/// # Errors
/// Fails if the text is no such percentage.
pub fn percent(text: &str) -> Result<u64, String> {
    match text.strip_suffix('%').unwrap_or(text).parse() {
        Ok(percent @ 0..=99) => Ok(percent),
        _ => Err("must be 0% to 99%".into()),
    }
}

/// How long accepting 2 MiB takes.
pub fn accept_delay(target: &Target) -> Duration {
    Duration::from_micros(target.accept_delay.unwrap_or(0))
}

/// The machine that the options describe.
///
/// # Errors
/// Fails if the machine cannot be read or made.
pub fn machine(boot: &Target) -> Result<Machine, Error> {
    let mut machine = accepted_machine(boot)?;
    if let Some(percent) = boot.unaccepted {
        machine.leave_unaccepted(percent);
    }
    Ok(machine)
}

fn accepted_machine(boot: &Target) -> Result<Machine, Error> {
    let bad = |error: framewright_hosted::SourceError| Error::Usage(error.to_string());
    let mut machine = match (&boot.map, boot.memory) {
        (Some(path), _) => Machine::from_file(path).map_err(bad)?,
        (None, Some(memory)) => {
            // The options describe the whole machine; nothing is left to change.
            let nodes = boot.nodes.unwrap_or(1);
            return Machine::synthetic(memory, nodes, boot.cpus.unwrap_or(nodes)).map_err(bad);
        }
        (None, None) => Machine::this().map_err(|error| Error::Failed(error.to_string()))?,
    };
    // Every node gets a CPU unless the user chose the number of CPUs.
    let few = boot.nodes.filter(|&nodes| machine.cpu_count() < nodes);
    if let Some(cpus) = boot.cpus.or(few) {
        machine.set_cpus(cpus).map_err(bad)?;
    }
    if let Some(nodes) = boot.nodes {
        machine.emulate_nodes(nodes).map_err(bad)?;
    }
    Ok(machine)
}

/// A time limit. A machine in this process cannot be stopped from within, so the process ends if
/// this value lives too long.
pub struct Deadline(Arc<AtomicBool>);

impl Deadline {
    /// Starts a limit of this many seconds.
    pub fn start(seconds: u64) -> Self {
        let is_met = Arc::new(AtomicBool::new(false));
        let met = Arc::clone(&is_met);
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(seconds));
            if !met.load(Ordering::Relaxed) {
                let _ = Error::Failed(format!(
                    "it did not end within {seconds} s; --timeout SECONDS gives it longer"
                ))
                .tell();
                attach::remove_own();
                std::process::exit(1);
            }
        });
        Self(is_met)
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
