//! `cpu`: CPUs stop and go on, if the host has CPUs that can be stopped.

use crate::common::{Fake, Threads, machine};
use framewright::procfs::{FileSystem, Source};
use framewright_shell::{Host, Run, Shell};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// A host that records which CPUs it is told to stop, and may lose one.
struct Stopping {
    threads: Threads,
    told: Mutex<Vec<(bool, u32)>>,
    loses: AtomicBool,
}

impl Host for Stopping {
    fn is_interrupted(&self) -> bool {
        self.threads.is_interrupted()
    }

    fn beside(&self, others: &(dyn Fn(u32) + Sync), own: &mut dyn FnMut()) {
        self.threads.beside(others, own);
    }

    fn stop_cpu(&self, cpu: u32) -> bool {
        self.told.lock().expect("no panic").push((false, cpu));
        true
    }

    fn start_cpu(&self, cpu: u32) -> bool {
        self.told.lock().expect("no panic").push((true, cpu));
        !self.loses.load(Ordering::Relaxed)
    }
}

fn run(manager: &Fake, host: &Stopping, text: &str) -> (u8, String, String) {
    let (mut out, mut errors) = (String::new(), String::new());
    let (files, mut room) = (manager.files(), [Run::NOTHING; 40]);
    let sources: [&dyn Source; 1] = [&files];
    let files = FileSystem::new(&sources);
    // SAFETY: the commands free nothing by address, and there is no window.
    let mut shell = unsafe { Shell::new(manager, files, host, &mut room) };
    let status = shell.run(text, &mut out, &mut errors);
    shell.free_all();
    manager.verify().expect("the tables are right");
    manager.platform().assert_quiet();
    (status, out, errors)
}

fn stopping() -> (Fake, Stopping) {
    let (manager, threads) = machine("", [256, 256], 1000);
    (manager, Stopping { threads, told: Mutex::default(), loses: AtomicBool::new(false) })
}

#[test]
fn a_cpu_stops_and_goes_on() {
    let (manager, host) = stopping();
    let list = "cpu; cat /sys/devices/system/node/has_cpu";
    let (status, out, errors) = run(
        &manager,
        &host,
        &format!(
            "{list}; cpu offline 1; {list}; alloc 0 1000 node=1; free 1; cpu online 0x1; {list}"
        ),
    );
    assert_eq!((status, errors.as_str()), (0, ""));
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[..2], ["online 0-1", "0-1"]);
    assert!(lines[2].starts_with("CPU 1 is offline; 0 pages went back"), "{out}");
    assert_eq!(lines[3..6], ["online 0", "offline 1", "0"]);
    assert_eq!(lines[8..], ["CPU 1 is online", "online 0-1", "0-1"]);
    assert_eq!(*host.told.lock().expect("no panic"), [(false, 1), (true, 1)]);
}

/// A host whose second CPU never takes part: only measured values are printed.
#[test]
fn faults_are_taken_by_cpus_that_take_part() {
    let (manager, threads) = machine("", [256, 256], 10_000_000);
    let host = Stopping { threads, told: Mutex::default(), loses: AtomicBool::new(false) };
    let (status, out, errors) = run(&manager, &host, "page_fault1 1");
    assert_eq!((status, errors.as_str()), (0, ""));
    assert!(out.starts_with("page_fault1 cpus 1: ") && out.lines().count() == 1, "{out}");
    let (status, out, errors) = run(&manager, &host, "page_fault1 1 cpus 2");
    let why = "page_fault1: cpus must be 1 to 1 on this machine, not 2\n";
    assert_eq!((status, out.as_str(), errors.as_str()), (2, "", why));
}

#[test]
fn what_cannot_be_is_said_and_nobody_is_stopped() {
    let (manager, host) = stopping();
    for (text, status, why) in [
        ("cpu offline 2", 1, "there is no CPU 2; the last one is 1"),
        ("cpu online 2", 1, "there is no CPU 2; the last one is 1"),
        ("cpu offline 0x100000001", 1, "there is no CPU 4294967295; the last one is 1"),
        ("cpu offline 0", 1, "CPU 0 cannot take itself offline"),
        ("cpu online 1", 1, "CPU 1 is online already"),
        ("cpu offline one", 2, "a CPU must be a number, not \"one\""),
        ("cpu offline", 2, "expected offline N, online N or storm ROUNDS [seed N]"),
        ("cpu storm 1 2", 2, "expected offline N, online N or storm ROUNDS [seed N]"),
        ("cpu storm many", 2, "rounds must be a number, not \"many\""),
    ] {
        let (is, out, errors) = run(&manager, &host, text);
        assert_eq!((is, errors.trim()), (status, format!("cpu: {why}").as_str()), "{out}");
    }
    assert!(host.told.lock().expect("no panic").is_empty());
    let (status, _, errors) =
        run(&manager, &host, "cpu offline 1; cpu offline 1; cpu offline 0; cpu storm 3");
    assert_eq!(status, 1);
    let errors: Vec<&str> = errors.lines().collect();
    assert_eq!(
        errors,
        [
            "cpu: CPU 1 is offline already",
            "cpu: CPU 0 is the last online CPU",
            "cpu: no other CPU is online"
        ]
    );
    // The CPU does not come back, so it stays offline and its cache keeps nothing.
    host.loses.store(true, Ordering::Relaxed);
    let (status, out, errors) = run(&manager, &host, "cpu online 1");
    assert_eq!((status, errors.as_str()), (1, "cpu: CPU 1 does not run\n"), "{out}");
    assert!(!manager.cpus().is_online(1));
    host.loses.store(false, Ordering::Relaxed);
    assert_eq!(run(&manager, &host, "cpu online 1").0, 0);
    assert!(manager.cpus().is_online(1));
}

#[test]
fn a_storm_accounts_for_every_page() {
    let (manager, host) = stopping();
    let (status, out, errors) = run(&manager, &host, "cpu storm 50 seed 7; cpu");
    assert_eq!((status, errors.as_str()), (0, ""), "{out}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(
        lines[0].starts_with("50 rounds; ") && lines[0].ends_with(", every page accounted for"),
        "{out}"
    );
    assert_eq!(lines[1], "online 0-1");
    let told = host.told.lock().expect("no panic");
    assert_eq!(told.len(), 100);
    assert!(told.chunks(2).all(|pair| pair == [(false, 1), (true, 1)]));
}
