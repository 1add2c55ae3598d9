//! The shell on a machine that checks how it is used: what commands do, what they print, and that
//! wrong input does no harm.

use crate::common::{Fake, Threads, machine};
use framewright::procfs::{File, FileSystem, Source, Table, parse_number};
use framewright_shell::{Command, Failed, Io, LONGEST_LINE, Run, Shell};
use framewright_testkit::Owner;
use proptest::prelude::*;

use std::sync::atomic::{AtomicU64, Ordering};

struct Bench {
    manager: Fake,
    host: Threads,
    room: Vec<Run>,
}

fn bench(line: &str) -> Bench {
    let (manager, host) = machine(line, [512, 1024], 1000);
    Bench { manager, host, room: vec![Run::NOTHING; 40] }
}

impl Bench {
    /// Runs a text in a new shell, which frees everything at the end.
    fn run(&mut self, text: &str) -> (u8, String, String) {
        let ours = self.manager.files();
        let sources: [&dyn Source; 1] = [&ours];
        let before = self.manager.totals().allocated_pages - self.manager.caches().pages();
        // SAFETY: the commands free what the test owns, and there is no window.
        let mut shell = unsafe {
            Shell::new(&self.manager, FileSystem::new(&sources), &self.host, &mut self.room)
        };
        let (mut out, mut errors) = (String::new(), String::new());
        let status = shell.run(text, &mut out, &mut errors);
        assert_eq!(status, shell.status());
        shell.free_all();
        assert_eq!(
            self.manager.totals().allocated_pages - self.manager.caches().pages(),
            before,
            "{text}"
        );
        self.manager.verify().expect("the tables are right");
        self.manager.platform().assert_quiet();
        (status, out, errors)
    }

    fn says(&mut self, text: &str) -> String {
        let (status, out, errors) = self.run(text);
        assert_eq!((status, errors.as_str()), (0, ""), "{text}: {out}");
        out
    }

    fn complains(&mut self, text: &str) -> (u8, String) {
        let (status, _, errors) = self.run(text);
        (status, errors)
    }
}

#[test]
fn files_are_read_written_and_listed() {
    let mut bench = bench("");
    assert_eq!(
        bench.says("echo 4096 > /proc/sys/vm/min_free_kbytes; cat /proc/sys/vm/min_free_kbytes"),
        "4096\n"
    );
    assert_eq!(
        bench
            .says("echo -n 5000 >> /proc/sys/vm/min_free_kbytes; cat /proc/sys/vm/min_free_kbytes"),
        "5000\n"
    );
    assert_eq!(bench.says("ls"), "proc/\nsys/\n");
    let vm = "compact_memory\ncompaction_proactiveness\nextfrag_threshold\nlowmem_reserve_ratio\n\
              min_free_kbytes\nwatermark_scale_factor\n";
    assert_eq!(bench.says("ls /proc/sys/vm"), vm);
    assert!(
        bench
            .says("ls -l /proc/sys/vm")
            .starts_with("--w------- compact_memory\n-rw-r--r-- compaction")
    );
    assert!(bench.says("cat /proc/buddyinfo").starts_with("Node 0, zone      DMA "));
    assert_eq!(bench.says("cat /proc/sys/vm/min_free_kbytes > /proc/sys/vm/min_free_kbytes"), "");
    for (text, status, error) in [
        ("cat /nothing", 1, "cat: /nothing: No such file or directory\n"),
        ("cat /proc", 1, "cat: /proc: Is a directory\n"),
        ("cat /proc/vmstat/x", 1, "cat: /proc/vmstat/x: Not a directory\n"),
        ("cat", 2, "cat: which file?\n"),
        ("echo x > /proc/vmstat", 1, "echo: /proc/vmstat: Permission denied\n"),
        ("ls /x > /proc/vmstat", 1, "ls: /proc/vmstat: Permission denied\n"),
        ("exit 3 > /proc", 1, "exit: /proc: Is a directory\n"),
        (
            "echo many > /proc/sys/vm/min_free_kbytes",
            1,
            "echo: /proc/sys/vm/min_free_kbytes: Invalid argument\n",
        ),
        ("ls -a", 2, "ls: -a: the only option is -l\n"),
        (
            "help > /proc/sys/vm/min_free_kbytes; ls -l / > /x",
            1,
            "help: /proc/sys/vm/min_free_kbytes: Invalid argument\n\
             ls: /x: No such file or directory\n",
        ),
        (
            "cat /proc/zoneinfo /proc/zoneinfo /proc/zoneinfo > /proc/sys/vm/min_free_kbytes",
            1,
            "cat: /proc/sys/vm/min_free_kbytes: a control file takes 4096 bytes at most\n",
        ),
        (
            "cat /nothing > /proc/sys/vm/min_free_kbytes",
            1,
            "cat: /nothing: No such file or directory\n",
        ),
    ] {
        assert_eq!(bench.complains(text), (status, error.to_owned()), "{text}");
    }
    assert_eq!(bench.says("cat /proc/sys/vm/min_free_kbytes"), "5000\n");
}

#[test]
fn statuses_are_those_of_shells() {
    let mut bench = bench("");
    assert_eq!(bench.run("echo a; nonsense; echo $?").1, "a\n127\n");
    assert_eq!(bench.run("cat /x; echo $?; echo $?").1, "1\n0\n");
    assert_eq!(bench.run("exit 3; echo never"), (3, String::new(), String::new()));
    assert_eq!(bench.run("cat /x; exit").0, 1);
    assert_eq!(bench.run("exit x; echo $?").1, "2\n");
    assert_eq!(bench.run("echo a | b\necho $?").1, "2\n");
    assert_eq!(
        bench.complains("nonsense"),
        (127, "framewright: nonsense: command not found; `help` lists all\n".into())
    );
    assert_eq!(bench.complains("> /proc/vmstat").0, 2);
    assert_eq!(bench.run(" # nothing\n").0, 0);
}

#[test]
fn memory_is_allocated_and_freed() {
    let mut bench = bench("page_owner=on");
    let out = bench.says(
        "alloc; alloc 3 10; alloc order=9 node=1 type=unmovable; held; free 2; free all; held",
    );
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0].starts_with("1: 1 x 1 page, 4 KiB, first at 0x"), "{out}");
    assert!(lines[1].starts_with("2: 10 x 8 pages, 320 KiB, first at 0x"), "{out}");
    assert!(lines[2].starts_with("3: 1 x 512 pages, 2 MiB, first at 0x1"), "{out}");
    assert!(lines[4].starts_with("2: 10 runs, 80 pages, 320 KiB, first at 0x"), "{out}");
    assert_eq!(lines[6..], ["freed 320 KiB", "freed 2 MiB"]);
    assert_eq!(
        bench.says("alloc 0 at=0x2000000; free 0x2000000"),
        "1: 1 x 1 page, 4 KiB, first at 0x2000000\nfreed 4 KiB\n"
    );
    // If one of the handles does not exist, all are kept.
    let (status, out, errors) = bench.run("alloc; alloc; free 1 2 99; free 2 1 2; held");
    assert_eq!((status, out.matches(": 1 run, ").count()), (0, 2), "{out}");
    assert_eq!(errors, "free: there is no handle 99\nfree: handle 2 is given twice\n");
    // Freeing runs in the middle of a handle leaves both ends.
    let out = bench.says(
        "alloc 1 5 at=0x2000000; free 0x2004000; held; free 0x2000000; free 0x2008000; held; \
         free 1",
    );
    let held: Vec<&str> = out.lines().filter(|line| line.contains("runs")).collect();
    assert_eq!(
        held,
        [
            "1: 4 runs, 8 pages, 32 KiB, first at 0x2000000",
            "1: 2 runs, 4 pages, 16 KiB, first at 0x2002000"
        ]
    );
    assert!(bench.says("alloc pages=3 zone=DMA zeroed align=4").contains("1 x 3 pages, 12 KiB"));
    assert!(bench.says("alloc 10 below=0x10000000 count=2").contains("2 x 1024 pages, 8 MiB"));
}

#[test]
fn wrong_allocations_change_nothing_and_say_why() {
    let mut bench = bench("");
    for (text, status, expected) in [
        ("alloc 19", 2, "order must be 0 to 18"),
        ("alloc x", 2, "order must be 0 to 18"),
        ("alloc 0 1 2", 2, "order and count are given already"),
        ("alloc colour=red", 2, "colour= is not known"),
        ("alloc 0 0", 2, "count must be at least 1"),
        ("alloc 0 -1", 2, "count must be a number"),
        ("alloc node=7", 1, "there is no node 7"),
        ("alloc node=9999", 2, "node must be the number of a node"),
        ("alloc zone=High", 2, "zone must be DMA, DMA32 or Normal"),
        ("alloc type=Isolate", 2, "type must be Unmovable"),
        ("alloc pages=0", 1, "0 pages"),
        ("alloc pages=99999999999", 1, "pages in one run"),
        ("alloc at=0x1001", 2, "must be a multiple"),
        ("alloc 0 at=0x200000000000000", 1, "not free"),
        ("alloc 0 at=0xfffffffffffff000 count=3", 1, "not free"),
        ("alloc pages=3 at=0x2000000", 2, "at= takes an order"),
        ("alloc 18 9", 1, "of 9, all freed again: out of memory"),
        ("alloc 18 9", 1, "page allocation failure: 262144 pages, migratetype:Movable"),
        ("alloc 18 9", 1, " pages RAM\n"),
        ("alloc at=0x2000000 node=1", 2, "at= takes only order, count and type"),
        ("alloc zone=DMA at=0x2000000", 2, "at= takes only order, count and type"),
        ("alloc at=0x2000000 below=0x1000000", 2, "at= takes only order, count and type"),
        ("alloc at=0x2000000 align=9", 2, "at= takes only order, count and type"),
        ("alloc at=0x2000000 zeroed", 2, "at= takes only order, count and type"),
        ("alloc 0 at=0x2000000; alloc 0 at=0x2000000", 1, "is not free"),
        ("free", 2, "which handle or address?"),
        ("free 1", 1, "there is no handle 1"),
        ("free x", 1, "there is no handle x"),
        ("alloc 3; free 1 1", 1, "handle 1 is given twice"),
        ("free 0x1000000", 1, "no run that a handle holds begins at 0x1000000"),
        ("free 0x1000000 order=0", 1, "double free"),
        ("free 0x1000000 5", 2, "only order=N or pages=N may follow an address"),
        ("free 0xffffffffff000 order=18", 1, "no zone manages it"),
        ("alloc 3 at=0x2000000; free 0x2001000 order=0", 1, "a handle holds a part of"),
        ("alloc 3 at=0x2000000; free 0x2000000 order=4", 1, "a handle holds a part of"),
        // Every second run is isolated, so 40 places are soon used up.
        ("alloc 0 2000 align=1", 1, "no room to record more"),
    ] {
        let (found, errors) = bench.complains(text);
        assert!(found == status && errors.contains(expected), "{text}: {found}, {errors}");
    }
}

#[test]
fn what_somebody_else_freed_is_told_and_forgotten() {
    let mut bench = bench("");
    let ours = bench.manager.files();
    let sources: [&dyn Source; 1] = [&ours];
    // SAFETY: the commands free what the test owns, and there is no window.
    let mut shell = unsafe {
        Shell::new(&bench.manager, FileSystem::new(&sources), &bench.host, &mut bench.room)
    };
    let (mut out, mut errors) = (String::new(), String::new());
    assert_eq!(shell.run("alloc 2 3 at=0x2000000", &mut out, &mut errors), 0);
    let second = framewright::units::PfnRange::new(0x2004, 0x2008);
    bench.manager.give_back(second).expect("held");
    assert_eq!(shell.run("free 1; held", &mut out, &mut errors), 0);
    assert!(errors.contains("free: cannot free pfn 0x2004: it is free already"), "{errors}");
    assert!(out.contains("1: 2 runs, 8 pages"), "{out}");
    shell.free_all();
}

#[test]
fn policies_choose_nodes() {
    let mut bench = bench("");
    // Each text starts with handle 1.
    for (text, expected) in [
        ("numa local", "1: 1 x 1 page, 4 KiB: 1 of node 0\n"),
        ("numa preferred 1 count=3", "1: 3 x 1 page, 12 KiB: 3 of node 1\n"),
        ("numa bind 1 order=9", "1: 1 x 512 pages, 2 MiB: 1 of node 1\n"),
        ("numa interleave 0-1 count=5", "1: 5 x 1 page, 20 KiB: 3 of node 0, 2 of node 1\n"),
        (
            "numa weighted 0-1 weights=5,2 count=20",
            "1: 20 x 1 page, 80 KiB: 15 of node 0, 5 of node 1\n",
        ),
    ] {
        assert_eq!(bench.says(text), expected, "{text}");
    }
    for (text, status, expected) in [
        ("numa nowhere", 2, "nowhere: no such policy"),
        ("numa bind", 2, "the policy bind needs nodes"),
        ("numa local 1", 2, "the policy local takes no nodes"),
        ("numa bind 1-x", 2, "a list of nodes is like 0-2,5"),
        ("numa bind 9999", 2, "node 9999 is beyond the limit"),
        ("numa bind 0 1", 2, "1: nodes come first"),
        ("numa bind 0 sort=1", 2, "sort= is not known"),
        ("numa bind 0 count=0", 2, "count must be at least 1"),
        ("numa bind 7", 1, "no node of 7 has memory"),
        ("numa bind 0 pages=0", 1, "cannot allocate 0 pages"),
        ("numa bind 0 order=18 count=2", 1, "after 0 of 2, all freed again: out of memory"),
        ("numa local weights=3", 2, "weights= is for `numa weighted` only"),
        ("numa interleave 0-1 weights=3,1", 2, "weights= is for `numa weighted` only"),
        ("numa weighted 0-1 weights=0", 2, "a weight is 1 to 255, not 0"),
        ("numa weighted 0-1 weights=256", 2, "a weight is 1 to 255, not 256"),
        ("numa weighted 0-1 weights=1,", 2, "a weight must be a number"),
        ("numa tier", 2, "numa: which node, and which tier?"),
        ("numa tier 0 1 2", 2, "numa: which node, and which tier?"),
        ("numa tier x 1", 2, "node must be the number of a node"),
        ("numa tier 7 1", 1, "numa: there is no node 7"),
        ("numa tier 0 256", 2, "a tier must be 0 to 255, not 256"),
        ("numa tier 0 fast", 2, "a tier must be a number"),
        ("numa bandwidth 0", 2, "numa: which node, and how many MB/s?"),
        ("numa bandwidth 0 -1", 2, "a bandwidth in MB/s must be a number"),
        ("numa bandwidth 0 99999999999999999999", 2, "a bandwidth in MB/s must be a number"),
        ("numa bandwidth 7 1", 1, "numa: there is no node 7"),
    ] {
        let (found, errors) = bench.complains(text);
        assert!(found == status && errors.contains(expected), "{text}: {found}, {errors}");
    }
    let shown = bench.says("echo 7 > /sys/kernel/mm/mempolicy/weighted_interleave/node1; numa");
    let lines: Vec<Vec<&str>> =
        shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 3, "{shown}");
    // The interleave counts are the sums of both rounds: 3 + 15 and 2 + 5.
    let of = |line: &[&str]| [line[0], line[1], line[2], line[3], line[7], line[8]].join(" ");
    assert_eq!([of(&lines[1]), of(&lines[2])], ["0 1 4 - 18 1", "1 7 4 - 7 0"]);
}

#[test]
fn nodes_are_slow_and_fast_as_they_are_told() {
    let mut bench = bench("");
    let lines = |text: &str, bench: &mut Bench| -> Vec<String> {
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        bench.says(text).lines().map(words).collect()
    };
    let shown =
        lines("numa bandwidth 0 3000; numa bandwidth 1 1000; numa tier 1 22; numa", &mut bench);
    // With one node known it is as fast as any; then it is three times as fast as the other.
    assert_eq!(shown[0], "node 0: 3000 MB/s, weight 32");
    assert_eq!(shown[1], "node 1: 1000 MB/s, weight 1");
    assert_eq!(shown[2], "node 1: tier 22, the slowest: its pages are not demoted");
    let [first, second] = [&shown[4], &shown[5]];
    assert!(first.starts_with("0 3 4 1 ") && first.ends_with(" 3000"), "{shown:?}");
    assert!(second.starts_with("1 1 22 - ") && second.ends_with(" 1000"), "{shown:?}");
    let shown = lines(
        "numa tier 0 0; cat /sys/devices/virtual/memory_tiering/memory_tier0/nodelist; numa tier 0 \
         255; numa bandwidth 1 0; echo 9 > \
         /sys/kernel/mm/mempolicy/weighted_interleave/node0; numa bandwidth 0 7; numa",
        &mut bench,
    );
    assert_eq!(
        shown[..5],
        [
            "node 0: tier 0, its pages are demoted to 1, or to 1 when that is full",
            "0",
            "node 0: tier 255, the slowest: its pages are not demoted",
            "node 1: 0 MB/s, weight 1",
            "node 0: 7 MB/s, weight 9, which was set by hand and is kept",
        ]
    );
    assert!(shown[6].starts_with("0 9 255 - ") && shown[6].ends_with(" 7"), "{shown:?}");
    assert!(shown[7].starts_with("1 1 22 0 ") && shown[7].ends_with(" -"), "{shown:?}");
    let help = bench.says("help numa");
    assert!(help.contains("weighted_interleave") && help.contains("bandwidth NODE MB/S"), "{help}");
}

#[test]
fn workloads_run() {
    let mut bench = bench("");
    assert_eq!(
        bench.says("memhog 100M"),
        "wrote to 100 MiB in 3 runs\n".replace('3', &bench_runs(100))
    );
    assert!(bench.says("memhog 1M hold 3 untouched").starts_with("hold 1 MiB in 1 run\n"));
    for (text, status, expected) in [
        ("memhog", 2, "how much?"),
        ("memhog x", 2, "not a number"),
        ("memhog 1T untouched", 1, "out of memory"),
        ("memhog 1T untouched", 1, "watermarks keep "),
        ("memhog 1M hold", 2, "hold for how many seconds?"),
        ("memhog 1M now", 2, "only hold SECONDS and untouched"),
        ("sleep", 2, "how many seconds?"),
        ("sleep 99999999999", 2, "seconds are too many"),
        ("stress", 2, "SECONDS"),
        ("stress 1 seed x", 2, "seed must be a number"),
    ] {
        let (found, errors) = bench.complains(text);
        assert!(found == status && errors.contains(expected), "{text}: {found}, {errors}");
    }
    let out = bench.says("sleep 2; stress 0 seed 5; alloc 2 7; stress 0");
    assert!(
        out.contains(" operations: ") && out.contains("every page accounted for 1 time"),
        "{out}"
    );
}

/// Returns runs of powers of two that add up to this many MiB.
fn bench_runs(mib: u32) -> String {
    mib.count_ones().to_string()
}

#[test]
fn an_interrupt_ends_a_command_and_those_behind_it() {
    let mut bench = bench("");
    for text in [
        "sleep 1000; echo never",
        "stress 1000; echo never",
        "memhog 900M; echo never",
        "alloc 0 5000 below=0x20000000; echo never",
        "numa interleave 0-1 count=5000; echo never",
    ] {
        bench.host.patience.store(1, Ordering::Relaxed);
        let (status, out, errors) = bench.run(text);
        assert!(
            status == 130 && errors.contains("interrupted") && !out.contains("never"),
            "{text}: {status} {out} {errors}"
        );
        assert_eq!(bench.says("echo on"), "on\n");
    }
}

#[test]
fn the_machine_is_shown() {
    let mut bench = bench("");
    let stat = bench.says("alloc 9; stat");
    assert!(
        stat.contains("node  zone")
            && stat.contains("held here           2 MiB          512 pages in 1 run\n"),
        "{stat}"
    );
    let cpus = bench.says("cpus");
    assert_eq!(cpus.lines().count(), 3, "{cpus}");
    assert!(
        cpus.contains("   0     0  node 0 DMA32") && cpus.contains("   1     1  node 1 Normal"),
        "{cpus}"
    );
    assert!(bench.says("verify").starts_with("verified: "));
    let help = bench.says("help");
    for name in [
        "alloc", "cat", "cma", "cpus", "echo", "dmesg", "exit", "free", "grade", "help", "ls",
        "memhog", "numa", "sleep", "stat", "stress",
    ] {
        assert!(help.lines().any(|line| line.starts_with(&format!("{name} "))), "{name}: {help}");
        assert!(bench.says(&format!("help {name}")).starts_with(name));
    }
    assert_eq!(bench.complains("help me").0, 1);
    assert_eq!(
        bench.complains("stat now"),
        (2, "stat: now: this command takes no arguments\n".into())
    );
    let words = "hotplug: grow: expected add, remove, online or offline\n";
    assert_eq!(bench.complains("hotplug grow"), (2, words.into()));
    for (line, why) in [
        ("remove 1G 2M movable", "movable: expected nothing after the size"),
        ("offline 1G 2M node=0", "node=0: expected nothing after the size"),
        ("online 1G 2M node=0", "node=0: expected any, movable or removable"),
        ("add 1G 2M offline any", "offline memory has no grade"),
        ("add 1G 2M below", "below: expected any, movable, removable, offline or node=N"),
    ] {
        let (status, said) = bench.complains(&format!("hotplug {line}"));
        assert!(status == 2 && said.contains(why), "{line}: {status} {said}");
    }
    // A line that the manager refuses is not a syntax error.
    for line in ["online 1T 128M", "remove 1T 128M", "offline 0 4K"] {
        assert_eq!(bench.complains(&format!("hotplug {line}")).0, 1, "{line}");
    }
}

/// A module of the test's own, with a file and a command.
struct Pool(AtomicU64);

impl Pool {
    const FILES: &'static [File<Self>] = &[File::read_write(
        "/proc/sys/vm/nr_pool",
        |pool, _, out| Ok(writeln!(out, "{}", pool.0.load(Ordering::Relaxed))?),
        |pool, _, text| parse_number(text).map(|number| pool.0.store(number, Ordering::Relaxed)),
    )];
}

impl Command for Pool {
    fn name(&self) -> &str {
        "pool"
    }

    fn usage(&self) -> &str {
        "[N]"
    }

    fn about(&self) -> &str {
        "show the pool or fill it"
    }

    fn run(&self, arguments: &[&str], io: &mut Io<'_>) -> Result<(), Failed> {
        if let [number] = arguments {
            let number =
                parse_number(number).map_err(|_| io.wrong(format_args!("{number}: a number")))?;
            self.0.store(number, Ordering::Relaxed);
        }
        Ok(writeln!(io.out, "{} in the pool", self.0.load(Ordering::Relaxed))?)
    }
}

#[test]
fn others_add_files_and_commands() {
    let mut bench = bench("");
    let pool = Pool(AtomicU64::new(3));
    let (ours, theirs) = (bench.manager.files(), Table::new(&pool, Pool::FILES));
    let sources: [&dyn Source; 2] = [&ours, &theirs];
    let commands: [&dyn Command; 1] = [&pool];
    // SAFETY: the commands free what the test owns, and there is no window.
    let mut shell = unsafe {
        Shell::new(&bench.manager, FileSystem::new(&sources), &bench.host, &mut bench.room)
    }
    .with_commands(&commands);
    let (mut out, mut errors) = (String::new(), String::new());
    shell.run(
        "pool; echo 7 > /proc/sys/vm/nr_pool; pool; pool 9; cat /proc/sys/vm/nr_pool; pool x; \
         help pool",
        &mut out,
        &mut errors,
    );
    assert_eq!(
        out,
        "3 in the pool\n7 in the pool\n9 in the pool\n9\npool [N]\n    show the pool or fill it\n"
    );
    assert_eq!(errors, "pool: x: a number\n");
}

/// Words that commands know, and some that no command knows.
fn word() -> impl Strategy<Value = String> {
    let known = prop::sample::select(vec![
        "alloc",
        "free",
        "all",
        "held",
        "cat",
        "ls",
        "-l",
        "echo",
        "-n",
        "stat",
        "cpus",
        "help",
        "verify",
        "memhog",
        "hugetlb",
        "2M",
        "fragment",
        "order=3",
        "order=99",
        "count=5",
        "pages=7",
        "node=0",
        "node=1",
        "zone=DMA",
        "type=movable",
        "at=0x2000000",
        "at=0x1",
        "below=0x4000000",
        "align=10",
        "zeroed",
        "numa",
        "bind",
        "interleave",
        "weighted",
        "0-1",
        "weights=5,2",
        "count=100",
        "untouched",
        "cma",
        "contig",
        "grade",
        "movable",
        "removable",
        "any",
        "tier",
        "bandwidth",
        "2M@0x2000000",
        "1M@0x2001000",
        "0x2000..0x2400",
        "0",
        "1",
        "2",
        "9",
        "17",
        "64M",
        "0x2000000",
        "/proc/buddyinfo",
        "/proc/sys/vm/min_free_kbytes",
        "/proc/vmstat",
        "/sys",
        "/",
        ">",
        ">>",
        ";",
        "\n",
        "'",
        "\"",
        "$?",
        "#",
        "\\",
        "|",
        "exit",
    ]);
    prop_oneof![20 => known.prop_map(str::to_owned), 1 => "\\PC{0,12}"]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 150 } else { 600 }))]

    #[test]
    fn nothing_that_is_typed_does_harm(words in prop::collection::vec(word(), 0..40)) {
        thread_local! {
            static BENCH: std::cell::RefCell<Bench> = bench("").into();
        }
        // `run` checks that nothing is lost and that the tables are correct.
        BENCH.with(|bench| bench.borrow_mut().run(&words.join(" ")));
    }

    #[test]
    fn any_text_is_answered(text in "\\PC{0,200}", long in 0..3_usize) {
        thread_local! {
            static BENCH: std::cell::RefCell<Bench> = bench("").into();
        }
        let text = text.clone() + &"x".repeat(long * LONGEST_LINE);
        BENCH.with(|bench| bench.borrow_mut().run(&text));
    }
}
