//! A CPU whose own node is full: its cache keeps frames of the node that serves it instead, for as
//! long as its own node is full and no longer.

use super::HERE;
use crate::common::{Fake, bring_up_with, check, is_careful, mib, parameters, settled};
use framewright::Request;
use framewright::manager::{InterleaveCursor, NumaPolicy};
use framewright::memblock::NodeChoice;
use framewright::parameters::Parameters;
use framewright::units::{NodeId, NodeMask, Order, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::MigrateType;
use framewright_testkit::{FakeMachine, Owner};

/// Node 0 with all CPUs but one, and node 1 with `other_mib` MiB.
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

/// Allocates all memory of node 0, the largest runs first.
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

fn give_all(manager: &Fake, ranges: impl IntoIterator<Item = PfnRange>) {
    ranges.into_iter().for_each(|range| manager.give_back(range).expect("allocated"));
}

/// Free pages in node 1's zones, not counting pages in caches.
fn free_there(manager: &Fake) -> u64 {
    let zones = manager.zones().iter().filter(|zone| zone.id().node == node(1));
    zones.map(|zone| zone.free_pages()).sum()
}

/// Returns whether runs of `pages` pages that CPU 0 frees stay in its cache, after the first two.
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
        // Debug aids check requests and frees on the way to the zone.
        return;
    }
    let manager = HERE.bring_up(machine(1024));
    manager.platform().run_on(0, || {
        let taken = fill_own(&manager);
        for pages in [1, 2, 3, 8, 64, 256, 280, 384, 512] {
            assert!(frees_are_cached(&manager, pages), "{pages} pages");
        }
        // A request for exactly the own node does not get frames of another node.
        let exact = Request { node: NodeChoice::Exact(node(0)), ..Request::pages(1) };
        assert!(manager.allocate(&exact).is_err());
        // The cache keeps at most an eighth of the other node, whatever comes and goes.
        let all: Vec<_> =
            core::iter::from_fn(|| manager.allocate(&Request::pages(4)).ok()).collect();
        give_all(&manager, all);
        let cached = manager.caches().pages();
        assert!(cached <= 1024 * 256 / 8, "{cached} pages are kept");
        give_all(&manager, taken);
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
        give_all(&manager, taken);
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
        give_all(&manager, taken);
    });
    assert_eq!(settled(&manager).allocated_pages, 0);
    check(&manager);
}

#[test]
fn a_request_for_the_own_node_alone_brings_no_frames_of_others() {
    if is_careful() {
        return;
    }
    let manager = HERE.bring_up(machine(1024));
    manager.platform().run_on(0, || {
        let exact = Request { node: NodeChoice::Exact(node(0)), ..Request::pages(1) };
        let (odd, even): (Vec<_>, Vec<_>) =
            core::iter::from_fn(|| manager.allocate(&exact).ok()).partition(|r| r.start.0 % 2 != 0);
        // No two pages side by side, though there are many.
        give_all(&manager, odd);
        manager.drain().expect("only good frames are cached");
        let free = free_there(&manager);
        let served = core::iter::from_fn(|| {
            let two = manager.allocate(&Request { pages: 2, ..exact }).ok();
            assert_eq!(free_there(&manager), free, "what is not wanted was brought");
            two
        });
        let served: Vec<_> = served.collect();
        give_all(&manager, even.into_iter().chain(served));
    });
    assert_eq!(settled(&manager).allocated_pages, 0);
    check(&manager);
}

/// An empty cache that keeps another node's frames still has to look at what is freed.
#[test]
fn who_asked_for_its_own_node_in_vain_comes_home() {
    if is_careful() {
        return;
    }
    let manager = HERE.bring_up(machine(1024));
    let machine = manager.platform();
    let page = || manager.allocate_order(Order::PAGE, MigrateType::Movable).expect("some");
    let give = |start| manager.give_back_order(start, Order::PAGE).expect("allocated");
    let (taken, pages) = machine.run_on(0, || {
        let taken = fill_own(&manager);
        // The cache gets words of 64 pages of the other node, and none is left in it. The first
        // block is full then.
        let mut pages = Vec::new();
        while pages.len() < 1000 || manager.caches().pages() != 0 {
            pages.push(page());
        }
        let exact = Request {
            node: NodeChoice::Exact(node(0)),
            fail_fast: true,
            ..Request::new(Order::PAGE)
        };
        assert!(manager.allocate(&exact).is_err());
        pages.drain(..2).for_each(give);
        (taken, pages)
    });
    machine.run_on(1, || give_all(&manager, taken));
    machine.run_on(0, || {
        let far = far_pairs_by_order(&manager);
        assert!(far < 100, "{far} pages of the other node");
        pages.into_iter().for_each(give);
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
        // Pages that the CPU allocates now tell the cache about that node again.
        let more: Vec<_> = (0..8).map(|_| take()).collect();
        give_all(&manager, held.into_iter().chain(more));
        let many: Vec<_> = (0..400).map(|_| take()).collect();
        for range in many {
            assert!(is_of_other(range), "{range:?}");
            assert_ne!(BlockNumber::containing(range.start), block, "it is isolated");
            manager.give_back(range).expect("allocated");
        }
        manager.isolation().unisolate(blocks).expect("it is isolated");
        give_all(&manager, taken);
    });
    assert_eq!(settled(&manager).allocated_pages, 0);
    check(&manager);
}

/// Counts how many of many pages, each allocated and freed at once by the calls for an order, are
/// the other node's.
fn far_pairs_by_order(manager: &Fake) -> usize {
    let is_far = |_: &u32| {
        let start = manager.allocate_order(Order::PAGE, MigrateType::Movable).expect("some");
        // SAFETY: allocated here just now.
        unsafe { manager.free_order(start, Order::PAGE) }.expect("allocated");
        is_of_other(PfnRange { start, end: start.add(1) })
    };
    (0..5000).filter(is_far).count()
}

/// The shortest path of a free does not look at the node of a frame.
#[test]
fn who_frees_into_the_word_that_comes_next_comes_home() {
    if is_careful() {
        return;
    }
    let machine = machine(1024);
    let manager = HERE.bring_up(machine);
    let taken = machine.run_on(0, || {
        let taken = fill_own(&manager);
        assert_eq!(far_pairs_by_order(&manager), 5000);
        taken
    });
    machine.run_on(1, || give_all(&manager, taken));
    machine.run_on(0, || {
        let far = far_pairs_by_order(&manager);
        assert!(far < 2500, "{far} pages of the other node");
        assert_eq!(far_pairs_by_order(&manager), 0);
    });
    check(&manager);
}

#[test]
fn who_frees_as_many_as_it_takes_comes_home() {
    if is_careful() {
        return;
    }
    comes_home(&HERE.bring_up(machine(1024)), &[1, 16, 24, 512], 0);
}

/// Each free is watched here, and does not take a shorter path.
#[test]
fn who_is_watched_comes_home() {
    if is_careful() {
        return;
    }
    let mut parameters = Parameters::default();
    parameters.page_owner = true;
    let manager = bring_up_with(machine(1024), &[], &parameters).expect("bring-up");
    comes_home(&manager, &[1, 16, 512], 0);
}

fn comes_home(manager: &Fake, sizes: &[u64], far_pairs: usize) {
    let machine = manager.platform();
    let taken = machine.run_on(0, || {
        let taken = fill_own(manager);
        for &pages in sizes {
            assert!(frees_are_cached(manager, pages), "{pages} pages");
        }
        taken
    });
    // Freed on CPU 1, so that the frames do not go through the cache of the CPU that is away.
    machine.run_on(1, || give_all(manager, taken));
    machine.run_on(0, || {
        for &pages in sizes {
            let is_far = |_: &u32| {
                let range = manager.allocate(&Request::pages(pages)).expect("there is memory");
                manager.give_back(range).expect("allocated");
                is_of_other(range)
            };
            // At most what the cache had of the other node.
            let far = (0..10_000).filter(is_far).count();
            assert!(far < 5000, "{far} times {pages} pages of the other node");
        }
        assert_eq!(far_pairs_by_order(manager), far_pairs, "none has come back");
    });
    check(manager);
}

#[test]
fn the_other_zone_of_the_own_node_ends_it_too() {
    if is_careful() {
        return;
    }
    let builder = FakeMachine::builder().ram(mib(16, 512)).ram(mib(4096, 4608));
    let machine = builder
        .ram(mib(8192, 9216))
        .cpus_on(0, 1)
        .cpus_on(1, 1)
        .node(mib(0, 5120), 0)
        .node(mib(8192, 9216), 1)
        .build();
    let manager = HERE.bring_up(machine);
    machine.run_on(0, || {
        let taken = fill_own(&manager);
        let take = || -> Vec<_> {
            let take = |_| manager.allocate_order(Order::BLOCK, MigrateType::Movable);
            (0..64).map(take).map(|block| block.expect("there is memory")).collect()
        };
        let other = take();
        assert!(other.iter().all(|block| block.address() >= 8 << 30));
        // Runs of more than a block, which bypass the caches.
        let low = |range: &&PfnRange| range.pages() > 512 && range.end.address() < 4 << 30;
        for &range in taken.iter().filter(low) {
            manager.give_back(range).expect("allocated");
        }
        take();
        assert!(take().iter().all(|block| block.address() < 4 << 30), "of the own node");
        let cached = manager.caches().pages();
        for block in other {
            manager.give_back_order(block, Order::BLOCK).expect("allocated");
        }
        assert_eq!(manager.caches().pages(), cached, "none is kept");
    });
    check(&manager);
}

#[test]
fn cpus_of_a_node_without_memory_count() {
    if is_careful() {
        return;
    }
    // 32 CPUs share node 0 as the nearest node with memory; one of them is on it.
    let machine = FakeMachine::builder()
        .ram(mib(0, 2048))
        .ram(mib(4096, 4160))
        .cpus_on(0, 1)
        .cpus_on(2, 31)
        .node(mib(0, 2048), 0)
        .node(mib(4096, 4160), 1)
        .distance(2, 0, 15)
        .build();
    let manager = HERE.bring_up(machine);
    machine.run_on(0, || fill_own(&manager));
    let managed_pages = free_there(&manager);
    for cpu in 0..32 {
        machine.run_on(cpu, || {
            for order in (0..=9).rev().filter_map(Order::new) {
                let request = Request { fail_fast: true, ..Request::new(order) };
                let some: Vec<_> =
                    (0..400).map_while(|_| manager.allocate(&request).ok()).collect();
                give_all(&manager, some);
            }
        });
    }
    // What a refill from another node's zone brings stays until it is used: one word per order.
    let cached = manager.caches().pages();
    assert!(cached <= managed_pages / 4, "{cached} of {managed_pages} are kept");
    check(&manager);
}

/// While the cache still has frames of the other node, requests that name the own node, which has
/// memory again, get frames of the own node.
#[test]
fn a_node_with_memory_again_serves_who_prefers_it() {
    let manager = bring_up_with(machine(1024), &[], &parameters("")).expect("bring-up");
    let taken = manager.platform().run_on(0, || {
        let taken = fill_own(&manager);
        let one = manager.allocate(&Request::new(Order::PAGE)).expect("node 1 has memory");
        manager.give_back(one).expect("allocated");
        // Each refill brings more.
        for _ in 0..2500 {
            manager.allocate(&Request::new(Order::PAGE)).expect("node 1 has memory");
        }
        taken
    });
    // Another CPU frees all of node 0, so that the first CPU's cache does not learn of it.
    manager.platform().run_on(3, || give_all(&manager, taken));
    manager.platform().run_on(0, || {
        let near = Request { node: NodeChoice::Preferred(node(0)), ..Request::new(Order::PAGE) };
        let only = NodeMask::only(node(0));
        let mut cursor = InterleaveCursor::START;
        for _ in 0..100 {
            let range = manager.allocate(&near).expect("there is memory");
            assert!(!is_of_other(range), "{range:?}");
            for policy in [NumaPolicy::preferred(node(0)), NumaPolicy::interleave(only)] {
                let placed =
                    manager.numa().allocate(&Request::new(Order::PAGE), &policy, &mut cursor);
                assert!(placed.expect("there is memory").is_hit(), "{policy:?}");
            }
        }
    });
    check(&manager);
}

/// While the own node is full, requests that prefer it come out of the cache, too.
#[test]
fn a_full_node_leaves_who_prefers_it_what_is_cached() {
    if is_careful() {
        return;
    }
    let manager = bring_up_with(machine(1024), &[], &parameters("")).expect("bring-up");
    manager.platform().run_on(0, || {
        let _taken = fill_own(&manager);
        let near = Request { node: NodeChoice::Preferred(node(0)), ..Request::new(Order::PAGE) };
        // Until something is freed, no cache is refilled.
        let one = manager.allocate(&Request::new(Order::PAGE)).expect("node 1 has memory");
        manager.give_back(one).expect("allocated");
        for _ in 0..3 {
            manager.allocate(&Request::new(Order::PAGE)).expect("node 1 has memory");
        }
        let before = free_there(&manager);
        for _ in 0..2 {
            assert!(is_of_other(manager.allocate(&near).expect("node 1 has memory")));
        }
        assert_eq!(free_there(&manager), before, "they came out of the cache");
    });
}

/// A cached run that lies above a request's highest address stays where it is, if it is of the own
/// node.
#[test]
fn what_is_too_high_stays_cached() {
    if is_careful() {
        return;
    }
    let manager = bring_up_with(machine(1024), &[], &parameters("")).expect("bring-up");
    manager.platform().run_on(0, || {
        let low = manager.allocate(&Request::new(Order::PAGE)).expect("there is memory");
        let high = manager.allocate(&Request::new(Order::PAGE)).expect("there is memory");
        assert!(low.start < high.start);
        manager.give_back(high).expect("allocated");
        let request = Request {
            node: NodeChoice::Preferred(node(0)),
            max_address: low.start.address(),
            ..Request::new(Order::PAGE)
        };
        let cached = manager.caches().pages();
        for _ in 0..3 {
            // The zone may have a page that low, or not.
            let _ = manager.allocate(&request);
        }
        assert_eq!(manager.caches().pages(), cached);
    });
}
