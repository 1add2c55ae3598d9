//! Brings up memory in this process.

use super::{output, policies, show, snapshot};
use crate::args::Boot;
use crate::error::Error;
use crate::hosted::{Lines, Session, Silent};
use crate::interrupt;
use crate::output::Errors;
use crate::shell;
use crate::target::{Deadline, accept_delay, command_line, machine};
use serde_json::json;

/// Brings the machine up twice over one piece of memory: first untouched, then backed and dirty.
///
/// # Errors
/// Fails if the machine cannot be read or brought up.
pub fn run(boot: &Boot) -> Result<u8, Error> {
    if boot.target.reporting.is_some() && boot.exec.is_none() {
        return Err(Error::Usage("--reporting works only while commands run: add --exec".into()));
    }
    let _deadline = Deadline::start(boot.target.timeout);
    let machine = machine(&boot.target)?;
    let command_line = command_line(&boot.target);
    let session =
        Session::open(&machine, &command_line)?.with_accept_delay(accept_delay(&boot.target));
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
    let mut output = output(boot);
    if !boot.json {
        let style = output.style();
        log.iter().try_for_each(|line| output.line(&style.log_line(line)))?;
    }
    report["log"] = log.clone().into();
    let mut memory = boot.snapshot.as_ref().map(|_| String::new());
    let Some(commands) = &boot.exec else {
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
        show(&mut output, boot, &report)?;
        if !boot.json && boot.policy_table != Some(false) {
            policies::show(&mut output, pass, &command_line)?;
        }
        // Since the snapshot was taken, a signal is only noted.
        interrupt::check()?;
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
        snapshot::keep(boot, memory)?;
        show(&mut output, boot, &report)?;
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
    // What the commands wrote comes before a snapshot that is written to the same place, but how
    // they ended says more than that it could not be written.
    let settled = output.settle();
    let status = status?;
    snapshot::keep(boot, memory)?;
    settled.map(|()| status)
}
