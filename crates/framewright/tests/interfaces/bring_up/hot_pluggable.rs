//! Machines whose firmware marks all memory as hot-pluggable, as Hyper-V does, and the parameter
//! `movable_node`.

use crate::common::{Fake, bring_up_with, check, gib, mib, order, parameters, unmovable};
use framewright::units::{NodeId, Pfn, PhysRange};
use framewright::zone::Grade;
use framewright_testkit::{FakeMachine, FakeVmemmap};

fn node(index: usize) -> NodeId {
    NodeId::new(index).expect("a node")
}

/// The node where an unmovable block lies, which nobody may refuse.
fn unmovable_on(manager: &Fake) -> NodeId {
    let request = unmovable(order(9));
    let block = manager.allocate(&request).unwrap_or_else(|error| panic!("{error}"));
    let zone = manager.zones().iter().find(|zone| zone.span().contains(block.start));
    zone.expect("a zone").id().node
}

/// Where movable memory begins on the first two nodes, which the grades of their blocks bear out.
fn starts(manager: &Fake) -> [Option<Pfn>; 2] {
    let starts = [node(0), node(1)].map(|node| manager.moving().start_on_node(node));
    for zone in manager.zones() {
        let start = starts[zone.id().node.index()].unwrap_or(Pfn(u64::MAX));
        let last = Pfn(zone.span().end.0 - 1);
        let expected = if last >= start { Grade::MovableOnly } else { Grade::Any };
        assert_eq!(manager.moving().grade_of(last), Some(expected), "{:?}", zone.id());
    }
    starts
}

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
        if line.is_empty() {
            assert_eq!(starts(&manager), [None, None]);
        }
        let _ = unmovable_on(&manager);
    }
}

#[test]
fn a_machine_with_nothing_but_hot_pluggable_memory_has_unmovable_memory_where_the_kernel_is() {
    for has_vmemmap in [false, true] {
        let machine = hyper_v();
        if has_vmemmap {
            FakeVmemmap::install_with(machine, true, false);
        }
        let image = mib(16, 30);
        let movable_node = parameters("movable_node");
        let manager = bring_up_with(machine, &[image], &movable_node).expect("bring-up");
        manager.vmemmap().initialise_deferred(&framewright_jobs::NoHelpers);
        assert_eq!(starts(&manager), [None, Some(Pfn(1 << 20))]);
        assert_eq!(unmovable_on(&manager), node(0));
        // All memory of its node is the kernel's, not only the memory below a border.
        let free = |node_id| {
            let zones = manager.zones().iter().filter(move |zone| zone.id().node == node_id);
            zones.map(|zone| zone.free_pages()).sum::<u64>()
        };
        let (mine, far) = (free(node(0)), free(node(1)));
        while manager.allocate(&unmovable(order(9))).is_ok() {}
        assert!(free(node(0)) < mine / 50, "{} of {mine}", free(node(0)));
        assert_eq!(free(node(1)), far);
    }
}

/// Two nodes of 1 GiB that firmware marks as hot-pluggable. Frame 0 is no memory.
fn both_may_go() -> &'static FakeMachine {
    let machine = FakeMachine::builder().ram(gib(1, 3)).hot_pluggable_node(gib(1, 2), 0);
    machine.hot_pluggable_node(gib(2, 3), 1).cpus(1).build()
}

#[test]
fn the_node_that_holds_the_kernel_cannot_go() {
    let up = |reserved: &[PhysRange]| {
        bring_up_with(both_may_go(), reserved, &parameters("movable_node")).expect("bring-up")
    };
    let tables_are_in = |manager: &Fake, range: PhysRange| {
        tables(manager).iter().all(|tables| tables.intersection(range) == *tables)
    };
    let (image, initrd) = (mib(1024 + 16, 1024 + 32), mib(2048 + 64, 2048 + 65));
    // The manager's tables go where the image is.
    let manager = up(&[image]);
    assert_eq!(starts(&manager), [None, Some(Pfn(2 << 18))]);
    assert_eq!(unmovable_on(&manager), node(0));
    assert!(tables_are_in(&manager, gib(1, 2)));
    let manager = up(&[initrd]);
    assert_eq!(starts(&manager), [Some(Pfn(1 << 18)), None]);
    assert_eq!(unmovable_on(&manager), node(1));
    assert!(tables_are_in(&manager, gib(2, 3)));
    // Reservations on both nodes keep both nodes.
    assert_eq!(starts(&up(&[image, initrd])), [None, None]);
}

#[test]
fn where_movable_node_leaves_the_kernel_nothing_it_gets_less() {
    // Nothing is reserved except the manager's tables, which each node has.
    let manager = bring_up_with(both_may_go(), &[], &parameters("movable_node")).expect("bring-up");
    assert_eq!(starts(&manager), [None, None]);
    let _ = unmovable_on(&manager);
    // With one node there is no movable memory.
    let one = || FakeMachine::builder().ram(gib(1, 2)).hot_pluggable_node(gib(1, 2), 0).cpus(1);
    let manager = bring_up_with(one().build(), &[], &parameters("movable_node")).expect("bring-up");
    assert_eq!(starts(&manager), [None, None]);
    assert_eq!(unmovable_on(&manager), node(0));
}

#[test]
fn movable_memory_leaves_the_kernel_as_much_as_it_needs_to_start() {
    let (mut with, mut without) = (0, 0);
    for free_mib in [1, 2, 4, 8, 15, 17, 24, 32] {
        let machine = FakeMachine::builder().ram(mib(0, 64)).ram(gib(1, 2)).node(mib(0, 1024), 0);
        let machine = machine.hot_pluggable_node(gib(1, 2), 1).cpus(1).build();
        let image = mib(0, 64 - free_mib);
        let manager =
            bring_up_with(machine, &[image], &parameters("movable_node")).expect("bring-up");
        // The manager's tables are on node 0, so they are no reason for node 1 to stay.
        assert!(tables(&manager).iter().all(|tables| tables.end <= mib(0, 64).end));
        match starts(&manager) {
            [None, None] => without += 1,
            [None, Some(_)] => with += 1,
            starts => panic!("{starts:?}"),
        }
        for _ in 0..256 {
            let page = manager.allocate(&unmovable(order(0)));
            page.unwrap_or_else(|error| panic!("{free_mib} MiB free: {error}"));
        }
    }
    assert_eq!((without, with), (5, 3));
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
    let reserved = |manager: &Fake| {
        let zones = manager.zones().iter().filter(|zone| zone.id().node == node(1));
        zones.map(|zone| zone.reserved_pages()).sum::<u64>()
    };
    assert!(reserved(&near) > 0);
    assert_eq!(reserved(&far), 0);
    // If other memory has no room, the tables go there after all.
    let tight = FakeMachine::builder().ram(mib(0, 32)).ram(gib(1, 2)).node(mib(0, 1024), 0);
    let tight = tight.hot_pluggable_node(gib(1, 2), 1).cpus(1).build();
    let manager =
        bring_up_with(tight, &[mib(0, 32)], &parameters("movable_node")).expect("bring-up");
    assert!(may_go(&manager));
    assert_eq!(starts(&manager), [None, None], "the kernel has nothing else");
    assert_eq!(unmovable_on(&manager), node(1));
}

#[test]
fn movable_node_is_parsed_as_linux_does() {
    assert!(!parameters("").movable_node);
    assert!(parameters("movable_node").movable_node);
    let mut problems = 0;
    let parsed = framewright::Parameters::parse("movable_node=1", &mut |_| problems += 1);
    assert!(!parsed.movable_node && problems == 1);
}
