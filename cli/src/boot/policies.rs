//! Compares the three policies of `memmap_init=` on the machine at hand.

use crate::error::Error;
use crate::grid::{Grid, median, microseconds, size};
use crate::hosted::{Pass, Silent};
use crate::interrupt;
use crate::output::Output;
use crate::target::closed;
use framewright::parameters::{Policy, next_word};
use serde_json::Value;

/// The number of bring-ups of each policy; the median one is shown.
const REPETITIONS: usize = 3;

/// Brings up the machine of `pass` with each policy and shows times and metadata. The memory of the
/// tables and of the descriptor array is backed and dirty each time.
///
/// # Errors
/// Fails if a bring-up fails, the terminal is gone, or a signal has come.
pub fn show(output: &mut Output, pass: Pass<'_>, command_line: &str) -> Result<(), Error> {
    let lines = Policy::ALL.map(|policy| with_policy(command_line, policy));
    let mut session = pass.end_dirty()?;
    if !session.has_page_array() {
        return Ok(());
    }
    let mut grid = Grid::new(&[
        "<policy",
        ">threads",
        ">first page",
        ">all memory",
        ">metadata",
        ">of memory",
    ]);
    for (policy, line) in Policy::ALL.into_iter().zip(&lines) {
        let mut runs: Vec<Value> = Vec::new();
        // The first run only makes the memory of this policy's array backed and dirty.
        for run in 0..=REPETITIONS {
            interrupt::check()?;
            let pass = session.with_command_line(line).bring_up(&mut Silent)?;
            if run > 0 {
                runs.push(pass.report.clone());
            }
            session = pass.end_dirty()?;
        }
        grid.row(row(policy, &runs));
    }
    output.line("")?;
    let style = output.style();
    grid.render(style).iter().try_for_each(|line| output.line(line))?;
    let note = format!(
        "memmap_init=, median of {REPETITIONS} bring-ups each, tables and array backed and dirty"
    );
    output.line(&style.dim(&note))
}

/// Adds a policy to a command line before any `--` and with open quotes closed, as either would
/// hide the policy.
fn with_policy(command_line: &str, policy: Policy) -> String {
    let mut line = String::new();
    let (mut word, mut rest) = next_word(command_line);
    while !word.is_empty() && word.trim_matches('"') != "--" {
        line.push_str(&closed(word));
        line.push(' ');
        (word, rest) = next_word(rest);
    }
    line + "memmap_init=" + policy.name()
}

fn row(policy: Policy, runs: &[Value]) -> Vec<String> {
    let middle = |name: &str| {
        let mut values: Vec<f64> =
            runs.iter().filter_map(|run| run["totals"][name].as_f64()).collect();
        values.sort_by(f64::total_cmp);
        median(&values)
    };
    let time = |name: &str| middle(name).map_or("-".to_owned(), microseconds);
    let last = runs.last().unwrap_or(&Value::Null);
    let bytes = last["totals"]["metadata_bytes"].as_u64();
    let present = last["totals"]["present_pages"].as_f64().unwrap_or(0.0) * 4096.0;
    vec![
        policy.name().to_owned(),
        last["threads"].to_string(),
        time("first_alloc_us"),
        time("all_memory_us"),
        bytes.map_or("-".to_owned(), size),
        bytes.map_or("-".to_owned(), |bytes| {
            format!("{:.4} %", bytes as f64 / present.max(1.0) * 100.0)
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_row_has_the_middle_of_its_runs() {
        let run = |us: f64| {
            json!({ "threads": 2, "totals": { "first_alloc_us": us, "all_memory_us": us * 10.0,
                    "metadata_bytes": 4096, "present_pages": 1024 } })
        };
        let row = row(Policy::Deferred, &[run(3.0), run(1.0), run(900.0)]);
        assert_eq!(row, ["deferred", "2", "3.0 us", "30.0 us", "4 KiB", "0.0977 %"]);
    }

    #[test]
    fn a_policy_is_read_behind_any_line() {
        for line in ["", "mem=512M", "mem=\"512M", "mem=512M -- quiet", "a=\"b c\" mem=\"512M"] {
            let line = with_policy(line, Policy::Deferred);
            let parameters = framewright::Parameters::parse(&line, &mut |_| {});
            assert_eq!(parameters.policy, Policy::Deferred, "{line}");
            let limit = line.contains("512M").then_some(512 << 20);
            assert_eq!(parameters.memory_limit, limit, "{line}");
        }
    }
}
