//! Runs each test of a program in a process of its own, as many at a time as the host has CPUs.
//!
//! Model checkers give each modelled thread a stack of its own and run a model hundreds of
//! thousands of times. With several tests in one process, each time a stack is mapped or unmapped
//! the other tests wait until all CPUs have flushed their TLBs: longer than the models take.

use crate::command::Run;
use crate::step::{Failure, Tally};
use crate::usage::Program;
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

/// What follows a test's name in the list that its program prints.
const IS_TEST: &str = ": test";

/// Runs all tests of `program`, even after one has failed, and calls it `name` in the result.
///
/// # Errors
/// The outputs of the tests that failed, or that there is no test. Without a model checker's flag,
/// its tests are an empty program, which must not pass.
pub fn run(name: &str, program: &Path) -> Result<Tally, Failure> {
    run_by(name, &|arguments| Run::program(program, arguments))
}

/// [`run`] of the program that `command` runs with its arguments.
fn run_by(name: &str, command: &(dyn Fn(&[&str]) -> Run + Sync)) -> Result<Tally, Failure> {
    let begun = Instant::now();
    let listed = command(&["--list", "--format", "terse"]).output()?;
    let names: Vec<&str> = listed.lines().filter_map(|line| line.strip_suffix(IS_TEST)).collect();
    let next = Mutex::new(names.iter());
    let done = Mutex::new((Tally::default(), String::new()));
    let at_a_time = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..at_a_time {
            scope.spawn(|| {
                while let Some(test) = taken(&next, Iterator::next) {
                    let result = command(&["--exact", test]).output();
                    taken(&done, |(tests, failures)| match result {
                        Ok(output) => tests.add(Tally::of(&output)),
                        Err(failure) => {
                            tests.add(failure.tests);
                            failures.push_str(&failure.output);
                        }
                    });
                }
            });
        }
    });
    let (mut tests, mut failures) = taken(&done, std::mem::take);
    let told = tests.passed + tests.failed + tests.ignored;
    if failures.is_empty() && (names.is_empty() || told != names.len() as u64) {
        failures = format!("{} tests of {name} told {told} results\n", names.len());
    }
    tests.programs = vec![Program { name: name.to_owned(), took: begun.elapsed() }];
    if failures.is_empty() { Ok(tests) } else { Err(Failure { output: failures, tests }) }
}

/// Calls `body` with what a lock guards, which is whole whatever happened to the lock's last owner.
fn taken<T, R>(lock: &Mutex<T>, body: impl FnOnce(&mut T) -> R) -> R {
    body(&mut lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script that takes a test harness's arguments. One of its tests fails, and another ends
    /// without a result, if the variables say so.
    const HARNESS: &str = r#"
case "$1" in
    --list) printf 'one: test\ntwo: test\nof::three: test\nspeed: bench\n' ;;
    --exact)
        if [ "$2" = "$WRONG" ]; then
            echo "$2 is wrong"; echo "test result: FAILED. 0 passed; 1 failed"; exit 101
        elif [ "$2" != "$SILENT" ]; then
            echo "test result: ok. 1 passed; 0 failed; 2 filtered out"
        fi ;;
esac
"#;

    fn harness(wrong: &str, silent: &str) -> Result<Tally, Failure> {
        run_by("harness", &|arguments| {
            let harness = Run::program("sh", &["-c", HARNESS, "harness"]).args(arguments);
            harness.env("WRONG", wrong).env("SILENT", silent)
        })
    }

    #[test]
    fn each_test_runs_once_and_failures_are_shown() {
        let tests = harness("", "").expect("no test fails");
        assert_eq!((tests.passed, tests.failed, tests.programs.len()), (3, 0, 1));
        let failure = harness("two", "").expect_err("one test fails");
        let is_shown = |line| failure.output.lines().any(|shown| shown == line);
        assert!(is_shown("two is wrong"), "{}", failure.output);
        assert!(!is_shown("test result: ok. 1 passed; 0 failed; 2 filtered out"));
        let Tally { passed, failed, programs, .. } = failure.tests;
        assert_eq!((passed, failed, programs.len()), (2, 1, 1));
        let failure = harness("", "of::three").expect_err("one test has no result");
        assert_eq!(failure.output, "3 tests of harness told 2 results\n");
        let failure = run("nothing", Path::new("true")).expect_err("there is no test");
        assert_eq!(failure.output, "0 tests of nothing told 0 results\n");
        assert!(run("none", Path::new("/nonexistent/program")).is_err());
    }
}
