//! Memory that only boot needed, on whole machines in QEMU: the manager gets as much as the log
//! says.

mod common;

use common::{Outcome, Scratch, check_sums, finish, program};
use serde_json::Value;

fn run(words: &[&str]) -> Outcome {
    let fixed = ["boot", "--on", "qemu", "--accel", "tcg", "--timeout", "300"];
    finish(program().args(fixed).args(words))
}

/// Returns what the log says was freed: each name with its KiB.
fn freed(log: &str) -> Vec<(String, u64)> {
    let lines = log.split("Freeing ").skip(1).map(|rest| {
        let (what, rest) = rest.split_once(" memory: ").expect("a size");
        let (kib, _) = rest.split_once('K').expect("in KiB");
        (what.to_owned(), kib.parse().expect("a number"))
    });
    lines.collect()
}

/// Returns the number before `after` in a log.
fn number_before(log: &str, after: &str) -> u64 {
    let (before, _) = log.split_once(after).unwrap_or_else(|| panic!("{after}: {log}"));
    let digits = before.rfind(|letter: char| !letter.is_ascii_digit()).map_or(0, |at| at + 1);
    before[digits..].parse().expect("a number")
}

/// Boots; returns what was freed, and checks that the totals grew by exactly that much.
fn boot(words: &[&str]) -> (Vec<(String, u64)>, Value) {
    let report = run(&[words, &["--json", "--exec", "verify"]].concat()).json();
    check_sums(&report);
    assert!(report["exec"]["output"].as_str().expect("text").contains("verified: "));
    let log = report["log"].to_string();
    let freed = freed(&log);
    let kib: u64 = freed.iter().map(|(_, kib)| kib).sum();
    let reserved_before = number_before(&log, "K reserved, ");
    let total = |name: &str| report["totals"][name].as_u64().expect("a count") * 4;
    assert_eq!(total("reserved_pages") + kib, reserved_before, "{freed:?}: {log}");
    // Some of what the log calls available was taken since, but no memory was added.
    let present = number_before(&log, "K available (");
    assert_eq!(total("present_pages"), present, "{log}");
    (freed, report)
}

fn kib_of(freed: &[(String, u64)], what: &str) -> Option<u64> {
    freed.iter().find(|(name, _)| name == what).map(|(_, kib)| *kib)
}

#[test]
fn boot_tables_and_boot_data_are_released_and_the_page_tables_are_right() {
    let (freed, report) = boot(&["--memory", "512M", "--cpus", "2", "map_space_test=1"]);
    assert_eq!(kib_of(&freed, "boot page tables"), Some(24), "{freed:?}");
    assert!(kib_of(&freed, "unused kernel image (initmem)") > Some(100), "{freed:?}");
    assert_eq!(kib_of(&freed, "initrd"), None, "{freed:?}");
    let log = report["log"].to_string();
    assert!(log.contains("map_space_test: tables are correct: "), "{log}");
}

#[test]
fn a_ram_disk_is_released_with_every_frame_that_it_touches() {
    let place = Scratch::new("initrd");
    let file = place.path("initrd");
    std::fs::write(&file, vec![0x5a; 3_000_001]).expect("a file");
    let file = format!("--qemu={}", file.display());
    let fixed = ["--memory", "256M", "--cpus", "2", "--qemu=-initrd", &file];
    for more in [&["stress_operations=3000"][..], &["careful=1", "unaccepted=@32M"]] {
        let (freed, _) = boot(&[&fixed[..], more].concat());
        assert_eq!(kib_of(&freed, "initrd"), Some(3_000_001_u64.div_ceil(4096) * 4), "{freed:?}");
    }
}

#[test]
fn memory_of_acpi_tables_is_released_and_so_are_tables_for_accepting() {
    let words = ["--memory", "512M", "memmap=1M#300M", "unaccepted=@400M", "accept_memory=eager"];
    let (freed, _) = boot(&words);
    assert_eq!(kib_of(&freed, "ACPI tables"), Some(1024), "{freed:?}");
    assert!(kib_of(&freed, "unused page table") >= Some(32), "{freed:?}");
    // Memory that may still be needed is not freed.
    let (freed, _) = boot(&["--memory", "512M", "unaccepted=@400M"]);
    assert_eq!(kib_of(&freed, "unused page table"), None, "{freed:?}");
}

#[test]
fn a_cpu_that_may_still_come_keeps_the_boot_tables() {
    let (freed, _) = boot(&["--memory", "256M", "--cpus", "2", "ghost_cpu=77"]);
    assert_eq!(kib_of(&freed, "boot page tables"), None, "{freed:?}");
    assert!(kib_of(&freed, "unused kernel image (initmem)").is_some(), "{freed:?}");
}

#[test]
fn wrong_releases_are_refused() {
    let (_, report) = boot(&["--memory", "1G", "check=release", "unaccepted=@512M"]);
    let log = report["log"].to_string();
    for part in [
        "released before: pfn 0x",
        "the manager's to accept: pfn 0x3fc00 is managed already",
        "no memory: pfn 0x40000 is not memory",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    assert!(!log.contains("NOT REFUSED"), "{log}");
}

#[test]
fn who_uses_boot_data_afterwards_faults() {
    for cpu in ["0", "1"] {
        let words = ["--memory", "256M", "--cpus", "2", "fault=released", "--json"];
        let outcome = run(&[&words[..], &[&format!("fault_cpu={cpu}")]].concat());
        assert_eq!(outcome.code, Some(1), "{}", outcome.stdout);
        let said = format!("{}{}", outcome.stdout, outcome.stderr);
        let exception = format!("Exception 14 on CPU {cpu}: page fault");
        let place = "(boot-only memory, since released)";
        assert!(said.contains(&exception) && said.contains(place), "{said}");
    }
}
