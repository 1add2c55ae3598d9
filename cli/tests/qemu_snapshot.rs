//! `boot --on qemu --snapshot`: what the guest's memory is used for.

mod common;

use common::{Scratch, run};
use serde_json::Value;

#[test]
fn the_guest_shows_what_its_commands_hold() {
    let folder = Scratch::new("qemu-snapshot");
    let path = folder.path("memory.json");
    let words = path.display().to_string();
    let commands = "alloc 9 20; alloc 0 5000; echo @memory 3 > /dev/none; echo '@memory x'; exit 3";
    let boot = [
        "boot",
        "--on",
        "qemu",
        "--accel",
        "tcg",
        "--memory",
        "1G",
        "--cpus",
        "2",
        "--timeout",
        "300",
    ];
    let outcome = run(&[&boot[..], &["--json", "--exec", commands, "--snapshot", &words]].concat());
    assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
    let report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert!(
        report["exec"]["output"]
            .as_str()
            .is_some_and(|text| text.contains("@memory x") && !text.contains("zone")),
        "{report}"
    );
    let snapshot: Value =
        serde_json::from_slice(&std::fs::read(&path).expect("it was written")).expect("JSON");
    let zones = snapshot["snapshot"]["zones"].as_array().expect("zones");
    assert_eq!(
        zones.iter().map(|zone| zone["zone"].as_str().expect("a name")).collect::<Vec<_>>(),
        ["DMA", "DMA32"]
    );
    let runs = zones.iter().flat_map(|zone| zone["runs"].as_array().expect("runs"));
    let whole: u64 =
        runs.filter(|run| run[2] == "W9").map(|run| run[1].as_u64().expect("blocks")).sum();
    assert!(whole >= 20, "{snapshot}");
    // Without commands; the tables for people stay unchanged.
    let outcome = run(&[&boot[..], &["--snapshot", &words, "memmap_init=on-demand"]].concat());
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(
        outcome.stdout.contains("total") && !outcome.stdout.contains("@memory"),
        "{}",
        outcome.stdout
    );
}

#[test]
fn the_guest_shows_grades_areas_and_what_was_moved() {
    let folder = Scratch::new("qemu-snapshot-moved");
    let path = folder.path("memory.json").display().to_string();
    let commands = "echo 0 > /proc/sys/vm/compaction_proactiveness; movable fill 60; compact; cma \
                    alloc reserved 4M";
    let machine = ["--on", "qemu", "--accel", "tcg", "--memory", "256M", "--cpus", "2"];
    let words = ["--exec", commands, "--snapshot", &path, "kernelcore=100M", "cma=32M"];
    let outcome = run(&[&["boot"][..], &machine, &words].concat());
    assert_eq!(outcome.code, Some(0), "{}{}", outcome.stdout, outcome.stderr);
    let snapshot: Value =
        serde_json::from_slice(&std::fs::read(&path).expect("it was written")).expect("JSON");
    let snapshot = &snapshot["snapshot"];
    let zones = snapshot["zones"].as_array().expect("zones");
    let blocks = |grade: &str| -> u64 {
        let runs = zones.iter().filter_map(|zone| zone["grades"].as_array()).flatten();
        let of_grade = runs.filter(|run| run[0] == grade);
        of_grade.map(|run| run[3].as_u64().expect("a number")).sum()
    };
    assert!(blocks("movable") > 50 && blocks("removable") == 16, "{snapshot}");
    let area = &snapshot["areas"][0];
    assert_eq!(area["name"], "reserved", "{snapshot}");
    assert_eq!(
        (area["pages"].as_u64(), area["available_pages"].as_u64()),
        (Some(8192), Some(7168))
    );
    let moved = &snapshot["moved"];
    assert!(moved["pages"].as_u64() > Some(1000), "{snapshot}");
    assert!(moved["emptied_blocks"].as_u64() > Some(0), "{snapshot}");
}
