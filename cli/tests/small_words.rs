//! Messages for people: what is wrong with a line of a map, the singular of numbers, and the keys
//! of `top`.

mod common;

use common::{Scratch, run};
use std::fs;

#[test]
fn a_range_the_wrong_way_round_is_said_to_be_one() {
    let folder = Scratch::new("reversed");
    let path = folder.path("boot.dmesg");
    for (line, expected) in [
        (
            "BIOS-e820: [mem 0x0000000080000000-0x0000000000100000] usable",
            "a range that ends at or after its start",
        ),
        (
            "BIOS-e820: [mem 0x0000000000000000-0xffffffffffffffff] usable",
            "a range that ends at or after its start",
        ),
        (
            "BIOS-e820: 0000000080000000 - 0000000000100000 (usable)",
            "a range that ends at or after its start",
        ),
        ("BIOS-e820: [mem 0x0000000000100000-0x0000000080000000] fast", "a range and a type"),
        ("BIOS-e820: nonsense", "a range and a type"),
    ] {
        fs::write(&path, format!("[    0.000000] {line}\n")).expect("a file");
        let outcome = run(&["boot", "--map", &path.display().to_string()]);
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(expected), "{line}: {}", outcome.stderr);
    }
    // The error is found in /proc/iomem's form, too, even in the line that identifies the form.
    fs::write(&path, "00100000-00000fff : System RAM\n").expect("a file");
    let outcome = run(&["boot", "--map", &path.display().to_string()]);
    assert!(
        outcome.stderr.contains("a range that ends at or after its start"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn one_of_a_thing_is_no_plural() {
    let report = run(&[
        "boot",
        "--memory",
        "64M",
        "--cpus",
        "1",
        "--json",
        "--exec",
        "alloc 0; held; stat; memhog 4K; dmesg",
    ])
    .json();
    let said = report["exec"]["output"].to_string().replace("\\n", " ");
    assert!(said.contains("NUMA: Node 0: 1 CPU "), "{said}");
    for plural in [" 1 nodes", " 1 CPUs", " 1 runs", " 1 pages"] {
        assert!(!said.contains(plural), "{plural}: {said}");
    }
}

#[test]
fn the_keys_of_top_are_in_its_help() {
    let help = run(&["top", "--help"]).stdout;
    assert!(help.contains("q, Esc or Ctrl-C: quit") && help.contains("s: sort zones"), "{help}");
}
