//! A machine with as many nodes as possible.

use framewright::firmware::{MapBuilder, MapRange, MemoryAffinity, Topology};
use framewright::hugetlb::PoolSize;
use framewright::manager::Budget;
use framewright::memblock::{Memblock, MemblockStorage, NodeChoice};
use framewright::units::{MAX_NODES, NodeId, NodeMask, Order, PhysRange};
use framewright::zone::Grade;
use framewright::{BringUp, Manager, Parameters, Request};
use framewright_hosted::{HostedPlatform, Machine};
use framewright_jobs::NoHelpers;
use framewright_testkit::Owner;

const GIB: u64 = 1 << 30;

fn node(index: usize) -> NodeId {
    NodeId::new(index).expect("a node")
}

/// Creates nodes of 16 MiB; their distance grows with the difference of their numbers, up to 254.
fn with_manager(command_line: &str, body: impl FnOnce(&Manager<HostedPlatform>, PhysRange)) {
    let machine = Machine::synthetic(16 * GIB, 1024, 4).expect("a machine");
    let last = machine.affinities.iter().rfind(|affinity| affinity.node == 1023).expect("a node");
    let last = last.range;
    let (mut ranges, mut claims) = (machine.map_storage(), machine.topology_storage());
    ranges.resize(ranges.len() + 16, MapRange::EMPTY);
    claims.push(MemoryAffinity::EMPTY);
    let mut distances = vec![0; MAX_NODES * MAX_NODES];
    let mut map = MapBuilder::new(&mut ranges);
    let mut topology = Topology::new(&mut claims).with_distances(&mut distances);
    machine.load(&mut map, &mut topology).expect("it fits");
    for from in 0..MAX_NODES {
        for to in (0..MAX_NODES).filter(|&to| to != from) {
            let distance = u8::try_from((10 + from.abs_diff(to)).min(254)).expect("small");
            topology.set_distance(node(from), node(to), distance).expect("a distance");
        }
    }
    let whole = map.finish().expect("a map");
    let platform = HostedPlatform::open(whole, 4).expect("a platform");
    let platform = platform.with_cpu_nodes(&machine.cpu_nodes()).leak();
    let mut parameters = Parameters::parse(command_line, &mut |problem| panic!("{problem:?}"));
    let mut ranges = machine.map_storage();
    ranges.resize(ranges.len() + 16, MapRange::EMPTY);
    let mut map = MapBuilder::new(&mut ranges);
    for entry in &machine.ranges {
        map.add(entry.range.start, entry.range.size(), entry.kind).expect("room");
    }
    parameters.apply(&mut map).expect("applied");
    parameters.memory_limit = None;
    let map = map.finish().expect("a map");
    let mut storage = MemblockStorage::new();
    // SAFETY: the platform's memory is there for this machine alone, and nothing lies in it
    // (invariant 1).
    let early = unsafe { Memblock::new(platform, &mut storage, map, &topology) }.expect("early");
    let input = BringUp { parameters: &parameters, started_ns: None };
    body(&Manager::bring_up(early, &input).expect("bring-up"), last);
}

#[test]
fn every_node_serves_and_the_nearest_helps_out() {
    with_manager("", |manager, _| {
        assert_eq!(manager.nodes().len(), MAX_NODES);
        let mut held = Vec::new();
        for index in 0..MAX_NODES {
            let request =
                Request { node: NodeChoice::Exact(node(index)), ..Request::new(Order::PAGE) };
            let page = manager.allocate(&request).expect("every node has some");
            assert_eq!(manager.numa().zone_of(page.start).map(|zone| zone.node), Some(node(index)));
            held.push(page);
        }
        for from in [0, 63, 64, 511, 1023] {
            let list: Vec<usize> =
                manager.nodes()[from].fallback.iter().map(NodeId::index).collect();
            assert_eq!(list.len(), MAX_NODES);
            assert_eq!(list[0], from);
            let far = |&to: &usize| from.abs_diff(to).min(244);
            assert!(list.is_sorted_by_key(far), "{from}: {list:?}");
        }
        // Node 512 is used up; a neighbour serves the request instead.
        let full = node(512);
        let exact = Request { node: NodeChoice::Exact(full), ..Request::new(Order::PAGE) };
        while let Ok(page) = manager.allocate(&exact) {
            held.push(page);
        }
        let near = Request { node: NodeChoice::Preferred(full), ..exact };
        let page = manager.allocate(&near).expect("the neighbour has some");
        let found = manager.numa().zone_of(page.start).expect("a zone").node.index();
        assert_eq!(found.abs_diff(512), 1);
        held.push(page);
        held.into_iter().for_each(|page| manager.give_back(page).expect("it is held"));
        manager.verify().expect("in order");
    });
}

#[test]
fn pools_have_pages_on_every_node() {
    with_manager("", |manager, _| {
        let pool = manager.pool(PoolSize::TwoMib);
        let got = pool.resize_within(1024, NodeMask::ALL, &NoHelpers).expect("nobody resizes");
        assert_eq!(pool.counts().all.nr, 1024, "{got:?}");
        for index in [0, 1, 63, 64, 1023] {
            assert_eq!(pool.node_counts(node(index)).expect("a node").nr, 1, "node {index}");
        }
        pool.resize_within(0, NodeMask::ALL, &NoHelpers).expect("nobody resizes");
        assert_eq!(pool.counts().all.nr, 0);
        manager.verify().expect("in order");
    });
}

#[test]
fn the_last_node_comes_and_goes() {
    with_manager("mem=16368M hotplug_windows=4", |manager, last| {
        let exact = Request { node: NodeChoice::Exact(node(1023)), ..Request::new(Order::PAGE) };
        assert!(manager.allocate(&exact).is_err(), "it has no memory yet");
        // SAFETY: the platform has this memory, and the manager was not told of it.
        let added = unsafe { manager.hotplug().add(last, node(1023), Grade::MovableOnly) };
        added.expect("it can be added");
        let movable = Request { migrate_type: framewright::zone::MigrateType::Movable, ..exact };
        let page = manager.allocate(&movable).expect("it has memory now");
        assert!(last.intersection(page.to_phys()) == page.to_phys(), "{page:?}");
        assert_eq!(manager.nodes()[1023].fallback.iter().next(), Some(node(1023)));
        assert!(manager.nodes()[0].fallback.iter().any(|other| other == node(1023)));
        manager.give_back(page).expect("it is held");
        // SAFETY: nobody looks at descriptors meanwhile.
        let removed = unsafe { manager.hotplug().remove(last, Budget::UNLIMITED) };
        removed.expect("it is free");
        assert!(manager.allocate(&movable).is_err(), "it has gone");
        manager.verify().expect("in order");
    });
}
