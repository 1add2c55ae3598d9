//! Shared by the program's tests: functions that run the program and examine its output.

#![allow(dead_code, reason = "every test file uses a part of it")]

pub mod limited;

use serde_json::Value;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How a run of the program ended.
pub struct Outcome {
    /// Exit status; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Outcome {
    /// Parses standard output, all of which must be one JSON object.
    pub fn json(&self) -> Value {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        assert_eq!(self.stdout.trim_end().lines().count(), 1, "exactly one line:\n{}", self.stdout);
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }
}

/// The program of the package that is being tested.
pub const PROGRAM: &str = match (
    option_env!("CARGO_BIN_EXE_framewright"),
    option_env!("CARGO_BIN_EXE_framewright-bench"),
) {
    (Some(path), _) | (None, Some(path)) => path,
    (None, None) => panic!("tests of another package"),
};

/// Reports what could not be tested. Bypasses the test harness, which swallows the output of a test
/// that passes; `cargo xtask test` counts these lines.
pub fn not_possible(what: &str) {
    let line = format!("\nNOT POSSIBLE HERE: {what}\n");
    // Standard error may be closed.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Returns a command for the built program. It resets signals to their defaults, because a script
/// that runs these tests in the background, or nohup, makes its children ignore some.
pub fn program() -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(PROGRAM);
    command.stdin(Stdio::null()).env_remove("NO_COLOR");
    let usual = || {
        for signal in [libc::SIGINT, libc::SIGHUP] {
            // SAFETY: the default is no code of ours, and no memory is involved.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: between fork and exec only system calls are made.
    unsafe { command.pre_exec(usual) };
    command
}

/// Runs a command until it exits.
pub fn finish(command: &mut Command) -> Outcome {
    let output = command.output().expect("the program starts");
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// Runs the program with these arguments.
pub fn run(words: &[&str]) -> Outcome {
    finish(program().args(words))
}

/// Returns the memory map of a real machine.
pub fn machine(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the program lies in the source tree");
    root.join("machines").join(name).display().to_string()
}

/// A temporary folder, removed when the value is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates an empty folder.
    pub fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let folder = format!("framewright-test-{}-{number}-{name}", std::process::id());
            let path = std::env::temp_dir().join(folder);
            match std::fs::create_dir(&path) {
                Ok(()) => return Self(path),
                // A process of this number was killed and has left it behind.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
    }

    /// Returns the path of `name` in this folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A folder that is left behind would be untidy, not wrong.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Waits until `done` is true.
pub fn wait_until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(180), "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns whether a process runs; a zombie does not.
pub fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    // The state follows the process name, which is in parentheses and may hold any character.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Sends a signal, `TERM` for instance.
pub fn signal(child: &Child, name: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", child.id())]).status();
    assert!(status.expect("a shell").success());
}

/// Reads the rest of a child's standard output and error.
pub fn rest(child: &mut Child) -> (String, String) {
    let (mut stdout, mut stderr) = (String::new(), String::new());
    if let Some(pipe) = &mut child.stdout {
        pipe.read_to_string(&mut stdout).expect("text");
    }
    if let Some(pipe) = &mut child.stderr {
        pipe.read_to_string(&mut stderr).expect("text");
    }
    (stdout, stderr)
}

/// Returns whether QEMU may lock a machine's memory. Finds out by starting a machine without a
/// kernel that stops at once.
pub fn may_lock_memory(mib: u64) -> bool {
    let memory = format!("{mib}M");
    let mut machine = Command::new("qemu-system-x86_64");
    machine.args([
        "-machine",
        "q35",
        "-m",
        &memory,
        "-display",
        "none",
        "-overcommit",
        "mem-lock=on",
    ]);
    // `quit` ends QEMU before the machine runs.
    let mut child = machine
        .args(["-S", "-monitor", "stdio"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("QEMU is installed");
    // QEMU may have exited already.
    let _ = writeln!(child.stdin.take().expect("a pipe"), "quit");
    child.wait().expect("it ends").success()
}

/// Returns how much of a QEMU machine's memory is resident on the host: the Rss of the mapping that
/// is as large as that memory.
pub fn resident_mib(pid: &str, memory_mib: u64) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/smaps")).expect("a process of ours");
    let mut is_memory = false;
    let mut sum_kib = 0;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
            is_memory = number(end) - number(start) == memory_mib << 20;
        } else if first == "Rss:" && is_memory {
            sum_kib += words.next().and_then(|word| word.parse::<u64>().ok()).expect("a size");
        }
    }
    sum_kib / 1024
}

/// Returns the present pages of a zone in a report.
pub fn present(report: &Value, node: u64, zone: &str) -> Option<u64> {
    let zones = report["zones"].as_array().expect("zones");
    zones.iter().find(|entry| entry["node"] == node && entry["zone"] == zone)?["present_pages"]
        .as_u64()
}

/// Checks what holds for every report on any machine: sums agree, and no memory is lost.
pub fn check_sums(report: &Value) {
    let sum = |list: &str, name: &str| -> u64 {
        report[list]
            .as_array()
            .expect("a list")
            .iter()
            .map(|entry| entry[name].as_u64().expect("a count"))
            .sum()
    };
    let totals = &report["totals"];
    for name in ["present_pages", "managed_pages"] {
        assert_eq!(sum("zones", name), totals[name].as_u64().expect("a count"), "{name}");
        assert_eq!(sum("nodes", name), totals[name].as_u64().expect("a count"), "{name}");
    }
    assert!(
        report["threads"].as_u64().expect("a count") <= sum("nodes", "cpus").max(1),
        "{report}"
    );
    let count = |name: &str| totals[name].as_u64().expect("a count");
    let parts = ["managed_pages", "reserved_pages", "unaccepted_pages"];
    assert_eq!(count("present_pages"), parts.iter().map(|name| count(name)).sum::<u64>());
    assert!(
        count("metadata_bytes") > 0 && count("metadata_bytes") < count("present_pages") * 4096 / 10
    );
    let (first, all) = (totals["first_alloc_us"].as_f64(), totals["bring_up_us"].as_f64());
    assert!(first > Some(0.0) && all >= first, "{totals}");
    assert!(report["log"].as_array().is_some_and(|log| log.len() > 10));
}
