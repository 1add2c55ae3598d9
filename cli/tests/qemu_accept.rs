//! Memory that a guest has to accept, on whole machines in QEMU. Unaccepted memory is not mapped,
//! so any access that comes too early ends the guest, which reports the address.

mod common;

use common::{Outcome, check_sums, finish, program};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};

const MACHINE: [&str; 6] = ["--on", "qemu", "--accel", "tcg", "--timeout", "300"];
const DEVICE: &str = "cat /sys/kernel/debug/framewright/accept_device";
const MIB: u64 = 1 << 20;

fn run(words: &[&str]) -> Outcome {
    finish(program().arg("boot").args(MACHINE).args(words))
}

/// The guest's output.
struct Said {
    report: Value,
    log: String,
    lines: Vec<String>,
}

impl Said {
    /// Returns the number after a name.
    fn number(&self, name: &str) -> u64 {
        let rest = |line: &String| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned);
        let found = self.lines.iter().find_map(rest);
        let found = found.unwrap_or_else(|| panic!("{name}: {:?}", self.lines));
        found.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    fn total(&self, name: &str) -> u64 {
        self.report["totals"][name].as_u64().unwrap_or_else(|| panic!("{name}: {}", self.report))
    }
}

/// Boots and examines the device, the files and the page tables.
fn boot(words: &[&str]) -> Said {
    let commands = format!("{DEVICE}; cat /proc/meminfo; cat /proc/vmstat; verify");
    let report = run(&[words, &["--json", "--exec", &commands]].concat()).json();
    check_sums(&report);
    let log = report["log"].to_string();
    let said = report["exec"]["output"].as_str().expect("text");
    assert!(said.contains("verified: "), "{said}");
    let lines = said.lines().map(str::to_owned).collect();
    let said = Said { report, log, lines };
    assert_eq!(said.number("repeated"), 0, "{:?}", said.lines);
    let accepted = said.number("accepted_bytes") / MIB;
    let mapped = said.number("pages_1g") * 1024 + said.number("pages_2m") * 2;
    assert_eq!((accepted, said.number("pages_4k")), (mapped, 0), "{:?}", said.lines);
    said
}

#[test]
fn lazily_no_more_is_accepted_than_boot_took() {
    let said = boot(&["--memory", "4G", "--cpus", "2", "unaccepted=@512M"]);
    let left = said.number("unaccepted_bytes");
    // The block after the memory in use is accepted and waits.
    assert_eq!(said.number("Unaccepted:"), left / 1024 + 2048);
    assert_eq!(said.number("nr_unaccepted"), left / 4096 + 512);
    assert_eq!(said.total("unaccepted_pages"), left / 4096 + 512);
    assert_eq!((said.number("calls"), said.number("accepted_bytes")), (1, 2 * MIB));
    // The guest reports as much memory as if all had been accepted, less the tables that accepting
    // it may need.
    let words = ["--memory", "4G", "--cpus", "2", "--json", "--exec", "cat /proc/meminfo"];
    let all = run(&words).json()["exec"]["output"].as_str().expect("text").to_owned();
    let all = all.lines().find_map(|line| line.strip_prefix("MemTotal:")).expect("a line");
    let all: u64 = all.trim().trim_end_matches(" kB").parse().expect("a number");
    let tables = said.number("tables") + said.number("tables_left");
    assert_eq!(said.number("MemTotal:") + 4 * tables, all);
    let line = "accept_memory=lazy, 2048 KiB accepted in 1 calls, ";
    assert!(said.log.contains(line), "{}", said.log);
}

#[test]
fn traffic_accepts_what_it_wants_and_touches_nothing_else() {
    let words = ["--memory", "2G", "--cpus", "4", "unaccepted=@64M", "stress=5"];
    let said = boot(&[&words[..], &["interrupt_storm=300"]].concat());
    assert!(said.log.contains("every page accounted for"), "{}", said.log);
    assert!(said.number("accepted_bytes") > 256 * MIB, "{:?}", said.lines);
    assert!(said.number("calls") > 16, "{:?}", said.lines);
}

#[test]
fn early_memory_is_accepted_when_nearly_nothing_else_is_there() {
    let words = ["--memory", "3G", "--nodes", "2", "--cpus", "2", "unaccepted=@12M"];
    let said = boot(&[&words[..], &["map_space_test=1"]].concat());
    assert!(said.log.contains("map_space_test: tables are correct: "), "{}", said.log);
    assert!(said.number("unaccepted_bytes") > 2800 * MIB, "{:?}", said.lines);
}

#[test]
fn eagerly_all_is_accepted_at_boot_in_the_largest_pages() {
    let words = ["--memory", "8G", "--cpus", "2", "unaccepted=@512M", "accept_memory=eager"];
    let said = boot(&[&words[..], &["map_space_test=1"]].concat());
    assert_eq!(said.number("unaccepted_bytes"), 0);
    assert_eq!((said.number("Unaccepted:"), said.number("nr_unaccepted")), (0, 0));
    // Above 4 GiB, where nothing else is mapped.
    assert!(said.number("pages_1g") >= 4, "{:?}", said.lines);
    assert!(said.log.contains("map_space_test: tables are correct: "), "{}", said.log);
    let left = "accept_memory=eager, ";
    assert!(said.log.contains(left) && said.log.contains(", 0 KiB unaccepted"), "{}", said.log);
}

#[test]
fn what_cannot_be_accepted_is_lost_and_everything_else_works() {
    for policy in ["eager", "lazy"] {
        let policy = format!("accept_memory={policy}");
        let fixed = ["--memory", "2G", "--cpus", "2", "unaccepted=@512M"];
        let words = ["accept_fault=0x41234567", &policy, "stress=3", "map_space_test=1"];
        let said = boot(&[&fixed[..], &words].concat());
        assert_eq!(said.number("faults"), 1, "{:?}", said.lines);
        // The faulting block, and the one before it, whose last page might be read past its end.
        if policy.ends_with("eager") {
            let line = "1024 pages are lost, memory could not be accepted 1 times, at last at \
                        0x41200000";
            assert!(said.log.contains(line), "{}", said.log);
            assert_eq!(said.number("unaccepted_bytes"), 2 * MIB);
        }
        assert!(said.log.contains("every page accounted for"), "{}", said.log);
    }
}

#[test]
fn a_touch_too_early_is_a_page_fault_with_its_address() {
    for cpu in ["0", "1"] {
        let outcome = run(&[
            "--memory",
            "4G",
            "--cpus",
            "2",
            "unaccepted=1G@4G",
            "fault=unaccepted",
            &format!("fault_cpu={cpu}"),
        ]);
        assert_eq!(outcome.code, Some(1), "{}", outcome.stdout);
        let text = format!("{}{}", outcome.stdout, outcome.stderr);
        let exception = format!("Exception 14 on CPU {cpu}: page fault");
        // The middle of the last block of the first 1 GiB.
        let place = "write, no page is there at address 0xffff80013ff00123 (memory that is not \
                     accepted yet)";
        assert!(text.contains(&exception) && text.contains(place), "{text}");
    }
}

#[test]
fn without_such_memory_the_fault_does_not_come() {
    let words = ["--memory", "1G", "unaccepted=@512M", "accept_memory=eager", "fault=unaccepted"];
    let outcome = run(&words);
    let text = format!("{}{}", outcome.stdout, outcome.stderr);
    assert_eq!(outcome.code, Some(1), "{text}");
    assert!(text.contains("Framewright: all memory is accepted"), "{text}");
    assert!(text.contains("the requested fault did not occur"), "{text}");
}

#[test]
fn words_that_say_nothing_are_refused() {
    let outcome = run(&["--memory", "256M", "unaccepted=1G", "accept_delay=x", "accept_fault=-"]);
    let text = format!("{}{}", outcome.stdout, outcome.stderr);
    assert_eq!(outcome.code, Some(1), "{text}");
    for part in [
        "unaccepted= is SIZE@ADDRESS",
        "accept_delay= takes microseconds",
        "accept_fault= takes an address",
        ": 3 of the guest's parameters are wrong",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn memory_that_is_plugged_is_accepted_when_it_is_wanted() {
    for policy in ["lazy", "eager"] {
        let policy_word = format!("accept_memory={policy}");
        let words = ["--memory", "256M", "--virtio-mem", "512M,requested-size=384M"];
        let said = boot(&[&words[..], &["unaccepted=@128M", &policy_word]].concat());
        assert!(said.log.contains("virtio-mem: 384 MiB plugged"), "{}", said.log);
        let (accepted, left) = (said.number("accepted_bytes"), said.number("Unaccepted:"));
        if policy == "eager" {
            assert_eq!(left, 0);
            assert!(accepted >= 384 * MIB && said.number("unaccepted_bytes") == 128 * MIB);
        } else {
            assert!(left >= 384 << 10 && accepted < 64 * MIB, "{left} {accepted}");
        }
    }
    // All plugged memory is written to, unplugged and plugged again.
    let words = ["--memory", "256M", "--virtio-mem", "64M,requested-size=64M"];
    let said = boot(&[&words[..], &["unaccepted=@64M", "stress=3"]].concat());
    assert!(said.log.contains("every page accounted for"), "{}", said.log);
}

/// A program that is killed when the test ends, even by a panic.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn in_the_background_all_is_accepted_while_the_shell_waits() {
    let words =
        ["--memory", "4G", "unaccepted=@64M", "accept_memory=background", "accept_delay=200"];
    let mut program = program();
    program.arg("shell").args(MACHINE).args(words);
    let program = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut program = Ended(program.expect("the program starts"));
    let mut keys = program.0.stdin.take().expect("a pipe");
    let mut said = BufReader::new(program.0.stdout.take().expect("a pipe")).lines();
    let (mut seen, mut all) = (Vec::new(), Vec::new());
    while seen.last() != Some(&0) {
        assert!(seen.len() < 1000, "{seen:?}");
        writeln!(keys, "cat /proc/meminfo").expect("it reads");
        for line in &mut said {
            let line = line.expect("text");
            let found = line.strip_prefix("Unaccepted:").map(|rest| rest.trim().to_owned());
            all.push(line);
            if let Some(found) = found {
                seen.push(found.trim_end_matches(" kB").parse::<u64>().expect("a number"));
                break;
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    // The number fell over several readings and never rose.
    assert!(seen.len() > 2 && seen[0] > 1 << 20 && seen.is_sorted_by(|a, b| a >= b), "{seen:?}");
    writeln!(keys, "{DEVICE}; verify; exit").expect("it reads");
    drop(keys);
    all.extend(said.map(|line| line.expect("text")));
    let said = all.join("\n");
    assert_eq!(program.0.wait().expect("it ends").code(), Some(0), "{said}");
    for part in ["unaccepted_bytes 0\n", "repeated 0\n", "verified: "] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
