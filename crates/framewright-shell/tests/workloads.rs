//! Commands that use memory as programs do: huge pages of a pool, page faults, churn, fragmentation; and pools through their files.

mod common;

use common::{Fake, Threads, machine};
use framewright::files::{FileSystem, Source};
use framewright::pools::PoolSize;
use framewright_jobs::NoHelpers;
use framewright_shell::{Run, Shell};
use std::sync::atomic::Ordering;

struct Bench {
    manager: Fake,
    host: Threads,
}

fn bench() -> Bench {
    let (manager, host) = machine("", [256, 256], 20_000_000);
    Bench { manager, host }
}

impl Bench {
    /// Runs a text; whatever it did, all memory is there again but for what is in pools, and nothing is promised.
    fn run(&self, text: &str) -> (u8, String, String) {
        let pools = self.manager.pool_files(&NoHelpers);
        let (ours, pools) = (self.manager.files(), pools.table());
        let sources: [&dyn Source; 2] = [&ours, &pools];
        let mut room = [Run::NOTHING; 8];
        let mut shell = Shell::new(&self.manager, FileSystem::new(&sources), &self.host, &mut room);
        let (mut out, mut errors) = (String::new(), String::new());
        let status = shell.run(text, &mut out, &mut errors);
        shell.free_all();
        self.manager.drain().expect("good frames");
        self.manager.verify().expect("the tables are right");
        self.manager.verify_pools().expect("the books are right");
        let in_pools = self.manager.hugetlb_kbytes() / 4;
        assert_eq!(self.manager.totals().allocated_pages, in_pools, "{text}: {errors}");
        for size in PoolSize::ALL {
            let counts = self.manager.pool(size).counts();
            assert_eq!((counts.reserved, counts.all.free), (0, counts.all.nr), "{text}");
        }
        self.manager.platform().assert_quiet();
        (status, out, errors)
    }

    fn says(&self, text: &str) -> String {
        let (status, out, errors) = self.run(text);
        assert_eq!((status, errors.as_str()), (0, ""), "{text}: {out}");
        out
    }
}

#[test]
fn huge_pages_are_reserved_used_and_freed() {
    let bench = bench();
    let out = bench.says("echo 20 > /proc/sys/vm/nr_hugepages; hugetlb 2M 20; hugetlb 2M 0");
    assert!(out.starts_with("20 pages of 2.00 MiB: each 4 KiB written and read back, "), "{out}");
    // Ten on each node.
    assert!(bench.says("hugetlb 2M 10 node 1").starts_with("10 pages"));
    for (text, status, error) in [
        ("hugetlb 2M 11 node 1", 1, "11 pages: no 2.00 MiB page is free"),
        ("hugetlb 2M 21", 1, "21 pages: no 2.00 MiB page is free"),
        ("hugetlb 1G 1", 1, "1 pages: no 1.00 GiB page is free"),
        ("hugetlb 2M 1 node 7", 1, "there is no node 7"),
        ("hugetlb 4M 1", 2, "pools are of pages of 2M and 1G"),
        ("hugetlb 2M many", 2, "how many pages is a number"),
        ("hugetlb 2M", 2, "SIZE COUNT"),
        ("hugetlb 2M 1 node x", 2, "node is the number of a node"),
    ] {
        let (code, _, errors) = bench.run(text);
        assert!(code == status && errors.contains(error), "{text}: {code} {errors}");
    }
    // As far as overcommit allows there is more, and it goes away again.
    assert!(bench.says("echo 5 > /proc/sys/vm/nr_overcommit_hugepages; hugetlb 2M 25").starts_with("25 pages"));
    assert_eq!(bench.says("cat /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"), "20\n");
    let (status, _, errors) = bench.run("hugetlb 2M 26");
    assert!(status == 1 && errors.contains("26 pages: "), "{errors}");
    bench.says("echo 0 > /proc/sys/vm/nr_hugepages");
}

#[test]
fn resizes_are_timed_and_say_what_they_led_to() {
    let bench = bench();
    let out = bench.says("resize 2M 30; resize 2M 9 node 1; resize 2M 99999; resize 2M 0");
    let lines: Vec<&str> = out.lines().collect();
    let [all, node, most, none] = lines[..] else { panic!("{out}") };
    assert!(all.starts_with("2.00 MiB: 30 pages to stay, 0 surplus, ") && all.ends_with(" ns"), "{out}");
    assert!(node.starts_with("2.00 MiB: 24 pages to stay") && none.starts_with("2.00 MiB: 0 pages to stay"), "{out}");
    let most = most.strip_prefix("2.00 MiB: ").and_then(|rest| rest.split_once(' ')).expect("a number").0;
    assert!((100..256).contains(&most.parse::<u32>().expect("a number")), "{out}");
    for (text, status) in [("resize 2M", 2), ("resize 3M 1", 2), ("resize 2M -1", 2), ("resize 2M 1 node 9", 1)] {
        assert_eq!(bench.run(text).0, status, "{text}");
    }
}

#[test]
fn an_interrupt_gives_all_of_it_back() {
    let bench = bench();
    bench.says("echo 20 > /proc/sys/vm/nr_hugepages");
    for text in
        ["hugetlb 2M 20; echo never", "page_fault1 9; echo never", "churn 100; echo never", "fragment 64M; echo never"]
    {
        bench.host.looks.store(7, Ordering::Relaxed);
        let (status, out, errors) = bench.run(text);
        bench.host.looks.store(0, Ordering::Relaxed);
        assert!(
            status == 130 && errors.contains("interrupted") && !out.contains("never"),
            "{text}: {status} {out} {errors}"
        );
    }
}

#[test]
fn faults_are_counted_on_one_cpu_to_all() {
    let bench = bench();
    for (name, rounds) in [("page_fault1", 3), ("page_fault2", 2)] {
        let out = bench.says(&format!("{name} {rounds}"));
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines.len(), 2, "{out}");
        for (line, cpus) in lines.iter().zip(1..) {
            let rest = line.strip_prefix(&format!("{name} cpus {cpus}: ")).unwrap_or_else(|| panic!("{line}"));
            let (rate, rest) = rest.split_once(" iterations/s, deviation ").expect("a rate");
            assert!(
                rate.parse::<u64>().expect("a number") > 0 && rest.ends_with(&format!(" %, {rounds} rounds")),
                "{line}"
            );
        }
    }
    assert_eq!(bench.says("page_fault2 0 cpus 2").lines().count(), 1);
    for (text, error) in [
        ("page_fault1", "SECONDS"),
        ("page_fault1 x", "a time in seconds"),
        ("page_fault1 1 cpus 3", "this machine has 1 to 2 CPUs"),
        ("page_fault2 1 cpus 0", "this machine has 1 to 2 CPUs"),
        ("page_fault2 1 cpus", "SECONDS"),
    ] {
        let (status, _, errors) = bench.run(text);
        assert!(status == 2 && errors.contains(error), "{text}: {status} {errors}");
    }
}

#[test]
fn churn_and_fragment_lose_nothing() {
    let bench = bench();
    let out = bench.says("churn 1; churn 0 seed 5");
    assert_eq!(out.matches(" runs allocated and freed, ").count(), 2, "{out}");
    let out = bench.says("fragment 64M; fragment; fragment seed 9; fragment 1M seed 3");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 16, "{out}");
    assert!(lines[1].starts_with("filled 64 MiB: "), "{out}");
    // All memory is full, so that nothing is whole, and half of each block is free.
    let full = lines[6];
    assert!(full.starts_with("half freed, at random: ") && full.contains(", 0 KiB of it in whole blocks"), "{out}");
    // All is free again; what is split then, one free block a zone, stays so the next time.
    assert_eq!(lines[7].strip_prefix("all freed: "), lines[8].strip_prefix("before: "), "{out}");
    assert_eq!(lines[7], lines[11], "{out}");
    assert!(
        lines[3].starts_with("all freed: 511 MiB free") && lines[7].starts_with("all freed: 511 MiB free"),
        "{out}"
    );
    for text in ["churn", "churn x", "churn 1 seed", "fragment x", "fragment 1M 2M", "fragment 1M seed x"] {
        assert_eq!(bench.run(text).0, 2, "{text}");
    }
    let (status, _, errors) = bench.run("fragment 1T");
    assert!(status == 1 && errors.contains(" of 1 TiB: out of memory"), "{errors}");
}
