//! The page tables of whole machines in QEMU: the guest walks them, compares them with what they
//! should be, and runs the contract tests of the vmemmap on a real CPU.

mod common;

use common::{Outcome, finish, program};

/// Boots with these options under emulation, so that the test does not depend on the host.
fn run(words: &[&str]) -> Outcome {
    finish(
        program()
            .args(["boot", "--on", "qemu", "--accel", "tcg", "--timeout", "300", "--json"])
            .args(words),
    )
}

/// Returns the lines of the guest's examination without time stamp and prefix.
fn examine(words: &[&str]) -> Vec<String> {
    let report = run(&[words, &["map_space_test=1"]].concat()).json();
    let log = report["log"].as_array().expect("a log");
    let lines = log.iter().filter_map(|line| line.as_str()?.split_once("] map_space_test: "));
    lines.map(|(_, line)| line.to_owned()).collect()
}

/// Returns the number before `word` in a line.
fn number_before(line: &str, word: &str) -> u64 {
    let before = line.split(word).next().expect("a part");
    let number = before.split_ascii_whitespace().next_back().and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("no number before {word}: {line}"))
}

fn count(lines: &[String], name: &str) -> u64 {
    let line = lines.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}: {lines:?}"))
}

/// Checks what holds on every machine; returns the MiB in the direct map and in the vmemmap.
fn check(lines: &[String]) -> (u64, u64) {
    assert!(lines[0].starts_with("tables are correct: image "), "{lines:?}");
    assert_eq!(lines[1], "the contract holds on this CPU");
    assert!(
        lines[2].starts_with("two histories of 150 steps agree with the model on "),
        "{lines:?}"
    );
    let reclaimed =
        lines.iter().find(|line| line.contains("huge pages gave back their memory map"));
    assert!(reclaimed.is_none_or(|line| number_before(line, " flushes") <= 2), "{lines:?}");
    let (flushes, full) = (count(lines, "memmap_flush"), count(lines, "memmap_flush_all"));
    assert!(0 < full && full < flushes && count(lines, "memmap_flush_pages") > 0, "{lines:?}");
    assert_eq!(count(lines, "memmap_populated"), count(lines, "memmap_evicted"));
    for name in ["memmap_split", "memmap_merge", "memmap_evicted_sections", "memmap_flush_cycles"] {
        assert!(count(lines, name) > 0, "{name}: {lines:?}");
    }
    assert_eq!((count(lines, "nr_memmap_tables"), count(lines, "nr_memmap_large")), (0, 0));
    (number_before(&lines[0], " MiB,"), number_before(&lines[0], " MiB present"))
}

#[test]
fn the_tables_of_a_small_machine() {
    // Two sections of 128 MiB, with 2 MiB of descriptors each.
    assert_eq!(check(&examine(&["--memory", "256M"])), (255, 4));
}

#[test]
fn other_cpus_are_told_of_every_change() {
    let lines = examine(&["--memory", "1G", "--cpus", "4"]);
    check(&lines);
    assert!(lines[2].ends_with(" on 4 CPUs"), "{lines:?}");
    // CPUs that were stopped see the changes when they go on.
    assert_eq!(lines[3], "so does one while all others are stopped");
    // A whole section, and eight blocks elsewhere.
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("72 huge pages gave back their memory map with 2 flush")),
        "{lines:?}"
    );
}

#[test]
fn the_tables_of_two_nodes_on_both_sides_of_the_hole() {
    let lines = examine(&["--memory", "8G", "--nodes", "2", "--cpus", "2"]);
    assert_eq!(check(&lines), (8191, 128));
    // 10 GiB of addresses with a hole of 2 GiB; the vmemmap covers 64 GiB.
    assert_eq!(number_before(&lines[0], " sections absent"), 512 - 64);
}

#[test]
fn the_tables_of_an_older_machine_with_everything_described_at_once() {
    assert_eq!(
        check(&examine(&["--machine", "pc", "--memory", "1000M", "memmap_init=eager"])),
        (999, 16)
    );
}

#[test]
fn boot_pages_have_no_part_of_the_array() {
    for policy in ["eager", "deferred"] {
        let policy = format!("memmap_init={policy}");
        let words = [
            "hugetlb_free_vmemmap=on",
            "hugepagesz=1G",
            "hugepages=1",
            "hugepagesz=2M",
            "hugepages=300",
        ];
        let lines =
            examine(&[&["--memory", "4G", "--cpus", "2", &policy][..], &words[..]].concat());
        // Of 32 sections, 8 belong to the 1 GiB page, 4 more hold only 2 MiB pages, and one is
        // mixed.
        let (_, present) = check(&lines);
        assert_eq!(present, 64 - (812 * 32) / 1024 - 1, "{lines:?}");
        assert_eq!(number_before(&lines[0], " sections absent"), 512 - 32 + 12, "{lines:?}");
    }
}

#[test]
fn an_array_that_nobody_uses_is_absent() {
    for words in [["--memory", "2G", "memmap_init=on-demand"], ["--memory", "2G", "pages=none"]] {
        let lines = examine(&words);
        assert_eq!(check(&lines), (2047, 0));
        assert!(
            !lines.iter().any(|line| line.contains("memory map")),
            "there is none to give back: {lines:?}"
        );
    }
}

#[test]
fn writing_an_absent_descriptor_ends_in_a_report() {
    let outcome = run(&["--memory", "256M", "map_space_test=write"]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    for expected in
        ["Exception 14", "kernel write, the page does not allow it at address 0xffffeb0000000000"]
    {
        assert!(outcome.stderr.contains(expected), "{expected}: {}", outcome.stderr);
    }
}

#[test]
fn an_examination_of_another_name_is_refused() {
    let outcome = run(&["--memory", "128M", "map_space_test=yes"]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("map_space_test= is 1 or write"), "{}", outcome.stderr);
}
