//! Brings up memory on a virtual machine.

use super::{output, show, snapshot};
use crate::args::Boot;
use crate::error::Error;
use crate::output::Output;
use crate::qemu::attempts::Attempts;
use crate::qemu::encoding::encode;
use crate::qemu::protocol::Transcript;
use crate::qemu::run::Watch;
use serde_json::json;
use std::process::ChildStdin;
use std::time::Duration;

/// Boots the reference guest and returns the exit status.
///
/// # Errors
/// Anything from a missing QEMU to a guest that panicked.
pub fn run(boot: &Boot) -> Result<u8, Error> {
    let attempts = Attempts::prepare(&boot.target)?;
    let mut words = String::from("report=json");
    // The shell takes the snapshot last, so the shell is needed even without commands.
    if let Some(commands) = boot.exec.as_deref().or(boot.snapshot.is_some().then_some("")) {
        words.push_str(&format!(" exec={}", encode(commands)));
    }
    if boot.snapshot.is_some() {
        words.push_str(" snapshot=1");
    }
    let mut viewer = Viewer {
        boot,
        attempts: &attempts,
        output: output(boot),
        said: Vec::new(),
        is_shown: false,
    };
    let (accelerator, ended) = attempts.run(&words, false, &mut viewer)?;
    let status = ended.transcript.status;
    let first_line = ended.first_line;
    let memory = boot.snapshot.is_some().then(|| ended.transcript.memory.clone());
    let seen = !boot.json && viewer.output.is_terminal();
    let mut report = attempts.report(ended, seen)?;
    if boot.exec.is_some() && status.is_none() {
        return Err(Error::Failed(
            "the guest ended without reporting the status of its commands".into(),
        ));
    }
    let status = status.unwrap_or(0);
    snapshot::keep(boot, memory)?;
    if !viewer.is_shown {
        report["qemu"] = attempts.about(accelerator, first_line);
        if boot.exec.is_some() {
            // Standard output and errors share the guest's serial line.
            let said = String::from_utf8_lossy(&viewer.said).replace("\r\n", "\n");
            report["exec"] = json!({ "status": status, "output": said, "errors": "" });
        }
        show(&mut viewer.output, boot, &report)?;
    }
    Ok(status)
}

/// Watches a boot for the user.
struct Viewer<'a> {
    boot: &'a Boot,
    attempts: &'a Attempts<'a>,
    output: Output,
    /// The output of the commands, for the JSON object.
    said: Vec<u8>,
    /// Whether the tables have been shown.
    is_shown: bool,
}

impl Watch for Viewer<'_> {
    fn line(&mut self, line: &str) -> Result<(), Error> {
        if self.boot.json { Ok(()) } else { self.output.line(&self.output.style().log_line(line)) }
    }

    fn is_watchable(&self) -> bool {
        self.boot.exec.is_some()
    }

    fn shell(
        &mut self,
        transcript: &Transcript,
        first_line: Option<Duration>,
        _: Option<ChildStdin>,
    ) -> Result<(), Error> {
        if let (false, Some(Ok(report))) = (self.boot.json, &transcript.report) {
            let mut report = report.clone();
            report["qemu"] = self.attempts.about(self.attempts.accelerator.get(), first_line);
            show(&mut self.output, self.boot, &report)?;
            if self.boot.exec.is_some() {
                self.output.line("")?;
            }
            self.is_shown = true;
        }
        Ok(())
    }

    fn output(&mut self, bytes: &[u8]) -> Result<(), Error> {
        if self.boot.json {
            self.said.extend(bytes);
            Ok(())
        } else {
            self.output.bytes(bytes)
        }
    }
}
