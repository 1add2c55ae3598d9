//! `kernelcore=mirror`: mirrored memory is the kernel's.

use crate::common::{Fake, bring_up_with, check, gib, mib, parameters, retire};

use framewright::bootlog::{self, BootLog, Intake};
use framewright::firmware::MirrorNote;
use framewright::units::{NodeId, Order, PAGE_SIZE, Pfn, PhysRange};
use framewright::zone::{Grade, MigrateType};
use framewright::{BringUp, Manager, Parameters, Request};
use framewright_testkit::{FakeMachine, FakeVmemmap, Owner};
use std::fmt;

struct Lines(String);

impl BootLog for Lines {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        self.0 += &format!("{line}\n");
    }
}

/// Half a GiB below 4 GiB and [4, 8) GiB on node 0, [8, 12) GiB on node 1.
fn machine() -> &'static FakeMachine {
    FakeMachine::builder()
        .ram(PhysRange::new(0x1000, 0x9f000))
        .ram(mib(1, 512))
        .ram(gib(4, 8))
        .ram(gib(8, 12))
        .node(gib(0, 8), 0)
        .node(gib(8, 12), 1)
        .build()
}

fn up(machine: &'static FakeMachine, mirrored: &[PhysRange], line: &str) -> Fake {
    let mut early = machine.memblock(&[]);
    for &range in mirrored {
        early.mark_mirrored(range).expect("there is room");
    }
    let parameters = parameters(line);
    let input = BringUp { parameters: &parameters, started_ns: None };
    let manager = Manager::bring_up(early, &input).map_err(|failed| failed.error).expect("memory");
    manager.vmemmap().initialise_deferred(&framewright_jobs::NoHelpers);
    check(&manager);
    manager
}

fn log(machine: &FakeMachine, manager: &Fake, parameters: &Parameters) -> String {
    let mut lines = Lines(String::new());
    let (map, topology) = (machine.map(), machine.topology());
    bootlog::bring_up(&mut lines, &Intake { map, topology, parameters }, manager);
    lines.0
}

fn tables(manager: &Fake) -> Vec<PhysRange> {
    let tables = manager.zones().iter().map(|zone| zone.table_memory());
    tables.filter(|tables| !tables.is_empty()).collect()
}

fn starts(manager: &Fake) -> [Option<u64>; 2] {
    [0, 1].map(|node| {
        let node = NodeId::new(node).expect("a node");
        manager.moving().start_on_node(node).map(|start| start.0)
    })
}

fn grade(manager: &Fake, gib: u64) -> Option<Grade> {
    manager.moving().grade_of(Pfn(gib << 18))
}

#[test]
fn what_is_mirrored_is_the_kernels_and_the_rest_is_movable() {
    const ANY: Option<Grade> = Some(Grade::Any);
    const MOVABLE: Option<Grade> = Some(Grade::MovableOnly);
    for line in [
        "kernelcore=mirror",
        "kernelcore=mirror movablecore=1G memmap_init=eager",
        "kernelcore=mirror memmap_init=deferred",
        "kernelcore=mirror page_alloc.shuffle=1",
    ] {
        let machine = machine();
        if line.contains("memmap_init") {
            FakeVmemmap::install_with(machine, true, false);
        }
        // More memory above the start of node 0 is mirrored, with edges inside blocks and frames.
        let inner = PhysRange::new((6 << 30) - 0x12_3456, (7 << 30) + 0x10_0800);
        let mirrored = [gib(0, 4), gib(4, 5), inner, gib(8, 10)];
        let manager = up(machine, &mirrored, line);
        assert_eq!(starts(&manager), [Some(5 << 18), Some(10 << 18)], "{line}");
        let expected = [
            (0, ANY),
            (4, ANY),
            (5, MOVABLE),
            (6, ANY),
            // A block that is only partly mirrored is movable.
            (7, MOVABLE),
            (8, ANY),
            (9, ANY),
            (10, MOVABLE),
        ];
        for (at, expected) in expected {
            assert_eq!(grade(&manager, at), expected, "{line}: {at} GiB");
        }
        let last_of_6 = Pfn((7 << 18) - 1);
        assert_eq!(manager.moving().grade_of(last_of_6), ANY, "{line}");
        assert_eq!(manager.moving().grade_of(Pfn((6 << 18) - 1)), MOVABLE, "{line}");
        assert_eq!(manager.moving().mirror_note(), None, "{line}");
        assert_eq!(manager.moving().unmirrored_bytes(), 0, "{line}");
        // All memory that is not movable is mirrored, to the last block.
        let unmovable =
            Request { migrate_type: MigrateType::Unmovable, ..Request::new(Order::BLOCK) };
        let mut held = Vec::new();
        while let Ok(run) = manager.allocate(&unmovable) {
            let run_bytes = run.to_phys();
            let is_in = |range: &PhysRange| run_bytes.intersection(*range) == run_bytes;
            assert!(mirrored.iter().any(is_in), "{run:?}");
            held.push(run);
        }
        assert!(held.len() > 4 << 9, "{}", held.len());
        held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
        check(&manager);
        retire(&manager);
    }
}

#[test]
fn it_is_ignored_where_nothing_is_mirrored_and_says_so() {
    let line = parameters("kernelcore=mirror");
    let machine = machine();
    let manager = bring_up_with(machine, &[], &line).expect("bring-up");
    assert_eq!(starts(&manager), [None, None]);
    assert_eq!(manager.moving().mirror_note(), Some(MirrorNote::NoneMirrored));
    let said = log(machine, &manager, &line);
    assert!(
        said.contains("The system has no mirror memory, ignore kernelcore=mirror.\n"),
        "{said}"
    );
    // Mirrored memory alone, without the word on the command line, changes nothing.
    for other in ["", "kernelcore=4G", "movable_node kernelcore=mirror"] {
        let machine = self::machine();
        let manager = up(machine, &[gib(0, 6)], other);
        let without = bring_up_with(self::machine(), &[], &parameters(other)).expect("bring-up");
        assert_eq!(starts(&manager), starts(&without), "{other}");
        assert_eq!(manager.totals().reserved_pages, without.totals().reserved_pages, "{other}");
        assert_eq!(manager.moving().mirror_note(), None, "{other}");
        [manager, without].iter().for_each(retire);
    }
    // Nor does mirrored memory make the tables take apart GiBs that they would otherwise leave
    // whole.
    let places = |mirrored: &[PhysRange]| {
        let manager = up(self::machine(), mirrored, "hugepagesz=1G hugepages=8");
        let places = (tables(&manager), manager.totals());
        retire(&manager);
        places
    };
    assert_eq!(places(&[mib(4608, 5632), mib(9728, 10752)]), places(&[]));
}

#[test]
fn low_memory_that_is_not_mirrored_is_named() {
    let (machine, line) = (machine(), parameters("kernelcore=mirror"));
    let manager = up(machine, &[gib(4, 6), gib(8, 10)], "kernelcore=mirror");
    assert_eq!(starts(&manager), [Some(6 << 18), Some(10 << 18)]);
    assert_eq!(manager.moving().mirror_note(), Some(MirrorNote::LowUnmirrored));
    let said = log(machine, &manager, &line);
    assert!(said.contains("This configuration results in unmirrored kernel memory.\n"), "{said}");
    assert!(said.contains("  Node 1: 0x0000000280000000\n"), "{said}");
}

#[test]
fn tables_are_mirrored_as_long_as_there_is_room() {
    let safe = [gib(4, 6), gib(8, 10)];
    let manager = up(machine(), &safe, "kernelcore=mirror");
    for table in tables(&manager) {
        assert!(safe.iter().any(|range| table.intersection(*range) == table), "{table:?}");
    }
    retire(&manager);
    // One mirrored page has no room for the tables.
    let machine = machine();
    let manager = up(machine, &[PhysRange::with_size(8 << 30, PAGE_SIZE)], "kernelcore=mirror");
    let missed = manager.moving().unmirrored_bytes();
    assert!(missed > 0);
    let said = log(machine, &manager, &parameters("kernelcore=mirror"));
    let expected = format!("Could not allocate {missed} bytes of mirrored memory\n");
    assert!(said.contains(&expected), "{said}");
}
