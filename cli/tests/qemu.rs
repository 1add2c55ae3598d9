//! Whole machines in QEMU. `FRAMEWRIGHT_GUEST` names the image; without it the program builds one.
//! Without QEMU these tests fail and say what to install.

mod common;

use common::{Outcome, Scratch, check_sums, finish, is_running, present, program};
use serde_json::Value;
use std::fs;
use std::time::{Duration, Instant};

/// Boots with these options under emulation, so that the test does not depend on the host.
fn run(words: &[&str]) -> Outcome {
    finish(
        program().args(["boot", "--on", "qemu", "--accel", "tcg", "--timeout", "300"]).args(words),
    )
}

fn boot(words: &[&str]) -> Value {
    let outcome = run(&[&["--json"], words].concat());
    let report = outcome.json();
    assert_eq!(outcome.stderr, "");
    assert_eq!(
        (report["platform"].as_str(), report["qemu"]["accel"].as_str()),
        (Some("qemu"), Some("tcg"))
    );
    assert!(report["qemu"]["spawn_to_first_line_ms"].as_f64() > Some(0.0));
    check_sums(&report);
    report
}

/// Checks what Linux finds on such a machine. Only firmware's share at the end of low memory
/// depends on the firmware's version.
fn expect(report: &Value, zones: &[(u64, &str, u64)]) {
    const FIRMWARE_VARIES_BY: u64 = 64;
    for &(node, zone, pages) in zones {
        let found = present(report, node, zone)
            .unwrap_or_else(|| panic!("node {node} has no zone {zone}: {report}"));
        let slack = if zone == "DMA32" { FIRMWARE_VARIES_BY } else { 0 };
        assert!(
            found.abs_diff(pages) <= slack,
            "node {node}, zone {zone}: {found} pages, expected {pages}"
        );
    }
    assert_eq!(report["zones"].as_array().map(Vec::len), Some(zones.len()), "{}", report["zones"]);
}

#[test]
fn q35_256_mib() {
    expect(&boot(&["--memory", "256M"]), &[(0, "DMA", 3998), (0, "DMA32", 61_407)]);
}

#[test]
fn q35_2_gib_as_by_default() {
    expect(&boot(&[]), &[(0, "DMA", 3998), (0, "DMA32", 520_159)]);
}

#[test]
fn debug_aids_are_on_in_the_guest() {
    let report = boot(&["--memory", "256M", "page_owner=on", "init_on_alloc=1", "careful=3"]);
    expect(&report, &[(0, "DMA", 3998), (0, "DMA32", 61_407)]);
    let log = report["log"].to_string();
    for expected in
        ["page_owner is enabled", "take precedence over init_on_alloc", "random placement (seed 3)"]
    {
        assert!(log.contains(expected), "{log}");
    }
}

#[test]
fn q35_8_gib() {
    expect(
        &boot(&["--memory", "8G"]),
        &[(0, "DMA", 3998), (0, "DMA32", 520_159), (0, "Normal", 1_572_864)],
    );
}

#[test]
fn q35_8_gib_on_two_nodes() {
    let report = boot(&["--memory", "8G", "--nodes", "2", "--cpus", "4"]);
    let zones =
        [(0, "DMA", 3998), (0, "DMA32", 520_159), (0, "Normal", 524_288), (1, "Normal", 1_048_576)];
    expect(&report, &zones);
    let cpus: Vec<_> = report["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .map(|node| node["cpus"].clone())
        .collect();
    assert_eq!(cpus, [2, 2]);
}

#[test]
fn q35_2_gib_on_two_nodes() {
    let report = boot(&["--nodes", "2", "--cpus", "2"]);
    expect(&report, &[(0, "DMA", 3998), (0, "DMA32", 258_048), (1, "DMA32", 262_111)]);
}

#[test]
fn more_nodes_than_cpus() {
    let report = boot(&["--memory", "1000M", "--nodes", "3", "--cpus", "1"]);
    let nodes = report["nodes"].as_array().expect("nodes");
    assert_eq!(
        nodes.iter().map(|node| node["cpus"].as_u64()).collect::<Vec<_>>(),
        [Some(1), Some(0), Some(0)]
    );
    assert!(nodes.iter().all(|node| node["present_pages"].as_u64() > Some(80_000)), "{nodes:?}");
}

#[test]
fn pc_2_gib() {
    expect(&boot(&["--machine", "pc"]), &[(0, "DMA", 3998), (0, "DMA32", 520_159)]);
}

#[test]
fn pc_8_gib_on_two_nodes() {
    // The older machine type has 3 GiB below 4 GiB.
    let report = boot(&["--machine", "pc", "--memory", "8G", "--nodes", "2", "--cpus", "2"]);
    expect(
        &report,
        &[
            (0, "DMA", 3998),
            (0, "DMA32", 782_303),
            (0, "Normal", 262_144),
            (1, "Normal", 1_048_576),
        ],
    );
}

#[test]
fn parameters_reach_the_guest() {
    let report = boot(&[
        "--memory",
        "2G",
        "--nodes",
        "2",
        "--cpus",
        "2",
        "numa=off",
        "mem=1G",
        "frobnicate=1",
    ]);
    expect(&report, &[(0, "DMA", 3998), (0, "DMA32", 258_048)]);
    let log = report["log"].as_array().expect("a log");
    assert!(
        log.iter().any(|line| line.as_str().is_some_and(|line| line.contains("frobnicate=1"))),
        "{log:?}"
    );
}

/// Returns the lines of a report's log that contain `text`.
fn log_lines<'a>(report: &'a Value, text: &str) -> Vec<&'a str> {
    let log = report["log"].as_array().expect("a log");
    log.iter().filter_map(Value::as_str).filter(|line| line.contains(text)).collect()
}

#[test]
fn random_traffic_loses_nothing_on_a_whole_machine() {
    let report = boot(&[
        "--memory",
        "256M",
        "--nodes",
        "2",
        "--cpus",
        "2",
        "stress_operations=60000",
        "stress_seed=7",
    ]);
    let lines = log_lines(&report, "stress");
    let expected = [
        "Command line",
        "stress with seed 7",
        "stress: 60000 operations: ",
        "stress: every page accounted for, ",
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:?}");
    for (line, expected) in lines.iter().zip(expected) {
        assert!(line.contains(expected), "{expected}: {lines:?}");
    }
    // The test met both plenty of memory and a lack of it.
    for word in ["allocations", "refused", "frees", "exchanges", "drains", "recounts"] {
        let count = lines[2].split(", ").find(|part| part.ends_with(word)).expect(word);
        let number =
            count.split([' ', ':']).filter_map(|word| word.parse::<u64>().ok()).next_back();
        assert!(number > Some(0), "{word}: {}", lines[2]);
    }
}

#[test]
fn descriptors_that_come_and_go_are_accounted_for() {
    let words =
        ["--memory", "256M", "--cpus", "2", "memmap_init=on-demand", "stress_operations=9000"];
    assert_eq!(log_lines(&boot(&words), "stress: every page accounted for, ").len(), 1);
}

#[test]
fn traffic_ends_when_its_time_is_over() {
    let report = boot(&["--memory", "128M", "pages=none", "stress=1"]);
    let lines = log_lines(&report, "every page accounted for");
    let last = lines.first().expect("the line at the end");
    // All memory that was free before is free again; the rest of the managed memory is the
    // vmemmap's.
    let number =
        |text: &str| text.split(' ').filter_map(|word| word.parse::<u64>().ok()).next_back();
    let free = |line: &str| line.split_once(" of ").and_then(|(before, _)| number(before));
    let at_boot = log_lines(&report, "Framewright: verified, ");
    assert!(
        free(last).is_some() && free(last) == at_boot.first().and_then(|line| free(line)),
        "{last}: {at_boot:?}"
    );
}

#[test]
fn people_see_a_log_and_tables() {
    let outcome = run(&["--memory", "256M"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert!(lines[0].starts_with("[    "), "{}", outcome.stdout);
    for expected in [
        "BIOS-e820: [mem 0x0000000000100000-0x000000000ff",
        "Zone ranges:",
        "Early memory node ranges",
    ] {
        assert!(
            lines.iter().any(|line| line.starts_with('[') && line.contains(expected)),
            "{expected}\n{}",
            outcome.stdout
        );
    }
    assert!(lines.iter().any(|line| line.trim_start().starts_with("node  zone")));
    assert!(lines.iter().any(|line| line.starts_with("QEMU ")));
    assert!(
        !outcome.stdout.contains("@json")
            && !outcome.stdout.contains("@end")
            && !outcome.stdout.contains('\x1b')
    );
}

#[test]
fn a_panic_shows_the_log_and_fails() {
    for json in [&[][..], &["--json"]] {
        let outcome = run(&[&["--memory", "256M", "fault=panic"], json].concat());
        assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
        assert!(
            outcome.stderr.starts_with("framewright: the guest panicked"),
            "{}",
            outcome.stderr
        );
        assert!(
            outcome.stderr.to_lowercase().lines().skip(1).any(|line| line.contains("panic")),
            "{}",
            outcome.stderr
        );
    }
}

#[test]
fn a_time_out_is_kept_and_no_machine_is_left() {
    let scratch = Scratch::new("spin");
    let image = scratch.path("spinning-image");
    fs::write(&image, spinning_image()).expect("an image");
    let start = Instant::now();
    let outcome = finish(
        program()
            .args([
                "boot",
                "--on",
                "qemu",
                "--accel",
                "tcg",
                "--memory",
                "64M",
                "--timeout",
                "2",
                "--json",
            ])
            .env("FRAMEWRIGHT_GUEST", &image),
    );
    assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(1), ""), "{}", outcome.stderr);
    assert!(
        outcome.stderr.starts_with("framewright: the guest did not end within 2 s"),
        "{}",
        outcome.stderr
    );
    assert!(start.elapsed() >= Duration::from_secs(2) && start.elapsed() < Duration::from_secs(60));
    assert_eq!(machines_with(&image.display().to_string()), [""; 0]);
}

/// Builds a kernel that loops for ever: a Multiboot header that says where to load it, and a jump
/// to itself.
fn spinning_image() -> Vec<u8> {
    const LOAD_ADDRESS: u32 = 0x10_0000;
    const MAGIC: u32 = 0x1bad_b002;
    const HAS_ADDRESSES: u32 = 1 << 16;
    let checksum = 0u32.wrapping_sub(MAGIC).wrapping_sub(HAS_ADDRESSES);
    let header =
        [MAGIC, HAS_ADDRESSES, checksum, LOAD_ADDRESS, LOAD_ADDRESS, 0, 0, LOAD_ADDRESS + 32];
    let mut image: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    image.extend([0xeb, 0xfe]);
    image
}

/// Returns the running machines that have this word on their command line.
fn machines_with(word: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc")
        .expect("Linux")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let is_machine = |pid: &String| {
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command);
        command.starts_with("qemu-system-x86_64") && command.contains(word) && is_running(pid)
    };
    processes.filter(is_machine).collect()
}
