//! CPUs of a whole machine that are taken offline and brought online again: no other CPU interrupts
//! a stopped CPU or waits for it, and when it returns it works with the state of that moment.

mod common;

use common::{Outcome, finish, program};

fn boot(cpus: &str, words: &[&str], commands: &str) -> Outcome {
    let machine = ["boot", "--on", "qemu", "--accel", "tcg", "--memory", "256M", "--cpus", cpus];
    finish(program().args(machine).args(words).args(["--json", "--exec", commands]))
}

/// Returns the output of commands, which must end with status 0.
fn said(outcome: &Outcome) -> String {
    let report = outcome.json();
    let said = report["exec"]["output"].as_str().expect("text");
    assert_eq!(report["exec"]["status"].as_u64(), Some(0), "{said}");
    said.to_owned()
}

/// Returns the numbers of a row of `/proc/interrupts`, one for each CPU, for each time it was
/// shown.
fn rows(said: &str, name: &str) -> Vec<Vec<u64>> {
    let lines = said.lines().filter_map(|line| line.trim_start().strip_prefix(name));
    lines
        .map(|line| line.split_whitespace().map_while(|word| word.parse().ok()).collect())
        .collect()
}

/// The tests count moved pages, so nothing may move in the background.
const STILL: &str = "echo 0 > /proc/sys/vm/compaction_proactiveness; ";
/// Fills memory, lets other CPUs use it while it moves, populates huge pages, and calls all CPUs
/// for a barrier.
const EVERYTHING: &str = "movable fill 60; movable busy on; vacate 32M@0x8000000; movable check; \
                          free all; movable free; resize 2M 20; resize 2M 0; stress 1; verify; ";

#[test]
fn nobody_interrupts_or_waits_for_a_cpu_that_stands() {
    let commands = format!(
        "{STILL}cpu offline 2; cpu; cat /proc/interrupts; {EVERYTHING} cat /proc/interrupts; cpus; \
         cat /sys/devices/system/node/node0/cpulist; cpu online 2; cpu; {EVERYTHING} cat \
         /proc/interrupts"
    );
    let said = said(&boot("4", &[], &commands));
    assert_eq!(said.matches("\nonline 0-1,3\noffline 2\n").count(), 1, "{said}");
    assert_eq!(said.matches("\n0-1,3\n").count(), 1, "{said}");
    assert!(said.contains("\nCPU 2 is online\nonline 0-3\n"), "{said}");
    assert_eq!(said.matches("\nverified: ").count(), 2, "{said}");
    for users in [2, 3] {
        assert_eq!(said.matches(&format!("\n{users} CPUs used ")).count(), 1, "{said}");
    }
    let kept = said.lines().find(|line| line.starts_with("   2     0  node 0"));
    assert!(kept.is_some_and(|line| line.ends_with("  0 KiB        0 KiB")), "{said}");
    for (name, wakes) in [("CAL:", false), ("RES:", true), ("IPI:", false), ("LOC:", false)] {
        let [before, while_away, after] = &rows(&said, name)[..] else { panic!("{said}") };
        assert_eq!(before[2], while_away[2], "{name} {said}");
        assert!(name == "LOC:" || after[2] > while_away[2], "{name} {said}");
        assert!(name == "LOC:" || while_away[1] > before[1] || wakes, "{name} {said}");
    }
}

/// The CPU's cached translations are out of date when it returns.
#[test]
fn memory_that_moved_meanwhile_is_used_where_it_is() {
    // The CPU has used all pages by the time it goes offline.
    let round = "movable fill 40; movable busy on; vacate 16M@0x8000000; free all; cpu offline 1; \
                 vacate 48M@0x4000000; free all; movable check; cpu online 1; vacate \
                 24M@0xb000000; free all; movable check; movable free; ";
    let said = said(&boot("2", &["page_poison=1"], &format!("{STILL}{} verify", round.repeat(4))));
    assert_eq!(said.matches(": all intact").count(), 8, "{said}");
    assert_eq!(said.matches("\nCPU 1 is online\n").count(), 4, "{said}");
    // The CPU uses pages before it goes offline and after it returns, not in between.
    assert_eq!(said.matches("1 CPU used ").count(), 8, "{said}");
    let moves = said.lines().filter_map(|line| line.split_once(" pages moved in "));
    let moved: Vec<u64> =
        moves.filter_map(|(before, _)| before.rsplit_once(' ')?.1.parse().ok()).collect();
    assert!(moved.len() == 12 && moved.iter().all(|&pages| pages > 500), "{moved:?}: {said}");
}

#[test]
fn cpus_come_and_go_under_traffic_and_every_page_is_accounted_for() {
    for (cpus, words, rounds) in
        [("2", &[][..], 1000), ("5", &["--nodes", "2"], 300), ("4", &["pages=inside"], 300)]
    {
        let commands = format!(
            "cat /proc/interrupts; cpu storm {rounds} seed 3; cpu; verify; stress 1; cpu storm 20 \
             seed 4; cat /proc/interrupts"
        );
        let said = said(&boot(cpus, words, &commands));
        for rounds in [rounds, 20] {
            let line = said.lines().find(|line| line.starts_with(&format!("{rounds} rounds; ")));
            let line = line.unwrap_or_else(|| panic!("{said}"));
            assert!(line.ends_with(", every page accounted for"), "{said}");
        }
        let last = cpus.parse::<u32>().expect("a number") - 1;
        assert!(said.contains(&format!("\nonline 0-{last}\nverified: ")), "{said}");
        // Each CPU is asked for barriers many times.
        let [before, after] = &rows(&said, "CAL:")[..] else { panic!("{said}") };
        assert!(before.iter().zip(after).skip(1).all(|(before, after)| after > before), "{said}");
    }
}

#[test]
fn what_cannot_be_is_said() {
    let commands = "cpu offline 0; cpu offline 3; cpu online 1; cpu offline 1; cpu offline 1; cpu \
                    offline 2; cpu offline 0; cpu storm 2; stress 1; movable fill 30; movable \
                    busy on; cpu online 2; movable busy on; cpu online 1; compact; cpu; verify";
    let said = said(&boot("3", &[], commands));
    for expected in [
        "cpu: CPU 0 cannot take itself offline\ncpu: there is no CPU 3; the last one is 2\n",
        "cpu: CPU 1 is online already\nCPU 1 is offline; ",
        "cpu: CPU 1 is offline already\nCPU 2 is offline; ",
        "cpu: CPU 0 is the last online CPU\ncpu: no other CPU is online\n",
        ", every page accounted for 1 time\n",
        "movable: no other CPU is online to use it\nCPU 2 is online\nCPU 1 is online\n",
        // This includes the CPU that came online after `movable busy on`.
        "\n2 CPUs used ",
        "\nonline 0-2\nverified: ",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

/// The other CPUs may keep this CPU's share.
#[test]
fn a_cpu_that_never_started_is_offline() {
    let commands = "cpu; cpus; cpu online 2; cpu; cpu offline 2; verify";
    let said = said(&boot("2", &["ghost_cpu=77"], commands));
    assert_eq!(said.matches("online 0-1\noffline 2\n").count(), 2, "{said}");
    assert!(said.contains("\ncpu: CPU 2 does not run\n"), "{said}");
    assert!(said.contains("\ncpu: CPU 2 is offline already\n"), "{said}");
    let share = |said: &str| {
        let line = said.lines().find(|line| line.starts_with("   1     0  node 0"));
        line.map(str::to_owned).unwrap_or_else(|| panic!("{said}"))
    };
    let without = self::said(&boot("2", &[], "cpus; cpu"));
    assert_eq!(share(&said), share(&without));
}
