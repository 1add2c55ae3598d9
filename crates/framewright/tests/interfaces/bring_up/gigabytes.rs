//! Pages of 1 GiB on the command line: the manager's own tables never break up a GiB that the
//! machine has whole.

use crate::common::{Fake, bring_up_with, check, gib, mib, parameters};
use framewright::firmware::{MemoryMap, Topology};
use framewright::units::{NodeId, PhysRange};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, FakeVmemmap};

/// A PC as QEMU makes it: 2 GiB of low memory with holes below 1 MiB and firmware's tables at its
/// end, the rest from 4 GiB on, and nodes that share it evenly.
fn pc(gibibytes: u64, nodes: u64) -> &'static FakeMachine {
    let share = gibibytes * 1024 / nodes;
    // Low memory is counted first, then what is above 4 GiB.
    let place = |start: u64, end: u64| {
        [mib(start.min(2048), end.min(2048)), mib(start.max(2048) + 2048, end.max(2048) + 2048)]
    };
    let low = [PhysRange::new(0, 0x9_fc00), PhysRange::new(0x10_0000, (2 << 30) - 0x2_1000)];
    let mut machine = FakeMachine::builder().ram(low[0]).ram(low[1]).ram(gib(4, gibibytes + 2));
    for node in 0..nodes {
        for part in place(node * share, (node + 1) * share) {
            machine = machine.node(part, usize::try_from(node).expect("small"));
        }
    }
    (0..nodes)
        .fold(machine, |machine, node| machine.cpus_on(usize::try_from(node).expect("small"), 1))
        .build()
}

/// Whole GiB that memory has, each within one range and one node: the most that there can be.
fn whole(map: MemoryMap<'_>, topology: &Topology<'_>, node: Option<usize>) -> u64 {
    let owned = |gibibyte: u64| {
        let range = gib(gibibyte, gibibyte + 1);
        let owner = topology.owner(range.start);
        map.ranges()
            .iter()
            .any(|entry| entry.kind.is_usable() && entry.range.intersection(range) == range)
            && owner.end >= range.end
            && node.is_none_or(|node| owner.node.index() == node)
    };
    (0..64).filter(|&gibibyte| owned(gibibyte)).count() as u64
}

/// Returns the free blocks of 1 GiB after bring-up, of all nodes or of one.
fn free(manager: &Fake, node: Option<usize>) -> u64 {
    let zones =
        manager.views().filter(|zone| node.is_none_or(|node| zone.id().node.index() == node));
    zones.map(|zone| u64::from(zone.free_blocks()[9])).sum()
}

fn up(machine: &'static FakeMachine, line: &str, policy: &str) -> Fake {
    if policy != "on-demand" {
        FakeVmemmap::install_with(machine, true, false);
    }
    let line = format!("{line} memmap_init={policy}");
    let manager =
        bring_up_with(machine, &[], &parameters(&line)).unwrap_or_else(|error| panic!("{error}"));
    manager.vmemmap().initialise_deferred(&NoHelpers);
    check(&manager);
    manager
}

#[test]
fn no_page_of_1_gib_is_lost_to_tables() {
    for (gibibytes, nodes, most) in [(4, 4, 2), (8, 4, 6), (8, 2, 6), (8, 1, 6), (12, 3, 10)] {
        let pages = || (pc(gibibytes, nodes), format!("hugepagesz=1G hugepages={most}"));
        for policy in ["on-demand", "eager", "deferred"] {
            let name = format!("{gibibytes} GiB, {nodes} nodes, {policy}");
            let (machine, line) = pages();
            assert_eq!(whole(machine.map(), machine.topology(), None), most, "{name}: the map");
            let manager = up(machine, &line, policy);
            assert_eq!(free(&manager, None), most, "{name}");
            let parameters = parameters(&line);
            let fill = manager.hugetlb().fill(&parameters, &NoHelpers);
            assert_eq!(fill.pools[1].got, most, "{name}: in the pool");
            check(&manager);
        }
    }
}

#[test]
fn tables_stay_near_unless_each_gib_counts() {
    let node_of =
        |manager: &Fake, range: PhysRange| manager.platform().topology().owner(range.start).node;
    let all_near = |manager: &Fake| {
        let tables = manager.zones().iter().filter(|zone| !zone.table_memory().is_empty());
        tables
            .map(|zone| (zone.id().node, zone.table_memory()))
            .all(|(node, range)| node_of(manager, range) == node)
    };
    // Node 1 has nothing but whole GiB: with the last of them wanted its tables go to node 0.
    let near = up(pc(8, 2), "hugepagesz=1G hugepages=3", "eager");
    assert!(all_near(&near));
    assert_eq!((free(&near, Some(0)), free(&near, Some(1))), (2, 3));
    let far = up(pc(8, 2), "hugepagesz=1G hugepages=1:4", "eager");
    assert!(!all_near(&far));
    assert_eq!((free(&far, Some(0)), free(&far, Some(1))), (2, 4));
    let named = up(pc(8, 2), "hugepagesz=1G hugepages=0:2", "eager");
    assert_eq!(free(&named, Some(0)), 2);
    // No page of 1 GiB is requested: low memory is left to requests that need it.
    let plain = up(pc(8, 2), "", "eager");
    assert!(all_near(&plain));
    let node_0 = NodeId::new(0).expect("a node");
    let high =
        plain.zones().iter().rev().find(|zone| zone.id().node == node_0).expect("it has memory");
    assert!(high.table_memory().start >= 4 << 30);
}

#[test]
fn what_does_not_fit_at_an_edge_goes_where_there_is_room() {
    // The edges are 64 KiB each.
    let ram = PhysRange::new((5 << 30) - (64 << 10), (8 << 30) + (64 << 10));
    let machine = FakeMachine::builder().ram(ram).cpus(1).build();
    let manager = up(machine, "hugepagesz=1G hugepages=3", "eager");
    assert_eq!(free(&manager, None), 2);
}
