//! A CPU whose own node is full: its cache keeps frames of the node that serves it instead, for as
//! long as that lasts and no longer.

use super::HERE;
use crate::common::{Fake, check, is_careful, mib, settled};
use framewright::Request;
use framewright::memblock::NodeChoice;
use framewright::units::{NodeId, Order, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::MigrateType;
use framewright_testkit::{FakeMachine, Owner};

/// Node 0 with all CPUs but one, and node 1 with so many MiB.
fn machine(other_mib: u64) -> &'static FakeMachine {
    FakeMachine::builder()
        .ram(mib(0, 1024))
        .ram(mib(4096, 4096 + other_mib))
        .cpus_on(0, 3)
        .cpus_on(1, 1)
        .node(mib(0, 1024), 0)
        .node(mib(4096, 4096 + other_mib), 1)
        .build()
}

fn node(number: usize) -> NodeId {
    NodeId::new(number).expect("a node")
}

fn is_of_other(range: PfnRange) -> bool {
    range.start.address() >= 4 << 30
}

/// Takes all of node 0, the largest runs first.
fn fill_own(manager: &Fake) -> Vec<PfnRange> {
    let mut taken = Vec::new();
    for order in (0..=Order::MAX.get()).rev().filter_map(Order::new) {
        let request = Request { node: NodeChoice::Exact(node(0)), ..Request::new(order) };
        while let Ok(range) = manager.allocate(&request) {
            taken.push(range);
        }
    }
    taken
}

/// Free pages of node 1's zones, which what a cache keeps is none of.
fn free_there(manager: &Fake) -> u64 {
    let zones = manager.zones().iter().filter(|zone| zone.id().node == node(1));
    zones.map(|zone| zone.free_pages()).sum()
}

/// Whether what is freed on CPU 0 is in its cache then, of so many pages each, after the first two.
fn frees_are_cached(manager: &Fake, pages: u64) -> bool {
    let is_cached = || {
        let range = manager.allocate(&Request::pages(pages)).expect("the other node has some");
        assert!(is_of_other(range), "{range:?}");
        let before = manager.caches().pages();
        manager.give_back(range).expect("allocated");
        manager.caches().pages() == before + pages
    };
    is_cached();
    is_cached();
    (0..20).all(|_| is_cached())
}

#[test]
fn frames_of_another_node_are_kept_while_the_own_is_full() {
    if is_careful() {
        // Debug aids look at requests and frees on the way to the zone.
        return;
    }
    let manager = HERE.bring_up(machine(1024));
    manager.platform().run_on(0, || {
        let taken = fill_own(&manager);
        for pages in [1, 2, 3, 8, 64, 256, 280, 384, 512] {
            assert!(frees_are_cached(&manager, pages), "{pages} pages");
        }
        // Frames of another node are nobody's who wants his own only.
        let exact = Request { node: NodeChoice::Exact(node(0)), ..Request::pages(1) };
        assert!(manager.allocate(&exact).is_err());
        // No more than an eighth of that node, whatever comes and goes.
        let all: Vec<_> =
            core::iter::from_fn(|| manager.allocate(&Request::pages(4)).ok()).collect();
        all.into_iter().for_each(|range| manager.give_back(range).expect("allocated"));
        let cached = manager.caches().pages();
        assert!(cached <= 1024 * 256 / 8, "{cached} pages are kept");
        taken.into_iter().for_each(|range| manager.give_back(range).expect("allocated"));
        check(&manager);
    });
    assert_eq!(settled(&manager).allocated_pages, 0);
    check(&manager);
}

#[test]
fn frames_of_another_node_go_back_once_the_own_has_memory() {
    if is_careful() {
        return;
    }
    let manager = HERE.bring_up(machine(1024));
    manager.platform().run_on(0, || {
        let taken = fill_own(&manager);
        let other: Vec<_> = (0..64)
            .map(|_| manager.allocate_order(Order::BLOCK, MigrateType::Movable))
            .map(|block| block.expect("the other node has some"))
            .collect();
        taken.into_iter().for_each(|range| manager.give_back(range).expect("allocated"));
        manager.drain().expect("only good frames are cached");
        manager.allocate(&Request::pages(1)).expect("the own node has some");
        let free = free_there(&manager);
        for block in other {
            manager.give_back_order(block, Order::BLOCK).expect("allocated");
        }
        assert_eq!(free_there(&manager), free + 64 * 512, "none is kept");
    });
}

#[test]
fn frames_of_a_node_that_is_too_small_are_not_kept() {
    if is_careful() {
        return;
    }
    let manager = HERE.bring_up(machine(64));
    manager.platform().run_on(0, || {
        let taken = fill_own(&manager);
        assert!(!frees_are_cached(&manager, 512), "three CPUs could keep all of it");
        taken.into_iter().for_each(|range| manager.give_back(range).expect("allocated"));
    });
    assert_eq!(settled(&manager).allocated_pages, 0);
    check(&manager);
}

#[test]
fn isolated_frames_of_another_node_are_not_kept() {
    let manager = HERE.bring_up(machine(1024));
    manager.platform().run_on(0, || {
        let taken = fill_own(&manager);
        let take = || manager.allocate(&Request::pages(32)).expect("the other node has some");
        let held: Vec<_> = (0..8).map(|_| take()).collect();
        let block = BlockNumber::containing(held[0].start);
        let blocks = BlockRange::new(block.0, block.0 + 1);
        manager.isolation().isolate(blocks).expect("it is there");
        assert_eq!(manager.caches().pages(), 0, "what a cache had might have been of the block");
        // Those that it takes now tell the cache of that node again.
        let more: Vec<_> = (0..8).map(|_| take()).collect();
        for range in held.into_iter().chain(more) {
            manager.give_back(range).expect("allocated");
        }
        let many: Vec<_> = (0..400).map(|_| take()).collect();
        for range in many {
            assert!(is_of_other(range), "{range:?}");
            assert_ne!(BlockNumber::containing(range.start), block, "it is isolated");
            manager.give_back(range).expect("allocated");
        }
        manager.isolation().unisolate(blocks).expect("it is isolated");
        taken.into_iter().for_each(|range| manager.give_back(range).expect("allocated"));
    });
    assert_eq!(settled(&manager).allocated_pages, 0);
    check(&manager);
}
