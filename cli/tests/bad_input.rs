//! Every bad input ends in one clear line and the right exit status.

mod common;

use common::{Scratch, finish, program, run};
use std::os::unix::ffi::OsStrExt;

/// Runs the program and expects exit status 2 and one line that holds all of `parts`.
fn refused(words: &[&str], parts: &[&str]) {
    let outcome = run(words);
    let stderr = outcome.stderr.trim_end();
    assert_eq!(outcome.code, Some(2), "{words:?}: {stderr}");
    assert!(
        stderr.starts_with("framewright: ") && stderr.lines().count() == 1,
        "{words:?}: {stderr}"
    );
    for part in parts {
        assert!(stderr.contains(part), "{words:?}: `{part}` is not in: {stderr}");
    }
    assert_eq!(outcome.stdout, "", "{words:?}");
}

#[test]
fn numbers_that_no_machine_has() {
    refused(&["boot", "--cpus", "0"], &["--cpus", "at least one CPU"]);
    refused(&["boot", "--nodes", "0"], &["--nodes", "at least one node"]);
    refused(&["boot", "--nodes", "1025"], &["--nodes", "at most 1024"]);
    refused(&["boot", "--nodes", "-1"], &["--nodes", "-1"]);
    refused(&["boot", "--memory", "-1"], &["--memory", "-1"]);
    refused(&["boot", "--unaccepted", "-5%"], &["--unaccepted", "-5%", "must be 0% to"]);
    refused(&["boot", "--memory", "0"], &["--memory", "0"]);
    refused(&["boot", "--memory", "12Q"], &["--memory", "12Q", "suffix"]);
    refused(&["boot", "--memory", "99999999999T"], &["--memory"]);
    refused(&["boot", "--memory", "many"], &["--memory", "many"]);
    refused(&["boot", "--timeout", "0"], &["--timeout"]);
    refused(&["boot", "--memory", "1K"], &["memory"]);
    refused(&["boot", "--memory", "5000T"], &["memory"]);
}

#[test]
fn a_machine_that_this_process_has_no_addresses_for() {
    let outcome = run(&["boot", "--memory", "4000T"]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(
        outcome.stderr.starts_with("framewright: this process cannot simulate"),
        "{}",
        outcome.stderr
    );
    assert_eq!(outcome.stderr.lines().count(), 1);
}

#[test]
fn more_nodes_than_memory() {
    refused(&["boot", "--memory", "64M", "--nodes", "64"], &["too many nodes"]);
    refused(&["boot", "--on", "qemu", "--memory", "8M", "--nodes", "16"], &["--nodes 16", "8 MiB"]);
    refused(&["boot", "--on", "qemu", "--memory", "4M"], &["--memory 4M", "8 MiB"]);
    refused(
        &["boot", "--on", "qemu", "--memory", "1G", "--nodes", "129"],
        &["--nodes 129", "at most 128"],
    );
    refused(&["boot", "--on", "qemu", "--memory", "1234567"], &["whole MiB"]);
    refused(&["boot", "--on", "qemu", "--memory", "1M"], &["--memory 1M", "8 MiB"]);
}

#[test]
fn options_that_exclude_one_another() {
    refused(&["boot", "--on", "qemu", "--map", "x"], &["--map", "--on qemu", "its own memory map"]);
    refused(&["boot", "--memory", "8G", "--map", "x"], &["--memory", "--map"]);
    refused(&["boot", "--accel", "tcg"], &["--accel", "--on qemu"]);
    refused(&["boot", "--machine", "pc"], &["--machine", "--on qemu"]);
    refused(&["boot", "--balloon"], &["--balloon", "--on qemu"]);
    refused(&["boot", "--qemu=-S"], &["--qemu", "--on qemu"]);
}

#[test]
fn words_that_mean_nothing() {
    refused(&["boot", "--on", "moon"], &["moon", "hosted", "qemu"]);
    refused(&["boot", "--frobnicate"], &["--frobnicate"]);
    refused(&["reboot"], &["reboot"]);
    refused(&[], &["framewright boot"]);
    for word in ["bench", "compare", "model", "traffic"] {
        refused(&[word, "--help"], &[word, "framewright-bench"]);
    }
    refused(&["bench", "alloc", "--quick"], &["framewright-bench -- alloc --quick`"]);
    refused(&["alloc", "--quick"], &["framewright-bench -- alloc --quick`"]);
}

#[test]
fn files_that_describe_no_machine() {
    refused(&["boot", "--map", "/nonexistent/file"], &["/nonexistent/file", "No such file"]);
    let scratch = Scratch::new("bad-files");
    let file = |name: &str, text: &[u8]| {
        let path = scratch.path(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    refused(&["boot", "--map", &file("empty", b"")], &["empty", "no memory"]);
    refused(&["boot", "--map", &file("noise", b"\0\xff\n\x7fELF\n")], &["noise"]);
    let bad = file(
        "bad-line",
        b"BIOS-e820: [mem 0x0000000000000000-0x000000000009fbff] usable\nBIOS-e820: [mem \
            0x00000000001x0000-0x7ffdefff] usable\n",
    );
    refused(&["boot", "--map", &bad], &["bad-line", "2", "001x0000"]);
    let useless =
        file("useless", b"BIOS-e820: [mem 0x0000000000000000-0x000000000009fbff] reserved\n");
    refused(&["boot", "--map", &useless], &["usable"]);
}

#[test]
fn a_parameter_that_is_wrong_is_logged_and_ignored() {
    let outcome = run(&["boot", "--memory", "1G", "quiet", "mem=12Q"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(
        outcome.stdout.contains("\"quiet\"") && outcome.stdout.contains("\"mem=12Q\""),
        "{}",
        outcome.stdout
    );
    // A boot parameter that leaves no usable memory is refused.
    refused(&["boot", "--memory", "1G", "mem=1"], &["no usable memory", "no whole frame"]);
}

#[test]
fn a_word_that_is_no_text() {
    let word = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    for command in ["boot", "shell", "report"] {
        let outcome = finish(program().arg(command).arg(word));
        assert_eq!(outcome.code, Some(2), "{command}: {}", outcome.stderr);
        assert!(outcome.stderr.contains("is not UTF-8"), "{command}: {}", outcome.stderr);
    }
}
