//! Runs random traffic on a fake machine of each shape for some time.

use crate::command::Run;
use crate::step::{Failure, Passed};
use std::process::Command;

const PROGRAM: [&str; 6] = ["run", "--quiet", "-p", "framewright-testkit", "--example", "soak"];
/// The build for long runs: as fast as possible.
const LONG: &str = "--release";
/// The build for a few seconds: fast, and quick to build.
const SHORT: [&str; 2] = ["--profile", "model"];
/// How long the traffic runs as a step.
const STEP_SECONDS: &str = "5";

/// Runs the program with these arguments and shows its output as it arrives.
///
/// # Errors
/// That the program failed; it has printed why.
pub fn run(words: &[&str]) -> Result<(), String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(PROGRAM).arg(LONG).arg("--").args(words).current_dir(crate::workspace::root());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("soak: {status}\n")),
        Err(error) => Err(format!("soak: {error}\n")),
    }
}

/// The step: a short run.
///
/// # Errors
/// What the program wrote, if it failed.
pub fn step() -> Result<Passed, Failure> {
    let output = Run::cargo(&PROGRAM).args(SHORT).args(["--", STEP_SECONDS]).output()?;
    let machines = machines(&output)?;
    let seed = output.lines().find(|line| line.starts_with("seed ")).unwrap_or("no seed");
    Ok(Passed::note(format!("{machines} machines, {seed}")))
}

/// The number of machines with traffic.
fn machines(output: &str) -> Result<usize, Failure> {
    match output.lines().filter(|line| line.contains("operations/s")).count() {
        0 => Err(Failure::new(format!("{output}\nthere was traffic on no machine\n"))),
        machines => Ok(machines),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_soak_of_no_machine_is_a_failure() {
        let line = "small, 2 threads: all 9 pages back after 7 operations; 5 operations/s\n";
        assert_eq!(machines(&format!("seed 7\n{line}{line}")).ok(), Some(2));
        assert!(machines("seed 7\n").is_err());
    }
}
