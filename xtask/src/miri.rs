//! Runs under Miri what Miri can run: unit tests of sync, blocks, tables and jobs, which only use
//! ordinary allocations.
//!
//! This is a command of its own and not a step of `test`, because it needs a nightly toolchain and
//! the project is built with the stable one. Miri cannot run tests over mappings of the host (the
//! fake machine, processes, vmemmaps), models, or assembly; the model checkers see other memory
//! orderings than it does.

use crate::command::Run;
use crate::step::Tally;

/// The packages and the unit tests to run; all tests if no filter is given.
const TESTS: [(&str, &[&str]); 2] = [
    ("framewright-jobs", &[]),
    ("framewright", &["sync::", "block::", "vmemmap::sections", "page::", "units::"]),
];

/// What to do if there is no Miri.
const INSTALL: &str = "\
there is no nightly toolchain with Miri here. To install one beside the stable toolchain:

  rustup toolchain install nightly --profile minimal --component miri --component rust-src
";

/// Runs all tests. The error is a text to print.
///
/// # Errors
/// What is missing, or the output of the tests that failed.
pub fn run() -> Result<(), String> {
    // Use rustup, because the cargo that runs this program belongs to another toolchain.
    let miri =
        |words: &[&str]| Run::program("rustup", &["run", "nightly", "cargo", "miri"]).args(words);
    let version = miri(&["--version"]).output().map_err(|_| INSTALL.to_owned())?;
    print!("{version}");
    for (package, filters) in TESTS {
        let output = miri(&["test", "-p", package, "--lib", "--target-dir", "target/miri", "--"])
            .args(filters.iter().copied())
            // Tests read the clock.
            .env("MIRIFLAGS", "-Zmiri-disable-isolation")
            .output()
            .map_err(|failure| failure.output)?;
        let Tally { passed, ignored, .. } = Tally::of(&output);
        println!("{package}: {passed} tests passed, {ignored} ignored");
        if passed == 0 {
            return Err(format!("{package}: no test has such a name: {filters:?}\n"));
        }
    }
    Ok(())
}
