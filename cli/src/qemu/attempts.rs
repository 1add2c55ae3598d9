//! Attempts to boot the reference guest: with KVM where it works, else emulated, with an
//! explanation if none succeeds.

use super::command::{Accelerator, Machine};
use super::guest_image::{self, Package};
use super::run::{self, End, Ended, Limits, Watch};
use crate::args::{Accel, Model, Target};
use crate::attach::MonitorPlace;
use crate::error::{self, Error};
use crate::target::{closed, command_line};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::cell::Cell;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

const DEFAULT_MEMORY: u64 = 2 << 30;
/// How long a machine under KVM may stay silent before KVM is assumed not to work here.
const KVM_SILENCE: Duration = Duration::from_secs(10);
/// How many lines of the log to show with a failure.
const LAST_LINES: usize = 15;

/// The longest command line of the guest in bytes, with its terminator.
const MOST_COMMAND_LINE: usize = 4096;

/// QEMU's exit status when the guest's work is done.
const DONE: i32 = 33;
/// QEMU's exit status after a panic or an exception in the guest.
const PANICKED: i32 = 35;
/// QEMU's exit status when the guest found something that it cannot work with.
const REFUSED: i32 = 37;

/// All attempts at one boot.
pub struct Attempts<'a> {
    target: &'a Target,
    machine: Machine,
    image: PathBuf,
    version: String,
    /// The monitor's socket, removed when this is dropped.
    _monitor: Option<MonitorPlace>,
    /// The accelerator of the current attempt.
    pub accelerator: Cell<Accelerator>,
}

impl<'a> Attempts<'a> {
    /// Finds QEMU and the guest.
    ///
    /// # Errors
    /// Says what QEMU could not build, or what is missing.
    pub fn prepare(target: &'a Target) -> Result<Self, Error> {
        let mut machine = Machine::new(
            target.machine.unwrap_or(Model::Q35),
            target.memory.unwrap_or(DEFAULT_MEMORY),
            target.nodes.unwrap_or(1),
            target.cpus.or(target.nodes).unwrap_or(1),
        )?;
        if let Some(properties) = &target.balloon {
            machine.add_balloon(properties);
        }
        let monitor = target.virtio_mem.as_ref().and_then(|_| monitor_place());
        if let Some(addition) = &target.virtio_mem {
            machine.add_virtio_mem(addition, monitor.as_ref().map(|place| place.path.as_path()));
        }
        let version = run::version(Duration::from_secs(target.timeout))?;
        let image = guest_image::provide(&Package::GUEST)?;
        Ok(Self {
            target,
            machine,
            image,
            version,
            _monitor: monitor,
            accelerator: Cell::new(Accelerator::Tcg),
        })
    }

    /// Runs the guest with `words` after the user's own parameters, under KVM where it works.
    ///
    /// # Errors
    /// Fails if QEMU cannot be started, `watch` fails, or a signal comes.
    pub fn run(
        &self,
        words: &str,
        endless_shell: bool,
        watch: &mut dyn Watch,
    ) -> Result<(Accelerator, Ended), Error> {
        let command_line = format!("{} {words}", closed(&command_line(self.target)));
        let command_line = command_line.trim();
        if command_line.len() >= MOST_COMMAND_LINE {
            return Err(Error::Usage(format!(
                "the guest's command line would have {} bytes, but at most {} are possible; \
                 `shell` takes longer commands",
                command_line.len(),
                MOST_COMMAND_LINE - 1
            )));
        }
        if self.first()? == Accelerator::Kvm {
            let ended = self.attempt(Accelerator::Kvm, command_line, endless_shell, watch)?;
            match why_kvm_fails(&ended) {
                None => return Ok((Accelerator::Kvm, ended)),
                Some(why) => self.emulate(&format!("KVM does not work here ({why})"))?,
            }
        }
        Ok((Accelerator::Tcg, self.attempt(Accelerator::Tcg, command_line, endless_shell, watch)?))
    }

    /// What to try first. KVM needs its device; only a run shows whether QEMU can use it.
    fn first(&self) -> Result<Accelerator, Error> {
        if self.target.accel == Some(Accel::Tcg) {
            return Ok(Accelerator::Tcg);
        }
        match std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm") {
            Ok(_) => Ok(Accelerator::Kvm),
            Err(why) => {
                self.emulate(&format!("no KVM (/dev/kvm: {why})"))?;
                Ok(Accelerator::Tcg)
            }
        }
    }

    /// Says why the machine is emulated, or fails if the user insists on KVM.
    fn emulate(&self, why: &str) -> Result<(), Error> {
        if self.target.accel == Some(Accel::Kvm) {
            return Err(Error::Failed(format!(
                "{why}; without --accel kvm the machine is emulated"
            )));
        }
        error::note(&format!("{why}: the machine is emulated (tcg)"));
        Ok(())
    }

    fn attempt(
        &self,
        accelerator: Accelerator,
        command_line: &str,
        endless_shell: bool,
        watch: &mut dyn Watch,
    ) -> Result<Ended, Error> {
        self.accelerator.set(accelerator);
        let arguments =
            self.machine.arguments(accelerator, &self.image, command_line, &self.target.qemu);
        let whole = Duration::from_secs(self.target.timeout);
        let first_line = (accelerator == Accelerator::Kvm).then_some(KVM_SILENCE.min(whole / 2));
        run::run(&arguments, Limits { whole, first_line, endless_shell }, watch)
    }

    /// Describes which QEMU ran the guest, how, and when the guest said its first line.
    pub fn about(&self, accelerator: Accelerator, first_line: Option<Duration>) -> Value {
        let first_line_ms = first_line.map(|time| time.as_micros() as f64 / 1e3);
        json!({ "version": self.version, "accel": accelerator.name(),
            "spawn_to_first_line_ms": first_line_ms })
    }

    /// Fails unless the guest's work was done. `seen` says whether the user has just seen its log.
    ///
    /// # Errors
    /// Says how the run ended instead, with the end of its log unless the user has seen it.
    pub fn check(&self, ended: &Ended, seen: bool) -> Result<(), Error> {
        let fail = |what: &str| Err(Error::Failed(explained(what, ended, seen)));
        match ended.how {
            End::TimeOut => fail(&format!(
                "the guest did not end within {} s and was stopped",
                self.target.timeout
            )),
            End::Silence => fail("the guest said nothing and was stopped"),
            End::KvmFailed => {
                fail("KVM failed while running the machine; --accel tcg does without KVM")
            }
            End::Exit(status) => match status.code() {
                Some(DONE) => Ok(()),
                Some(PANICKED) => fail("the guest panicked"),
                Some(REFUSED) => fail("the guest refused to boot; its log says why"),
                _ => fail(&format!("QEMU ended unexpectedly ({})", shown(status))),
            },
        }
    }

    /// The guest's report with its log, if all went well.
    ///
    /// # Errors
    /// Says how the guest ended instead, or what is wrong with its report.
    pub fn report(&self, ended: Ended, seen: bool) -> Result<Value, Error> {
        self.check(&ended, seen)?;
        let fail = |what: &str| Err(Error::Failed(explained(what, &ended, seen)));
        match ended.transcript.report {
            Some(Ok(mut report @ Value::Object(_))) => {
                report["log"] = ended.transcript.log.lines().map(Cow::into_owned).collect();
                Ok(report)
            }
            Some(Ok(_)) => fail("the guest's report is not a JSON object"),
            Some(Err(ref why)) => fail(&format!("the guest's report is not JSON: {why}")),
            None => fail("the guest ended without a report"),
        }
    }
}

/// Where QEMU's monitor listens. If no socket can be made, tells the user and returns `None`.
fn monitor_place() -> Option<MonitorPlace> {
    MonitorPlace::new()
        .map_err(|why| error::note(&format!("memory cannot be added later: {why}")))
        .ok()
}

/// `what`, and the end of the log unless the user has just seen it.
pub fn explained(what: &str, ended: &Ended, seen: bool) -> String {
    let mut message = what.to_owned();
    for complaint in ended.complaints.lines() {
        message.push_str("\n  ");
        message.push_str(complaint);
    }
    let log = &ended.transcript.log;
    if log.is_empty() {
        message.push_str("\n  (the guest said nothing)");
    } else if !seen {
        message.push_str("\nlast lines of its log:");
        let mut last: Vec<Cow<'_, str>> = log.lines().rev().take(LAST_LINES).collect();
        last.reverse();
        for line in last {
            message.push_str("\n  ");
            message.push_str(&line);
        }
    }
    message
}

/// Why a run under KVM shows that KVM does not work; `None` if the guest ran or KVM is not to
/// blame.
fn why_kvm_fails(ended: &Ended) -> Option<String> {
    if ended.how == End::KvmFailed {
        // A user of the guest's shell has done things that a second machine would repeat.
        let why = run::kvm_failure(&ended.complaints).filter(|_| !ended.transcript.has_shell);
        return why.map(|line| line.trim_start_matches("qemu-system-x86_64: ").to_owned());
    }
    if ended.first_line.is_some() {
        return None;
    }
    match ended.how {
        End::Exit(status) if matches!(status.code(), Some(DONE | PANICKED | REFUSED)) => None,
        // A refusal that is not about KVM would only happen again.
        End::Exit(status) if status.code().is_some() && !complains_of_kvm(&ended.complaints) => {
            None
        }
        End::Exit(status) => {
            let complaint = ended.complaints.lines().next_back();
            let complaint =
                complaint.map(|line| line.trim_start_matches("qemu-system-x86_64: ").to_owned());
            Some(complaint.unwrap_or_else(|| shown(status)))
        }
        End::Silence => Some("no sign of life from the guest".into()),
        End::TimeOut | End::KvmFailed => None,
    }
}

/// Whether QEMU's errors mention KVM, or there are none at all. Warnings, such as those about CPU
/// features that KVM lacks, do not count, as QEMU goes on after them.
fn complains_of_kvm(complaints: &str) -> bool {
    let mut errors = complaints.lines().filter(|line| !line.contains("warning:"));
    complaints.is_empty() || errors.any(|line| line.to_ascii_lowercase().contains("kvm"))
}

fn shown(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}
