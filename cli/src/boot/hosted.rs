//! Bringing up memory in this process.

use super::{command_line, policies, show, snapshot};
use crate::args::{Boot, Target};
use crate::error::Error;
use crate::hosted::{Lines, Session, Silent};
use crate::output::{Errors, Output};
use crate::shell;
use framewright_hosted::Machine;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Brings the machine up twice over the same memory: first untouched, then backed and dirty.
///
/// # Errors
/// A machine that cannot be read or brought up.
pub fn run(boot: &Boot) -> Result<u8, Error> {
    if boot.target.reporting.is_some() && boot.exec.is_none() {
        return Err(Error::Usage("--reporting goes on while commands run: add --exec".into()));
    }
    let _deadline = Deadline::start(boot.target.timeout);
    let machine = machine(&boot.target)?;
    let command_line = command_line(&boot.target);
    let session = Session::open(&machine, &command_line)?;
    let fresh = session.bring_up(&mut Silent)?;
    let first = &fresh.report["totals"];
    let first = json!({ "first_alloc_us": first["first_alloc_us"],
        "bring_up_us": first["bring_up_us"],
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
    report["log"] = log.clone().into();
    let mut memory = boot.snapshot.as_ref().map(|_| String::new());
    let Some(commands) = &boot.exec else {
        show(&mut output, boot, &report)?;
        if let Some(memory) = &mut memory {
            shell::execute(
                (pass.manager(), &log),
                &boot.target,
                "",
                Some(memory),
                &mut String::new(),
                &mut Errors,
            )?;
        }
        snapshot::keep(boot, memory)?;
        if !boot.json && boot.policy_table {
            policies::show(&mut output, pass, &command_line)?;
        }
        return Ok(0);
    };
    if boot.json {
        let (mut said, mut complaints) = (String::new(), String::new());
        let status = shell::execute(
            (pass.manager(), &log),
            &boot.target,
            commands,
            memory.as_mut(),
            &mut said,
            &mut complaints,
        )?;
        report["exec"] = json!({ "status": status, "output": said, "errors": complaints });
        show(&mut output, boot, &report)?;
        snapshot::keep(boot, memory)?;
        return Ok(status);
    }
    show(&mut output, boot, &report)?;
    output.line("")?;
    let status = shell::execute(
        (pass.manager(), &log),
        &boot.target,
        commands,
        memory.as_mut(),
        &mut output,
        &mut Errors,
    );
    output.settle()?;
    let status = status?;
    snapshot::keep(boot, memory)?;
    Ok(status)
}

/// The machine that the options describe.
///
/// # Errors
/// A machine that cannot be read or made.
pub fn machine(boot: &Target) -> Result<Machine, Error> {
    let bad = |error: framewright_hosted::SourceError| Error::Usage(error.to_string());
    let mut machine = match (&boot.map, boot.memory) {
        (Some(path), _) => Machine::from_file(path).map_err(bad)?,
        (None, Some(memory)) => {
            // Options describe all of it; nothing is left to change.
            let nodes = boot.nodes.unwrap_or(1);
            return Machine::synthetic(memory, nodes, boot.cpus.unwrap_or(nodes)).map_err(bad);
        }
        (None, None) => Machine::this().map_err(|error| Error::Failed(error.to_string()))?,
    };
    // A node without CPUs is only what somebody asks for.
    let few = boot.nodes.filter(|&nodes| machine.cpu_count() < nodes);
    if let Some(cpus) = boot.cpus.or(few) {
        machine.set_cpus(cpus).map_err(bad)?;
    }
    if let Some(nodes) = boot.nodes {
        machine.emulate_nodes(nodes).map_err(bad)?;
    }
    Ok(machine)
}

/// A machine in this process cannot be stopped from within, but the process can: it ends when this
/// lives longer than it may.
pub struct Deadline(Arc<AtomicBool>);

impl Deadline {
    /// So long from now.
    pub fn start(seconds: u64) -> Self {
        let is_met = Arc::new(AtomicBool::new(false));
        let met = Arc::clone(&is_met);
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(seconds));
            if !met.load(Ordering::Relaxed) {
                let _ = Error::Failed(format!("it did not end within {seconds} s")).tell();
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
