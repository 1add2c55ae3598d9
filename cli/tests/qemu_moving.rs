//! Memory that other CPUs use by its virtual addresses while it is moved on a whole machine: no
//! write gets lost, pages move by page tables and TLB shootdown, and pinned pages are named.
//!
//! These tests would find a missing shootdown: a user writes to a few pages often enough that its
//! CPU caches their translations, and knows without reading them what they must hold.

mod common;

use common::{Outcome, finish, program};

/// The tests count moved pages, so nothing may move in the background.
const STILL: &str = "echo 0 > /proc/sys/vm/compaction_proactiveness; ";
const FILL: &str = "movable fill 60; churn 1; movable busy on; ";

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

/// Returns the numbers in a text.
fn numbers(text: &str) -> Vec<u64> {
    text.split(|sign: char| !sign.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
}

/// Returns the numbers of each line that contains these words.
fn lines_with(said: &str, words: &str) -> Vec<Vec<u64>> {
    said.lines().filter(|line| line.contains(words)).map(numbers).collect()
}

/// Returns the number after a name in a file, for each time the file was shown.
fn shown(said: &str, name: &str) -> Vec<u64> {
    let lines = said.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    lines.map(|rest| rest.trim().parse().expect("a number")).collect()
}

/// Returns how many pages each `vacate` and `contig` moved: `... N pages moved in N us`.
fn moved_away(said: &str) -> Vec<u64> {
    lines_with(said, " moved in ").iter().map(|line| line[line.len() - 2]).collect()
}

/// Returns by how much a number grew between the two times it was shown.
fn growth(said: &str, name: &str) -> u64 {
    let [before, after] = shown(said, name)[..] else { panic!("{name}: {said}") };
    after - before
}

#[test]
fn another_cpu_goes_on_using_what_moves() {
    let commands = format!(
        "{STILL}{FILL}cat /proc/vmstat; compact; movable check; vacate 32M@0x8000000; movable \
         check; contig 24M; movable check; free all; vacate 64M@0x4000000; cat /proc/vmstat; \
         movable check; movable; verify; movable free; free all; verify"
    );
    let said = said(&boot("2", &[], &commands));
    let filled = lines_with(&said, " handles with runs of order 0 hold ")[0][0];
    let intact = lines_with(&said, ": all intact");
    assert!(intact.len() == 4 && intact.iter().all(|line| line[0] == filled), "{said}");
    let used = lines_with(&said, "1 CPU used ");
    // Each user looks at every page at least once.
    assert!(used.len() == 4 && used.iter().all(|line| line[1] >= filled), "{said}");
    // Users met pages that were being moved.
    assert!(used.iter().map(|line| line[2]).sum::<u64>() > 0, "{said}");
    let compacted = &lines_with(&said, " made whole, moved ")[0];
    assert!(compacted[0] > 30 && compacted[1] > 5000, "{said}");
    let vacated: u64 = moved_away(&said).iter().sum();
    let moved = growth(&said, "pgmigrate_success");
    assert!(vacated > 5000 && compacted[1] + vacated == moved, "{vacated}: {said}");
    // The other CPU was awake all the time, so it got every flush. At most 32 pages share a flush.
    for name in ["nr_tlb_remote_flush", "nr_tlb_remote_flush_received"] {
        assert!((moved / 32..moved).contains(&growth(&said, name)), "{name}: {said}");
    }
    assert_eq!(said.matches("\nverified: ").count(), 2, "{said}");
    assert!(said.contains("\nfreed 146 MiB\n"), "{said}");
}

#[test]
fn larger_runs_move_as_a_whole_and_nobody_writes_to_what_is_free() {
    // Freed frames are filled with poison, so a CPU that still writes to them is found, too.
    let commands = format!(
        "{STILL}movable fill 50 0,0,0,0,0,1,3,9 seed 3; movable busy on; compact; movable check; \
         vacate 32M@0x8000000; vacate 16M@0x6000000; movable check; free all; movable free; verify"
    );
    let said = said(&boot("2", &["page_poison=1"], &commands));
    assert!(said.contains(" handles with runs of order 0,1,3,9 hold "), "{said}");
    assert_eq!(lines_with(&said, ": all intact").len(), 2, "{said}");
    let vacated: u64 = moved_away(&said).iter().sum();
    assert!(vacated > 512 && lines_with(&said, "1 CPU used ").len() == 3, "{said}");
}

#[test]
fn memory_set_aside_for_what_moves_is_used_and_emptied() {
    // Grades and an area on a machine with two nodes, and two users. Each move waits for all CPUs,
    // which takes long if they share few real ones, so this moves only a part.
    let commands = format!(
        "{STILL}movable fill 70; movable busy on; compact 0 4; compact 1 4; movable check; \
         vacate 4M@0xc000000; contig 8M; movable check; cat /proc/pagetypeinfo; movable free; \
         free all; verify"
    );
    let words = ["--nodes", "2", "kernelcore=96M", "cma=16M"];
    let said = said(&boot("3", &words, &commands));
    assert_eq!(lines_with(&said, ": all intact").len(), 2, "{said}");
    assert_eq!(lines_with(&said, "2 CPUs used ").len(), 4, "{said}");
    for line in lines_with(&said, " made whole, moved ") {
        assert!(line[0] == 4 && line[1] > 0, "{said}");
    }
    let away = moved_away(&said);
    assert!(away.len() == 2 && away[0] > 0, "{said}");
    // The blocks keep their migrate types whatever was in them: movable blocks, and those of the
    // area.
    let (_, blocks) = said.split_once("\nNumber of blocks type ").expect("blocks by type");
    let movable = &lines_with(blocks, "Node 0, zone  Movable ")[0];
    assert!(movable[2] > 0, "{said}");
    // The numbers after node 0 and the 32 of DMA32: unmovable, movable, reclaimable, CMA.
    let area = &lines_with(blocks, "Node 0, zone    DMA32 ")[0];
    assert!(area[5] == 8, "{said}");
}

#[test]
fn pins_are_named_and_wrong_calls_are_refused() {
    let commands = format!(
        "{STILL}{FILL}movable pin 2000; movable; vacate 16M@0x8000000; echo status $?; movable \
         check; movable busy off; movable pin 0; vacate 16M@0x8000000; movable check"
    );
    let said = said(&boot("2", &[], &commands));
    assert!(said.contains(", 2000 of them pinned; "), "{said}");
    let pinned = said
        .lines()
        .filter(|line| line.starts_with("vacate: pfn 0x8") && line.ends_with(" is pinned"));
    assert_eq!(pinned.count(), 16, "{said}");
    assert!(said.contains(" runs could not be moved, the first: pfn 0x8"), "{said}");
    assert!(said.contains("\nstatus 1\n") && said.contains("\n1: 4096 pages, 16 MiB, "), "{said}");
    assert_eq!(lines_with(&said, ": all intact").len(), 2, "{said}");
    assert_eq!(lines_with(&said, "1 CPU used ").len(), 1, "{said}");

    let alone = boot(
        "1",
        &[],
        &format!(
            "{STILL}movable; movable busy on; movable fill 60; movable busy on; compact; \
             movable check; movable busy perhaps; movable free; movable check; verify"
        ),
    );
    let alone = self::said(&alone);
    for expected in [
        "movable: no memory is held by handles; `movable fill` takes some",
        "movable: no other CPU is online to use it",
        "movable: expected fill PERCENT [ORDER,...] [seed N], check, pin COUNT, busy on, busy off",
        ": all intact",
    ] {
        assert!(alone.contains(expected), "{expected}: {alone}");
    }
    assert!(lines_with(&alone, " made whole, moved ")[0][1] > 5000, "{alone}");
}

/// No command names the mover here: the manager knows it from `movable fill` on.
#[test]
fn files_and_pools_move_what_the_machine_has_mapped() {
    let said = said(&boot(
        "2",
        &[],
        &format!(
            "{STILL}movable fill 60; cat /proc/vmstat; echo 1 > /proc/sys/vm/compact_memory; cat \
             /proc/vmstat; movable check; resize 2M 30; resize 2M 0; movable free; echo 1 > \
             /proc/sys/vm/compact_memory; free all; verify"
        ),
    ));
    assert!(growth(&said, "pgmigrate_success") > 5000, "{said}");
    assert_eq!(lines_with(&said, ": all intact").len(), 1, "{said}");
}

/// No command asks for it: the first CPU compacts in the background while commands run.
#[test]
fn memory_is_compacted_in_the_background() {
    let said = said(&boot(
        "2",
        &[],
        "cat /proc/vmstat; movable fill 60; churn 10; cat /proc/vmstat; movable check; verify",
    ));
    for name in ["compact_daemon_wake", "compact_daemon_migrate_scanned", "pgmigrate_success"] {
        assert!(growth(&said, name) > 0, "{name}: {said}");
    }
    assert_eq!(lines_with(&said, ": all intact").len(), 1, "{said}");
}

/// Allocations reclaim the oldest pages of a cache, and the first CPU reclaims in the background
/// while commands run.
#[test]
fn a_cache_gives_its_pages_up_in_the_background_and_for_requests() {
    let said = said(&boot(
        "2",
        &[],
        "cat /proc/vmstat; cache read 512M; cat /proc/vmstat; memhog 64M; cache; stress 1; cache \
         free; verify",
    ));
    assert!(growth(&said, "pgsteal_kswapd") != 0, "{said}");
    assert!(growth(&said, "reclaim_hook_pages") + growth(&said, "pgsteal_kswapd") > 1000, "{said}");
    assert!(growth(&said, "pageoutrun") != 0, "{said}");
    // Pages that the cache gives up meanwhile are not lost.
    assert_eq!(lines_with(&said, ", every page accounted for").len(), 1, "{said}");
    assert_eq!(lines_with(&said, "nothing is cached").len(), 1, "{said}");
}

/// Returns pages, pages in use and free pages of an area, for each time that `cma` listed it.
fn area(said: &str, name: &str) -> Vec<[u64; 3]> {
    let lines = said.lines().filter(|line| line.starts_with(&format!("{name} ")));
    let counts = |line: &str| {
        let words: Vec<u64> =
            line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [.., pages, in_use, free, _, _, _] = words[..] else { panic!("{line}") };
        [pages, in_use, free]
    };
    lines.map(counts).collect()
}

/// Areas from the command line and from the shell, lent to memory that other CPUs use, come back.
#[test]
fn areas_are_lent_and_come_back() {
    let files = "/sys/kernel/mm/cma";
    let commands = format!(
        "{STILL}cma; movable fill 70; movable busy on; cma alloc reserved 12M within 100000; \
         movable check; cma; cat {files}/reserved/available_pages; free 1; cma create camera \
         8M@0x8000000; cma alloc camera 2M align=9; movable check; cma; cat \
         {files}/camera/alloc_pages_success; free all; cat {files}/camera/release_pages_success; \
         cma alloc reserved 16M within 0; echo status $?; movable pin 4000; movable check; cma \
         alloc reserved 16M; movable check; movable; free all; cma; movable free; verify"
    );
    let said = said(&boot("2", &["cma=16M"], &commands));
    assert_eq!(lines_with(&said, ": all intact").len(), 4, "{said}");
    let free = |pages| [pages, 0, pages];
    let reserved = area(&said, "reserved");
    assert_eq!(reserved, [free(4096), [4096, 3072, 1024], free(4096), free(4096)], "{said}");
    assert_eq!(area(&said, "camera"), [[2048, 512, 1536], free(2048)], "{said}");
    for expected in [
        "\n1024\nfreed 12 MiB\ncamera: 8 MiB at 0x8000000\n",
        "\n512\nfreed 2 MiB\n512\n",
        "\ncma: out of time after 0 pages were moved; 0 pages moved in ",
        "\nstatus 1\n4000 handles pinned, ",
        ", 4000 of them pinned; ",
        "\nfreed 16 MiB\n",
        "\nverified: ",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    // Pinned pages are moved out of lent memory, through the page tables, so that all of it can be
    // claimed.
    let pinned = lines_with(&said, "of them moved out of movable-only memory first");
    assert!(pinned.len() == 1 && pinned[0][1] > 0, "{said}");
    let moved = lines_with(&said, " pages moved in ");
    let taken: Vec<u64> = moved.iter().map(|line| line[line.len() - 2]).collect();
    assert!(taken.len() == 4 && taken[0] > 1000 && taken[3] > 0, "{taken:?}: {said}");
}

#[test]
fn gigantic_pages_come_out_of_an_area_of_the_guest() {
    let commands = "cma; resize 1G 1; cma; cat /sys/kernel/mm/cma/hugetlb0/available_pages; \
                    resize 1G 0; cma; verify";
    let machine = ["boot", "--on", "qemu", "--accel", "tcg", "--memory", "4G", "--cpus", "2"];
    let words = ["hugetlb_cma=0:1G", "hugetlb_cma_only=on", "--json", "--exec", commands];
    let said = said(&finish(program().args(machine).args(words)));
    let free = [1 << 18, 0, 1 << 18];
    assert_eq!(area(&said, "hugetlb0"), [free, [1 << 18, 1 << 18, 0], free], "{said}");
    assert!(said.contains("\n0\n1.00 GiB: 0 pages to stay, 0 surplus, "), "{said}");
    assert!(said.contains("1.00 GiB: 1 page to stay, 0 surplus, "), "{said}");
}

/// Grades, placement, policies and tiers through commands and files on a machine with two nodes.
#[test]
fn blocks_and_nodes_are_what_they_are_told() {
    let weights = "/sys/kernel/mm/mempolicy/weighted_interleave";
    let tiers = "/sys/devices/virtual/memory_tiering";
    let commands = format!(
        "{STILL}grade 16M@0x4000000 movable; grade 4M@0x5000000 removable; grade 20M@0x4000000; \
         movable fill 60; movable busy on; contig 3M@0x4001000; contig 0x5000..0x5001 within \
         100000; movable check; free all; grade 20M@0x4000000 any; movable check; cat \
         /proc/vmstat; echo 1 > /sys/devices/system/node/node1/compact; cat /proc/vmstat; cat \
         /proc/sys/vm/compaction_proactiveness /sys/kernel/debug/extfrag/extfrag_index; movable \
         check; movable free; numa interleave 0-1 count=10; numa bind 1 count=4 order=2; numa \
         weighted 0-1 weights=3,1 count=8; echo 7 > {weights}/node1; cat {weights}/node0 \
         {weights}/node1; numa tier 1 9; cat {tiers}/memory_tier4/nodelist \
         {tiers}/memory_tier9/nodelist; numa; free all; verify"
    );
    let said = said(&boot("2", &["--nodes", "2"], &commands));
    assert_eq!(lines_with(&said, ": all intact").len(), 3, "{said}");
    assert!(growth(&said, "pgmigrate_success") > 1000, "{said}");
    for expected in [
        "8 blocks, 16 MiB, at 0x4000000: movable\n2 blocks, 4 MiB, at 0x5000000: removable\n",
        "\n0000000004000000 0000000005000000     16 MiB    0 movable\n\
         0000000005000000 0000000005400000      4 MiB    0 removable\n",
        "\n1: 768 pages, 3 MiB, at 0x4001000, ",
        "\n2: 1 page, 4 KiB, at 0x5000000, ",
        "\n10 blocks, 20 MiB, at 0x4000000: any\n",
        "\n0\nNode 0, zone ",
        ": 5 of node 0, 5 of node 1\n",
        ": 4 of node 1\n",
        ": 6 of node 0, 2 of node 1\n1\n7\n",
        "\nnode 1: tier 9, the slowest: its pages are not demoted\n0\n1\nnode weight tier ",
        "\nverified: ",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    let rows: Vec<Vec<&str>> = said
        .lines()
        .skip_while(|line| !line.starts_with("node weight tier "))
        .skip(1)
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        (&rows[0][..4], &rows[1][..4]),
        (&["0", "1", "4", "1"][..], &["1", "7", "9", "-"][..])
    );
}
