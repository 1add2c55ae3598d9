//! Watches a guest over its second serial line, by way of the process that runs QEMU.

mod common;

use common::{Outcome, Scratch, finish, program};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

fn top(place: &Scratch, words: &[&str]) -> Outcome {
    finish(program().arg("top").args(words).env("XDG_RUNTIME_DIR", place.path("")))
}

fn guest(place: &Scratch, words: &[&str]) -> Command {
    let mut command = program();
    command.args(words).args([
        "--on",
        "qemu",
        "--accel",
        "tcg",
        "--memory",
        "256M",
        "--timeout",
        "300",
    ]);
    command.env("XDG_RUNTIME_DIR", place.path(""));
    command
}

#[test]
fn a_guest_is_watched_while_it_waits_and_while_it_works() {
    let place = Scratch::new("top-guest");
    let mut child = guest(&place, &["shell", "--nodes", "2", "--cpus", "2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut keys = child.stdin.take().expect("a pipe");
    let mut said = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut run = |command: &str| {
        writeln!(keys, "{command}").expect("it reads");
        let mut line = String::new();
        said.read_line(&mut line).expect("it speaks");
        line
    };
    let socket = place.path(&format!("framewright/{}.sock", child.id()));
    // The guest may have to be built first, so the wait for its first output is unlimited.
    assert!(run("echo 5 > /proc/sys/vm/nr_hugepages; echo ready").starts_with("ready"));
    let idle = top(&place, &["--once"]);
    assert_eq!(idle.code, Some(0), "{}", idle.stderr);
    assert!(idle.stdout.starts_with(&format!("process {}: ", child.id())), "{}", idle.stdout);
    let words = |outcome: &Outcome, beginning: &str| -> Vec<String> {
        let line = outcome.stdout.lines().find(|line| line.trim_start().starts_with(beginning));
        let line = line.unwrap_or_else(|| panic!("{beginning}\n{}", outcome.stdout));
        line.split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(words(&idle, "2.00 MiB ")[2..4], ["5", "5"]);
    assert!(idle.stdout.lines().any(|line| line.trim_start().starts_with("1  DMA32")));
    // While it works, the guest polls this line as it polls its keys.
    assert!(run("echo begin; stress 8").starts_with("begin"));
    let busy = (0..4).map(|_| top(&place, &["--once"])).find(|outcome| outcome.code == Some(0));
    let busy = busy.expect("it answers while it works");
    let refilled = |outcome: &Outcome| {
        words(outcome, "pages to CPUs' caches")[4].parse::<u64>().expect("a number")
    };
    assert!(refilled(&busy) > refilled(&idle), "{}", busy.stdout);
    drop(keys);
    let rest: Vec<String> = said.lines().map(|line| line.expect("text")).collect();
    assert!(rest.iter().any(|line| line.contains("every page accounted for")), "{rest:?}");
    assert!(child.wait().expect("it ends").success());
    assert!(!socket.exists());
}

#[test]
fn a_second_line_with_nobody_at_it_disturbs_nothing() {
    let place = Scratch::new("top-nobody");
    let outcome = finish(
        guest(&place, &["boot", "--json", "--exec", "cat /proc/buddyinfo; verify"])
            .args(["--cpus", "2"]),
    );
    let report = outcome.json();
    assert_eq!(report["exec"]["status"], 0);
    assert!(
        report["exec"]["output"].as_str().is_some_and(|said| said.contains("verified: ")),
        "{report}"
    );
    assert_eq!(top(&place, &["--once"]).code, Some(1));
}
