//! The shell in the reference guest: from the kernel's command line, from a pipe and from a terminal, over the serial line.

mod common;
#[path = "common/terminal.rs"]
mod terminal;

use common::{Outcome, check_sums, finish, program};
use std::io::Write;
use std::process::{Command, Stdio};
use terminal::Terminal;

const MACHINE: [&str; 6] = ["--on", "qemu", "--accel", "tcg", "--memory", "256M"];

fn command(name: &str) -> Command {
    let mut command = program();
    command.arg(name).args(MACHINE);
    command
}

#[test]
fn commands_survive_the_kernels_command_line() {
    let commands = "echo \"it's\"  'a  b' \u{e4}%20 > /nothing; echo \"it's\"  'a  b' \u{e4}%20\nalloc 9 2; cat /proc/buddyinfo; exit 6";
    let outcome = finish(command("boot").args(["--nodes", "2", "--exec", commands]));
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(6), ""));
    let text = outcome.stdout;
    let (boot, said) = text.split_once("first line ").expect("the tables come first");
    assert!(boot.contains("Zone ranges:") && boot.contains("node  zone"), "{text}");
    let lines: Vec<&str> = said.lines().skip(2).collect();
    assert_eq!(lines[..2], ["echo: /nothing: No such file or directory", "it's a  b \u{e4}%20"]);
    assert!(lines[2].starts_with("1: 2 x 512 pages, 4 MiB, first at 0x"));
    assert!(lines[3].starts_with("Node 0, zone      DMA ") && lines[5].starts_with("Node 1, zone    DMA32 "), "{said}");
    assert!(!text.contains("@s"), "{text}");
}

#[test]
fn the_object_has_what_commands_said() {
    let outcome = finish(command("boot").args(["--json", "--exec", "stress 1; cat /x; echo -n end"]));
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(0), ""));
    let report = outcome.json();
    check_sums(&report);
    let said = report["exec"]["output"].as_str().expect("text");
    assert!(
        said.contains("every page accounted for") && said.ends_with("cat: /x: No such file or directory\nend\n"),
        "{said}"
    );
    assert_eq!((report["exec"]["status"].as_u64(), report["platform"].as_str()), (Some(0), Some("qemu")));
}

#[test]
fn what_does_not_fit_on_the_command_line_is_refused() {
    let outcome = finish(command("boot").args(["--exec", &"echo ; ".repeat(1000)]));
    assert_eq!(outcome.code, Some(2));
    assert!(outcome.stderr.contains("4095 at most are possible"), "{}", outcome.stderr);
}

#[test]
fn commands_come_over_the_serial_line() {
    let mut command = command("shell");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let long = "x".repeat(3000);
    let input = format!(
        "echo '@end'; echo @status 3; echo @@\n{long}\nmemhog 100M\nverify\necho 5000 > /proc/sys/vm/min_free_kbytes\ncat /proc/sys/vm/min_free_kbytes\nls /proc\nnonsense"
    );
    stdin.write_all(input.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("the program ends");
    let outcome = Outcome {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    };
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(outcome.code, Some(127), "{} {}", outcome.stdout, outcome.stderr);
    // What looks like the guest's words to the program is none.
    assert_eq!(lines[..3], ["@end", "@status 3", "@@"]);
    assert_eq!(lines[3], "framewright: a line has at most 1000 bytes; this one was not run");
    assert!(lines[4].starts_with("wrote to 100 MiB in ") && lines[5].starts_with("verified: "), "{}", outcome.stdout);
    assert_eq!(lines[6..8], ["5000", "buddyinfo"]);
    assert!(lines.last().is_some_and(|last| last.contains("nonsense: command not found")), "{}", outcome.stdout);
}

#[test]
fn a_terminal_reaches_the_guest() {
    let mut terminal = Terminal::run(&[&["shell"], &MACHINE[..]].concat());
    terminal.expect("framewright> ");
    terminal.send(b"ecko one\x1b[D\x1b[D\x1b[D\x1b[D\x1b[D\x7fh\x05 two\r");
    terminal.expect("\none two\r\nframewright> ");
    terminal.send(b"sleep 1000\r");
    std::thread::sleep(std::time::Duration::from_millis(500));
    terminal.send(b"\x03");
    terminal.expect("sleep: interrupted\r\nframewright> ");
    terminal.send(b"\x1b[A\x1b[A three; exit 4\r");
    terminal.expect("\none two three\r\n");
    assert_eq!(terminal.end(), Some(4));
}
