//! `boot --snapshot` and `report`: what they write, and what they say about files that they cannot
//! use.

mod common;

use common::{Scratch, run};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

fn words(path: &Path) -> String {
    path.display().to_string()
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("it was written")).expect("JSON")
}

/// Counts the blocks of a snapshot whose use begins with this letter.
fn blocks(snapshot: &Value, letter: char) -> u64 {
    let zones = snapshot["snapshot"]["zones"].as_array().expect("zones");
    let runs = zones.iter().flat_map(|zone| zone["runs"].as_array().expect("runs"));
    let only = runs.filter(|run| {
        run[2].as_str().is_some_and(|uses| uses.starts_with(letter) && !uses.contains(':'))
    });
    only.map(|run| run[1].as_u64().expect("a number")).sum()
}

#[test]
fn a_snapshot_shows_what_commands_hold() {
    let folder = Scratch::new("snapshot");
    let path = folder.path("memory.json");
    let commands = "echo 40 > /proc/sys/vm/nr_hugepages; alloc 9 100; alloc 0 2000; exit 3";
    let outcome = run(&["boot", "--memory", "1G", "--exec", commands, "--snapshot", &words(&path)]);
    assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
    let snapshot = read(&path);
    assert_eq!((&snapshot["format"], &snapshot["snapshot"]["cell_blocks"]), (&json!(1), &json!(1)));
    // The CPU's cache keeps some more pages.
    assert!(
        blocks(&snapshot, 'P') == 40 && (100..200).contains(&blocks(&snapshot, 'W')),
        "{snapshot}"
    );
    assert!(blocks(&snapshot, 'S') >= 4 && blocks(&snapshot, 'F') > 300);
    assert_eq!(snapshot["snapshot"]["commands"], commands);
    // Without commands, and with JSON output.
    let outcome = run(&["boot", "--memory", "256M", "--json", "--snapshot", &words(&path)]);
    assert!(outcome.json()["totals"].is_object());
    let snapshot = read(&path);
    assert_eq!(
        (blocks(&snapshot, 'P'), snapshot["snapshot"]["machine"].as_str()),
        (0, Some("256 MiB, in a process"))
    );
    let outcome = run(&[
        "boot",
        "--memory",
        "256M",
        "--policy-table",
        "no",
        "--snapshot",
        &words(&folder.path("no/such/file")),
    ]);
    assert_eq!(
        (outcome.code, outcome.stdout.as_str()),
        (Some(2), ""),
        "nothing was booted in vain"
    );
    assert!(
        outcome.stderr.contains("no/such/file: cannot be written: No such file or directory"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn grades_areas_and_what_was_moved_come_from_the_machine_to_the_page() {
    let folder = Scratch::new("grades");
    let (path, page) = (folder.path("memory.json"), folder.path("report.html"));
    let outcome = run(&[
        "boot",
        "--memory",
        "256M",
        "--exec",
        // Nothing may move before a command asks for it.
        "echo 0 > /proc/sys/vm/compaction_proactiveness; movable fill 60; compact",
        "--snapshot",
        &words(&path),
        "kernelcore=100M",
        "cma=32M",
    ]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let snapshot = read(&path);
    let zones = snapshot["snapshot"]["zones"].as_array().expect("zones");
    let sum = |grade: &str| {
        let runs = zones.iter().filter_map(|zone| zone["grades"].as_array()).flatten();
        let of_grade = runs.filter(|run| run[0] == grade);
        of_grade.map(|run| run[3].as_u64().expect("a number")).sum::<u64>()
    };
    assert!(sum("movable") > 60, "{snapshot}");
    assert_eq!(sum("removable"), 16, "{snapshot}");
    let area = &snapshot["snapshot"]["areas"][0];
    assert_eq!((&area["name"], &area["pages"]), (&json!("reserved"), &json!(8192)));
    assert!(snapshot["snapshot"]["moved"]["pages"].as_u64() > Some(0), "{snapshot}");
    let outcome = run(&["report", &words(&path), "-o", &words(&page)]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let text = fs::read_to_string(&page).expect("it was written");
    for part in ["class=\"km\"", "class=\"kr\"", "reserve area reserved, 32.0 MiB", "<br>Moved: "] {
        assert!(text.contains(part), "{part}");
    }
}

#[test]
fn a_snapshot_of_a_large_machine_is_small() {
    let folder = Scratch::new("large");
    let path = folder.path("memory.json");
    let commands =
        "alloc 18 3000; alloc 9 100000; alloc 0 200000; alloc 13 5000; free 2; fragment 2G";
    let outcome = run(&[
        "boot",
        "--memory",
        "24T",
        "--nodes",
        "16",
        "--exec",
        commands,
        "--snapshot",
        &words(&path),
        "memmap_init=on-demand",
    ]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let bytes = fs::metadata(&path).expect("it was written").len();
    assert!(bytes < 100_000, "{bytes}");
    let page = folder.path("report.html");
    let outcome = run(&["report", "--snapshot", &words(&path), "-o", &words(&page)]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let text = fs::read_to_string(&page).expect("it was written");
    assert!(text.len() < 2 << 20 && text.matches("class=\"node\"").count() == 16);
}

#[test]
fn files_that_cannot_be_used_are_named_and_nothing_is_written() {
    let folder = Scratch::new("bad");
    let (bad, page) = (folder.path("bad.json"), folder.path("report.html"));
    fs::write(&page, "as it was").expect("a file");
    for (text, expected) in [
        ("", "bad.json: is not JSON: EOF"),
        ("{\"format\": 7, \"rows\": []}", "bad.json: has format 7; this program reads format 1"),
        ("[]", "bad.json: is not a JSON object"),
        ("{}", "bad.json: has no \"snapshot\""),
        (
            "{\"bench\": \"alloc\", \"rows\": []}",
            "bad.json: holds benchmark results: `framewright-bench report` makes a page of them",
        ),
        (
            "{\"snapshot\": {\"cell_blocks\": 1, \"zones\": [{}]}}",
            "bad.json: snapshot.zones[0].runs is not a list",
        ),
    ] {
        fs::write(&bad, text).expect("a file");
        for command in [&["report"][..], &["report", "--snapshot"]] {
            let outcome = run(&[command, &[&words(&bad), "-o", &words(&page)]].concat());
            assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""), "{text}");
            assert!(
                outcome.stderr.contains(expected) && outcome.stderr.lines().count() == 1,
                "{text}: {}",
                outcome.stderr
            );
            assert_eq!(fs::read_to_string(&page).expect("it is there"), "as it was");
        }
    }
    let outcome = run(&["report"]);
    assert!(
        outcome.code == Some(2) && outcome.stderr.contains("framewright boot --snapshot"),
        "{}",
        outcome.stderr
    );
    assert_eq!(fs::read_dir(folder.path("")).expect("a folder").count(), 2, "nothing is left over");
}
