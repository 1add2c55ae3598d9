//! Bringing up memory in this process.

use super::{command_line, policies, show};
use crate::args::Boot;
use crate::error::Error;
use crate::hosted::{Lines, Session, Silent};
use crate::output::Output;
use framewright_hosted::Machine;
use serde_json::json;
use std::time::Duration;

/// Brings the machine up twice over the same memory: first untouched, then backed and dirty.
///
/// # Errors
/// A machine that cannot be read or brought up.
pub fn run(boot: &Boot) -> Result<(), Error> {
    give_up_after(boot.timeout);
    let machine = machine(boot)?;
    let command_line = command_line(boot);
    let session = Session::open(&machine, &command_line)?;
    let fresh = session.bring_up(&mut Silent)?;
    let first = &fresh.report["totals"];
    let first = json!({ "first_alloc_us": first["first_alloc_us"], "bring_up_us": first["bring_up_us"],
                        "all_memory_us": first["all_memory_us"] });
    let session = fresh.end_dirty()?;
    let mut log = Lines::new();
    let pass = session.bring_up(&mut log)?;
    pass.verify()?;
    let (mut report, log) = (pass.report.clone(), log.into_lines());
    report["first_touch"] = first;
    let mut output = Output::new();
    if !boot.json {
        let style = output.style();
        log.iter().try_for_each(|line| output.line(&style.log_line(line)))?;
    }
    report["log"] = log.into();
    show(&mut output, boot, &report)?;
    if boot.json || !boot.policy_table {
        return Ok(());
    }
    policies::show(&mut output, pass, &command_line)
}

/// The machine that the options describe.
fn machine(boot: &Boot) -> Result<Machine, Error> {
    let bad = |error: framewright_hosted::SourceError| Error::Usage(error.to_string());
    let mut machine = match (&boot.map, boot.memory) {
        (Some(path), _) => Machine::from_file(path).map_err(bad)?,
        (None, Some(memory)) => {
            // Options describe all of it; nothing is left to change.
            return Machine::synthetic(memory, boot.nodes.unwrap_or(1), boot.cpus.unwrap_or(1)).map_err(bad);
        }
        (None, None) => Machine::this().map_err(|error| Error::Failed(error.to_string()))?,
    };
    if let Some(cpus) = boot.cpus {
        machine.set_cpus(cpus).map_err(bad)?;
    }
    if let Some(nodes) = boot.nodes {
        machine.emulate_nodes(nodes).map_err(bad)?;
    }
    Ok(machine)
}

/// A machine in this process cannot be stopped from within, but the process can.
fn give_up_after(seconds: u64) {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(seconds));
        let _ = Error::Failed(format!("memory was not brought up within {seconds} s")).tell();
        std::process::exit(1);
    });
}
