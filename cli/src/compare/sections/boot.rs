//! From the start of QEMU to the first line and to somebody who takes commands.

use super::{common, shown};
use crate::compare::lab::{Lab, Words};
use crate::compare::plan::Plan;
use crate::compare::rows::{Demand, Row, Unit};
use crate::error::Error;
use serde_json::Value;

const REPETITIONS: usize = 7;
const BUDGET_SECONDS: u64 = 120;
/// Ours may take a tenth of Linux's time.
const DEMANDED: f64 = 10.0;

/// Boots both, and Linux once more with nothing to say.
///
/// # Errors
/// A machine did not do what it must.
pub fn run(lab: &Lab, plan: &Plan) -> Result<Vec<Value>, Error> {
    let shape = plan.shape(2, 1, false);
    let mut first = Row::new("spawn to first line", Unit::Milliseconds);
    let mut prompt = Row::new("spawn to prompt", Unit::Milliseconds).demanding(Demand::Ratio(DEMANDED));
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
    Ok([first, prompt, quiet].iter().map(|row| row.value(&common)).collect())
}
