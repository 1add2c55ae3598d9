//! Commands that use memory as programs do: huge pages of a pool, page faults, churn and
//! fragmentation; and pools through their files.

use crate::common::{Fake, Threads, machine};
use framewright::hugetlb::{NodeMask, PoolSize};
use framewright::platform::Platform;
use framewright::procfs::{FileSystem, Source};
use framewright::units::PfnRange;
use framewright_jobs::NoHelpers;
use framewright_shell::{Host, Run, Shell};
use framewright_testkit::FakeMachine;
use framewright_testkit::workload::{Window, WindowError};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// The fault of a window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// The window shows the page that was mapped at the place before.
    Stale,
    /// The window does not free its tables.
    KeepsTables,
    /// The window has few places.
    Small,
}

/// A window in the direct map.
struct FakeWindow {
    machine: &'static FakeMachine,
    fault: Fault,
    shown: Mutex<BTreeMap<u64, u64>>,
    hidden: AtomicU32,
}

// SAFETY: pages are shown where the machine has them all the time; a faulty window shows another
// page of the same user.
unsafe impl Window for FakeWindow {
    fn show(&self, place: u64, page: PfnRange) -> Result<NonNull<u8>, WindowError> {
        let mut shown = self.shown.lock().expect("nobody panics");
        if self.fault == Fault::Small && place > 3 {
            return Err(WindowError::NoPlace);
        }
        let address = page.start.address();
        let old = shown.insert(place, address).filter(|_| self.fault == Fault::Stale);
        Ok(self.machine.direct(old.unwrap_or(address)))
    }

    unsafe fn hide_all(&self) -> u64 {
        self.hidden.fetch_add(1, Ordering::Relaxed);
        u64::from(self.fault == Fault::KeepsTables) * 3
    }
}

struct Bench {
    manager: Fake,
    host: Threads,
}

fn bench() -> Bench {
    let (manager, host) = machine("", [256, 256], 20_000_000);
    Bench { manager, host }
}

impl Bench {
    /// Runs a text; whatever it did, all memory is there again but for what is in pools, and
    /// nothing is promised.
    fn run(&self, text: &str) -> (u8, String, String) {
        let pools = self.manager.hugetlb().files(&NoHelpers);
        let (ours, pools) = (self.manager.files(), pools.table());
        let sources: [&dyn Source; 2] = [&ours, &pools];
        let mut room = [Run::NOTHING; 8];
        // SAFETY: the commands free what they allocated, and this shell alone uses the window.
        let mut shell =
            unsafe { Shell::new(&self.manager, FileSystem::new(&sources), &self.host, &mut room) };
        let (mut out, mut errors) = (String::new(), String::new());
        let status = shell.run(text, &mut out, &mut errors);
        shell.free_all();
        self.manager.drain().expect("good frames");
        self.manager.verify().expect("the tables are right");
        self.manager.hugetlb().verify().expect("the books are right");
        let in_pools = self.manager.hugetlb().kbytes() / 4;
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
    // Ten pages on each node.
    assert!(bench.says("hugetlb 2M 10 node 1").starts_with("10 pages"));
    assert!(bench.says("hugetlb 2M node 1").starts_with("10 pages"), "all that the node has");
    for (text, status, error) in [
        ("hugetlb 2M 11 node 1", 1, "11 pages: no unreserved 2.00 MiB page is free"),
        ("hugetlb 2M 21", 1, "21 pages: no unreserved 2.00 MiB page is free"),
        ("hugetlb 1G 1", 1, "1 page: no unreserved 1.00 GiB page is free"),
        ("hugetlb 2M 1 node 7", 1, "there is no node 7"),
        ("hugetlb 4M 1", 2, "pools have pages of 2M or 1G"),
        ("hugetlb 2M many", 2, "the number of pages must be a number"),
        ("hugetlb 2M 1 1 1", 2, "expected [SIZE [COUNT [SECONDS]]]"),
        ("hugetlb 2M 1 soon", 2, "a time in seconds must be a number"),
        ("hugetlb 2M 1 node x", 2, "node must be the number of a node"),
    ] {
        let (code, _, errors) = bench.run(text);
        assert!(code == status && errors.contains(error), "{text}: {code} {errors}");
    }
    // Without a count the command takes all free memory, once.
    assert!(bench.says("hugetlb").starts_with("20 pages of 2.00 MiB"));
    assert!(bench.says("hugetlb 1G").starts_with("0 pages of 1.00 GiB"));
    // A busy machine may finish any number of rounds, but at least one, and they are counted.
    let out = bench.says("hugetlb 2M 3 1");
    let (_, rounds) = out.trim_end().rsplit_once(", ").expect("rounds come last");
    let (count, unit) = rounds.split_once(' ').expect("a number and a word");
    let count: u64 = count.parse().expect("a number");
    assert!(count >= 1 && unit == if count == 1 { "round" } else { "rounds" }, "{out}");
    // As far as overcommit allows there are more pages, which go away again.
    assert!(
        bench
            .says("echo 5 > /proc/sys/vm/nr_overcommit_hugepages; hugetlb 2M 25")
            .starts_with("25 pages")
    );
    assert_eq!(bench.says("cat /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"), "20\n");
    let (status, _, errors) = bench.run("hugetlb 2M 26");
    assert!(status == 1 && errors.contains("26 pages: "), "{errors}");
    // Overcommit allows this one, and it is memory that lacks.
    let (status, _, errors) =
        bench.run("echo 9999 > /proc/sys/vm/nr_overcommit_hugepages; hugetlb 2M 999");
    let says = "page is free on these nodes, and none can be added";
    assert!(status == 1 && errors.contains(says), "{errors}");
    bench.says("echo 0 > /proc/sys/vm/nr_hugepages");
}

/// A host that keeps a free page of a pool from others whenever it may, as reporting does.
struct Reporting<'a> {
    manager: &'a Fake,
    has: AtomicBool,
    is_quiet: AtomicBool,
}

impl Reporting<'_> {
    fn take(&self) {
        let pool = self.manager.pool(PoolSize::TwoMib);
        if !self.has.load(Ordering::Relaxed) && !self.is_quiet.load(Ordering::Relaxed) {
            self.has.store(pool.reserve(1, NodeMask::ALL).is_ok(), Ordering::Relaxed);
        }
    }
}

impl Host for Reporting<'_> {
    fn begin_command(&self) {
        self.take();
    }

    fn is_interrupted(&self) -> bool {
        self.take();
        false
    }

    fn undisturbed(&self, work: &mut dyn FnMut()) {
        if self.has.swap(false, Ordering::Relaxed) {
            self.manager.pool(PoolSize::TwoMib).unreserve(1).expect("it has one");
        }
        self.is_quiet.store(true, Ordering::Relaxed);
        work();
        self.is_quiet.store(false, Ordering::Relaxed);
        self.take();
    }
}

#[test]
fn pages_that_are_being_reported_are_counted_when_they_are_back() {
    let Bench { manager, .. } = bench();
    let host = Reporting { manager: &manager, has: false.into(), is_quiet: false.into() };
    let pools = manager.hugetlb().files(&NoHelpers);
    let pools = pools.table();
    let sources: [&dyn Source; 1] = [&pools];
    let mut room = [Run::NOTHING; 8];
    // SAFETY: the commands free nothing by address, there is no window, and it is dropped here.
    let mut shell = unsafe { Shell::new(&manager, FileSystem::new(&sources), &host, &mut room) };
    let (mut out, mut errors) = (String::new(), String::new());
    let text = "echo 20 > /proc/sys/vm/nr_hugepages; hugetlb; hugetlb 2M 20 1";
    let status = shell.run(text, &mut out, &mut errors);
    assert_eq!((status, errors.as_str()), (0, ""), "{out}");
    assert_eq!(out.matches("20 pages of 2.00 MiB").count(), 2, "{out}");
    assert!(host.has.load(Ordering::Relaxed));
}

#[test]
fn pages_are_used_where_a_window_shows_them_and_a_wrong_window_is_found() {
    for (fault, error) in [
        (Fault::Nothing, None),
        (Fault::Stale, Some("does not hold what was written there")),
        (Fault::KeepsTables, Some("still have 3 frames")),
        (Fault::Small, Some("the place is outside the window")),
    ] {
        let mut bench = bench();
        let machine = bench.host.machine;
        let window = Arc::new(FakeWindow {
            machine,
            fault,
            shown: Mutex::default(),
            hidden: AtomicU32::new(0),
        });
        bench.host.window = Some(window.clone());
        bench.says("echo 20 > /proc/sys/vm/nr_hugepages");
        let (status, out, errors) = bench.run("hugetlb 2M 10");
        let hidden = window.hidden.load(Ordering::Relaxed);
        match error {
            None => {
                assert!(
                    status == 0 && out.contains(", used at addresses of their own"),
                    "{out} {errors}"
                );
                assert_eq!(hidden, 2);
            }
            Some(error) => {
                assert!(status == 1 && errors.contains(error), "{error}: {status} {out} {errors}");
                assert_ne!(hidden, 0, "what was shown is taken away all the same");
            }
        }
    }
}

#[test]
fn resizes_are_timed_and_say_what_they_led_to() {
    let bench = bench();
    let out = bench.says("resize 2M 30; resize 2M 9 node 1; resize 2M 99999; resize 2M 0");
    let lines: Vec<&str> = out.lines().collect();
    let [all, node, most, none] = lines[..] else { panic!("{out}") };
    assert!(
        all.starts_with("2.00 MiB: 30 pages to stay, 0 surplus, ") && all.ends_with(" ns"),
        "{out}"
    );
    assert!(
        node.starts_with("2.00 MiB: 24 pages to stay")
            && none.starts_with("2.00 MiB: 0 pages to stay"),
        "{out}"
    );
    let most =
        most.strip_prefix("2.00 MiB: ").and_then(|rest| rest.split_once(' ')).expect("a number").0;
    assert!((100..256).contains(&most.parse::<u32>().expect("a number")), "{out}");
    for (text, status) in
        [("resize 2M", 2), ("resize 3M 1", 2), ("resize 2M -1", 2), ("resize 2M 1 node 9", 1)]
    {
        assert_eq!(bench.run(text).0, status, "{text}");
    }
}

#[test]
fn an_interrupt_gives_all_of_it_back() {
    let bench = bench();
    bench.says("echo 20 > /proc/sys/vm/nr_hugepages");
    for text in [
        "hugetlb 2M 20; echo never",
        "hugetlb 2M 0 1000; echo never",
        "page_fault1 9; echo never",
        "churn 100; echo never",
        "fragment 64M; echo never",
    ] {
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
            let rest = line
                .strip_prefix(&format!("{name} cpus {cpus}: "))
                .unwrap_or_else(|| panic!("{line}"));
            let (rate, rest) = rest.split_once(" iterations/s, deviation ").expect("a rate");
            assert!(
                rate.parse::<u64>().expect("a number") > 0
                    && rest.ends_with(&format!(" %, {rounds} rounds")),
                "{line}"
            );
        }
    }
    assert_eq!(bench.says("page_fault2 0 cpus 2").lines().count(), 1);
    for (text, error) in [
        ("page_fault1", "SECONDS"),
        ("page_fault1 x", "a time in seconds"),
        ("page_fault1 1 cpus 3", "cpus must be 1 to 2"),
        ("page_fault2 1 cpus 0", "cpus must be 1 to 2"),
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
    // Memory is full, so no block is whole, and half of each block is free.
    let full = lines[6];
    assert!(
        full.starts_with("half freed, at random: ")
            && full.contains(", 0 KiB of it in whole blocks"),
        "{out}"
    );
    // All memory is free again; the one free block that each zone has split then stays split the
    // next time.
    assert_eq!(lines[7].strip_prefix("all freed: "), lines[8].strip_prefix("before: "), "{out}");
    assert_eq!(lines[7], lines[11], "{out}");
    // Some of it is in tables, how much depends on what else is compiled in.
    let free = lines[0].strip_prefix("before: ").and_then(|rest| rest.split_once(" MiB free"));
    let (free, _) = free.expect("a size");
    assert!((505..=512).contains(&free.parse().unwrap_or(0)), "{out}");
    let freed = format!("all freed: {free} MiB free, ");
    assert!(lines[3].starts_with(&freed) && lines[7].starts_with(&freed), "{out}");
    for text in
        ["churn", "churn x", "churn 1 seed", "fragment x", "fragment 1M 2M", "fragment 1M seed x"]
    {
        assert_eq!(bench.run(text).0, 2, "{text}");
    }
    let (status, _, errors) = bench.run("fragment 1T");
    assert!(status == 1 && errors.contains(" of 1 TiB: out of memory"), "{errors}");
}
