//! The time from the start of QEMU to the first line and to a shell that takes commands.

use super::{common, shown};
use crate::compare::lab::{Lab, Shape, Words};
use crate::compare::plan::Plan;
use crate::compare::rows::{Demand, Row, Unit};
use crate::compare::{linux, ours};
use framewright_cli::error::Error;
use serde_json::Value;

const REPETITIONS: usize = 7;
const BUDGET_SECONDS: u64 = 120;
/// Our boot may take a tenth of Linux's time.
const DEMANDED: f64 = 10.0;
/// The machine whose CPUs are timed as they come up, and the limit for our guest.
const MANY_CPUS: u32 = 16;
const MANY_CPUS_MS: f64 = 100.0;
const MANY_CPUS_REPETITIONS: usize = 2;

/// Boots both, and Linux once more without console output.
///
/// # Errors
/// Fails if a machine did not do its task.
pub fn run(lab: &Lab, plan: &Plan) -> Result<Vec<Value>, Error> {
    // QEMU would add the time of preallocating memory to both.
    let shape = Shape { preallocated: false, ..plan.shape(2, 1, false) };
    let mut first = Row::new("spawn to first line", Unit::Milliseconds);
    let mut prompt =
        Row::new("spawn to prompt", Unit::Milliseconds).demanding(Demand::Ratio(DEMANDED));
    let mut quiet = Row::new("spawn to prompt, Linux quiet", Unit::Milliseconds);
    let mut repetitions = plan.repetitions(REPETITIONS, BUDGET_SECONDS);
    while repetitions.another().is_some() {
        let linux = lab.linux(&shape, "", "")?;
        let ours = lab.ours(&shape, "", Words::Prompt)?;
        let silent = lab.linux(&shape, "quiet", "")?;
        first.add(linux.first_line_ms(), ours.first_line_ms());
        prompt.add(linux.prompt_ms(), ours.prompt_ms());
        quiet.add(silent.prompt_ms(), ours.prompt_ms());
        plan.tell(&format!(
            "spawn to prompt, {}: Linux {}, quiet {}, ours {}",
            repetitions.shown(),
            shown(linux.prompt_ms()),
            shown(silent.prompt_ms()),
            shown(ours.prompt_ms())
        ));
    }
    let common = common(lab, &shape);
    let mut rows: Vec<Value> =
        [first, prompt, quiet].iter().map(|row| row.value(&common)).collect();
    rows.push(many_cpus(lab, plan)?);
    Ok(rows)
}

/// Times a machine with many CPUs from starting the first secondary CPU until all are up.
fn many_cpus(lab: &Lab, plan: &Plan) -> Result<Value, Error> {
    let shape = Shape { cpus: MANY_CPUS, ..plan.shape(2, 1, false) };
    let mut up = Row::new("all CPUs up", Unit::Milliseconds)
        .demanding(Demand::AtMost(Unit::Milliseconds, MANY_CPUS_MS));
    let mut repetitions = plan.repetitions(MANY_CPUS_REPETITIONS, BUDGET_SECONDS / 2);
    while repetitions.another().is_some() {
        let linux = lab.linux(&shape, "", "")?;
        let ours = lab.ours(&shape, "", Words::Prompt)?;
        up.add(linux::cpus_up_ms(&linux), ours::cpus_up_ms(&ours));
    }
    plan.tell(&format!("{MANY_CPUS} CPUs up, {}", repetitions.shown()));
    Ok(up.value(&common(lab, &shape)))
}
