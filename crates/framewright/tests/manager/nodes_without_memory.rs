//! Nodes without memory, and memory out of reach: which node is preferred, and which zone is the
//! highest that will do.

use crate::common::{Fake, bring_up_with, check, gib, mib, parameters};
use crate::policies::{machine, node, nodes};
use framewright::manager::{InterleaveCursor, NumaPolicy, PolicyError, PolicyMode};
use framewright::memblock::NodeChoice;
use framewright::units::{NodeMask, Order, Pfn, PfnRange};
use framewright::zone::ZoneKind;
use framewright::{AllocateError, Request};
use framewright_testkit::{FakeMachine, Owner};

fn up(machine: &'static FakeMachine) -> &'static Fake {
    let manager = bring_up_with(machine, &[], &parameters("min_free_kbytes=1024"));
    Box::leak(Box::new(manager.expect("bring-up")))
}

#[test]
fn the_first_node_that_has_memory_is_preferred() {
    let manager = up(machine(&[128, 128, 0, 128]).build());
    let mut cursor = InterleaveCursor::START;
    let mut wanted = |list: &str| {
        let policy = NumaPolicy::new(PolicyMode::Preferred, nodes(list)).expect("a set");
        let placed = manager.numa().allocate(&Request::pages(1), &policy, &mut cursor);
        placed.map(|placed| {
            manager.give_back(placed.range).expect("ours");
            placed.wanted
        })
    };
    for (list, index) in [("2-3", 3), ("1,3", 1), ("3,9", 3), ("2", 2), ("2,9", 2)] {
        assert_eq!(wanted(list), Ok(node(index)), "{list}");
    }
    assert_eq!(wanted("9"), Err(PolicyError::Request(AllocateError::NoNode(node(9)))));
    let policy = NumaPolicy::new(PolicyMode::Preferred, NodeMask::ALL).expect("a set");
    let mut pages = [Pfn(0); 3];
    let placed = manager.numa().allocate_bulk(&Request::pages(1), &policy, &mut cursor, &mut pages);
    assert!(placed.is_ok());
    for page in pages {
        assert_eq!(manager.numa().zone_of(page).expect("memory").node, node(0));
        manager.give_back(PfnRange::of_order(page, Order::PAGE)).expect("ours");
    }
    check(manager);
}

/// Only a policy that chooses has nothing to choose.
#[test]
fn the_default_policy_serves_requests_for_one_node() {
    let manager = up(machine(&[128, 128]).build());
    let mut cursor = InterleaveCursor::START;
    let exact = Request { node: NodeChoice::Exact(node(1)), ..Request::pages(1) };
    let mut by = |policy: &NumaPolicy<'_>| manager.numa().allocate(&exact, policy, &mut cursor);
    let placed = by(&NumaPolicy::DEFAULT).expect("memory");
    assert_eq!((placed.wanted, placed.node()), (node(1), node(1)));
    manager.give_back(placed.range).expect("ours");
    for policy in [NumaPolicy::LOCAL, NumaPolicy::bind(nodes("1")), NumaPolicy::preferred(node(1))]
    {
        assert_eq!(by(&policy), Err(PolicyError::NodeNamed(node(1))));
    }
    check(manager);
}

/// Memory that is kept from requests for higher zones is not kept from a request that these zones
/// cannot serve: the address limit says as much as the zone.
#[test]
fn an_address_limit_lowers_the_zone() {
    let machine = FakeMachine::builder().ram(mib(16, 80)).ram(gib(4, 36));
    let manager = up(machine.build());
    let free = |limit: u64, zone| {
        let limited = Request { max_address: limit, zone, ..Request::pages(1) };
        let held: Vec<_> = std::iter::from_fn(|| manager.allocate(&limited).ok()).collect();
        let count = held.len();
        held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
        count
    };
    let by_zone = free(u64::MAX, ZoneKind::Dma32);
    assert!(by_zone > 10_000, "{by_zone}");
    assert_eq!(free(1 << 32, ZoneKind::Normal), by_zone);
    assert_eq!(free(1 << 24, ZoneKind::Normal), 0);
    check(manager);
}
