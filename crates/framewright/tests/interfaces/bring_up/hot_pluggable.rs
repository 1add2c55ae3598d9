//! Machines whose firmware says of all memory that it may be taken out, as Hyper-V does, and the
//! parameter `movable_node`.

use crate::common::{Fake, bring_up_with, check, gib, mib, parameters};
use framewright::units::{NodeId, PhysRange};
use framewright_testkit::{FakeMachine, FakeVmemmap};

/// The map of a WSL 2 guest of 8 GiB: holes in low memory, a gap below 4 GiB, and one hot-pluggable
/// affinity range a node.
fn hyper_v() -> &'static FakeMachine {
    let low = [
        (0, 0x9_fc00),
        (0x10_0000, 0xf1_0000),
        (0x100_0000, 0x1f0_0000),
        (0x200_0000, 0xf7ff_0000),
    ];
    let ram = low.map(|(start, end)| PhysRange::new(start, end));
    let machine = ram.into_iter().fold(FakeMachine::builder(), |machine, range| machine.ram(range));
    machine
        .ram(gib(4, 8))
        .hot_pluggable_node(gib(0, 4), 0)
        .hot_pluggable_node(gib(4, 8), 1)
        .cpus(2)
        .build()
}

fn tables(manager: &Fake) -> Vec<PhysRange> {
    manager
        .zones()
        .iter()
        .map(|zone| zone.table_memory())
        .filter(|tables| !tables.is_empty())
        .collect()
}

#[test]
fn a_machine_with_nothing_but_hot_pluggable_memory_boots() {
    for line in ["", "movable_node"] {
        let machine = hyper_v();
        FakeVmemmap::install_with(machine, true, false);
        let manager = bring_up_with(machine, &[], &parameters(line))
            .unwrap_or_else(|error| panic!("{error}"));
        manager.vmemmap().initialise_deferred(&framewright_jobs::NoHelpers);
        check(&manager);
        let totals = manager.totals();
        assert!(totals.free_pages > totals.present_pages / 100 * 97, "{totals:?}");
    }
}

#[test]
fn movable_node_keeps_tables_out_of_nodes_that_may_go() {
    let machine = || {
        FakeMachine::builder()
            .ram(gib(0, 2))
            .node(gib(0, 1), 0)
            .hot_pluggable_node(gib(1, 2), 1)
            .cpus(1)
            .build()
    };
    let may_go = |manager: &Fake| {
        tables(manager).iter().any(|tables| !tables.intersection(gib(1, 2)).is_empty())
    };
    let near = bring_up_with(machine(), &[], &parameters("")).expect("bring-up");
    let far = bring_up_with(machine(), &[], &parameters("movable_node")).expect("bring-up");
    assert!(may_go(&near) && !may_go(&far));
    let node_1 = NodeId::new(1).expect("a node");
    let reserved = |manager: &Fake| {
        let zones = manager.zones().iter().filter(|zone| zone.id().node == node_1);
        zones.map(|zone| zone.reserved_pages()).sum::<u64>()
    };
    assert!(reserved(&near) > 0);
    assert_eq!(reserved(&far), 0);
    // Where the rest has no room, they go there after all.
    let tight = FakeMachine::builder().ram(mib(0, 32)).ram(gib(1, 2)).node(mib(0, 1024), 0);
    let tight = tight.hot_pluggable_node(gib(1, 2), 1).cpus(1).build();
    let manager =
        bring_up_with(tight, &[mib(0, 32)], &parameters("movable_node")).expect("bring-up");
    assert!(may_go(&manager));
}

#[test]
fn movable_node_is_parsed_as_linux_does() {
    assert!(!parameters("").movable_node);
    assert!(parameters("movable_node").movable_node);
    let mut problems = 0;
    let parsed = framewright::Parameters::parse("movable_node=1", &mut |_| problems += 1);
    assert!(!parsed.movable_node && problems == 1);
}
