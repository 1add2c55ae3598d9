//! The files of huge-page pools: Linux's formats, and what writing to them does (Linux:
//! `mm/hugetlb.c`, `nr_hugepages_store_common` and `demote_store`).

use crate::common::pool_machine::{GIB, TWO, check, machine, node, nr_of, numbers};
use crate::common::{Fake, bring_up, bring_up_with, gib, parameters};
use framewright::memblock::NodeChoice;
use framewright::procfs::{FileError, FileSystem, Kind};
use framewright::units::NodeMask;
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, FakeVmemmap, PoolOwner};
use proptest::prelude::*;

const SYS: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/";
const SYS_GIB: &str = "/sys/kernel/mm/hugepages/hugepages-1048576kB/";

fn write(manager: &Fake, path: &str, text: &str) -> Result<(), FileError> {
    let pools = manager.hugetlb().files(&NoHelpers);
    FileSystem::new(&[&manager.files(), &pools.table()]).write(path, text)
}

fn read(manager: &Fake, path: &str) -> Result<String, FileError> {
    let pools = manager.hugetlb().files(&NoHelpers);
    let mut text = String::new();
    FileSystem::new(&[&manager.files(), &pools.table()]).read(path, &mut text).map(|()| text)
}

fn list(manager: &Fake, path: &str) -> Vec<String> {
    let pools = manager.hugetlb().files(&NoHelpers);
    let mut names = Vec::new();
    FileSystem::new(&[&manager.files(), &pools.table()])
        .list(path, &mut |name, _| names.push(name.to_owned()))
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    names
}

/// Parses one number and an end of line, and nothing else.
fn number(manager: &Fake, path: &str) -> u64 {
    let text = read(manager, path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let digits = text.strip_suffix('\n').unwrap_or_else(|| panic!("{path}: {text:?}"));
    digits.parse().unwrap_or_else(|_| panic!("{path}: {text:?}"))
}

fn node_file(node: usize, kbytes: u64, name: &str) -> String {
    format!("/sys/devices/system/node/node{node}/hugepages/hugepages-{kbytes}kB/{name}")
}

/// Returns the lines about huge pages, each cut before its number: the name with all blanks up to
/// the first column of the number's field, which `width` gives.
fn huge_lines(text: &str, prefix: &str) -> Vec<(String, usize, bool)> {
    text.lines()
        .filter_map(|line| line.strip_prefix(prefix))
        .filter(|line| {
            line.starts_with("HugePages_")
                || line.starts_with("Hugepagesize")
                || line.starts_with("Hugetlb")
        })
        .map(|line| {
            let (name, value) = line.split_once(':').expect("a colon");
            let (number, unit) =
                value.strip_suffix(" kB").map_or((value, false), |number| (number, true));
            number.trim_start().parse::<u64>().unwrap_or_else(|_| panic!("{line:?}"));
            (name.to_owned(), name.len() + 1 + number.len(), unit)
        })
        .collect()
}

#[test]
fn what_linux_shows_is_shown_in_its_order_and_columns() {
    let manager = bring_up(machine());
    for (path, prefix, lines) in
        [("/proc/meminfo", "", 6), ("/sys/devices/system/node/node0/meminfo", "Node 0 ", 3)]
    {
        let ours = huge_lines(&read(&manager, path).expect("is there"), prefix);
        assert_eq!(ours.len(), lines, "{path}");
        let Ok(theirs) = std::fs::read_to_string(path) else { continue };
        let theirs = huge_lines(&theirs, prefix);
        // A kernel without huge pages has none of these lines. Columns are the same while numbers
        // fit.
        if !theirs.is_empty() {
            assert_eq!(ours, theirs, "{path}");
        }
    }
    assert_eq!(write(&manager, "/proc/sys/vm/nr_hugepages", "5"), Ok(()));
    let meminfo = read(&manager, "/proc/meminfo").expect("is there");
    assert!(
        meminfo.ends_with(
            "HugePages_Total:       5\nHugePages_Free:        5\n\
             HugePages_Rsvd:        0\nHugePages_Surp:        0\n\
             Hugepagesize:       2048 kB\nHugetlb:           10240 kB\n"
        ),
        "{meminfo}"
    );
    assert_eq!(write(&manager, &format!("{SYS_GIB}nr_hugepages"), "1"), Ok(()));
    // All sizes.
    assert!(
        read(&manager, "/proc/meminfo")
            .expect("is there")
            .ends_with("Hugetlb:         1058816 kB\n")
    );
    let of_node = read(&manager, "/sys/devices/system/node/node1/meminfo").expect("is there");
    assert!(of_node.contains(
        "Node 1 HugePages_Total:     2\nNode 1 HugePages_Free:      2\nNode 1 \
                HugePages_Surp:      0\n"
    ));
    check(&manager);
}

#[test]
fn folders_hold_what_linuxs_hold() {
    let manager = bring_up(machine());
    for folder in [SYS, SYS_GIB, "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/"] {
        let ours = list(&manager, folder);
        let Ok(theirs) = std::fs::read_dir(folder) else { continue };
        let mut theirs: Vec<String> = theirs
            .map(|entry| entry.expect("a name").file_name().to_string_lossy().into_owned())
            .collect();
        theirs.sort();
        assert_eq!(ours, theirs, "{folder}");
    }
    assert_eq!(
        list(&manager, &node_file(2, 1_048_576, "")),
        ["demote", "demote_size", "free_hugepages", "nr_hugepages", "surplus_hugepages"]
    );
    assert_eq!(
        list(&manager, "/sys/kernel/mm/hugepages"),
        ["hugepages-1048576kB", "hugepages-2048kB"]
    );
    let pools = manager.hugetlb().files(&NoHelpers);
    let (ours, pools) = (manager.files(), pools.table());
    let sources: [&dyn framewright::procfs::Source; 2] = [&ours, &pools];
    let files = FileSystem::new(&sources);
    for (path, readable, writable) in [
        (format!("{SYS}nr_hugepages"), true, true),
        (format!("{SYS}free_hugepages"), true, false),
        (format!("{SYS}resv_hugepages"), true, false),
        (format!("{SYS}surplus_hugepages"), true, false),
        (format!("{SYS_GIB}demote"), false, true),
        (format!("{SYS_GIB}demote_size"), true, true),
    ] {
        assert_eq!(files.kind(&path), Ok(Kind::File { readable, writable }), "{path}");
    }
}

#[test]
fn sys_shows_what_there_is_and_proc_what_is_to_stay() {
    let manager = bring_up(machine());
    let pool = manager.pool(TWO);
    assert_eq!(write(&manager, &format!("{SYS}nr_overcommit_hugepages"), "8\n"), Ok(()));
    assert_eq!(number(&manager, "/proc/sys/vm/nr_overcommit_hugepages"), 8);
    assert_eq!(write(&manager, "/proc/sys/vm/nr_hugepages", "4\n"), Ok(()));
    let pages: Vec<_> =
        (0..6).map(|_| pool.allocate(NodeChoice::Any, false).expect("overcommit").start).collect();
    assert_eq!(number(&manager, &format!("{SYS}nr_hugepages")), 6);
    assert_eq!(number(&manager, &format!("{SYS}nr_hugepages_mempolicy")), 6);
    assert_eq!(number(&manager, "/proc/sys/vm/nr_hugepages"), 4);
    assert_eq!(number(&manager, &format!("{SYS}surplus_hugepages")), 2);
    assert_eq!(number(&manager, &format!("{SYS}free_hugepages")), 0);
    // The target is below the pages in use: the rest becomes surplus, whatever overcommit says, and
    // leaves the pool when it is freed.
    assert_eq!(write(&manager, &format!("{SYS}nr_overcommit_hugepages"), "0"), Ok(()));
    assert_eq!(write(&manager, "/proc/sys/vm/nr_hugepages", "1"), Ok(()));
    assert_eq!(
        (numbers(&pool), number(&manager, "/proc/sys/vm/nr_hugepages")),
        ([6, 0, 0, 5, 1], 1)
    );
    check(&manager);
    // Growing the pool turns surplus pages into its own.
    assert_eq!(write(&manager, "/proc/sys/vm/nr_hugepages_mempolicy", "3"), Ok(()));
    assert_eq!(numbers(&pool), [6, 0, 0, 3, 3]);
    pages.into_iter().for_each(|page| pool.give_back_page(page).expect("allocated"));
    assert_eq!(numbers(&pool), [3, 3, 0, 0, 3]);
    pool.reserve(2, framewright::hugetlb::NodeMask::ALL).expect("free");
    assert_eq!(number(&manager, &format!("{SYS}resv_hugepages")), 2);
    // Reserved pages stay.
    assert_eq!(write(&manager, &format!("{SYS}nr_hugepages"), "0"), Ok(()));
    assert_eq!((numbers(&pool)[0], numbers(&pool)[2]), (2, 2));
    pool.unreserve(2).expect("reserved");
    check(&manager);
}

#[test]
fn nodes_have_their_own() {
    let manager = bring_up(machine());
    for (size, kbytes, pages) in [(TWO, 2048, 12), (GIB, 1_048_576, 2)] {
        let pool = manager.pool(size);
        assert_eq!(
            write(&manager, &node_file(1, kbytes, "nr_hugepages"), &pages.to_string()),
            Ok(())
        );
        assert_eq!(nr_of(&pool), [0, pages]);
        assert_eq!(write(&manager, &node_file(0, kbytes, "nr_hugepages"), "1"), Ok(()));
        assert_eq!(nr_of(&pool), [1, pages]);
        for (name, all) in
            [("nr_hugepages", pages), ("free_hugepages", pages), ("surplus_hugepages", 0)]
        {
            assert_eq!(number(&manager, &node_file(1, kbytes, name)), all, "{name}");
        }
        assert_eq!(write(&manager, &node_file(1, kbytes, "nr_hugepages"), "1"), Ok(()));
        assert_eq!(nr_of(&pool), [1, 1]);
        // A node without memory takes what it can get; a node that does not exist has no file.
        assert_eq!(write(&manager, &node_file(2, kbytes, "nr_hugepages"), "9"), Ok(()));
        assert_eq!(number(&manager, &node_file(2, kbytes, "nr_hugepages")), 0);
        assert_eq!(
            write(&manager, &node_file(3, kbytes, "nr_hugepages"), "1"),
            Err(FileError::NotFound)
        );
        assert_eq!(
            write(&manager, &node_file(1, kbytes, "nr_hugepages"), &u64::MAX.to_string()),
            Ok(())
        );
        let reached = number(&manager, &node_file(1, kbytes, "nr_hugepages"));
        assert!(reached > 1 && nr_of(&pool)[0] == 1, "{reached}");
        assert_eq!(write(&manager, &node_file(1, kbytes, "nr_hugepages"), "0"), Ok(()));
        assert_eq!(write(&manager, &node_file(0, kbytes, "nr_hugepages"), "0"), Ok(()));
        check(&manager);
    }
}

#[test]
fn more_than_there_is_gives_what_there_is() {
    let manager = bring_up(machine());
    assert_eq!(write(&manager, "/proc/sys/vm/nr_hugepages", "18446744073709551615"), Ok(()));
    let reached = number(&manager, "/proc/sys/vm/nr_hugepages");
    assert!((3000..4096).contains(&reached), "{reached}");
    assert_eq!(number(&manager, &format!("{SYS}nr_hugepages")), reached);
    check(&manager);
    assert_eq!(write(&manager, "/proc/sys/vm/nr_hugepages", "0"), Ok(()));
    assert_eq!(write(&manager, &format!("{SYS_GIB}nr_hugepages"), "100"), Ok(()));
    assert!((4..=7).contains(&number(&manager, &format!("{SYS_GIB}nr_hugepages"))));
    assert_eq!(write(&manager, &format!("{SYS_GIB}nr_hugepages"), "0"), Ok(()));
    check(&manager);
}

#[test]
fn demotion_is_a_write() {
    let manager = bring_up(machine());
    let demote = format!("{SYS_GIB}demote");
    let demote_size = format!("{SYS_GIB}demote_size");
    assert_eq!(read(&manager, &demote_size).as_deref(), Ok("2048kB\n"));
    for text in ["2048kB\n", "2M", "2097152", "0x200000"] {
        assert_eq!(write(&manager, &demote_size, text), Ok(()), "{text}");
    }
    for text in ["1G", "1048576kB", "4096", "4M", "0", "", "two", "-2M"] {
        assert_eq!(write(&manager, &demote_size, text), Err(FileError::Invalid), "{text}");
    }
    assert_eq!(write(&manager, &demote, "1"), Ok(()), "nothing is free, as in Linux");
    assert_eq!(write(&manager, &node_file(1, 1_048_576, "demote"), "1"), Ok(()));
    assert_eq!(read(&manager, &demote), Err(FileError::NotPermitted));
    assert_eq!(write(&manager, &format!("{SYS_GIB}nr_hugepages"), "3"), Ok(()));
    assert_eq!(write(&manager, &demote, "1"), Ok(()));
    assert_eq!(
        (numbers(&manager.pool(GIB)), numbers(&manager.pool(TWO))),
        ([2, 2, 0, 0, 2], [512, 512, 0, 0, 512])
    );
    let of_node = number(&manager, &node_file(1, 1_048_576, "nr_hugepages"));
    assert_eq!(write(&manager, &node_file(1, 1_048_576, "demote"), "9"), Ok(()));
    assert_eq!(number(&manager, &node_file(1, 1_048_576, "nr_hugepages")), 0);
    assert_eq!(manager.pool(TWO).counts().all.nr, 512 * (1 + of_node));
    // No size is smaller than 2 MiB.
    assert_eq!(write(&manager, &format!("{SYS}demote"), "1"), Err(FileError::NotFound));
    check(&manager);
}

#[test]
fn only_free_pages_that_cannot_be_demoted_are_busy() {
    let manager = bring_up(machine());
    let (pool, demote) = (manager.pool(GIB), format!("{SYS_GIB}demote"));
    let of_node = |number| node_file(number, 1_048_576, "demote");
    assert_eq!(write(&manager, &node_file(1, 1_048_576, "nr_hugepages"), "1"), Ok(()));
    let page = pool.allocate(NodeChoice::Any, false).expect("free");
    for path in [&demote, &of_node(1), &of_node(0)] {
        assert_eq!(write(&manager, path, "1"), Ok(()), "it is in use");
    }
    pool.give_back_page(page.start).expect("held");
    pool.reserve(1, NodeMask::ALL).expect("free");
    assert_eq!(write(&manager, &demote, "1"), Ok(()), "it is reserved");
    pool.unreserve(1).expect("reserved");
    let first = BlockNumber::containing(page.start).0;
    let blocks = BlockRange::new(first, first + 512);
    manager.isolation().isolate(blocks).expect("a pool's page as a whole");
    for (path, expected) in [
        (&demote, Err(FileError::Busy)),
        (&of_node(1), Err(FileError::Busy)),
        (&of_node(0), Ok(())),
    ] {
        assert_eq!(write(&manager, path, "1"), expected, "{path}");
    }
    manager.isolation().unisolate(blocks).expect("isolated");
    assert_eq!(write(&manager, &demote, "2"), Ok(()));
    assert_eq!((nr_of(&pool)[0], manager.pool(TWO).counts().all.nr), (0, 512));
    check(&manager);
}

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    let manager = bring_up(machine());
    let pool = manager.pool(TWO);
    assert_eq!(write(&manager, "/proc/sys/vm/nr_hugepages", "7"), Ok(()));
    let before = numbers(&pool);
    let nonsense = [
        "",
        "\n",
        "many",
        "-1",
        "1 2",
        "1k",
        "1.5",
        "18446744073709551616",
        "0x",
        "7\n\n7",
        "\u{661}",
    ];
    let files = [
        "/proc/sys/vm/nr_hugepages".to_owned(),
        "/proc/sys/vm/nr_overcommit_hugepages".to_owned(),
        "/proc/sys/vm/hugetlb_optimize_vmemmap".to_owned(),
        "/proc/sys/vm/hugetlb_shm_group".to_owned(),
        format!("{SYS}nr_hugepages"),
        format!("{SYS}nr_hugepages_mempolicy"),
        format!("{SYS}nr_overcommit_hugepages"),
        format!("{SYS_GIB}nr_hugepages"),
        format!("{SYS_GIB}demote"),
        node_file(0, 2048, "nr_hugepages"),
        node_file(1, 1_048_576, "demote"),
    ];
    for path in &files {
        for text in nonsense {
            assert_eq!(write(&manager, path, text), Err(FileError::Invalid), "{path}: {text:?}");
        }
    }
    // Linux reads these in decimal.
    assert_eq!(write(&manager, &format!("{SYS}nr_hugepages"), "0x10"), Err(FileError::Invalid));
    assert_eq!(
        (numbers(&pool), pool.counts().overcommit, manager.hugetlb().optimizes_vmemmap()),
        (before, 0, false)
    );
    for path in [
        format!("{SYS}free_hugepages"),
        format!("{SYS}resv_hugepages"),
        format!("{SYS}surplus_hugepages"),
    ] {
        assert_eq!(write(&manager, &path, "1"), Err(FileError::NotPermitted));
    }
    assert_eq!(
        write(&manager, &format!("{SYS_GIB}nr_overcommit_hugepages"), "1"),
        Err(FileError::Invalid)
    );
    assert_eq!(number(&manager, &format!("{SYS_GIB}nr_overcommit_hugepages")), 0);
    for path in [
        "/sys/kernel/mm/hugepages/hugepages-64kB/nr_hugepages",
        "/sys/kernel/mm/hugepages/hugepages-2048kB/x",
    ] {
        assert_eq!(write(&manager, path, "1"), Err(FileError::NotFound));
    }
    check(&manager);
}

#[test]
fn the_default_size_is_that_of_the_command_line() {
    let line = parameters("default_hugepagesz=1G");
    let manager = bring_up_with(machine(), &[], &line).expect("bring-up");
    manager.hugetlb().fill(&line, &NoHelpers);
    assert_eq!(write(&manager, "/proc/sys/vm/nr_hugepages", "2"), Ok(()));
    assert_eq!(number(&manager, &format!("{SYS_GIB}nr_hugepages")), 2);
    let meminfo = read(&manager, "/proc/meminfo").expect("is there");
    assert!(
        meminfo.contains("HugePages_Total:       2\n")
            && meminfo.contains("Hugepagesize:    1048576 kB\n")
    );
    // 1 GiB pages have no overcommit.
    assert_eq!(
        write(&manager, "/proc/sys/vm/nr_overcommit_hugepages", "1"),
        Err(FileError::Invalid)
    );
    assert_eq!(manager.pool(GIB).node_counts(node(0)).expect("a node").surplus, 0);
    check(&manager);
}

#[test]
fn how_the_map_is_restored_can_be_chosen() {
    const FILE: &str = "/sys/module/framewright/parameters/hugetlb_restore";
    let manager = bring_up(machine());
    assert_eq!(read(&manager, FILE).as_deref(), Ok("lazy\n"));
    assert_eq!(
        (write(&manager, FILE, "eager\n"), manager.hugetlb().eager_restore()),
        (Ok(()), true)
    );
    assert_eq!(read(&manager, FILE).as_deref(), Ok("eager\n"));
    for text in ["", "1", "eagerly", "lazy eager"] {
        assert_eq!(
            (write(&manager, FILE, text), manager.hugetlb().eager_restore()),
            (Err(FileError::Invalid), true)
        );
    }
    assert_eq!((write(&manager, FILE, "lazy"), manager.hugetlb().eager_restore()), (Ok(()), false));
}

#[test]
fn the_memory_map_goes_back_and_is_counted() {
    let machine = FakeMachine::builder().ram(gib(0, 2)).cpus(1).build();
    FakeVmemmap::install(machine);
    let manager = bring_up_with(machine, &[], &parameters("memmap_init=eager")).expect("bring-up");
    let vmstat = |name: &str| -> u64 {
        let text = read(&manager, "/proc/vmstat").expect("is there");
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .expect("a line");
        line.parse().expect("a number")
    };
    let free = || manager.totals().free_pages;
    assert_eq!(read(&manager, "/proc/sys/vm/hugetlb_optimize_vmemmap").as_deref(), Ok("0\n"));
    assert_eq!(write(&manager, "/proc/sys/vm/hugetlb_optimize_vmemmap", "1\n"), Ok(()));
    assert_eq!(read(&manager, "/proc/sys/vm/hugetlb_optimize_vmemmap").as_deref(), Ok("1\n"));
    let before = free();
    assert_eq!(write(&manager, "/proc/sys/vm/nr_hugepages", "64"), Ok(()));
    assert_eq!(vmstat("memmap_reclaimed_blocks"), 64);
    let saved = vmstat("memmap_saved_pages");
    // 8 frames a block, less page tables.
    assert!((500..=512).contains(&saved), "{saved}");
    assert!((1..=2).contains(&vmstat("memmap_pool_flush")));
    assert_eq!(free(), before - 64 * 512 + saved);
    assert_eq!(write(&manager, "/proc/sys/vm/hugetlb_optimize_vmemmap", "0"), Ok(()));
    assert_eq!(write(&manager, "/proc/sys/vm/nr_hugepages", "0"), Ok(()));
    check(&manager);
}

#[test]
fn the_group_that_may_share_is_kept() {
    let manager = bring_up(machine());
    const GROUP: &str = "/proc/sys/vm/hugetlb_shm_group";
    assert_eq!(read(&manager, GROUP).as_deref(), Ok("0\n"));
    assert_eq!(write(&manager, GROUP, "1001\n"), Ok(()));
    assert_eq!(
        (read(&manager, GROUP).as_deref(), manager.hugetlb().shm_group()),
        (Ok("1001\n"), 1001)
    );
    assert_eq!(write(&manager, GROUP, "4294967296"), Err(FileError::Invalid));
    assert_eq!(manager.hugetlb().shm_group(), 1001);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is written to any file, the books are right, and an accepted number reads back as
    /// far as there is memory for it.
    #[test]
    fn any_writes_leave_the_books_right(
        writes in prop::collection::vec((0_usize..9, 0_u64..40, prop::bool::weighted(0.1)), 1..20),
    ) {
        let manager = bring_up(machine());
        let files = [
            "/proc/sys/vm/nr_hugepages".to_owned(),
            "/proc/sys/vm/nr_overcommit_hugepages".to_owned(),
            format!("{SYS}nr_hugepages"),
            format!("{SYS_GIB}nr_hugepages"),
            format!("{SYS_GIB}demote"),
            node_file(0, 2048, "nr_hugepages"),
            node_file(1, 2048, "nr_hugepages"),
            node_file(0, 1_048_576, "nr_hugepages"),
            node_file(1, 1_048_576, "demote"),
        ];
        for (file, count, wrong) in writes {
            let path = &files[file];
            let state = || [TWO, GIB].map(|size| numbers(&manager.pool(size)));
            let before = state();
            let text = if wrong { format!("{count}x") } else { format!("{count}\n") };
            match write(&manager, path, &text) {
                Err(error) => {
                    prop_assert_eq!(before, state());
                    let expected = if wrong { FileError::Invalid } else { FileError::Busy };
                    prop_assert_eq!(error, expected, "{} < {:?}", path, text);
                }
                Ok(()) if path.ends_with("demote") => {}
                Ok(()) => {
                    let reached = number(&manager, path);
                    let may_be_short = path.contains("1048576kB");
                    prop_assert!(
                        reached == count || may_be_short && reached < count,
                        "{path}: \
                        {reached} of {count}"
                    );
                }
            }
            check(&manager);
        }
    }
}
