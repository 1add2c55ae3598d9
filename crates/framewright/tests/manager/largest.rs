//! Blocks of 1 GiB by the short path: the results are those of the long path, whatever else is
//! free, wanted or wrong.

use crate::common::reporting_rig::Rig;
use crate::common::{
    Fake, bring_up, bring_up_with, check, gib, mib, order, parameters, random_pieces,
};
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::BlockNumber;
use framewright::zone::FreeError;
use framewright::zone::MigrateType;
use framewright::{AllocateError, Request};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::Mutex;
use std::thread;

const MOVABLE: MigrateType = MigrateType::Movable;

/// At most `most` rounds; fewer in careful runs, which fill each GiB with poison.
fn rounds(most: u32) -> u32 {
    if crate::common::is_careful() { most / 40 } else { most }
}

/// Allocates as many GiBs as possible, one by one.
fn all(get: impl Fn() -> Option<Pfn>) -> Vec<Pfn> {
    let taken: Vec<Pfn> = std::iter::from_fn(get).collect();
    assert!(taken.iter().all(|start| start.is_aligned(Order::MAX)));
    taken
}

fn short(manager: &Fake) -> Option<Pfn> {
    manager.allocate_order(Order::MAX, MOVABLE).ok()
}

fn long(manager: &Fake) -> Option<Pfn> {
    manager.allocate(&Request::new(Order::MAX)).ok().map(|taken| taken.start)
}

#[test]
fn both_ways_give_the_same_in_the_same_order_down_to_the_same_mark() {
    // The watermarks of the zone keep it from handing out everything.
    for line in [
        "min_free_kbytes=128",
        "min_free_kbytes=1500000 watermark_scale_factor=1",
        "min_free_kbytes=3000000",
    ] {
        let [one, other] = [(); 2].map(|()| {
            let machine = FakeMachine::builder().ram(gib(4, 12)).build();
            bring_up_with(machine, &[], &parameters(line)).expect("bring-up")
        });
        let (taken, expected) = (all(|| short(&one)), all(|| long(&other)));
        if crate::common::is_careful() {
            assert_eq!(taken.len(), expected.len(), "{line}");
        } else {
            assert_eq!(taken, expected, "{line}");
        }
        assert!(!taken.is_empty());
        assert_eq!(one.totals(), other.totals());
        check(&one);
        for (start, number) in taken.iter().zip(0..) {
            // Frees every second GiB by the other path than it was allocated by.
            if number % 2 == 0 {
                one.give_back_order(*start, Order::MAX).expect("held");
            } else {
                one.give_back(PfnRange { start: *start, end: start.add(Order::MAX.pages()) })
                    .expect("held");
            }
            check(&one);
        }
        assert_eq!(all(|| long(&one)).len(), taken.len());
    }
}

#[test]
fn random_traffic_of_all_sizes_keeps_its_books() {
    let manager = bring_up(FakeMachine::builder().ram(gib(0, 12)).build());
    random_pieces(&manager, rounds(6000), 400, |_, chance| {
        let of = [18, 18, 18, 17, 10, 9, 9, 8, 0][chance % 9];
        (of, if chance >> 17 & 7 == 0 { MigrateType::Unmovable } else { MOVABLE })
    });
}

#[test]
fn what_is_no_gib_is_refused_and_stays_as_it_is() {
    // Two zones that do not consist of whole GiBs, so that a GiB may begin in a zone and end
    // outside it.
    let machine =
        FakeMachine::builder().ram(mib(0, 4096 + 256)).ram(mib(5 * 1024, 9 * 1024 + 512)).build();
    let manager = bring_up(machine);
    let start = short(&manager).expect("there is a GiB");
    let before = manager.totals();
    let refused = |pfn: u64, of: u8| {
        let error = manager.give_back_order(Pfn(pfn), order(of)).expect_err("nobody has that");
        assert_eq!(manager.totals(), before, "{error}");
        check(&manager);
        error
    };
    for pfn in [
        u64::MAX,
        u64::MAX << 18,
        1 << 52,
        (9 << 18),
        (10 << 18),
        4 << 18,
        start.0 + 1,
        start.0 + (1 << 17),
    ] {
        refused(pfn, 18);
    }
    assert!(matches!(
        refused(4 << 18, 18),
        FreeError::NotManaged(_) | FreeError::NotAllocated { .. }
    ));
    let whole = Pfn(start.0);
    manager.give_back_order(whole, Order::MAX).expect("held");
    let before = manager.totals();
    let error = manager.give_back_order(whole, Order::MAX).expect_err("it is free already");
    assert!(matches!(error, FreeError::NotAllocated { pfn, .. } if pfn == whole), "{error}");
    assert_eq!(manager.totals(), before);
    check(&manager);

    // In two halves it is no GiB any more, and can still be freed as one range.
    let start = short(&manager).expect("there is a GiB");
    manager.give_back_order(start, order(17)).expect("held");
    assert!(manager.give_back_order(start, Order::MAX).is_err());
    check(&manager);
    manager.give_back_order(start.add(1 << 17), order(17)).expect("held");
    check(&manager);
    // Neighbours that were allocated one by one may be freed together, unless page owners tell them
    // apart.
    if !crate::common::is_careful() {
        let halves = manager.allocate_at(start, order(17), MOVABLE).expect("free");
        manager.allocate_at(halves.end, order(17), MOVABLE).expect("free");
        manager.give_back_order(start, Order::MAX).expect("held");
        check(&manager);
    }
}

#[test]
fn other_types_keep_theirs() {
    let manager = bring_up(FakeMachine::builder().ram(gib(4, 10)).build());
    let free = manager.totals().free_pages;
    let start =
        manager.allocate_order(Order::MAX, MigrateType::Unmovable).expect("there is memory");
    let kind = |start| {
        manager.block_state(BlockNumber::containing(start)).expect("managed").migrate_type()
    };
    assert_eq!(kind(start), MigrateType::Unmovable);
    manager.give_back_order(start, Order::MAX).expect("held");
    assert_eq!(kind(start), MigrateType::Unmovable);
    assert_eq!(manager.allocate_order(Order::MAX, MigrateType::Unmovable), Ok(start));
    check(&manager);
    manager.give_back_order(start, Order::MAX).expect("held");
    assert_eq!(manager.totals().free_pages, free);
}

#[test]
fn a_gib_that_came_back_in_blocks_is_one_again() {
    let manager = bring_up(FakeMachine::builder().ram(gib(4, 8)).build());
    let free = manager.totals().free_pages;
    let taken = all(|| short(&manager));
    let blocks = |start: Pfn| (0..512).map(move |block| start.add(block * 512));
    for &start in &taken {
        // Frees every 64th block last, so that all the others wait for it.
        let (last, rest): (Vec<Pfn>, Vec<Pfn>) =
            blocks(start).partition(|block| block.0 >> 9 & 63 == 63);
        for block in rest.into_iter().chain(last) {
            manager.give_back_order(block, Order::BLOCK).expect("held");
        }
        // Some blocks are still in this CPU's cache.
        manager.drain().expect("good frames");
        assert_eq!(short(&manager), Some(start), "whole again");
    }
    taken.iter().for_each(|&start| manager.give_back_order(start, Order::MAX).expect("held"));
    check(&manager);
    assert_eq!(manager.totals().free_pages, free);
}

#[test]
fn a_gib_that_comes_back_ends_the_quiet() {
    let manager = bring_up(FakeMachine::builder().ram(gib(4, 8)).build());
    let taken = all(|| short(&manager));
    let none = Err(AllocateError::OutOfMemory { order: Order::MAX });
    let failures = manager.pressure().events().failures;
    for _ in 0..3 {
        assert_eq!(manager.allocate_order(Order::MAX, MOVABLE), none);
    }
    assert_eq!(manager.pressure().events().failures, failures, "it was known to fail");
    manager.give_back_order(taken[0], Order::MAX).expect("held");
    assert_eq!(manager.allocate_order(Order::MAX, MOVABLE), Ok(taken[0]));
    assert_eq!(manager.allocate_order(Order::MAX, MOVABLE), none);
    check(&manager);
}

#[test]
fn what_failed_near_one_node_is_known_near_all_of_them() {
    let machine = FakeMachine::builder()
        .ram(gib(4, 8))
        .node(gib(4, 6), 0)
        .node(gib(6, 8), 1)
        .cpus_on(0, 1)
        .cpus_on(1, 1);
    let machine = machine.build();
    let manager = bring_up(machine);
    let on = |cpu| machine.run_on(cpu, || short(&manager));
    let taken = all(|| on(0));
    let failures = manager.pressure().events().failures;
    assert_eq!((on(1), on(0)), (None, None));
    assert_eq!(manager.pressure().events().failures, failures, "nobody looked again");
    for cpu in [1, 0] {
        for &start in &taken {
            manager.give_back_order(start, Order::MAX).expect("held");
            assert_eq!((on(cpu), on(cpu)), (Some(start), None));
        }
    }
    check(&manager);
}

#[test]
fn reported_memory_comes_last_and_is_marked_no_more() {
    let mut rig = Rig::new(
        crate::common::reporting_rig::machine(4 << 10, 1),
        "",
        crate::common::reporting_rig::weightless(),
    );
    rig.settle();
    assert!(rig.reported_pages() > 0);
    let reported = rig.reported_pages();
    let start = short(rig.manager).expect("there is memory");
    rig.host.handed_out(PfnRange { start, end: start.add(Order::MAX.pages()) });
    assert_eq!(rig.reported_pages() + Order::MAX.pages(), reported);
    check(rig.manager);
    rig.manager.give_back_order(start, Order::MAX).expect("held");
    check(rig.manager);
    assert_eq!(short(rig.manager), Some(start), "what was not reported comes first");
    rig.manager.give_back_order(start, Order::MAX).expect("held");
    rig.settle();
    assert_eq!(rig.reported_pages(), reported);
}

#[test]
fn shuffled_memory_is_gathered() {
    let machine = FakeMachine::builder().ram(gib(4, 9)).build();
    let line = "page_alloc.shuffle=1 page_alloc.shuffle_seed=5";
    let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
    let free = manager.totals().free_pages;
    let taken = all(|| short(&manager));
    assert!(taken.len() >= 3);
    check(&manager);
    for start in taken {
        manager.give_back_order(start, Order::MAX).expect("held");
        check(&manager);
    }
    assert_eq!(manager.totals().free_pages, free);
}

#[test]
fn cpus_that_want_the_same_list_get_different_blocks() {
    let manager = bring_up(FakeMachine::builder().ram(gib(4, 16)).cpus(5).build());
    let free = manager.totals().free_pages;
    let held = Mutex::new(std::collections::BTreeSet::new());
    thread::scope(|scope| {
        for cpu in 1..5 {
            let (manager, held) = (&manager, &held);
            scope.spawn(move || {
                manager.platform().run_on(cpu, || {
                    for _ in 0..rounds(20_000) {
                        let Some(start) = short(manager) else { continue };
                        assert!(held.lock().expect("nobody failed").insert(start), "{start} twice");
                        assert!(held.lock().expect("nobody failed").remove(&start));
                        manager.give_back_order(start, Order::MAX).expect("held");
                    }
                });
            });
        }
    });
    check(&manager);
    assert_eq!(manager.totals().free_pages, free);
}
