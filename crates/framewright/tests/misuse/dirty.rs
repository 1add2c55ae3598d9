//! Memory that was never cleared: whatever it holds, and whichever system used it before, each
//! frame is handed out once.

use crate::common::{Fake, bring_up_with, check, gib, mib, order, parameters};
use framewright::units::{Order, Pfn, PfnRange, PhysRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::MigrateType;
use framewright::{AllocateError, Manager};
use framewright_jobs::NoHelpers;
use framewright_testkit::machine::PATTERNS;
use framewright_testkit::{FakeMachine, FakeVmemmap, Owner, Traffic};
use std::collections::BTreeMap;

const GIB: u64 = 1 << 18;

/// Counts how many pages of a GiB can be allocated at a fixed place, one by one and in runs of each
/// order.
fn had(manager: &Fake, start: u64) -> usize {
    let at =
        |pfn: u64, of: u8| manager.allocate_at(Pfn(pfn), order(of), MigrateType::Movable).is_ok();
    let runs = (1..=18)
        .flat_map(|of: u8| (start..start + GIB).step_by(1 << of.max(9)).map(move |pfn| (pfn, of)));
    runs.filter(|&(pfn, of)| at(pfn, of)).count()
        + (start..start + GIB).step_by(3).filter(|&pfn| at(pfn, 0)).count()
}

/// No part of a GiB that is in use as one run is handed out again, although all but the first of
/// its entries were never written.
#[test]
fn nothing_of_a_gib_that_is_in_use_is_handed_out_again() {
    for pattern in PATTERNS {
        let machine = FakeMachine::builder().ram(gib(0, 8)).pattern(pattern).build();
        let manager = bring_up_with(machine, &[gib(2, 3)], &parameters("")).expect("bring-up");
        let taken =
            manager.allocate_at(Pfn(6 * GIB), Order::MAX, MigrateType::Movable).expect("free");
        for start in [2 * GIB, 6 * GIB] {
            assert_eq!(had(&manager, start), 0, "pattern {pattern:#x}, GiB {}", start / GIB);
            check(&manager);
            for block in
                (start / 512..(start + GIB) / 512).map(|block| u32::try_from(block).expect("small"))
            {
                let state = manager.block_state(BlockNumber(block)).expect("its head's");
                assert_eq!(state.order(), Order::MAX, "pattern {pattern:#x}, block {block}");
            }
            assert!(
                start != 2 * GIB
                    || manager.give_back(PfnRange::new(start + 700, start + 800)).is_err()
            );
        }
        manager.give_back(taken).expect("allocated");
        check(&manager);
        // SAFETY: the manager is no longer used.
        unsafe { machine.retire() };
    }
}

#[test]
fn withheld_memory_comes_up_when_it_is_asked_for_by_place() {
    for pattern in PATTERNS {
        let machine = FakeMachine::builder().ram(gib(0, 8)).pattern(pattern).build();
        FakeVmemmap::install(machine);
        let manager =
            bring_up_with(machine, &[], &parameters("memmap_init=deferred")).expect("bring-up");
        let withheld = manager.totals().deferred_pages;
        let taken =
            |pfn, of| manager.allocate_at(Pfn(pfn), order(of), MigrateType::Movable).expect("free");
        let held =
            [taken(5 * GIB + 1000, 0), taken(5 * GIB + 40 * 512, 3), taken(6 * GIB + 512, 9)];
        // Each request was served from memory that was brought up before, a section of 128 MiB at a
        // time.
        assert_eq!(manager.totals().deferred_pages, withheld - 2 * 32768, "pattern {pattern:#x}");
        check(&manager);
        manager.vmemmap().initialise_deferred(&NoHelpers);
        check(&manager);
        held.into_iter().for_each(|range| manager.give_back(range).expect("allocated"));
        check(&manager);
        // SAFETY: the manager is no longer used.
        unsafe { machine.retire() };
    }
}

/// Makes random requests of all kinds, each checked against all runs that are held; ends with some
/// runs held.
fn random_places(manager: &Fake, ranges: &[PhysRange], seed: u64) {
    let mut seed = seed;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut held: BTreeMap<u64, u64> = BTreeMap::new();
    let mut isolated: Vec<BlockRange> = Vec::new();
    for round in 0..2500 {
        let range = ranges[usize::try_from(random(ranges.len() as u64)).expect("small")];
        let of =
            order([0, 0, 1, 3, 6, 8, 9, 9, 12, 18][usize::try_from(random(10)).expect("small")]);
        let place = Pfn((range.start / 4096 + random(range.size() / 4096)) & !(of.pages() - 1));
        let kind = MigrateType::ALL[usize::try_from(random(3)).expect("small")];
        let taken = match random(8) {
            0..3 => manager.allocate_at(place, of, kind),
            3..5 => manager
                .allocate_order(of, kind)
                .map(|start| PfnRange::new(start.0, start.0 + of.pages())),
            5 => {
                let block = BlockNumber::containing(place).0;
                let blocks =
                    BlockRange::new(block, block + 1 + u32::try_from(random(80)).expect("small"));
                match isolated.pop() {
                    Some(before) => manager.isolation().unisolate(before).expect("isolated"),
                    None => isolated
                        .extend(manager.isolation().isolate(blocks).is_ok().then_some(blocks)),
                }
                continue;
            }
            _ => {
                if let Some((&start, &pages)) =
                    held.range(place.0..).next().filter(|_| random(3) != 0)
                {
                    let keep = random(2) * (pages / 2);
                    manager.give_back(PfnRange::new(start + keep, start + pages)).expect("held");
                    held.remove(&start);
                    held.extend((keep != 0).then_some((start, keep)));
                }
                continue;
            }
        };
        if let Ok(taken) = taken {
            let next = held.range(taken.start.0..).next().map_or(u64::MAX, |(&start, _)| start);
            let before =
                held.range(..taken.start.0).next_back().map_or(0, |(&start, &pages)| start + pages);
            assert!(
                before <= taken.start.0 && taken.end.0 <= next,
                "{taken:?} was held, round {round}"
            );
            let blocks = BlockNumber::containing(taken.start)
                ..BlockNumber(taken.end.0.div_ceil(512).try_into().expect("small"));
            let is_isolated =
                isolated.iter().any(|range| range.start < blocks.end && blocks.start < range.end);
            assert!(!is_isolated, "{taken:?} is isolated, round {round}");
            held.insert(taken.start.0, taken.pages());
        }
        if round % 500 == 0 {
            check(manager);
        }
    }
    isolated.into_iter().for_each(|range| manager.isolation().unisolate(range).expect("isolated"));
    check(manager);
}

/// One manager after another over one memory, each after traffic of several CPUs on the previous
/// one, with every way to keep descriptors.
#[test]
fn a_manager_comes_up_over_what_another_left() {
    let lines = [
        "pages=none",
        "pages=inside",
        "memmap_init=eager",
        "memmap_init=deferred",
        "memmap_init=on-demand page_owner=on",
    ];
    for (line, seed) in lines.into_iter().zip(1..) {
        let ranges =
            [mib(1, 3072), gib(4, 7), PhysRange::new((9 << 30) + 0x7000, (10 << 30) + 0x123_4000)];
        let builder = ranges
            .iter()
            .fold(FakeMachine::builder().cpus(3), |machine, &range| machine.ram(range));
        let mut machine = builder.clone().build();
        for life in 0..3 {
            if life != 0 {
                // SAFETY: the manager of the life before is not used any more.
                machine = unsafe { builder.clone().over(machine) }.build();
            }
            if line.starts_with("memmap") {
                FakeVmemmap::install(machine);
            }
            // Each time another range is kept from the manager, so that tables lie elsewhere.
            let kept = gib(9 + 20 * u64::from(life == 0), 10 + 20 * u64::from(life == 0));
            let reserved = [if life == 2 { gib(5, 6) } else { kept }];
            let manager: Fake =
                bring_up_with(machine, &reserved, &parameters(line)).expect("bring-up");
            random_places(&manager, &ranges, seed * 1000 + life);
            if life == 1 {
                let manager: &Manager<_> = &manager;
                let traffic = Traffic { threads: 2, seed, held: 40, operations: 3000 };
                let (tally, _) = traffic.run(manager, &|rounds| rounds < 2).expect("sound");
                assert!(tally.allocations > 0);
            }
            let refused = manager.allocate_at(Pfn(5 * GIB + 77), Order::PAGE, MigrateType::Movable);
            assert!(life != 2 || matches!(refused, Err(AllocateError::NotFree(_))));
        }
        // SAFETY: no manager is used any more.
        unsafe { machine.retire() };
    }
}
