//! Bringing up memory on a virtual machine.

use super::show;
use crate::args::{Accel, Boot, Model};
use crate::error::{self, Error};
use crate::output::Output;
use crate::qemu::command::{Accelerator, Machine};
use crate::qemu::guest_image;
use crate::qemu::run::{self, End, Ended, Limits};
use serde_json::{Value, json};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

const DEFAULT_MEMORY: u64 = 2 << 30;
/// How long a machine under KVM may stay silent before we take it that KVM does not work here.
const KVM_SILENCE: Duration = Duration::from_secs(10);
/// How much of a log explains a failure.
const LAST_LINES: usize = 15;

/// QEMU's exit status when the guest's work is done.
const DONE: i32 = 33;
/// After a panic or an exception in the guest.
const PANICKED: i32 = 35;
/// When the guest found something that it cannot work with.
const REFUSED: i32 = 37;

/// Boots the reference guest.
///
/// # Errors
/// Anything from a missing QEMU to a guest that panicked.
pub fn run(boot: &Boot) -> Result<(), Error> {
    let machine = Machine::new(
        boot.machine.unwrap_or(Model::Q35),
        boot.memory.unwrap_or(DEFAULT_MEMORY),
        boot.nodes.unwrap_or(1),
        boot.cpus.unwrap_or(1),
    )?;
    let version = run::version()?;
    let image = guest_image::provide()?;
    let mut session = Session { boot, machine, image: &image, output: Output::new() };
    let (accelerator, ended) = match session.accelerator() {
        Accelerator::Tcg => (Accelerator::Tcg, session.attempt(Accelerator::Tcg)?),
        Accelerator::Kvm => {
            let ended = session.attempt(Accelerator::Kvm)?;
            match why_kvm_fails(&ended) {
                None => (Accelerator::Kvm, ended),
                Some(why) => {
                    error::note(&format!("KVM does not work here ({why}): the machine is emulated (tcg)"));
                    (Accelerator::Tcg, session.attempt(Accelerator::Tcg)?)
                }
            }
        }
    };
    let first_line_ms = ended.first_line.map(|time| time.as_micros() as f64 / 1e3);
    let mut report = session.report(ended)?;
    report["qemu"] =
        json!({ "version": version, "accel": accelerator.name(), "spawn_to_first_line_ms": first_line_ms });
    show(&mut session.output, boot, &report)
}

/// All attempts at one boot.
struct Session<'a> {
    boot: &'a Boot,
    machine: Machine,
    image: &'a Path,
    output: Output,
}

impl Session<'_> {
    /// What to try first. KVM needs its device; whether QEMU can use it shows when it runs.
    fn accelerator(&self) -> Accelerator {
        if self.boot.accel == Some(Accel::Tcg) {
            return Accelerator::Tcg;
        }
        match std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm") {
            Ok(_) => Accelerator::Kvm,
            Err(why) => {
                error::note(&format!("no KVM (/dev/kvm: {why}): the machine is emulated (tcg)"));
                Accelerator::Tcg
            }
        }
    }

    fn attempt(&mut self, accelerator: Accelerator) -> Result<Ended, Error> {
        let command_line = [&super::command_line(self.boot), "report=json"].map(str::trim).join(" ");
        let arguments = self.machine.arguments(accelerator, self.image, command_line.trim(), &self.boot.qemu);
        let whole = Duration::from_secs(self.boot.timeout);
        let first_line = (accelerator == Accelerator::Kvm).then_some(KVM_SILENCE.min(whole / 2));
        let (stream, output) = (!self.boot.json, &mut self.output);
        run::run(&arguments, Limits { whole, first_line }, &mut |line| {
            if stream { output.line(&output.style().log_line(line)) } else { Ok(()) }
        })
    }

    /// The guest's report with its log, if all went well.
    fn report(&self, ended: Ended) -> Result<Value, Error> {
        let fail = |what: &str| Err(Error::Failed(self.explained(what, &ended)));
        match ended.how {
            End::TimeOut => {
                return fail(&format!("the guest did not end within {} s and was stopped", self.boot.timeout));
            }
            End::Silence => return fail("the guest said nothing and was stopped"),
            End::Exit(status) => match status.code() {
                Some(DONE) => {}
                Some(PANICKED) => return fail("the guest panicked"),
                Some(REFUSED) => return fail("the guest refused to boot; its log says why"),
                _ => return fail(&format!("QEMU ended unexpectedly ({})", shown(status))),
            },
        }
        match ended.transcript.report {
            Some(Ok(mut report @ Value::Object(_))) => {
                report["log"] = ended.transcript.log.into();
                Ok(report)
            }
            Some(Ok(_)) => fail("the guest's report is no JSON object"),
            Some(Err(ref why)) => fail(&format!("the guest's report is not JSON: {why}")),
            None => fail("the guest ended without a report"),
        }
    }

    /// `what`, and the end of the log unless the user has just seen it.
    fn explained(&self, what: &str, ended: &Ended) -> String {
        let mut message = what.to_owned();
        for complaint in ended.complaints.lines() {
            message.push_str("\n  ");
            message.push_str(complaint);
        }
        let log = &ended.transcript.log;
        if log.is_empty() {
            message.push_str("\n  (the guest said nothing)");
        } else if self.boot.json || !self.output.is_terminal() {
            let skipped = log.len().saturating_sub(LAST_LINES);
            message.push_str("\nlast lines of its log:");
            for line in &log[skipped..] {
                message.push_str("\n  ");
                message.push_str(line);
            }
        }
        message
    }
}

/// Why a run under KVM shows that KVM does not work; `None` when the guest ran at all.
fn why_kvm_fails(ended: &Ended) -> Option<String> {
    if ended.first_line.is_some() {
        return None;
    }
    match ended.how {
        End::Exit(status) if matches!(status.code(), Some(DONE | PANICKED | REFUSED)) => None,
        End::Exit(status) => {
            let complaint = ended.complaints.lines().next_back();
            let complaint = complaint.map(|line| line.trim_start_matches("qemu-system-x86_64: ").to_owned());
            Some(complaint.unwrap_or_else(|| shown(status)))
        }
        End::Silence => Some("no sign of life from the guest".into()),
        End::TimeOut => None,
    }
}

fn shown(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}
