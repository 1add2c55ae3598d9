//! The virtio balloon of whole machines in QEMU, watched from the host: how much of the guest's
//! memory is resident, and what QEMU itself reports about the balloon.

mod common;

use common::{Scratch, is_running, may_lock_memory, program, resident_mib, wait_until};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const MEMORY_MIB: u64 = 512;
/// How much of the resident memory may be something else. The value is small because the code that
/// QEMU translates is not in the guest's memory.
const SLACK_MIB: u64 = 8;

/// A machine that waits for the host, with two connections to it: its log and QEMU's monitor.
struct Watched {
    program: Child,
    log: Lines<BufReader<ChildStdout>>,
    seen: Vec<String>,
    monitor: BufReader<UnixStream>,
    pid: String,
    _scratch: Scratch,
}

impl Watched {
    /// Boots a machine with these options.
    fn boot(name: &str, words: &[&str]) -> Self {
        let scratch = Scratch::new(name);
        let socket = scratch.path("monitor");
        let monitor = format!("unix:{},server=on,wait=off", socket.display());
        let memory = format!("{MEMORY_MIB}M");
        let mut program = program()
            .args([
                "boot",
                "--on",
                "qemu",
                "--accel",
                "tcg",
                "--timeout",
                "300",
                "--memory",
                &memory,
            ])
            .args(["--qemu", "-qmp", &format!("--qemu={monitor}")])
            .args(words)
            .arg("balloon_test=200")
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let log = BufReader::new(program.stdout.take().expect("a pipe")).lines();
        wait_until("QEMU opens its monitor", || {
            socket.exists() && UnixStream::connect(&socket).is_ok()
        });
        let mut watched = Self {
            program,
            log,
            seen: Vec::new(),
            monitor: connect(&socket),
            pid: pid_of(&socket),
            _scratch: scratch,
        };
        watched.ask("qmp_capabilities", &Value::Null);
        watched
    }

    /// Returns the next line of the log that contains `text`.
    fn line(&mut self, text: &str) -> String {
        for line in &mut self.log {
            let line = line.expect("text");
            self.seen.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
        panic!("no line with {text:?}:\n{}", self.seen.join("\n"))
    }

    /// Returns QEMU's answer to a command.
    fn ask(&mut self, command: &str, arguments: &Value) -> Value {
        let mut question = json!({ "execute": command });
        if !arguments.is_null() {
            question["arguments"] = arguments.clone();
        }
        writeln!(self.monitor.get_mut(), "{question}").expect("QEMU listens");
        loop {
            let mut line = String::new();
            assert!(self.monitor.read_line(&mut line).expect("an answer") > 0, "QEMU has gone");
            let mut answer: Value = serde_json::from_str(&line).expect("JSON");
            assert!(answer.get("error").is_none(), "{question}: {answer}");
            if answer.get("return").is_some() {
                return answer["return"].take();
            }
        }
    }

    /// Sets the guest's memory size through the balloon.
    fn set_size(&mut self, mib: u64) {
        self.ask("balloon", &json!({ "value": mib * MIB }));
    }

    /// Returns the guest's memory size as QEMU reports it.
    fn size_mib(&mut self) -> u64 {
        self.ask("query-balloon", &Value::Null)["actual"].as_u64().expect("a size") / MIB
    }

    /// Returns how much of the guest's memory is resident on the host.
    fn resident_mib(&self) -> u64 {
        resident_mib(&self.pid, MEMORY_MIB)
    }

    /// Waits until the machine ends, which it must do successfully.
    fn finish(mut self) -> Vec<String> {
        self.line("Balloon test: passed");
        for line in &mut self.log {
            self.seen.push(line.expect("text"));
        }
        assert_eq!(
            self.program.wait().expect("it ends").code(),
            Some(0),
            "{}",
            self.seen.join("\n")
        );
        std::mem::take(&mut self.seen)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // A test that failed must leave no machine behind.
        let _ = self.program.kill();
        let _ = self.program.wait();
        if is_running(&self.pid) {
            let _ = std::process::Command::new("kill").arg(&self.pid).status();
        }
    }
}

fn connect(socket: &Path) -> BufReader<UnixStream> {
    let stream = UnixStream::connect(socket).expect("QEMU listens");
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a time-out");
    BufReader::new(stream)
}

/// Returns the process of the machine that has this monitor.
fn pid_of(socket: &Path) -> String {
    let word = socket.display().to_string();
    let processes = fs::read_dir("/proc")
        .expect("Linux")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_machine = |pid: &String| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command);
        command.starts_with("qemu-system-x86_64") && command.contains(&word)
    };
    processes.into_iter().find(is_machine).expect("a machine that runs")
}

/// What the host sees, and what the guest reports about it, from the first step to the last.
struct Course {
    /// Blocks of 2 MiB that the guest writes to: a quarter of its free memory.
    blocks: u64,
    written_mib: u64,
    reported_mib: u64,
    log: Vec<String>,
}

/// Runs the whole course: the balloon takes 64 MiB, blocks are reported, and the balloon gives
/// everything back.
fn course(mut machine: Watched, reports: bool) -> Course {
    let line = machine.line("blocks of 2 MiB written");
    let number =
        line.split("Balloon test: ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    let blocks: u64 = number.expect("a number of blocks");
    assert!((MEMORY_MIB / 10..MEMORY_MIB / 8).contains(&blocks), "{line}");
    let written_mib = machine.resident_mib();
    machine.set_size(MEMORY_MIB - 64);
    machine.line("Balloon test: 16384 of 16384 pages in the balloon");
    let reported_blocks = if reports { blocks } else { 0 };
    machine.line(&format!("Balloon test: {reported_blocks} blocks reported and answered"));
    let reported_mib = machine.resident_mib();
    assert_eq!(machine.size_mib(), MEMORY_MIB - 64);
    statistics_come(&mut machine, blocks);
    machine.set_size(MEMORY_MIB);
    machine.line("Balloon test: 0 of 0 pages in the balloon");
    let log = machine.finish();
    Course { blocks, written_mib, reported_mib, log }
}

/// Checks that QEMU asks the guest for statistics and gets an answer.
fn statistics_come(machine: &mut Watched, blocks: u64) {
    let property = |name: &str| json!({ "path": "/machine/peripheral/balloon", "property": name });
    let mut interval = property("guest-stats-polling-interval");
    interval["value"] = 1.into();
    machine.ask("qom-set", &interval);
    // QEMU's first numbers may be old, from before the balloon took any memory.
    let (left, used) = ((MEMORY_MIB - 64) * MIB, 2 * blocks * MIB);
    let mut statistics = Value::Null;
    for _ in 0..600 {
        statistics = machine.ask("qom-get", &property("guest-stats"));
        let value = |name: &str| statistics["stats"][name].as_u64();
        let (free, total) = (value("stat-free-memory"), value("stat-total-memory"));
        if let (Some(free), Some(total @ 1..)) = (free, total)
            // The balloon's pages are not the guest's, and the blocks are not free.
            && total < left
            && total > left / 10 * 9
            && (used..used + 16 * MIB).contains(&total.saturating_sub(free))
        {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("statistics never come: {statistics}")
}

fn memory_goes_back(name: &str, words: &[&str]) -> Vec<String> {
    let Course { blocks, written_mib, reported_mib, log } =
        course(Watched::boot(name, words), true);
    assert!(written_mib >= 2 * blocks, "{written_mib} MiB");
    assert!(
        reported_mib + 2 * blocks <= written_mib + SLACK_MIB,
        "{written_mib} MiB before, {reported_mib} MiB after"
    );
    assert!(has(&log, "reset during a report, and started again"), "{log:?}");
    assert!(
        has(&log, &format!("0 of {blocks} blocks kept their contents, {blocks} can be written to")),
        "{log:?}"
    );
    log
}

fn has(log: &[String], text: &str) -> bool {
    log.iter().any(|line| line.contains(text))
}

#[test]
fn reported_memory_goes_back_to_the_host() {
    let log = memory_goes_back("plain", &["--balloon"]);
    assert!(has(&log, "reporting queue Some(3), 32 ranges"), "{log:?}");
}

#[test]
fn on_the_older_machine_too() {
    memory_goes_back("pc", &["--machine", "pc", "--balloon"]);
}

#[test]
fn hints_move_the_queue() {
    let log = memory_goes_back("hint", &["--balloon=free-page-hint=on"]);
    assert!(has(&log, "reporting queue Some(4), 32 ranges"), "{log:?}");
}

#[test]
fn behind_a_bridge_and_with_relief_offered() {
    let port = ["--qemu", "-device", "--qemu", "pcie-root-port,id=root-port,chassis=1"];
    let log = memory_goes_back(
        "bridge",
        &[&port[..], &["--balloon=bus=root-port,deflate-on-oom=on"]].concat(),
    );
    assert!(
        has(&log, "virtio-balloon 01:00.0: Features(STATS_VQ | REPORTING"),
        "the guest never asks for relief: {log:?}"
    );
}

#[test]
fn shared_memory_goes_back_too() {
    let backend = format!("memory-backend-memfd,id=memory,share=on,size={MEMORY_MIB}M");
    let options = ["--qemu", "-object", "--qemu", &backend, "--qemu", "-machine"];
    memory_goes_back(
        "shared",
        &[&options[..], &["--qemu", "memory-backend=memory", "--balloon"]].concat(),
    );
}

#[test]
fn without_reporting_everything_else_works() {
    let machine = Watched::boot("off", &["--balloon=free-page-reporting=off"]);
    let Course { blocks, written_mib, reported_mib, log } = course(machine, false);
    assert!(
        reported_mib + SLACK_MIB >= written_mib,
        "{written_mib} MiB before, {reported_mib} MiB after"
    );
    assert!(has(&log, "reporting queue None, 0 ranges"), "{log:?}");
    assert!(has(&log, &format!("{blocks} of {blocks} blocks kept their contents")), "{log:?}");
}

#[test]
fn locked_memory_stays_and_is_answered_for() {
    if !may_lock_memory(MEMORY_MIB) {
        common::not_possible("a machine whose memory is locked (RLIMIT_MEMLOCK)");
        return;
    }
    let options = ["--qemu", "-overcommit", "--qemu", "mem-lock=on", "--balloon"];
    let Course { blocks, reported_mib, log, .. } = course(Watched::boot("locked", &options), true);
    assert_eq!(reported_mib, MEMORY_MIB);
    // The device's answer proves nothing about the memory.
    assert!(has(&log, &format!("{blocks} of {blocks} blocks kept their contents")), "{log:?}");
}

#[test]
fn free_pages_that_hold_something_are_told_to_the_host() {
    // QEMU keeps pages whose content is to be anything but zeros.
    let course_with =
        |name, words: &[&str]| course(Watched::boot(name, &[words, &["--balloon"]].concat()), true);
    let poisoned = course_with("poison", &["page_poison=1"]);
    assert!(has(&poisoned.log, "PAGE_POISON"), "{:?}", poisoned.log);
    assert!(
        poisoned.reported_mib + SLACK_MIB >= poisoned.written_mib,
        "{} MiB after",
        poisoned.reported_mib
    );
    let cleared = course_with("cleared", &["init_on_free=1"]);
    assert!(has(&cleared.log, "PAGE_POISON"), "{:?}", cleared.log);
    assert!(
        cleared.reported_mib + 2 * cleared.blocks <= cleared.written_mib + SLACK_MIB,
        "{} MiB after",
        cleared.reported_mib
    );
}

#[test]
fn no_balloon_is_no_error() {
    let outcome = common::run(&[
        "boot",
        "--on",
        "qemu",
        "--accel",
        "tcg",
        "--memory",
        "256M",
        "--json",
        "balloon_test=1",
    ]);
    let report = outcome.json();
    let log = report["log"].to_string();
    assert!(
        log.contains("virtio-balloon: no device") && log.contains("Balloon test: passed"),
        "{log}"
    );
}

#[test]
fn another_virtio_device_is_no_balloon() {
    let other = ["--qemu", "-device", "--qemu", "virtio-rng-pci"];
    let fixed =
        ["boot", "--on", "qemu", "--accel", "tcg", "--memory", "256M", "--json", "balloon_test=0"];
    let log = common::run(&[&fixed[..], &other].concat()).json()["log"].to_string();
    assert!(log.contains("virtio-balloon: no device"), "{log}");
}

#[test]
fn a_device_behind_an_iommu_is_refused_and_the_guest_goes_on() {
    let fixed =
        ["boot", "--on", "qemu", "--accel", "tcg", "--memory", "256M", "--json", "balloon_test=0"];
    let log =
        common::run(&[&fixed[..], &["--balloon=disable-legacy=on,iommu_platform=on"]].concat())
            .json()["log"]
            .to_string();
    assert!(
        log.contains("the virtio balloon requires ACCESS_PLATFORM")
            && log.contains("Balloon test: passed"),
        "{log}"
    );
}

#[test]
fn a_device_of_before_version_1_is_refused_and_the_guest_goes_on() {
    let fixed =
        ["boot", "--on", "qemu", "--accel", "tcg", "--machine", "pc", "--memory", "256M", "--json"];
    let balloon = ["--balloon=disable-modern=on,disable-legacy=off", "balloon_test=0"];
    let log = common::run(&[&fixed[..], &balloon].concat()).json()["log"].to_string();
    assert!(
        log.contains("virtio-balloon 00:02.0: ") && log.contains("Balloon test: passed"),
        "{log}"
    );
}
