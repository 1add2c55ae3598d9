//! Grades of blocks: memory reserved for movable allocations, by the block and changeable at any
//! time.

use crate::common::{
    Fake, blocks, bring_up_with, check, gib, graded, is_in, mib, order, parameters, settled,
    unmovable, with_pages,
};
use framewright::firmware::MemoryKind;
use framewright::manager::{Budget, GradeError, ObstacleKind};
use framewright::parameters::Pages;
use framewright::units::{NodeId, Order, Pfn, PfnRange};
use framewright::vmemmap_space::BlockNumber;
use framewright::zone::{Grade, MigrateType, ZoneId, ZoneKind};
use framewright::{AllocateError, Request, Reserves};
use framewright_testkit::workload::{Handle, Handles};
use framewright_testkit::{FakeMachine, Owner};

fn machine(size_mib: u64, pages: Pages) -> Fake {
    let machine = FakeMachine::builder().ram(mib(0, size_mib)).build();
    bring_up_with(machine, &[], &with_pages(pages)).expect("bring-up")
}

#[test]
fn movable_requests_take_it_first_and_others_never() {
    for pages in [Pages::None, Pages::Inside] {
        for of in [0, 2, 5, 9] {
            let manager = machine(64, pages);
            let range = blocks(16, 4);
            manager.moving().set_grade(range, Grade::MovableOnly).expect("free");
            check(&manager);
            assert_eq!(graded(&manager), 4 * 512);
            let first = manager.allocate(&Request::new(order(of))).expect("memory");
            assert!(is_in(range, first), "{first:?}");
            let mut held = vec![first];
            loop {
                match manager.allocate(&unmovable(order(of))) {
                    Ok(run) => {
                        assert!(!is_in(range, run), "{run:?}");
                        held.push(run);
                    }
                    Err(AllocateError::OutOfMemory { .. }) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(graded(&manager) >= 3 * 512, "what they cannot have is left");
            check(&manager);
            // Movable requests still succeed.
            held.push(manager.allocate(&Request::new(order(of))).expect("memory is left"));
            held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
            assert_eq!((settled(&manager).allocated_pages, graded(&manager)), (0, 4 * 512));
            check(&manager);
            manager.moving().set_grade(range, Grade::Any).expect("free");
            assert_eq!(graded(&manager), 0);
            check(&manager);
        }
    }
}

/// Movable requests use removable memory exactly while it is more than half of the free memory.
#[test]
fn removable_memory_is_lent_by_the_half_rule() {
    let manager = machine(64, Pages::None);
    // 24 MiB of about 46 MiB.
    let range = blocks(16, 12);
    manager.moving().set_grade(range, Grade::Removable).expect("free");
    let free_blocks =
        |grade| manager.views().map(|zone| zone.free_block_pages_of(grade)).sum::<u64>();
    assert_eq!([Grade::Removable, Grade::MovableOnly].map(free_blocks), [12 * 512, 0]);
    let mut held = Vec::new();
    for _ in 0..20 {
        let zone = manager.zones().last().expect("one");
        let first = zone.free_pages_of(Grade::Removable) * 2 > zone.free_pages();
        let Ok(run) = manager.allocate(&Request::new(Order::BLOCK)) else { break };
        // A cache may have kept pages of an earlier choice.
        if run.pages() == 512 && manager.caches().pages() == 0 {
            assert_eq!(is_in(range, run), first, "{run:?}");
        }
        held.push(run);
    }
    held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
    assert_eq!(settled(&manager).allocated_pages, 0);
    check(&manager);
}

/// Splits a run into its first pages and the rest.
fn split(run: PfnRange, pages: u64) -> (PfnRange, PfnRange) {
    let middle = run.start.0 + pages;
    (PfnRange::new(run.start.0, middle), PfnRange::new(middle, run.end.0))
}

/// The limit of the half rule, to the page: half of the free memory is not enough. Graded free
/// memory also does not help a request that may not have it (Linux: `mm/page_alloc.c`, `__rmqueue`
/// and `__zone_watermark_unusable_free`).
#[test]
fn half_of_what_is_free_is_not_more_than_half() {
    let manager = machine(64, Pages::None);
    let range = blocks(16, 8);
    // Allocates everything else.
    let mut held = Vec::new();
    for of in (0..=9).rev().map(order) {
        while let Ok(run) = manager.allocate(&Request::new(of)) {
            held.push(run);
        }
    }
    held.retain(|&run| {
        let stays = !is_in(range, run);
        if !stays {
            manager.give_back_to_zone(run).expect("ours");
        }
        stays
    });
    settled(&manager);
    manager.moving().set_grade(range, Grade::Removable).expect("free");
    // The mark for others is smaller now.
    while let Ok(run) = manager.allocate(&unmovable(Order::PAGE)) {
        held.push(run);
    }
    settled(&manager);
    let zone = || manager.zones().last().expect("one");
    let rest = || zone().free_pages() - zone().graded_pages();
    let marks = zone().watermarks();
    assert!(rest() <= marks.min_pages + 1 && zone().free_pages() > 4 * marks.high_pages);
    let error = manager.allocate(&unmovable(Order::PAGE));
    assert_eq!(error, Err(AllocateError::OutOfMemory { order: Order::PAGE }));
    // Frees other memory until exactly as much is free there as in the graded blocks.
    held.sort_unstable_by_key(|run| run.pages());
    while rest() < zone().graded_pages() {
        let run = held.pop().expect("more is held");
        let most = zone().graded_pages() - rest();
        let (give, keep) = split(run, run.pages().min(most));
        manager.give_back_to_zone(give).expect("ours");
        held.extend(Some(keep).filter(|keep| !keep.is_empty()));
    }
    assert_eq!((zone().free_pages(), zone().graded_pages()), (8192, 4096));
    // A run that no cache keeps.
    let large = Request::new(order(10));
    let elsewhere = manager.allocate(&large).expect("memory");
    assert!(!is_in(range, elsewhere), "4096 of 8192 is half");
    manager.give_back_to_zone(elsewhere).expect("ours");
    let last = held.pop().expect("more is held");
    let (give, keep) = split(last, 1);
    manager.give_back_to_zone(give).expect("ours");
    let elsewhere = manager.allocate(&large).expect("memory");
    assert!(!is_in(range, elsewhere), "4096 of 8193 is less");
    manager.give_back_to_zone(elsewhere).expect("ours");
    held.extend(Some(keep).filter(|keep| !keep.is_empty()));
    let two = manager.allocate(&unmovable(order(1))).expect("memory");
    let drained = settled(&manager);
    assert_eq!((zone().free_pages(), zone().graded_pages()), (8191, 4096), "{drained:?}");
    let there = manager.allocate(&large).expect("memory");
    assert!(is_in(range, there), "4096 of 8191 is more than half");
    held.extend([two, there]);
    held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
    assert_eq!(settled(&manager).allocated_pages, 0);
    check(&manager);
}

#[test]
fn what_is_movable_and_in_use_may_get_a_grade_and_what_is_not_may_not() {
    for pages in [Pages::None, Pages::Inside] {
        let manager = machine(64, pages);
        let movable = manager.allocate(&Request::new(Order::PAGE)).expect("memory");
        settled(&manager);
        let block = u32::try_from(movable.start.0 / 512).expect("small");
        // The manager's tables lie in the last block, which may be this one.
        let set = manager.moving().set_grade(blocks(block, 1), Grade::MovableOnly);
        if set.is_ok() {
            assert_eq!(manager.moving().grade_of(movable.start), Some(Grade::MovableOnly));
        }
        check(&manager);
        let fixed = manager.allocate(&unmovable(order(3))).expect("memory");
        settled(&manager);
        let block = u32::try_from(fixed.start.0 / 512).expect("small");
        let error = manager.moving().set_grade(blocks(block, 1), Grade::Removable);
        assert!(matches!(error, Err(GradeError::InUse(_))), "{error:?}");
        assert_eq!(manager.totals().isolated_pages, 0);
        check(&manager);
        for run in [movable, fixed] {
            manager.give_back(run).expect("ours");
        }
        assert_eq!(settled(&manager).allocated_pages, 0);
        check(&manager);
    }
}

#[test]
fn graded_blocks_are_vacated_compacted_and_taken_as_a_range() {
    let manager = machine(128, Pages::None);
    let range = blocks(20, 16);
    manager.moving().set_grade(range, Grade::MovableOnly).expect("free");
    let handles = Handles::new(&manager, 1 << 15).expect("memory");
    for _ in 0..16 * 512 {
        handles.allocate(Order::PAGE).expect("memory");
    }
    let all: Vec<_> = handles.held().collect();
    for handle in all.iter().step_by(2) {
        handles.free(*handle).expect("held");
    }
    settled(&manager);
    check(&manager);
    let moving = manager.moving().by(&handles);
    let made = moving.compact(None, u64::MAX, Budget::UNLIMITED).expect("a mover");
    assert!(made.blocks >= 6, "{made:?}");
    check(&manager);
    let wanted = PfnRange::new(20 * 512 + 9, 30 * 512 + 77);
    moving.allocate_range(wanted, Budget::UNLIMITED).expect("all of it moves");
    check(&manager);
    manager.give_back_to_zone(wanted).expect("ours");
    assert_eq!(manager.moving().grade_of(wanted.start), Some(Grade::MovableOnly));
    for handle in handles.held() {
        handles.check(handle).expect("intact");
    }
    drop(handles);
    assert_eq!((settled(&manager).allocated_pages, graded(&manager)), (0, 16 * 512));
    check(&manager);
}

/// `kernelcore=4G` on two nodes (Linux: `find_zone_movable_pfns_for_nodes`).
#[test]
fn the_command_line_keeps_the_upper_part_of_each_node() {
    let build = || {
        FakeMachine::builder()
            .ram(framewright::units::PhysRange::new(0x1000, 0x9f000))
            .ram(framewright::units::PhysRange::new(0x10_0000, 3 << 30))
            .ram(gib(4, 9))
            .ram(gib(9, 17))
            .node(gib(0, 9), 0)
            .node(gib(9, 17), 1)
            .build()
    };
    for line in ["kernelcore=4G", "kernelcore=25%"] {
        let manager = bring_up_with(build(), &[], &parameters(line)).expect("bring-up");
        let start = |node| manager.moving().start_on_node(NodeId::new(node).expect("one"));
        assert_eq!((start(0), start(1)), (Some(Pfn(0x12_0400)), Some(Pfn(0x26_0400))), "{line}");
        check(&manager);
        let grade = |pfn| manager.moving().grade_of(Pfn(pfn));
        assert_eq!(grade(0x12_0400), Some(Grade::MovableOnly));
        assert_eq!((grade(0x12_03ff), grade(0x26_03ff)), (Some(Grade::Any), Some(Grade::Any)));
        // All of it except for what the manager reserved for itself.
        let movable = graded(&manager);
        assert!(movable > (12 << 18) - 64 * 512 && movable <= 12 << 18, "{movable}");
        let fixed = manager.allocate(&unmovable(Order::MAX)).expect("memory");
        assert_eq!(grade(fixed.start.0), Some(Grade::Any));
        let moves = manager.allocate(&Request::new(Order::BLOCK)).expect("memory");
        assert_eq!(grade(moves.start.0), Some(Grade::MovableOnly));
        manager.give_back(fixed).expect("ours");
        manager.give_back(moves).expect("ours");
        assert_eq!(settled(&manager).allocated_pages, 0);
        check(&manager);
    }
}

/// A page that is to be pinned for long leaves movable memory, which can then be vacated.
#[test]
fn what_is_pinned_for_long_does_not_stay_in_movable_memory() {
    let manager = machine(128, Pages::None);
    let range = blocks(20, 4);
    manager.moving().set_grade(range, Grade::MovableOnly).expect("free");
    let handles = Handles::new(&manager, 4096).expect("memory");
    let moving = manager.moving().by(&handles);
    let inside = |run: PfnRange| is_in(range, run);
    let some: Vec<Handle> =
        (0..300).map(|_| handles.allocate(Order::PAGE).expect("memory")).collect();
    assert!(some.iter().all(|&handle| handles.range(handle).is_some_and(inside)));
    for &handle in some.iter().step_by(10) {
        let run = handles.range(handle).expect("held");
        let to = moving.move_for_pin(run).expect("it moves");
        assert!(!inside(to) && handles.range(handle) == Some(to));
        // A page outside movable memory may stay where it is.
        assert_eq!(moving.move_for_pin(to), Ok(to));
        handles.pin(handle, true).expect("held");
    }
    settled(&manager);
    moving.vacate(range, Budget::UNLIMITED).expect("no pin is in it");
    manager.isolation().unisolate(range).expect("isolated");
    for handle in handles.held() {
        handles.check(handle).expect("intact");
    }
    let stranger = manager.allocate(&Request::new(Order::PAGE)).expect("memory");
    if inside(stranger) {
        assert_eq!(moving.move_for_pin(stranger), Err(ObstacleKind::Unknown));
    }
    manager.give_back(stranger).expect("ours");
    drop(handles);
    assert_eq!(settled(&manager).allocated_pages, 0);
    check(&manager);
}

/// Blocks with unmovable pages do not become movable blocks, however empty they are.
#[test]
fn movable_requests_take_of_foreign_blocks_and_do_not_claim_them() {
    let manager = machine(64, Pages::None);
    let fixed = |of| Request { migrate_type: MigrateType::Unmovable, ..Request::new(order(of)) };
    let one = manager.allocate(&fixed(0)).expect("memory");
    settled(&manager);
    let block = BlockNumber::containing(one.start);
    let kind = || manager.block_state(block).expect("there").migrate_type();
    assert_eq!(kind(), MigrateType::Unmovable);
    // Allocates everything else, until the nearly free block is used, too.
    let mut held = Vec::new();
    while let Ok(run) =
        manager.allocate(&Request { reserves: Reserves::All, ..Request::new(Order::PAGE) })
    {
        held.push(run);
    }
    assert!(held.iter().any(|run| BlockNumber::containing(run.start) == block));
    assert_eq!(kind(), MigrateType::Unmovable);
    held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
    manager.give_back(one).expect("ours");
    assert_eq!(settled(&manager).allocated_pages, 0);
    check(&manager);
}

/// The min watermark follows from the memory that unmovable requests may have, from bring-up on.
#[test]
fn memory_for_what_can_be_moved_does_not_raise_what_is_kept_free() {
    let min_free = |line: &str| {
        let machine = FakeMachine::builder().ram(mib(0, 1024)).spare(gib(4, 5)).build();
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        let at_boot = manager.sysctl().min_free_kbytes();
        let min_pages =
            || manager.zones().iter().map(|zone| zone.watermarks().min_pages).sum::<u64>();
        let marks = min_pages();
        // SAFETY: nobody uses the added memory.
        let added =
            unsafe { manager.hotplug().add(mib(4096, 4224), NodeId::ZERO, Grade::MovableOnly) };
        added.expect("there is room");
        check(&manager);
        if !line.starts_with("min_free") {
            assert_eq!(manager.sysctl().min_free_kbytes(), at_boot, "{line}");
        }
        (at_boot, marks)
    };
    let near = |kib: u64, of: u64| kib.abs_diff(of) <= 32;
    assert!(near(min_free("").0, 4096));
    for line in ["movablecore=768M", "kernelcore=256M", "cma=768M@0-1G"] {
        let (kib, marks) = min_free(line);
        assert!(near(kib, 2048), "{line}: {kib}");
        assert!(marks <= kib / 4, "{line}: {marks}");
    }
    // A value from the command line is kept, however small it is.
    assert_eq!(min_free("min_free_kbytes=256 movablecore=768M").0, 256);
}

/// Memory that cannot be accepted is not managed, graded or not.
#[test]
fn memory_of_a_grade_that_is_lost_is_not_managed() {
    let unaccepted = mib(4096, 4224);
    let machine = FakeMachine::builder()
        .ram(mib(0, 64))
        .memory(unaccepted, MemoryKind::Unaccepted)
        .accepts()
        .build();
    machine.accept().fail_at(Pfn::containing(mib(4200, 4202).start));
    let manager = bring_up_with(machine, &[], &parameters("movablecore=96M")).expect("bring-up");
    let of = ZoneId { node: NodeId::ZERO, kind: ZoneKind::Normal };
    let managed = || {
        let view = manager.view(of).expect("there is such memory");
        view.graded_memory(Grade::MovableOnly).managed_pages
    };
    assert_eq!(managed(), 96 << 8);
    let all =
        core::iter::from_fn(|| manager.allocate_order(Order::BLOCK, MigrateType::Movable).ok());
    let held: Vec<Pfn> = all.collect();
    let lost = manager.acceptance().lost_pages();
    assert_ne!(lost, 0);
    assert_eq!(managed(), (96 << 8) - lost);
    held.into_iter().for_each(|start| {
        manager.give_back_order(start, Order::BLOCK).expect("ours");
    });
    check(&manager);
}

/// Watermarks are for the memory that is left for all requests, whether they follow from it or were
/// set.
#[test]
fn what_is_kept_free_at_boot_is_of_other_memory() {
    for line in ["kernelcore=256M", "kernelcore=256M min_free_kbytes=8192", "cma=700M"] {
        let machine = FakeMachine::builder().ram(mib(0, 1024)).build();
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        let kbytes = manager.sysctl().min_free_kbytes();
        assert!(kbytes < 2500 || line.contains("min_free"), "{line}: {kbytes}");
        let sum: u64 = manager.views().map(|zone| zone.watermarks().min_pages).sum();
        assert!(sum * 4 <= kbytes && sum * 4 + 16 > kbytes, "{line}: {sum}, {kbytes}");
        let more = manager.views().map(|zone| zone.movable_watermarks().min_pages).max();
        assert_eq!(more, Some(128), "{line}");
    }
}

/// What is kept from movable requests is memory that others may have: they get all other memory
/// down to its marks, also when others have used up theirs (Linux: `mm/page_alloc.c`,
/// `setup_per_zone_lowmem_reserve`).
#[test]
fn a_reserve_holds_back_no_memory_for_movable_requests() {
    for line in ["kernelcore=256M", "kernelcore=256M zone_parts=4"] {
        let machine = FakeMachine::builder().ram(gib(4, 9)).cpus(4).build();
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        let zone = manager.view(ZoneId { node: manager.nodes()[0].id, kind: ZoneKind::Normal });
        let zone = zone.expect("all memory");
        let reserve = zone.lowmem_reserve()[3];
        assert!(reserve > 30_000, "{line}: {reserve}");
        let rest = || zone.free_pages() - zone.graded_free_pages();
        let mut held = Vec::new();
        let mut take = |request: &Request| {
            while let Ok(run) = manager.allocate(request) {
                held.push(run);
            }
            settled(&manager);
            core::mem::take(&mut held)
        };
        let movable = Request { fail_fast: true, ..Request::new(order(6)) };
        let all = take(&movable);
        assert!(zone.graded_free_pages() < 1000, "{line}: {}", zone.graded_free_pages());
        // A CPU uses all of its own part before it turns to another, whatever the grades.
        if zone.parts().iter().count() == 1 {
            assert!(rest() > reserve, "{line}: {} of {reserve} are kept", rest());
        }
        all.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
        // Others use up what all may have.
        let others = take(&unmovable(order(6)));
        let all = take(&movable);
        let marks = zone.watermarks().min_pages + zone.movable_watermarks().min_pages;
        let left = zone.free_pages();
        assert!(left < marks + 256, "{line}: {left} are left, marks {marks}, reserve {reserve}");
        let held = others.into_iter().chain(all);
        for run in held {
            manager.give_back(run).expect("ours");
        }
        check(&manager);
    }
}
