//! Free page reporting of whole machines in QEMU, seen from the host: memory that the guest frees
//! leaves QEMU's memory, once, and the guest does not take pages that the host keeps for zeroed
//! ones.

mod common;

use common::{Scratch, may_lock_memory, program, resident_mib, wait_until};
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

const MEMORY_MIB: u64 = 1024;
/// Half of the memory, in blocks of 2 MiB.
const BLOCKS: u64 = MEMORY_MIB / 4;
const DIRTIED_MIB: u64 = BLOCKS * 2;

/// A machine whose shell runs the test's commands.
struct Machine {
    program: Child,
    /// `None` once the shell is told to end.
    keys: Option<ChildStdin>,
    screen: Lines<BufReader<ChildStdout>>,
    pid: u32,
    commands: u32,
}

impl Machine {
    fn boot(words: &[&str]) -> Self {
        let memory = format!("{MEMORY_MIB}M");
        let mut program = program()
            .args([
                "shell",
                "--on",
                "qemu",
                "--accel",
                "tcg",
                "--timeout",
                "300",
                "--memory",
                &memory,
            ])
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let keys = program.stdin.take();
        let screen = BufReader::new(program.stdout.take().expect("a pipe")).lines();
        let ours = program.id();
        wait_until("QEMU runs", || machine_of(ours).is_some());
        let pid = machine_of(ours).expect("it runs");
        let mut machine = Self { program, keys, screen, pid, commands: 0 };
        machine.ask("echo");
        machine
    }

    /// Runs commands in the guest and returns their output.
    fn ask(&mut self, commands: &str) -> String {
        self.commands += 1;
        let mark = format!("mark-{}-{}", self.commands, self.pid);
        writeln!(self.keys.as_mut().expect("the shell has not ended"), "{commands}; echo {mark}")
            .expect("it listens");
        let mut said = String::new();
        loop {
            let line = self
                .screen
                .next()
                .unwrap_or_else(|| panic!("{commands}: the guest has ended: {said}"));
            let line = line.expect("text");
            if line.contains(&mark) {
                return said;
            }
            said.push_str(&line);
            said.push('\n');
        }
    }

    /// Returns one of the guest's counters.
    fn counter(&mut self, name: &str) -> u64 {
        let text = self.ask("cat /proc/vmstat");
        let value = text
            .lines()
            .find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
        value.unwrap_or_else(|| panic!("{name}: {text}"))
    }

    /// Returns how much of the guest's memory is resident on the host.
    fn resident_mib(&self) -> u64 {
        resident_mib(&self.pid.to_string(), MEMORY_MIB)
    }

    /// Polls until the value falls, while the guest only waits for keys.
    fn wait_until_resident_below(&self, mib: u64) {
        wait_until("the memory goes back", || self.resident_mib() <= mib);
    }

    /// Waits until the machine ends, which it must do successfully.
    fn finish(mut self) {
        let said = self.ask("verify");
        assert!(said.contains("verified: "), "{said}");
        drop(self.keys.take());
        assert_eq!(self.program.wait().expect("it ends").code(), Some(0));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // QEMU ends with the program that started it.
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// Returns the machine that a process has started.
fn machine_of(parent: u32) -> Option<u32> {
    let is_it = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let of = stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.split(' ').nth(1)?.parse::<u32>().ok());
        // Between fork and exec the child still has its parent's name, and a QEMU that only prints
        // its version has no machine.
        of == Some(parent)
            && fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains("-kernel"))
    };
    fs::read_dir("/proc")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .find(is_it)
}

/// Checks that all freed memory goes back to the host once and stays there.
fn memory_goes_back(words: &[&str]) {
    let mut machine = Machine::boot(words);
    machine.ask("reporting flush; reporting flush");
    let (before_mib, before_pages) =
        (machine.resident_mib(), machine.counter("page_reporting_pages"));
    // This host promises nothing about content, so the guest writes zeros to all of it.
    let said = machine.ask(&format!("alloc order=9 count={BLOCKS} zeroed"));
    assert!(said.contains(&format!("{BLOCKS} x 512 pages")), "{said}");
    let dirty_mib = machine.resident_mib();
    assert!(
        dirty_mib >= before_mib + DIRTIED_MIB / 100 * 95,
        "{before_mib} MiB before, {dirty_mib} MiB when dirty"
    );
    machine.ask("free all");
    machine.wait_until_resident_below(dirty_mib - DIRTIED_MIB * 95 / 100);
    // The last reports may still be in flight.
    machine.ask("reporting flush");
    machine.wait_until_resident_below(before_mib + 8);
    let after_pages = machine.counter("page_reporting_pages");
    assert_eq!(after_pages - before_pages, BLOCKS * 512, "once, and nothing else");
    machine.ask("sleep 3");
    assert_eq!(machine.counter("page_reporting_pages"), after_pages, "nothing is reported twice");
    for name in ["page_reporting_errors", "page_reporting_timeouts", "page_reporting_reused_early"]
    {
        assert_eq!(machine.counter(name), 0, "{name}");
    }
    // The memory works as before, in any size.
    let said = machine.ask(&format!("memhog {DIRTIED_MIB}M; stress 1"));
    assert!(said.contains("wrote to ") && said.contains("every page accounted for"), "{said}");
    machine.finish();
}

#[test]
fn freed_memory_goes_back_once() {
    memory_goes_back(&["--balloon"]);
}

#[test]
fn at_the_fixed_pace_too() {
    memory_goes_back(&[
        "--balloon",
        "page_reporting.pace=fixed",
        "page_reporting.page_reporting_delay_ms=1000",
    ]);
}

#[test]
fn with_hints_two_cpus_and_the_shuffle() {
    memory_goes_back(&["--balloon=free-page-hint=on", "--cpus", "2", "page_alloc.shuffle=1"]);
}

#[test]
fn shared_memory_goes_back_too() {
    let backend = format!("memory-backend-memfd,id=memory,share=on,size={MEMORY_MIB}M");
    let options = ["--qemu", "-object", "--qemu", &backend, "--qemu", "-machine"];
    memory_goes_back(&[&options[..], &["--qemu", "memory-backend=memory", "--balloon"]].concat());
}

#[test]
fn locked_memory_stays_and_is_memory_as_before() {
    if !may_lock_memory(MEMORY_MIB) {
        common::not_possible("a machine whose memory is locked (RLIMIT_MEMLOCK)");
        return;
    }
    let mut machine =
        Machine::boot(&["--qemu", "-overcommit", "--qemu", "mem-lock=on", "--balloon"]);
    machine.ask(&format!("alloc order=9 count={BLOCKS} zeroed; free all; reporting flush"));
    assert!(machine.counter("page_reporting_pages") >= BLOCKS * 512);
    assert_eq!((machine.resident_mib(), machine.counter("page_reporting_errors")), (MEMORY_MIB, 0));
    let said = machine.ask("stress 1");
    assert!(said.contains("every page accounted for"), "{said}");
    machine.finish();
}

#[test]
fn a_pause_keeps_memory_until_it_ends() {
    let mut machine = Machine::boot(&["--balloon"]);
    machine.ask("reporting flush; reporting flush; reporting pause");
    let before_mib = machine.resident_mib();
    machine.ask("memhog 256M; sleep 1");
    assert!(machine.resident_mib() >= before_mib + 240);
    assert!(machine.ask("reporting").contains("paused, pace adaptive"));
    machine.ask("reporting resume");
    machine.wait_until_resident_below(before_mib + 16);
    machine.finish();
}

#[test]
fn reports_go_on_while_a_command_runs() {
    let mut machine = Machine::boot(&["--balloon"]);
    machine.ask("reporting flush");
    let before_pages = machine.counter("page_reporting_pages");
    machine
        .ask(&format!("alloc order=9 count={BLOCKS} zeroed; free all; sleep 5; reporting pause"));
    // An emulated machine on a busy host may need longer. Between the commands there is a pause.
    for _ in 0..20 {
        if machine.counter("nr_free_unreported") < 512 {
            break;
        }
        machine.ask("reporting resume; sleep 5; reporting pause");
    }
    assert_eq!(machine.counter("nr_free_unreported") / 512, 0, "small zones are reported, too");
    // The last reports may still be in flight.
    machine.ask("reporting resume; reporting flush");
    assert!(machine.counter("page_reporting_pages") - before_pages >= BLOCKS * 512);
    machine.finish();
}

#[test]
fn idle_reports_are_quiet() {
    let mut machine = Machine::boot(&["--balloon"]);
    machine.ask("reporting flush; reporting flush; sleep 2");
    let passes = machine.counter("page_reporting_passes");
    machine.ask("sleep 4");
    let later = machine.counter("page_reporting_passes");
    assert!(later <= passes + 2, "{} passes in four idle seconds", later - passes);
    machine.finish();
}

#[test]
fn free_pages_of_pools_go_back_where_that_is_wanted() {
    const PAGES: u64 = 128;
    let mut machine = Machine::boot(&["--balloon"]);
    machine.ask("reporting flush; reporting flush");
    let before_mib = machine.resident_mib();
    machine.ask(&format!(
        "echo {PAGES} > /proc/sys/vm/nr_hugepages; hugetlb 2M {PAGES}; reporting flush; sleep 1"
    ));
    let dirty_mib = machine.resident_mib();
    assert!(
        dirty_mib >= before_mib + PAGES * 2 - 16,
        "{before_mib} MiB before, {dirty_mib} MiB with a pool"
    );
    assert_eq!(machine.counter("page_reporting_pool_pages"), 0);
    let knob = "/sys/module/page_reporting/parameters/pools";
    assert!(machine.ask(&format!("cat {knob}; reporting pools on; cat {knob}")).contains('Y'));
    for round in 1..=2 {
        machine.ask("reporting flush");
        machine.wait_until_resident_below(before_mib + 16);
        assert_eq!(machine.counter("page_reporting_pool_pages"), round * PAGES * 512, "once");
        // The pages work as before.
        let said = machine.ask(&format!("hugetlb 2M {PAGES}"));
        assert!(said.contains(&format!("{PAGES} pages of 2.00 MiB")), "{said}");
    }
    machine.ask("echo 0 > /proc/sys/vm/nr_hugepages");
    machine.finish();
}

#[test]
fn a_balloon_that_takes_no_reports_follows_the_host_without_them() {
    let scratch = Scratch::new("no-reports");
    let socket = scratch.path("monitor");
    let monitor = format!("--qemu=unix:{},server=on,wait=off", socket.display());
    let words = ["--balloon=free-page-reporting=off", "--qemu", "-qmp", &monitor];
    let mut machine = Machine::boot(&words);
    assert!(machine.ask("reporting").contains("no device"));
    machine.ask("reporting flush");
    assert_eq!(machine.counter("page_reporting_calls"), 0);
    let mut host = UnixStream::connect(&socket).expect("QEMU listens");
    host.write_all(b"{ \"execute\": \"qmp_capabilities\" }\n").expect("it takes commands");
    let free = machine.counter("nr_free_pages");
    for taken_mib in [256, 0] {
        let size = (MEMORY_MIB - taken_mib) << 20;
        writeln!(host, "{{ \"execute\": \"balloon\", \"arguments\": {{ \"value\": {size} }} }}")
            .expect("it takes commands");
        let is_there = |_| {
            machine.ask("sleep 1");
            (free - taken_mib * 256).abs_diff(machine.counter("nr_free_pages")) < 2048
        };
        assert!((0..60).any(is_there), "{taken_mib} MiB");
    }
    machine.finish();
}

#[test]
fn the_log_says_that_reports_go_on() {
    let words = [
        "boot",
        "--on",
        "qemu",
        "--accel",
        "tcg",
        "--memory",
        "256M",
        "--json",
        "--balloon",
        "reporting=2",
    ];
    let log = common::run(&words).json()["log"].to_string();
    assert!(log.contains("Free page reporting enabled, from order 9 on"), "{log}");
    let line = log.split("Free page reporting: ").nth(1).unwrap_or_else(|| panic!("{log}"));
    let pages: u64 = line.split(' ').next().and_then(|word| word.parse().ok()).expect("a number");
    assert!(pages > 128 * 256 && line.contains("0 errors, 0 with the device"), "{line}");
    let plain = common::run(&[
        "boot",
        "--on",
        "qemu",
        "--accel",
        "tcg",
        "--memory",
        "64M",
        "--json",
        "reporting=1",
    ]);
    assert!(plain.json()["log"].to_string().contains("reporting= needs a balloon"));
}
