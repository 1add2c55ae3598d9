//! `framewright boot`: brings up the memory of a machine and shows the result.
//!
//! Both platforms produce one JSON object, from which the text for people is rendered.

mod hosted;
mod policies;
mod qemu;
mod snapshot;
mod table;

use crate::args::{Boot, Where};
use crate::error::Error;
use crate::file::{self, Kind};
use crate::output::Output;
use crate::target;
use serde_json::Value;

/// Does what the options say and returns the exit status.
///
/// # Errors
/// Fails if options contradict one another, or with anything that can go wrong on the way.
pub fn run(boot: &Boot) -> Result<u8, Error> {
    target::check(&boot.target)?;
    let has_no_table = boot.json || boot.exec.is_some() || boot.target.on == Where::Qemu;
    if boot.policy_table == Some(true) && has_no_table {
        return Err(Error::Usage(
            "--policy-table=yes needs --on hosted and cannot be used with --json or --exec".into(),
        ));
    }
    if let Some(path) = &boot.snapshot {
        file::check("--snapshot", path)?;
        file::claim("--snapshot", path, Kind::Snapshot)?;
    }
    match boot.target.on {
        Where::Hosted => hosted::run(boot),
        Where::Qemu => qemu::run(boot),
    }
}

/// The output of a boot. Commands run and a snapshot is written even if nobody reads the output to
/// its end.
fn output(boot: &Boot) -> Output {
    let output = Output::new();
    if boot.snapshot.is_some() || boot.exec.is_some() { output.lasting() } else { output }
}

/// Shows the result; the log has been shown already.
fn show(output: &mut Output, boot: &Boot, report: &Value) -> Result<(), Error> {
    if boot.json {
        return output.line(&report.to_string());
    }
    table::render(report, output.style()).iter().try_for_each(|line| output.line(line))
}
