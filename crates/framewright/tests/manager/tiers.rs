//! Memory tiers: where pages are demoted to make room on a node, and what the control files say.
//! The vectors are Linux's (`mm/memory-tiers.c`).

use super::HERE;
use super::policies::{machine, node, nodes, read};
use crate::common::{Fake, check};
use framewright::Request;
use framewright::manager::{Numa, PolicyError, tier};
use framewright::memblock::NodeChoice;
use framewright::procfs::{FileError, FileSystem};
use framewright::units::{NodeMask, Order};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::atomic::{AtomicBool, Ordering};

/// Two sockets with a CXL node near each: node 2 near node 0, node 3 near node 1.
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
    let of_tiers = [numa.tier(node(0)), numa.tier(node(2)), 9].map(|tier| numa.tier_nodes(tier));
    assert_eq!(of_tiers, [nodes("0-1"), nodes("2-3"), NodeMask::EMPTY]);
    assert_eq!(numa.demotion_allowed(node(0)), nodes("2-3"));
    // A node without memory is no target.
    let other = sockets(0);
    assert_eq!(targets(other.numa()), ["3", "3", "", ""]);
    assert_eq!(other.numa().tier_nodes(numa.tier(node(2))), nodes("3"));
    // A tier in between comes next, and all tiers below it are allowed.
    numa.set_tier(node(1), 9).expect("a node");
    assert_eq!(targets(numa), ["1", "3", "", ""]);
    assert_eq!(numa.demotion_allowed(node(0)), nodes("1-3"));
    assert_eq!(numa.demotion_allowed(node(1)), nodes("2-3"));
    assert_eq!(numa.demotion_allowed(node(3)), NodeMask::EMPTY);
    // All nodes that are equally near.
    let machine = machine(&[128, 128, 128, 128]);
    let alike = HERE.bring_up(machine.distance(0, 2, 14).distance(0, 3, 14).build());
    for index in [2, 3] {
        alike.numa().set_tier(node(index), 22).expect("a node");
    }
    assert_eq!(alike.numa().demotion_targets(node(0)), nodes("2-3"));
    assert_eq!(alike.numa().set_tier(node(4), 1), Err(PolicyError::NoNode(node(4))));
    assert_eq!(alike.numa().demotion_targets(node(63)), NodeMask::EMPTY);
}

fn orders(manager: &Fake) -> [Vec<usize>; 4] {
    [0, 1, 2, 3].map(|from| {
        manager.nodes()[from].fallback.iter().map(framewright::units::NodeId::index).collect()
    })
}

#[test]
fn requests_go_to_the_next_node_of_their_tier_before_a_nearer_one_that_is_slower() {
    let manager = sockets(128);
    assert_eq!(orders(&manager), [[0, 1, 2, 3], [1, 0, 3, 2], [2, 0, 1, 3], [3, 1, 0, 2]]);
    let request = Request { node: NodeChoice::Preferred(node(0)), ..Request::new(Order::BLOCK) };
    let (mut held, mut came) = (Vec::new(), Vec::new());
    while let Ok(block) = manager.allocate(&request) {
        let zone = manager.zones().iter().find(|zone| zone.span().contains(block.start));
        let from = zone.expect("a zone").id().node.index();
        if came.last() != Some(&from) {
            came.push(from);
        }
        held.push(block);
    }
    came.truncate(4);
    assert_eq!(came, [0, 1, 2, 3]);
    held.into_iter().for_each(|block| manager.give_back(block).expect("ours"));
    // A device in the tier of DRAM is sorted by its distance.
    manager.numa().set_tier(node(2), tier::DRAM_TIER).expect("a node");
    assert_eq!(orders(&manager), [[0, 2, 1, 3], [1, 0, 2, 3], [2, 0, 1, 3], [3, 1, 2, 0]]);
    check(&manager);
}

#[test]
fn with_one_tier_the_order_is_by_distance_and_comes_back() {
    // Nodes 2 and 3 have no CPUs, so they come first among equally near nodes.
    let manager = HERE.bring_up(machine(&[128, 128, 128, 128]).build());
    let usual = [[0, 2, 3, 1], [1, 2, 3, 0], [2, 3, 0, 1], [3, 2, 0, 1]];
    assert_eq!(orders(&manager), usual);
    let set = |tiers: [u8; 4]| {
        for (index, tier) in tiers.into_iter().enumerate() {
            manager.numa().set_tier(node(index), tier).expect("a node");
        }
        orders(&manager)
    };
    assert_eq!(set([4, 4, 22, 22]), [[0, 1, 2, 3], [1, 0, 2, 3], [2, 0, 1, 3], [3, 0, 1, 2]]);
    // A node that is faster than DRAM comes before it.
    assert_eq!(set([4, 4, 22, 2]), [[0, 3, 1, 2], [1, 3, 0, 2], [2, 3, 0, 1], [3, 0, 1, 2]]);
    for all in [4, 22, 0, 255] {
        assert_eq!(set([all; 4]), usual, "{all}");
    }
    // An unreachable node stays last.
    let far = machine(&[128, 128, 128, 128]).distance(0, 1, 255).build();
    let manager = HERE.bring_up(far);
    manager.numa().set_tier(node(2), 22).expect("a node");
    assert_eq!(orders(&manager)[0], [0, 3, 2, 1]);
}

/// A thread changes tiers, and only the last node has room, wherever it stands in the order.
#[test]
fn nobody_is_refused_while_tiers_change() {
    let manager = &HERE.bring_up(machine(&[16, 16, 16, 128]).build());
    let near = |from: usize| Request {
        node: NodeChoice::Preferred(node(from)),
        fail_fast: true,
        ..Request::new(Order::BLOCK)
    };
    let bound = |from: usize| Request { node: NodeChoice::Exact(node(from)), ..near(from) };
    for from in [0, 1, 2] {
        while manager.allocate(&bound(from)).is_ok() {}
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let changer = scope.spawn(|| {
            let mut turns = 0_u64;
            while !done.load(Ordering::Relaxed) {
                for (index, tier) in [(3, 22), (2, 0), (3, 0), (2, 22), (3, 4), (2, 4)] {
                    manager.numa().set_tier(node(index), tier).expect("a node");
                }
                turns += 1;
            }
            turns
        });
        for turn in 0..20_000 {
            let block = manager.allocate(&near(turn % 3));
            let block = block.unwrap_or_else(|error| panic!("{turn}: {error}"));
            manager.give_back(block).expect("ours");
        }
        done.store(true, Ordering::Relaxed);
        assert_ne!(changer.join().expect("no panic"), 0);
    });
    check(manager);
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
