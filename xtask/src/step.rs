//! Steps: one line each while all goes well, and a step's whole output if it fails.

use crate::usage::{self, Program};
use std::io::Write;
use std::time::{Duration, Instant};

/// A step of the checks.
pub struct Step {
    /// The step's name for `--only`.
    pub name: &'static str,
    /// What the step checks, for `--list`.
    pub about: &'static str,
    /// The function that runs the step.
    pub run: fn() -> Result<Passed, Failure>,
}

/// The result of a step that found nothing wrong.
#[derive(Default)]
pub struct Passed {
    /// The tests that ran.
    pub tests: Tally,
    /// Further remarks, in a few words.
    pub note: String,
}

impl Passed {
    /// A result with only a note.
    pub fn note(note: impl Into<String>) -> Self {
        Self { note: note.into(), ..Self::default() }
    }
}

/// The result of a step that found something wrong.
#[derive(Debug)]
pub struct Failure {
    /// Everything that explains the failure.
    pub output: String,
    /// The tests that ran before the step ended.
    pub tests: Tally,
}

impl Failure {
    /// A failure that no test found.
    pub fn new(output: impl Into<String>) -> Self {
        Self { output: output.into(), tests: Tally::default() }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::new(format!("{error}\n"))
    }
}

/// Counts of tests, and the programs that ran them.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that did not run.
    pub ignored: u64,
    /// The programs that ran the tests.
    pub programs: Vec<Program>,
}

impl Tally {
    /// Sums cargo's `test result:` lines.
    pub fn of(output: &str) -> Self {
        let mut tally = Self { programs: usage::programs(output), ..Self::default() };
        for line in output.lines() {
            let Some((_, counts)) = line.split_once("test result: ") else { continue };
            let counts = counts.split_once(". ").map_or("", |(_, counts)| counts);
            for count in counts.split(';') {
                let mut words = count.split_whitespace();
                let number = words.next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
                match words.next() {
                    Some("passed") => tally.passed += number,
                    Some("failed") => tally.failed += number,
                    Some("ignored") => tally.ignored += number,
                    _ => {}
                }
            }
        }
        tally
    }

    /// Adds another tally to this one.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.programs.extend(other.programs);
    }

    fn words(&self) -> String {
        match (self.passed, self.failed, self.ignored) {
            (0, 0, 0) => String::new(),
            (passed, _, 0) => format!("{passed} tests"),
            (passed, _, ignored) => format!("{passed} tests, {ignored} ignored"),
        }
    }
}

/// The steps that were asked for, in the order of `all`.
pub fn selected<'a>(all: &'a [Step], only: &[&str]) -> Vec<&'a Step> {
    all.iter().filter(|step| only.is_empty() || only.contains(&step.name)).collect()
}

/// Prints the names of the steps.
pub fn list(all: &[Step]) {
    for step in all {
        println!("{:<10} {}", step.name, step.about);
    }
}

/// Runs the steps until one fails, then prints how many tests passed and failed, and the slowest
/// steps and programs. Returns false if a step failed; its output has been printed.
pub fn run_all(steps: &[&Step]) -> bool {
    let mut tests = Tally::default();
    let mut costs = Vec::new();
    let mut all_well = true;
    for step in steps {
        print!("{:<10} ", step.name);
        // A step can take minutes, so show its name before it ends.
        std::io::stdout().flush().unwrap_or_default();
        let (start, user_before) = (Instant::now(), usage::user_time());
        let outcome = (step.run)();
        let user = usage::user_time().saturating_sub(user_before);
        let cost = format!("{}  {} user", seconds(start.elapsed()), seconds(user));
        costs.push((step.name, user));
        match outcome {
            Ok(passed) => {
                let details = [passed.tests.words(), passed.note]
                    .into_iter()
                    .filter(|words| !words.is_empty());
                let line = format!("ok     {cost}  {}", details.collect::<Vec<_>>().join("; "));
                println!("{}", line.trim_end());
                tests.add(passed.tests);
            }
            Err(failure) => {
                println!("FAILED {cost}");
                println!("\n{}\n", failure.output.trim_end());
                println!(
                    "stopped at the first failure; to repeat it: cargo xtask test --only {}",
                    step.name
                );
                tests.add(failure.tests);
                all_well = false;
                break;
            }
        }
    }
    println!("{} passed, {} failed", tests.passed, tests.failed);
    let user = costs.iter().map(|&(_, user)| user).sum();
    println!("\n{} of processor time in user mode; most of it:", seconds(user).trim_start());
    show(usage::longest(costs, SLOWEST_STEPS));
    if !tests.programs.is_empty() {
        println!("test programs that ran longest, by the clock and without their compilation:");
        let programs = tests.programs.into_iter().map(|program| (program.name, program.took));
        show(usage::longest(programs.collect(), SLOWEST_PROGRAMS));
    }
    all_well
}

/// How many steps and test programs to name at the end.
const SLOWEST_STEPS: usize = 5;
const SLOWEST_PROGRAMS: usize = 10;

fn show<T: std::fmt::Display>(longest: Vec<(T, Duration)>) {
    for (name, took) in longest {
        println!("  {}  {name}", seconds(took));
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:>6.1} s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_lines_are_summed() {
        let output = "running 2 tests\n\
                      test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 3 filtered out\n\
                      noise\n\
                      test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; \
                      0 filtered out\n";
        assert_eq!(
            Tally::of(output),
            Tally { passed: 15, failed: 2, ignored: 1, ..Tally::default() }
        );
        assert_eq!(Tally::of("no result here"), Tally::default());
    }

    #[test]
    fn steps_keep_their_order() {
        let run = || Ok(Passed::default());
        let all = [Step { name: "a", about: "", run }, Step { name: "b", about: "", run }];
        let names =
            |only: &[&str]| selected(&all, only).iter().map(|step| step.name).collect::<Vec<_>>();
        assert_eq!(names(&[]), ["a", "b"]);
        assert_eq!(names(&["b", "a"]), ["a", "b"]);
        assert_eq!(names(&["b"]), ["b"]);
    }
}
