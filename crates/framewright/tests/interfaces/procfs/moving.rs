//! Compaction triggered by control files, and what `/proc/vmstat` says about it.

use crate::common::{Fake, bring_up, check, mib};
use framewright::procfs::{FileError, FileSystem};
use framewright::units::Order;
use framewright_testkit::FakeMachine;
use framewright_testkit::workload::{Habits, Handle, Handles};
use std::collections::BTreeMap;

const ALL: &str = "/proc/sys/vm/compact_memory";

fn of_node(node: usize) -> String {
    format!("/sys/devices/system/node/node{node}/compact")
}

/// A machine with two nodes of 64 MiB. It lives for ever, as movers do.
fn machine() -> &'static Fake {
    let (low, high) = (mib(0, 64), mib(4096, 4096 + 64));
    let builder = FakeMachine::builder().ram(low).ram(high).cpus_on(0, 1).cpus_on(1, 1);
    Box::leak(Box::new(bring_up(builder.node(low, 0).node(high, 1).build())))
}

fn write(manager: &Fake, path: &str, text: &str) -> Result<(), FileError> {
    let table = manager.files();
    FileSystem::new(&[&table]).write(path, text)
}

fn vmstat(manager: &Fake) -> BTreeMap<String, u64> {
    let mut text = String::new();
    let table = manager.files();
    FileSystem::new(&[&table]).read("/proc/vmstat", &mut text).expect("a file");
    let split = |line: &str| {
        line.split_once(' ').map(|(name, value)| (name.to_owned(), value.parse().expect("number")))
    };
    text.lines().map(|line| split(line).expect("a name and a number")).collect()
}

/// Fills all memory and frees every second page.
fn fill(manager: &'static Fake) -> &'static Handles<'static, FakeMachine> {
    let handles = Box::leak(Box::new(Handles::new(manager, 1 << 16).expect("memory")));
    while handles.allocate(Order::PAGE).is_ok() {}
    let every_second: Vec<Handle> = handles.held().step_by(2).collect();
    every_second.iter().for_each(|&handle| handles.free(handle).expect("held"));
    manager.drain().expect("all in order");
    handles
}

/// Free pages in whole blocks, by node.
fn whole(manager: &Fake) -> [u64; 2] {
    [0, 1].map(|node| {
        let here = manager.views().filter(|zone| zone.id().node.index() == node);
        here.map(|zone| zone.free_block_pages()).sum()
    })
}

#[test]
fn a_node_or_all_memory_is_compacted_and_counted() {
    let manager = machine();
    let handles = fill(manager);
    manager.moving().set_mover(Some(handles));
    let (before, counts) = (whole(manager), vmstat(manager));
    assert_eq!(write(manager, &of_node(1), "1\n"), Ok(()));
    let mut memory = String::new();
    let table = manager.files();
    let path = "/sys/kernel/debug/framewright/memory";
    FileSystem::new(&[&table]).read(path, &mut memory).expect("a file");
    let one = whole(manager);
    assert!(one[0] == before[0] && one[1] >= before[1] + 8 * 512, "{before:?} {one:?}");
    let moved = vmstat(manager);
    let grown = |name: &str| moved[name] - counts[name];
    let counted = ["pgmigrate_success", "pgmigrate_fail", "compact_blocks"];
    let [pages, failed, emptied] = counted.map(|name| moved[name]);
    assert!(memory.ends_with(&format!("\nmoved {pages} {failed} {emptied}\nend\n")), "{memory}");
    // One page after the other; nothing was in the way except where the last block ends.
    assert!(grown("pgmigrate_success") > 2000 && grown("pgmigrate_fail") <= 1);
    assert!(grown("compact_isolated") - grown("pgmigrate_success") <= 1);
    assert!(grown("compact_migrate_scanned") >= grown("compact_isolated"));
    // Other pages of the last block that is emptied may be in circulation already.
    let blocks = grown("compact_blocks");
    assert!(blocks - (one[1] - before[1]) / 512 <= 1, "{blocks} {one:?} {before:?}");
    for name in ["compact_stall", "compact_fail", "compact_success"] {
        assert_eq!(moved[name], 0, "{name}");
    }
    assert_eq!(write(manager, ALL, "1"), Ok(()));
    let all = whole(manager);
    assert!(all[0] >= one[0] + 8 * 512 && all[1] >= one[1], "{one:?} {all:?}");
    handles.held().for_each(|handle| handles.check(handle).expect("intact"));
    check(manager);
}

#[test]
fn what_is_refused_is_counted_and_no_error() {
    let manager = machine();
    let handles = fill(manager);
    manager.moving().set_mover(Some(handles));
    handles.set_habits(Habits { refuse_every: 1, ..Habits::default() });
    let before = whole(manager);
    assert_eq!(write(manager, ALL, "1"), Ok(()));
    let counts = vmstat(manager);
    assert_eq!((counts["pgmigrate_success"], whole(manager)), (0, before));
    // Pages that no mover claims are not asked for.
    let (failed, begun) = (counts["pgmigrate_fail"], manager.moving().events().begun_runs);
    assert!(failed > 1000 && failed - begun < 5, "{failed} {begun}");
    // The owner gave up nothing.
    assert_eq!(counts["compact_isolated"], 0);
    let in_the_way = ["busy", "pinned", "unknown"];
    let of_kind = |kind: &&str| counts[&format!("compact_obstacle_{kind}")];
    assert_eq!(in_the_way.iter().map(of_kind).sum::<u64>(), failed);
    assert!(of_kind(&"busy") > 500, "{counts:?}");
    check(manager);
}

/// Isolated memory is counted in pages, as in Linux, if runs have more than one page.
#[test]
fn isolated_pages_are_counted_and_not_runs() {
    let manager = machine();
    let order = Order::new(3).expect("an order");
    let handles = Box::leak(Box::new(Handles::new(manager, 1 << 16).expect("memory")));
    while handles.allocate(order).is_ok() {}
    let every_second: Vec<Handle> = handles.held().step_by(2).collect();
    every_second.iter().for_each(|&handle| handles.free(handle).expect("held"));
    manager.drain().expect("all in order");
    manager.moving().set_mover(Some(handles));
    assert_eq!(write(manager, ALL, "1"), Ok(()));
    let (counts, events) = (vmstat(manager), manager.moving().events());
    let (isolated, moved) = (counts["compact_isolated"], counts["pgmigrate_success"]);
    assert!(moved > 2000 && isolated == moved, "{isolated} {moved}");
    assert_eq!(isolated, events.begun_runs * order.pages());
    check(manager);
}

#[test]
fn wrong_text_and_nobody_who_moves() {
    let manager = machine();
    fill(manager);
    // There is no mover: pages in caches merge, and that is all.
    let before = whole(manager);
    for (path, text, expected) in [
        (ALL.to_owned(), "1", Ok(())),
        (ALL.to_owned(), "2", Err(FileError::Invalid)),
        (ALL.to_owned(), "-1", Err(FileError::Invalid)),
        (of_node(0), "1", Ok(())),
        (of_node(1), "0", Ok(())),
        (of_node(1), "yes", Ok(())),
        (of_node(1), "\n", Ok(())),
        (of_node(2), "1", Err(FileError::NotFound)),
    ] {
        assert_eq!(write(manager, &path, text), expected, "{path} {text:?}");
    }
    assert_eq!((vmstat(manager)["compact_isolated"], whole(manager)), (0, before));
    let table = manager.files();
    let read = FileSystem::new(&[&table]).read(&of_node(0), &mut String::new());
    assert_eq!(read, Err(FileError::NotPermitted));
}
