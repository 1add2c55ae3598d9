//! The boot log of a machine with a shell, and its messages about wrong parameters.

mod common;

use common::{finish, program, run};
use std::io::Write;
use std::process::Stdio;

/// Runs a shell with these arguments and input lines; returns its output and its errors.
fn shell(words: &[&str], lines: &str) -> (String, String) {
    let mut command = program();
    command
        .arg("shell")
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    child.stdin.take().expect("a pipe").write_all(lines.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_shell_keeps_the_boot_log_and_says_what_is_wrong_with_parameters() {
    let words = ["--memory", "256M", "nonsense=1", "mem=lots", "nönsense=1"];
    for guest in [&[][..], &["--on", "qemu", "--accel", "tcg"]] {
        let (said, complaints) = shell(&[guest, &words].concat(), "dmesg\n");
        assert!(
            said.contains("Zone ranges:")
                && said.contains("\"nonsense=1\", ignored")
                && said.contains("\"nönsense=1\", ignored"),
            "{guest:?}: {said}"
        );
        assert!(
            complaints
                .contains("note: Unknown kernel command line parameter \"nonsense=1\", ignored")
                && complaints.contains("note: Malformed parameter \"mem=lots\", ignored"),
            "{guest:?}: {complaints}"
        );
        let (said, complaints) = shell(&[guest, &words[..2]].concat(), "echo here\n");
        assert!(
            said.contains("here") && !said.contains("Zone ranges:") && complaints.is_empty(),
            "{said}{complaints}"
        );
    }
}

#[test]
fn commands_after_a_boot_have_its_log_too() {
    let report = run(&["boot", "--memory", "64M", "--json", "--exec", "dmesg"]).json();
    let log = report["log"].as_array().expect("a log");
    let said = report["exec"]["output"].as_str().expect("text");
    assert!(
        log.len() > 5 && log.iter().map(|line| line.as_str().expect("text")).eq(said.lines()),
        "{said}"
    );
}

#[test]
fn the_guests_switches_are_in_the_help() {
    for command in ["boot", "shell"] {
        let help = finish(program().args([command, "--help"])).stdout;
        for switch in
            ["fault=KIND", "double-free", "stress=SECONDS", "balloon_test=SECONDS", "check=cpus"]
        {
            assert!(help.contains(switch), "{command}: {switch}");
        }
    }
}
