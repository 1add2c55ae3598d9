//! Machines with several CPUs and odd nodes in QEMU, chosen so that every pair of properties meets
//! in some boot: 1, 2, 4 or 16 CPUs; 1, 2 or 4 nodes, some without memory or CPUs; q35 and pc; with
//! and without x2APIC where the emulator has it; wrong firmware tables.

mod common;

use common::{Outcome, Scratch, check_sums, finish, program};
use serde_json::Value;
use std::fs;

/// Boots with these options under emulation.
fn run(words: &[&str]) -> Outcome {
    finish(
        program().args(["boot", "--on", "qemu", "--accel", "tcg", "--timeout", "300"]).args(words),
    )
}

/// Returns the report of a successful boot.
fn boot(words: &[&str]) -> Value {
    let report = run(&[&["--json"], words].concat()).json();
    check_sums(&report);
    report
}

/// Returns the lines of a report's log that contain `text`, without time stamps.
fn lines<'a>(report: &'a Value, text: &str) -> Vec<&'a str> {
    let log = report["log"].as_array().expect("a log");
    let lines = log
        .iter()
        .filter_map(Value::as_str)
        .filter_map(|line| line.split_once("] "))
        .map(|(_, line)| line);
    lines.filter(|line| line.contains(text)).collect()
}

fn line<'a>(report: &'a Value, text: &str) -> &'a str {
    lines(report, text)
        .first()
        .copied()
        .unwrap_or_else(|| panic!("no line has {text}: {}", report["log"]))
}

/// Returns all numbers in a line.
fn numbers(line: &str) -> Vec<u64> {
    line.split(|letter: char| !letter.is_ascii_digit())
        .filter_map(|word| word.parse().ok())
        .collect()
}

fn brought_up(report: &Value, expected: &str) {
    let line = line(report, "smp: Brought up");
    assert!(line.starts_with(&format!("smp: Brought up {expected} in ")), "{line}");
}

/// Checks that the CPUs worked together, according to `check=cpus`.
fn cpus_work_together(report: &Value, cpus: u64) {
    let job = numbers(line(report, "check: a job of"));
    assert!(job[0] == 8 * cpus && (1..=cpus).contains(&job[1]) && job[2] == cpus, "{job:?}");
    let calls = numbers(line(report, "calls, "));
    assert_eq!(calls, [20 * cpus * (cpus - 1), 0, 20 * (cpus - 1)]);
    assert_eq!(numbers(line(report, "check: the timers of")), [0]);
    // Each CPU asked for 20 flushes, ten of two pages and ten of everything, and received as many
    // from each of the others.
    let flushes = numbers(line(report, "nr_tlb_remote_flush"));
    let [asked, received, of_everything, of_pages] = flushes[..4] else { panic!("{flushes:?}") };
    assert_eq!([asked, received, of_pages], [20 * cpus, 20 * cpus * (cpus - 1), 20 * cpus * cpus]);
    // A CPU that slept while translations of the vmemmap changed does one more full flush when it
    // wakes.
    assert!((10 * cpus * cpus..=10 * cpus * cpus + cpus).contains(&of_everything), "{flushes:?}");
    let interrupts = numbers(line(report, "check: interrupts:"));
    assert!(interrupts[0] >= 3 * cpus && interrupts[3] == 0, "{interrupts:?}");
    assert_eq!(cpus > 1, interrupts[1] > 0, "{interrupts:?}");
}

/// Checks that traffic on all CPUs ended well and that interrupt handlers allocated meanwhile.
fn nothing_is_lost(report: &Value, cpus: u64) {
    let plural = if cpus == 1 { "" } else { "s" };
    assert!(
        line(report, "stress with seed").ends_with(&format!("on {cpus} CPU{plural}")),
        "{}",
        line(report, "stress with")
    );
    assert_eq!(lines(report, "every page accounted for").len(), 1, "{}", report["log"]);
    let storm = numbers(line(report, "interrupt storm: "));
    assert!(storm[0] > 0 && storm[1] > 0 && storm[3] == 0, "{storm:?}");
}

const TRAFFIC: [&str; 3] = ["check=cpus", "interrupt_storm=200", "stress_seed=5"];

#[test]
fn one_cpu_has_interrupts_too() {
    let report = boot(
        &[&["--memory", "256M", "--machine", "pc", "stress_operations=4000"][..], &TRAFFIC]
            .concat(),
    );
    brought_up(&report, "1 node, 1 CPU");
    cpus_work_together(&report, 1);
    nothing_is_lost(&report, 1);
}

#[test]
fn two_cpus_on_two_nodes_under_traffic() {
    let machine = ["--memory", "512M", "--nodes", "2", "--cpus", "2", "stress_operations=8000"];
    let report = boot(&[&machine[..], &TRAFFIC].concat());
    brought_up(&report, "2 nodes, 2 CPUs");
    cpus_work_together(&report, 2);
    nothing_is_lost(&report, 2);
}

#[test]
fn four_cpus_on_four_odd_nodes() {
    // Nodes of uneven size, one without CPUs, one without memory, and different distances.
    let mut words = vec!["--memory=1G", "--machine=pc", "--cpus=4", "stress_operations=4000"];
    let numa = [
        "-object",
        "memory-backend-ram,id=a,size=512M",
        "-object",
        "memory-backend-ram,id=b,size=384M",
        "-object",
        "memory-backend-ram,id=c,size=128M",
        "-numa",
        "node,nodeid=0,cpus=0-1,memdev=a",
        "-numa",
        "node,nodeid=1,cpus=2,memdev=b",
        "-numa",
        "node,nodeid=2,memdev=c",
        "-numa",
        "node,nodeid=3,cpus=3",
        "-numa",
        "dist,src=0,dst=1,val=15",
        "-numa",
        "dist,src=0,dst=2,val=30",
        "-numa",
        "dist,src=0,dst=3,val=40",
        "-numa",
        "dist,src=1,dst=2,val=21",
        "-numa",
        "dist,src=1,dst=3,val=22",
        "-numa",
        "dist,src=2,dst=3,val=50",
    ];
    let numa: Vec<String> = numa.iter().map(|word| format!("--qemu={word}")).collect();
    words.extend(numa.iter().map(String::as_str));
    words.extend(TRAFFIC);
    let report = boot(&words);
    // Three nodes have CPUs. Domain 3 is the third of them, so it becomes node 2, as in Linux.
    brought_up(&report, "3 nodes, 4 CPUs");
    let nodes = report["nodes"].as_array().expect("nodes");
    assert_eq!(
        nodes.iter().map(|node| node["cpus"].as_u64()).collect::<Vec<_>>(),
        [2, 1, 1, 0].map(Some)
    );
    let present: Vec<_> = nodes.iter().filter_map(|node| node["present_pages"].as_u64()).collect();
    assert!(
        present[0] > 130_000 && present[1] == 98_304 && present[2] == 0 && present[3] > 32_000,
        "{present:?}"
    );
    assert_eq!(line(&report, "Initmem setup node 2"), "Initmem setup node 2 as memoryless");
    assert_eq!(line(&report, "Node 2 distances:"), "NUMA: Node 2 distances:  40  22  10  50");
    assert_eq!(line(&report, "Fallback order for Node 2"), "Fallback order for Node 2: 1 0 3");
    cpus_work_together(&report, 4);
    nothing_is_lost(&report, 4);
}

#[test]
fn sixteen_cpus_on_four_nodes() {
    // The test does not judge how long this takes, because the host may be busy.
    let machine = ["--memory", "1G", "--nodes", "4", "--cpus", "16", "stress_operations=1600"];
    let report = boot(&[&machine[..], &["interrupt_storm=20", "check=cpus"]].concat());
    brought_up(&report, "4 nodes, 16 CPUs");
    cpus_work_together(&report, 16);
    nothing_is_lost(&report, 16);
}

#[test]
fn both_forms_of_the_interrupt_controller() {
    // An emulator without x2APIC says so on standard error and goes on without it.
    for (model, is_wide) in [("max,-x2apic", false), ("max,+x2apic", true)] {
        let cpu = format!("--qemu={model}");
        let report = boot(&["--memory=256M", "--cpus=4", "--qemu=-cpu", &cpu, "check=cpus"]);
        brought_up(&report, "1 node, 4 CPUs");
        cpus_work_together(&report, 4);
        let mode = line(&report, "APIC: x")
            .trim_start_matches("APIC: ")
            .split(',')
            .next()
            .unwrap_or_default();
        assert_eq!(
            mode,
            if is_wide && emulates_x2apic(&report) { "x2APIC" } else { "xAPIC" },
            "with {model}"
        );
    }
}

/// Returns whether QEMU's emulator has x2APIC, which it does from version 9.0 on. Prints a note if
/// it has not, because that limits the test.
fn emulates_x2apic(report: &Value) -> bool {
    let version = report["qemu"]["version"].as_str().expect("a version");
    let has = version.split('.').next().and_then(|major| major.parse::<u32>().ok()) >= Some(9);
    if !has {
        common::not_possible(&format!("x2APIC, which QEMU {version} does not emulate"));
    }
    has
}

#[test]
fn identifiers_that_need_x2apic() {
    if !emulates_x2apic(&boot(&["--memory=256M"])) {
        return;
    }
    let more = |core: u32| {
        [
            "--qemu=-device".to_owned(),
            format!("--qemu=max-x86_64-cpu,socket-id=1,core-id={core},thread-id=0"),
        ]
    };
    let (fifth, last) = (more(5), more(200));
    let mut words = vec![
        "--memory=256M",
        "--qemu=-smp",
        "--qemu=2,maxcpus=512,sockets=2,cores=256",
        "check=cpus",
    ];
    words.extend(fifth.iter().chain(&last).map(String::as_str));
    let report = boot(&words);
    assert!(line(&report, "APIC: x").starts_with("APIC: x2APIC, "));
    brought_up(&report, "1 node, 4 CPUs");
    cpus_work_together(&report, 4);
}

#[test]
fn a_cpu_that_does_not_start_is_named() {
    let report = boot(&["--memory=256M", "--cpus=2", "ghost_cpu=77", "check=cpus"]);
    assert_eq!(
        lines(&report, "did not start"),
        ["smp: CPU 2 (APIC ID 77) did not start within 2000 ms"]
    );
    brought_up(&report, "1 node, 2 CPUs");
    cpus_work_together(&report, 2);
    // An identifier that an 8-bit controller cannot address is named in the log, too.
    let report =
        boot(&["--memory=256M", "--cpus=2", "ghost_cpu=300", "--qemu=-cpu", "--qemu=max,-x2apic"]);
    assert_eq!(
        lines(&report, "left out"),
        ["smp: CPU with APIC ID 300 left out: it needs x2APIC, which this CPU lacks"]
    );
    let report = boot(&["--memory=256M", "--cpus=2", "ghost_cpu=1"]);
    assert_eq!(lines(&report, "left out"), ["smp: CPU with APIC ID 1 left out: listed twice"]);
    brought_up(&report, "1 node, 2 CPUs");
}

#[test]
fn as_many_cpus_as_there_is_room_for() {
    let report = boot(&["--memory=512M", "--cpus=255", "ghost_cpu=255"]);
    brought_up(&report, "1 node, 255 CPUs");
    assert_eq!(lines(&report, "left out").len(), 1, "{:?}", lines(&report, "left out"));
}

#[test]
fn faults_end_in_the_right_report_wherever_they_happen() {
    for (fault, cpu, expected) in [
        (
            "null",
            0,
            &[
                "Exception 14 on CPU 0: page fault",
                "kernel write, no page is there",
                "(a null pointer)",
            ][..],
        ),
        ("null", 1, &["Exception 14 on CPU 1: page fault", "(a null pointer)"]),
        ("stack", 0, &["the page below the stack: stack overflow on CPU 0"]),
        ("stack", 2, &["the page below its stack: stack overflow on CPU 2"]),
        (
            "readonly",
            2,
            &["kernel write, the page does not allow it", "of this program, which are read-only"],
        ),
        (
            "double-free",
            1,
            &["Double free of the frame at 0x", " on CPU 1: ", "it is free already", "faults.rs:"],
        ),
        ("panic", 2, &["Panic on CPU 2 at guest/src/faults.rs:", "requested by fault=panic"]),
    ] {
        let (fault, cpu) = (format!("fault={fault}"), format!("fault_cpu={cpu}"));
        let outcome = run(&["--json", "--memory=256M", "--cpus=3", "page_owner=on", &fault, &cpu]);
        assert_eq!(
            (outcome.code, outcome.stdout.as_str()),
            (Some(1), ""),
            "{fault}: {}",
            outcome.stderr
        );
        assert!(
            outcome.stderr.starts_with("framewright: the guest panicked"),
            "{}",
            outcome.stderr
        );
        for text in expected {
            assert!(
                outcome.stderr.contains(text),
                "{fault} {cpu}: no {text} in {}",
                outcome.stderr
            );
        }
    }
    let outcome = run(&["--memory=256M", "--cpus=2", "fault=null", "fault_cpu=9"]);
    assert!(
        outcome.code == Some(1) && outcome.stdout.contains("CPU 9 does not run"),
        "{}",
        outcome.stdout
    );
}

/// Writes an ACPI table's body to a file and gives it to QEMU. A machine without nodes has no such
/// table of its own, so this is the only one.
fn with_tables(tables: &[(&str, u8, Vec<u8>)], name: &str) -> Value {
    let folder = Scratch::new(name);
    let mut words = vec!["--memory=512M".to_owned(), "--cpus=2".to_owned()];
    for (signature, revision, body) in tables {
        let path = folder.path(signature);
        fs::write(&path, body).expect("a table");
        words.push("--qemu=-acpitable".to_owned());
        words.push(format!("--qemu=sig={signature},rev={revision},data={}", path.display()));
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    boot(&words)
}

/// Builds the body of a SRAT: its fixed part, then these entries.
fn srat(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut body = [1u32.to_le_bytes().to_vec(), vec![0; 8]].concat();
    body.extend(entries.concat());
    body
}

fn x2apic_cpu(apic_id: u32, domain: u32) -> Vec<u8> {
    let words = [domain, apic_id, 1, 0, 0];
    [vec![2, 24, 0, 0], words.iter().flat_map(|word| word.to_le_bytes()).collect()].concat()
}

fn memory(domain: u32, start: u64, bytes: u64, flags: u32) -> Vec<u8> {
    let mut entry = vec![1, 40];
    entry.extend(domain.to_le_bytes());
    entry.extend([0; 2]);
    entry.extend(start.to_le_bytes());
    entry.extend(bytes.to_le_bytes());
    entry.extend([0; 4]);
    entry.extend(flags.to_le_bytes());
    entry.extend([0; 8]);
    entry
}

const HALF: u64 = 256 << 20;

#[test]
fn wrong_distances_cost_no_node() {
    let table = srat(&[
        x2apic_cpu(0, 0),
        x2apic_cpu(1, 1),
        memory(0, 0, HALF, 1),
        memory(1, HALF, HALF, 1),
    ]);
    let square = |distances: [u8; 4]| [2u64.to_le_bytes().to_vec(), distances.to_vec()].concat();
    let cases = [
        ("slit-near", square([10, 30, 9, 10]), "byte 46: distance 9 from node 1 to node 0"),
        ("slit-far", vec![200, 0, 0, 0, 0, 0, 0, 0, 10], "a length of 45 bytes is invalid"),
    ];
    for (name, slit, expected) in cases {
        let report = with_tables(&[("SRAT", 3, table.clone()), ("SLIT", 1, slit)], name);
        brought_up(&report, "2 nodes, 2 CPUs");
        let fault = line(&report, "going on without distances between nodes");
        assert!(
            fault.starts_with("ACPI: SLIT at 0x") && fault.contains(expected),
            "{name}: {fault}"
        );
        assert_eq!(line(&report, "Node 0 distances:"), "NUMA: Node 0 distances:  10  20");
        assert_eq!(line(&report, "Node 1 distances:"), "NUMA: Node 1 distances:  20  10");
    }
}

#[test]
fn wide_affinities_hot_pluggable_and_empty_ranges() {
    let table = srat(&[
        x2apic_cpu(0, 1),
        x2apic_cpu(1, 0),
        memory(1, 0, HALF, 1),
        memory(0, HALF, HALF, 1),
        memory(0, 2 * HALF, 0, 1),
        memory(1, 4 << 30, 1 << 30, 3),
    ]);
    let slit = [2u64.to_le_bytes().to_vec(), vec![10, 17, 18, 10]].concat();
    let report = with_tables(&[("SRAT", 3, table), ("SLIT", 1, slit)], "srat-wide");
    brought_up(&report, "2 nodes, 2 CPUs");
    assert_eq!(lines(&report, "ACPI: SRAT: Node").len(), 3);
    assert!(
        line(&report, "hotplug")
            .contains("Node 0 PXM 1 [mem 0x0000000100000000-0x000000013fffffff]")
    );
    // The first domain that is named becomes node 0; its row is the table's second.
    assert_eq!(line(&report, "Node 0 distances:"), "NUMA: Node 0 distances:  10  18");
    assert_eq!(line(&report, "Node 1 distances:"), "NUMA: Node 1 distances:  17  10");
}

#[test]
fn tables_that_are_wrong_leave_one_node_and_all_cpus() {
    let good = srat(&[
        x2apic_cpu(0, 0),
        x2apic_cpu(1, 1),
        memory(0, 0, HALF, 1),
        memory(1, HALF, HALF, 1),
    ]);
    let cases = [
        (
            "cut",
            vec![("SRAT", 3, good[..good.len() - 4].to_vec())],
            "an entry of kind 1 has 40 bytes",
        ),
        ("short", vec![("SRAT", 3, vec![0; 3])], "ACPI: SRAT at"),
        (
            "overlap",
            vec![("SRAT", 3, srat(&[memory(0, 0, HALF + 4096, 1), memory(1, HALF, HALF, 1)]))],
            "nodes 0 and 1 both claim [mem 0x0000000010000000-0x0000000010000fff]",
        ),
        ("wraps", vec![("SRAT", 3, srat(&[memory(0, u64::MAX - 10, 4096, 1)]))], "ACPI: SRAT at"),
    ];
    for (name, tables, expected) in cases {
        let report = with_tables(&tables, name);
        let said = line(&report, "going on with one node");
        assert!(said.contains(expected), "{name}: {said}");
        brought_up(&report, "1 node, 2 CPUs");
        assert_eq!(report["nodes"].as_array().map(Vec::len), Some(1), "{name}");
    }
}

#[test]
fn a_machine_without_acpi_has_one_cpu() {
    // QEMU starts this machine without firmware tables, whatever the options say about CPUs.
    let machine = "--qemu=microvm,acpi=off,isa-serial=on,pit=on,pic=on";
    let report = boot(&["--memory=256M", "--cpus=2", "--qemu=-machine", machine]);
    assert_eq!(lines(&report, "names no tables").len(), 1);
    brought_up(&report, "1 node, 1 CPU");
}
