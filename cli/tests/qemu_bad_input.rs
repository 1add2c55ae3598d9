//! Input to the guest that makes no sense: control files that do not exist or take something else,
//! and commands with wrong arguments. Each gets an answer and changes nothing, and the machine goes
//! on.

mod common;

use common::{finish, program};

#[test]
fn nonsense_is_refused_and_nothing_changes() {
    const FILE: &str = "/proc/sys/vm/min_free_kbytes";
    let nonsense = ["many", "-5", "99999999999999999999", "5000 6", "0x", "'5000;'", "\u{e4}"];
    let writes: String = nonsense.iter().map(|text| format!("echo {text} > {FILE}; ")).collect();
    let commands = format!(
        "cat {FILE}; {writes}cat {FILE}; echo 1 > /proc/buddyinfo; cat /proc/none; echo 1 > \
         /sys/none; cat /proc; \
         cat /proc/../proc/meminfo; alloc 19; alloc 0 0; alloc 0 1 node=9; free 99; stress; verify"
    );
    let words = [
        "boot", "--on", "qemu", "--accel", "tcg", "--memory", "256M", "--json", "--exec", &commands,
    ];
    let report = finish(program().args(words)).json();
    let said = report["exec"]["output"].as_str().expect("text");
    let lines: Vec<&str> = said.lines().collect();
    let (before, after) = (lines[0], lines[1 + nonsense.len()]);
    assert!(before.parse::<u64>().is_ok() && before == after, "{said}");
    for refused in &lines[1..=nonsense.len()] {
        assert_eq!(*refused, format!("echo: {FILE}: Invalid argument"), "{said}");
    }
    let rest = &lines[2 + nonsense.len()..];
    let expected = [
        "echo: /proc/buddyinfo: Permission denied",
        "cat: /proc/none: No such file or directory",
        "echo: /sys/none: No such file or directory",
        "cat: /proc: Is a directory",
        "cat: /proc/../proc/meminfo: No such file or directory",
        "alloc: order",
        "alloc: count",
        "alloc: ",
        "free: ",
        "stress: ",
        "verified: ",
    ];
    assert_eq!(rest.len(), expected.len(), "{said}");
    for (line, start) in rest.iter().zip(expected) {
        assert!(line.starts_with(start), "{start}: {said}");
    }
    assert_eq!(report["exec"]["status"].as_u64(), Some(0), "{said}");
}
