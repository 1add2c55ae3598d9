//! Memory that comes and goes on whole machines in QEMU: `--virtio-mem` gives the machine a device
//! for it, `framewright plug` says how much memory the guest should have, and the guest follows.

mod common;

use common::{Outcome, Scratch, finish, program};
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const MACHINE: [&str; 7] = ["--on", "qemu", "--accel", "tcg", "--timeout", "300", "--memory"];
const STATUS: &str = "cat /sys/kernel/debug/framewright/virtio_mem";

/// A program that runs a machine, with a folder of its own.
struct Machine {
    place: Scratch,
    program: Child,
    keys: Option<ChildStdin>,
    said: Lines<BufReader<ChildStdout>>,
    seen: Vec<String>,
}

impl Machine {
    fn start(name: &str, words: &[&str]) -> Self {
        let place = Scratch::new(&format!("plug-{name}"));
        let mut program = in_place(&place)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let said = BufReader::new(program.stdout.take().expect("a pipe")).lines();
        let keys = program.stdin.take();
        Self { place, program, keys, said, seen: Vec::new() }
    }

    /// Returns the next line that contains `text`.
    fn line(&mut self, text: &str) -> String {
        for line in &mut self.said {
            let line = line.expect("text");
            self.seen.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
        panic!("no line with {text:?}:\n{}", self.seen.join("\n"))
    }

    /// Returns the output of a shell command, which must not fail.
    fn run(&mut self, command: &str) -> Vec<String> {
        let keys = self.keys.as_mut().expect("a shell");
        writeln!(keys, "{command}; echo status $?").expect("it reads");
        let before = self.seen.len();
        assert_eq!(self.line("status "), "status 0", "{command}:\n{}", self.seen.join("\n"));
        self.seen[before..self.seen.len() - 1].to_vec()
    }

    /// Runs `framewright plug` with these arguments and returns how it ended.
    fn plug(&self, words: &[&str]) -> Outcome {
        finish(in_place(&self.place).arg("plug").args(words))
    }

    /// Asks for this much memory and waits until the guest has it.
    fn have(&self, mib: u64) {
        let outcome = self.plug(&[&format!("{mib}M"), "--wait", "120"]);
        assert_eq!(outcome.code, Some(0), "{}{}", outcome.stdout, outcome.stderr);
        assert_eq!(outcome.stdout, format!("{mib} MiB requested, {mib} MiB plugged\n"));
    }

    /// Waits for the end, which must be a success; returns all output.
    fn finish(mut self) -> String {
        drop(self.keys.take());
        for line in &mut self.said {
            self.seen.push(line.expect("text"));
        }
        let said = self.seen.join("\n");
        assert_eq!(self.program.wait().expect("it ends").code(), Some(0), "{said}");
        said
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // A test that failed must leave no machine behind.
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

fn in_place(place: &Scratch) -> Command {
    let mut command = program();
    command.env("XDG_RUNTIME_DIR", place.path(""));
    command
}

/// Returns the number after a name.
fn number(lines: &[String], name: &str) -> u64 {
    let found = lines.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let found = found.unwrap_or_else(|| panic!("{name}: {lines:?}"));
    found.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Runs the test inside the guest while the host requests 2 GiB, nothing, 2 GiB, and nothing.
fn course(name: &str, words: &[&str]) -> String {
    let fixed = [&["boot"][..], &MACHINE, &["512M", "virtio_mem_test=200"]].concat();
    let mut machine = Machine::start(name, &[&fixed, words].concat());
    machine.line("by 2048 KiB, node 0");
    for round in 1..=2 {
        machine.have(2048);
        machine.line(&format!("2048 MiB plugged, after {round} PLUG, {} UNPLUG", round - 1));
        machine.line("test: plugged, 2048 MiB more to manage");
        machine.line(" blocks written");
        // The machine ends as soon as it has met the last request, whether or not `plug` has seen
        // that.
        let outcome = machine.plug(&["0", "--wait", "120"]);
        assert!(outcome.code == Some(0) || round == 2, "{}", outcome.stderr);
        machine.line(&format!("0 MiB plugged, after {round} PLUG, {round} UNPLUG"));
        machine.line("test: unplugged, 0 MiB more to manage");
    }
    machine.line("virtio-mem test: passed");
    machine.finish()
}

#[test]
fn memory_comes_goes_and_comes_back_empty_with_one_request_each() {
    let said = course("plain", &["--virtio-mem", "2G"]);
    // Some of the memory is in caches and page tables.
    let written = said.lines().filter(|line| line.contains(" blocks written"));
    let blocks = written.map(|line| line.split_whitespace().rev().nth(2)?.parse().ok());
    let blocks: Vec<Option<u64>> = blocks.collect();
    assert!(blocks.len() == 2 && blocks.iter().all(|blocks| *blocks >= Some(1000)), "{said}");
    assert!(said.contains(" test: 0 of "), "{said}");
    assert!(said.contains("[mem 0x0000000100000000-0x000000017fffffff] by 2048 KiB"), "{said}");
}

#[test]
fn on_the_older_machine_and_where_unplugged_memory_may_not_even_be_read() {
    let device = ["--machine", "pc", "--virtio-mem", "3G,unplugged-inaccessible=on"];
    // What was accepted of the device's memory is not taken for memory of the map.
    let accept = ["unaccepted=@256M", "accept_memory=eager", "map_space_test=1"];
    let said = course("pc", &[&device[..], &accept].concat());
    assert!(said.contains("UNPLUGGED_INACCESSIBLE"), "{said}");
    assert!(said.contains("map_space_test: tables are correct: "), "{said}");
}

#[test]
fn memory_in_use_is_moved_away_before_it_goes() {
    let words = ["256M", "--cpus", "2", "--virtio-mem", "512M"];
    let mut machine = Machine::start("movers", &[&["shell"][..], &MACHINE, &words].concat());
    let before = number(&machine.run("cat /proc/meminfo"), "MemTotal:");
    machine.have(512);
    let with_more = number(&machine.run("cat /proc/meminfo"), "MemTotal:");
    assert_eq!(with_more - before, 512 << 10);
    // More than fits into the initial memory, all of it written to and used by a CPU.
    machine.run("movable fill 60; churn 1; movable busy on");
    machine.have(350);
    assert!(machine.run("movable check").iter().any(|line| line.contains(": all intact")));
    let status = machine.run(STATUS);
    assert_eq!(number(&status, "plugged_bytes"), 350 << 20);
    assert_eq!(number(&status, "plug_requests"), 1);
    // There are no more requests than blocks that were unplugged.
    assert!((1..=81).contains(&number(&status, "unplug_requests")), "{status:?}");
    // The pages in use do not fit without the device's memory.
    let outcome = machine.plug(&["0", "--wait", "5"]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("keeps trying"), "{}", outcome.stderr);
    assert!(machine.run("dmesg").iter().any(|line| line.contains("no memory can be taken out")));
    // The request is met once they are freed.
    machine.run("movable busy off; movable free; free all");
    machine.have(0);
    assert_eq!(number(&machine.run("cat /proc/meminfo"), "MemTotal:"), before);
    assert!(machine.run("verify").iter().any(|line| line.starts_with("verified: ")));
    machine.finish();
}

#[test]
fn memory_comes_and_goes_under_random_traffic_and_reports() {
    let words = ["256M", "--cpus", "2", "--balloon", "--virtio-mem", "1G"];
    let mut machine = Machine::start("traffic", &[&["shell"][..], &MACHINE, &words].concat());
    let before = number(&machine.run("cat /proc/meminfo"), "MemTotal:");
    // From then on the manager holds the tables of the new memory; the traffic counts all other
    // pages.
    machine.have(1024);
    machine.have(0);
    let keys = machine.keys.as_mut().expect("a shell");
    writeln!(keys, "echo begin; stress 10; echo end $?").expect("it reads");
    machine.line("begin");
    // Traffic may hold memory that is to be unplugged, so a request may stay unmet.
    for mib in [1024, 300, 700, 2, 1024, 64, 512, 128, 256, 1000, 10, 400] {
        let outcome = machine.plug(&[&format!("{mib}M"), "--wait", "1"]);
        assert!(
            outcome.stdout.starts_with(&format!("{mib} MiB requested, ")),
            "{}",
            outcome.stderr
        );
    }
    let end = machine.line("end ");
    assert_eq!(end, "end 0", "{}", machine.seen.join("\n"));
    machine.have(64);
    assert_eq!(number(&machine.run("cat /proc/meminfo"), "MemTotal:"), before + (64 << 10));
    machine.have(0);
    let status = machine.run(STATUS);
    assert!(number(&status, "plug_requests") >= 6, "{status:?}");
    assert!(machine.run("verify").iter().any(|line| line.starts_with("verified: ")));
    let said = machine.finish();
    assert!(!said.contains("cannot be used"), "{said}");
}

#[test]
fn what_the_host_wants_from_the_start_is_there_at_the_start() {
    let machine = [&["boot"][..], &MACHINE, &["256M"]].concat();
    let device = ["--virtio-mem", "256M,requested-size=64M", "--balloon", "--json", "--exec"];
    let outcome = common::run(&[&machine[..], &device, &[STATUS]].concat());
    let report = outcome.json();
    let said = report["exec"]["output"].as_str().expect("text");
    let lines: Vec<String> = said.lines().map(str::to_owned).collect();
    let expected =
        [("region_bytes", 256 << 20), ("requested_bytes", 64 << 20), ("plugged_bytes", 64 << 20)];
    for (name, value) in expected {
        assert_eq!(number(&lines, name), value, "{said}");
    }
    assert_eq!(number(&lines, "plug_requests"), 1, "{said}");
}

#[test]
fn small_machines_become_large_and_memory_is_of_the_devices_node() {
    let machine = [&["boot"][..], &MACHINE, &["128M", "--nodes", "2"]].concat();
    let device = ["--virtio-mem", "30G,node=1,requested-size=30G", "--json", "--exec"];
    let commands = format!("{STATUS}; cat /proc/zoneinfo; verify");
    let report = common::run(&[&machine[..], &device, &[&commands]].concat()).json();
    let log = report["log"].to_string();
    assert!(log.contains("by 2048 KiB, node 1"), "{log}");
    let said = report["exec"]["output"].as_str().expect("text");
    let lines: Vec<String> = said.lines().map(str::to_owned).collect();
    assert_eq!(number(&lines, "plugged_bytes"), 30 << 30, "{said}");
    assert_eq!(number(&lines, "plug_requests"), 1, "{said}");
    // All pages but the tables of the new memory, which lie in that memory itself.
    let node = said.split("Node 1, zone   Normal").nth(1).expect("the zone");
    let managed = node.lines().find(|line| line.contains(" managed ")).expect("a number");
    let managed: u64 = managed.split_whitespace().nth(1).expect("it").parse().expect("a number");
    assert!((30 * 262_144 - 1024..=30 * 262_144).contains(&managed), "{managed}");
    assert!(said.contains("verified: "), "{said}");
}

#[test]
fn a_device_behind_an_iommu_is_refused_and_the_guest_goes_on() {
    let machine = [&["boot"][..], &MACHINE, &["256M", "--json"]].concat();
    let device = ["--virtio-mem", "256M,disable-legacy=on,iommu_platform=on,requested-size=64M"];
    let report = common::run(&[&machine[..], &device].concat()).json();
    let log = report["log"].to_string();
    assert!(log.contains("the virtio-mem device requires ACCESS_PLATFORM"), "{log}");
    assert!(!log.contains("MiB plugged"), "{log}");
}

#[test]
fn wishes_that_cannot_be_are_refused() {
    let mut machine = Machine::start(
        "wishes",
        &[&["shell"][..], &MACHINE, &["256M", "--virtio-mem", "64M"]].concat(),
    );
    machine.run("echo ready");
    for wish in ["1M", "128M"] {
        let outcome = machine.plug(&[wish]);
        assert_eq!(outcome.code, Some(1), "{}", outcome.stdout);
        assert!(outcome.stderr.contains("QEMU refuses: "), "{}", outcome.stderr);
    }
    let outcome = machine.plug(&["64M", "1"]);
    assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("process 1 is not a machine of yours"), "{}", outcome.stderr);
    machine.have(64);
    let place = machine.place.path("framewright");
    machine.finish();
    let left: Vec<_> = std::fs::read_dir(place).into_iter().flatten().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The rules for hotplugged memory hold for the device's memory, too: it can stay offline, and
/// offline memory is unplugged first.
#[test]
fn memory_comes_as_memhp_default_state_says() {
    let machine = [&["shell"][..], &MACHINE, &["256M", "--virtio-mem", "1G"]].concat();
    for (state, kind) in [("offline", "offline"), ("online_movable", "online")] {
        let parameter = format!("memhp_default_state={state}");
        let mut machine = Machine::start(state, &[&machine[..], &[&parameter]].concat());
        machine.run("echo ready");
        let before = number(&machine.run("cat /proc/meminfo"), "MemTotal:");
        machine.have(512);
        let after = number(&machine.run("cat /proc/meminfo"), "MemTotal:");
        assert_eq!(after - before, if kind == "offline" { 0 } else { 512 << 10 });
        let runs = machine.run("hotplug");
        let line = runs.iter().find(|line| line.starts_with("0000000100000000")).expect("a run");
        assert!(line.contains("512") && line.ends_with(&format!(" {kind}")), "{line}");
        machine.have(0);
        let left = machine.run("hotplug");
        let is_left = left.iter().any(|line| line.starts_with("0000000100000000"));
        assert!(!is_left, "{left:?}");
        machine.run("verify");
        machine.finish();
    }
}
