//! Every bad input ends in one clear line and the right exit status.

#[path = "../../cli/tests/common/mod.rs"]
mod common;

use common::run;

/// Runs the program and expects exit status 2 and one line that holds `part`.
fn refused(words: &[&str], part: &str) {
    let outcome = run(words);
    let stderr = outcome.stderr.trim_end();
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""), "{words:?}: {stderr}");
    assert!(
        stderr.starts_with("framewright-bench: ")
            && stderr.lines().count() == 1
            && stderr.contains(part),
        "{words:?}: {stderr}"
    );
}

#[test]
fn words_that_mean_nothing() {
    refused(&["coffee"], "coffee");
    refused(&["alloc", "--frobnicate"], "--frobnicate");
    refused(&[], "framewright-bench alloc");
    refused(&["bench", "alloc"], "`framewright-bench alloc`");
    refused(&["compare"], "framewright-bench compare linux");
    refused(&["bench"], "`framewright-bench --help`");
    refused(&["boot", "--memory", "8G"], "`cargo run --release -- boot --memory 8G`");
    refused(&["plug", "512M"], "plug is for the program framewright");
}
