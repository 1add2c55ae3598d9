//! Tiers of memory: where pages go that make room on a node, and what the control files say. The
//! vectors are Linux's (`mm/memory-tiers.c`).

use super::HERE;
use super::policies::{machine, node, nodes, read};
use crate::common::Fake;
use framewright::manager::{Numa, PolicyError, tier};
use framewright::procfs::{FileError, FileSystem};
use framewright::units::NodeMask;
use framewright_testkit::FakeMachine;

/// Two sockets, and a CXL node near each: 2 to 0, 3 to 1.
fn sockets(cxl_of_first_mib: u64) -> Fake {
    let machine = machine(&[128, 128, cxl_of_first_mib, 128]);
    let machine = machine.distance(0, 1, 21).distance(0, 2, 14).distance(1, 3, 14);
    let manager = HERE.bring_up(machine.distance(0, 3, 24).distance(1, 2, 24).build());
    let slow = tier::tier_of(tier::UNKNOWN_DEVICE_DISTANCE);
    for index in [2, 3] {
        manager.numa().set_tier(node(index), slow).expect("a node");
    }
    manager
}

#[test]
fn pages_are_demoted_to_the_nearest_of_the_next_tier() {
    let manager = sockets(128);
    let numa = manager.numa();
    let targets = |numa: Numa<'_, FakeMachine>| {
        [0, 1, 2, 3].map(|index| numa.demotion_targets(node(index)).to_string())
    };
    assert_eq!(targets(numa), ["2", "3", "", ""]);
    assert_eq!(numa.demotion_allowed(node(0)), nodes("2-3"));
    // A node without memory is no target.
    let other = sockets(0);
    assert_eq!(targets(other.numa()), ["3", "3", "", ""]);
    // A tier between: it comes next, and all below it are allowed.
    numa.set_tier(node(1), 9).expect("a node");
    assert_eq!(targets(numa), ["1", "3", "", ""]);
    assert_eq!(numa.demotion_allowed(node(0)), nodes("1-3"));
    assert_eq!(numa.demotion_allowed(node(1)), nodes("2-3"));
    assert_eq!(numa.demotion_allowed(node(3)), NodeMask::EMPTY);
    // All that are equally near.
    let machine = machine(&[128, 128, 128, 128]);
    let alike = HERE.bring_up(machine.distance(0, 2, 14).distance(0, 3, 14).build());
    for index in [2, 3] {
        alike.numa().set_tier(node(index), 22).expect("a node");
    }
    assert_eq!(alike.numa().demotion_targets(node(0)), nodes("2-3"));
    assert_eq!(alike.numa().set_tier(node(4), 1), Err(PolicyError::NoNode(node(4))));
    assert_eq!(alike.numa().demotion_targets(node(63)), NodeMask::EMPTY);
}

#[test]
fn tiers_are_files() {
    let manager = sockets(128);
    let list = |of: u32| {
        read(&manager, &format!("/sys/devices/virtual/memory_tiering/memory_tier{of}/nodelist"))
    };
    assert_eq!((list(4).as_deref(), list(22).as_deref()), (Ok("0-1\n"), Ok("2-3\n")));
    assert_eq!((list(5), list(256)), (Err(FileError::NotFound), Err(FileError::NotFound)));
    manager.numa().set_tier(node(3), 5).expect("a node");
    assert_eq!((list(5).as_deref(), list(22).as_deref()), (Ok("3\n"), Ok("2\n")));
    let (table, mut names) = (manager.files(), Vec::new());
    FileSystem::new(&[&table])
        .list("/sys/devices/virtual/memory_tiering", &mut |name, _| names.push(name.to_owned()))
        .expect("a folder");
    assert_eq!(names, ["memory_tier22", "memory_tier4", "memory_tier5"]);
}
