//! Callers' mistakes are detected where the documentation says so, and no caller can free the
//! manager's own memory.

use crate::common::{Fake, bring_up_with, check, gib, mib, order, parameters, settled};
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{BlockState, MigrateType, State};
use framewright::zone::{FreeError, IsolateError};
use framewright::{AllocateError, ReferenceError, Request, Reserves};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, FakeVmemmap, Owner};
use std::collections::BTreeSet;

fn up(builder: framewright_testkit::Builder, line: &str) -> Fake {
    bring_up_with(builder.build(), &[], &parameters(line)).expect("bring-up")
}

/// Returns whether a misuse is found at the call and reported as this kind of error.
fn is_refused(result: Result<(), FreeError>) -> bool {
    matches!(result, Err(FreeError::NotAllocated { .. } | FreeError::NeverAllocated(_)))
}

/// Takes all memory in runs of `of` and returns the number of runs, each of which was handed out
/// once.
fn take_all(manager: &Fake, of: Order) -> usize {
    let mut seen = BTreeSet::new();
    let wanted = Request { reserves: Reserves::All, ..Request::new(of) };
    while let Ok(range) = manager.allocate(&wanted) {
        assert!(seen.insert(range.start), "{range:?} was handed out twice");
    }
    while let Ok(start) = manager.allocate_order(of, MigrateType::Movable) {
        assert!(seen.insert(start), "{start} was handed out twice");
    }
    let pages = seen.len();
    seen.into_iter().for_each(|start| manager.give_back_order(start, of).expect("held"));
    pages
}

/// Builds with debug assertions, and every build with page owners, find a second free at the call,
/// wherever the frames are kept meanwhile.
#[test]
fn a_second_free_is_found_at_the_call() {
    for (line, is_found) in [("page_owner=on", true), ("", cfg!(debug_assertions))] {
        for of in (0..=18).map(order).filter(|_| is_found) {
            for kind in [MigrateType::Movable, MigrateType::Unmovable] {
                let range = if of > order(12) { gib(0, 5) } else { mib(0, 256) };
                let manager = up(FakeMachine::builder().ram(range).cpus(3), line);
                let machine = manager.platform();
                let [a, b] =
                    [0, 1].map(|_| manager.allocate_order(of, kind).expect("there is memory"));
                let give = |start, of| manager.give_back_order(start, of);
                give(a, of).expect("held");
                give(b, of).expect("held");
                assert!(is_refused(give(a, of)), "{of:?} {line}");
                assert!(is_refused(give(b, of)), "{of:?} {line}");
                assert!(
                    is_refused(manager.give_back(PfnRange { start: a, end: a.add(of.pages()) })),
                    "{of:?} {line}"
                );
                // A part of a run that was freed as a whole.
                if let Some(half) = of.get().checked_sub(1).map(order) {
                    assert!(is_refused(give(a.add(half.pages()), half)), "{of:?} {line}");
                }
                assert!(
                    machine.run_on(2, || is_refused(give(b, of))),
                    "of another CPU, {of:?} {line}"
                );
                // In a context that cannot wait, only the CPU's own cache is known; with page
                // owners the others' caches are, too.
                assert!(is_refused(machine.interrupt(|| give(b, of))), "{of:?} {line}");
                check(&manager);
                take_all(&manager, of);
                check(&manager);
                // SAFETY: the manager is no longer used.
                unsafe { machine.retire() };
            }
        }
    }
}

/// No build puts a frame into its zone twice, whatever was freed how often.
#[test]
fn what_was_freed_twice_is_free_once() {
    if cfg!(debug_assertions) {
        // Such a build refuses it at once, which another test checks.
        return;
    }
    for of in (0..=9).map(order) {
        let manager = up(FakeMachine::builder().ram(mib(0, 512)), "");
        let all = take_all(&manager, of);
        let held: Vec<Pfn> = (0..3)
            .map(|_| manager.allocate_order(of, MigrateType::Movable).expect("there is memory"))
            .collect();
        let mut refused = 0;
        for start in [held[0], held[1], held[0], held[2], held[1], held[0]] {
            refused += u32::from(manager.give_back_order(start, of).is_err());
        }
        let mut found = refused;
        while manager.drain().is_err() {
            found += 1;
        }
        assert!(found != 0, "{of:?}");
        check(&manager);
        assert_eq!(take_all(&manager, of), all, "{of:?}");
        check(&manager);
    }
}

/// Every build refuses, at the call, to free frames that lie outside all memory that could ever be
/// handed out.
#[test]
fn what_is_out_of_place_is_refused_by_each_build() {
    for line in ["", "page_owner=on", "pages=inside"] {
        let manager = up(FakeMachine::builder().ram(gib(0, 2)).ram(gib(4, 6)).cpus(2), line);
        let before = manager.totals();
        for start in
            [u64::MAX, u64::MAX - 1, u64::MAX - 511, 1 << 52, (1 << 52) - 512, 3 << 18, 100 << 18]
        {
            for of in (0..=18).map(order) {
                let error = manager.give_back_order(Pfn(start), of).expect_err("nowhere");
                let place = Pfn(start).is_aligned(of);
                assert_eq!(
                    !place,
                    matches!(error, FreeError::NotAligned { .. }),
                    "{start:#x} {of:?}: {error}"
                );
                assert_eq!(
                    place,
                    matches!(error, FreeError::NotManaged(_)),
                    "{start:#x} {of:?}: {error}"
                );
            }
        }
        let held = manager.allocate_order(order(6), MigrateType::Movable).expect("there is memory");
        let misplaced = manager.give_back_order(held.add(1), order(3));
        assert_eq!(misplaced, Err(FreeError::NotAligned { start: held.add(1), order: order(3) }));
        let large =
            manager.allocate_order(Order::MAX, MigrateType::Movable).expect("there is memory");
        let misplaced = manager.give_back_order(large.add(512), order(12));
        assert_eq!(
            misplaced,
            Err(FreeError::NotAligned { start: large.add(512), order: order(12) })
        );
        manager.give_back_order(held, order(6)).expect("held");
        manager.give_back_order(large, Order::MAX).expect("held");
        check(&manager);
        // The tables lie at the upper end of their zone.
        for zone in manager.zones() {
            let tables = zone.table_memory();
            let (first, end) = (tables.start >> 12, tables.end >> 12);
            for pfn in first..end {
                for of in (0..=9).map(order).filter(|&of| Pfn(pfn).is_aligned(of)) {
                    assert!(is_refused(manager.give_back_order(Pfn(pfn), of)), "{pfn:#x} {of:?}");
                }
                assert!(is_refused(manager.give_back(PfnRange::new(pfn, end))), "{pfn:#x}");
            }
            let block = Pfn(first & !511);
            assert!(
                is_refused(manager.give_back_order(block, Order::BLOCK)),
                "the block of the tables"
            );
        }
        manager.drain().expect("nothing wrong was kept");
        check(&manager);
        assert_eq!(manager.totals(), before);
    }
}

fn frames(block: u32, blocks: u32) -> PfnRange {
    PfnRange::new(u64::from(block) * 512, u64::from(block + blocks) * 512)
}

/// Returns every block that is allocated as a whole, as the number of its first block and its count
/// of blocks.
fn wholes(manager: &Fake) -> Vec<(u32, u32)> {
    let mut found = Vec::new();
    for segment in manager.zones().iter().flat_map(|zone| zone.segments()) {
        let mut block = segment.start.0;
        while block < segment.end().0 {
            let state =
                manager.block_state(BlockNumber(block)).filter(|state| !state.is(State::Inner));
            let blocks = state.map_or(1, |state| 1 << (state.order().get() - 9));
            found.extend(state.filter(|state| state.is(State::Whole)).map(|_| (block, blocks)));
            block += blocks;
        }
    }
    found
}

/// The vmemmap, and pages meant for pools until the pools have them, are allocated to no owner that
/// could free them.
#[test]
fn what_the_manager_keeps_for_itself_is_freed_by_nobody() {
    let lines = [
        "memmap_init=eager",
        "memmap_init=deferred",
        "memmap_init=eager page_owner=on",
        "hugetlb_free_vmemmap=on hugepages=700 hugepagesz=1G hugepages=1",
    ];
    for line in lines {
        let machine = FakeMachine::builder().ram(gib(0, 3)).ram(gib(4, 9)).cpus(2).build();
        FakeVmemmap::install(machine);
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        let kept = wholes(&manager);
        assert!(kept.iter().map(|&(_, blocks)| blocks).sum::<u32>() >= 32, "{line}: {kept:?}");
        let before = manager.totals();
        for &(block, blocks) in &kept {
            assert!(
                manager
                    .block_state(BlockNumber(block))
                    .is_some_and(|state| state.has(BlockState::KEPT))
            );
            let all = frames(block, blocks);
            for range in [
                all,
                frames(block, 1),
                PfnRange::new(all.start.0 + 3, all.start.0 + 5),
                frames(block + blocks - 1, 1),
            ] {
                assert!(is_refused(manager.give_back(range)), "{line}: {range:?}");
                let not_a_run = manager.begin_references(range);
                assert!(
                    matches!(not_a_run, Err(ReferenceError::NotARun(_))),
                    "{line}: {range:?} {not_a_run:?}"
                );
            }
            let of = Order::for_pages(all.pages()).expect("one block");
            assert!(
                of == Order::BLOCK && !cfg!(debug_assertions)
                    || is_refused(manager.give_back_order(all.start, of))
            );
            assert!(
                !cfg!(debug_assertions)
                    || is_refused(manager.give_back_order(all.start.add(8), order(3)))
            );
        }
        check(&manager);
        assert_eq!(manager.totals(), before, "{line}");
        // Memory that the manager itself gives back is free, and is then handed out like all
        // memory.
        manager.hugetlb().fill(&parameters(line), &NoHelpers);
        check(&manager);
        manager.vmemmap().initialise_deferred(&NoHelpers);
        let taken = manager.allocate(&Request::new(Order::MAX)).expect("there is memory");
        let part = PfnRange::new(taken.start.0 + 512 * 7, taken.start.0 + 512 * 30);
        for runs in [[part].as_slice(), &[taken]] {
            let change = manager.optimize_vmemmap(runs).expect("there is an array");
            assert!(change.freed_pages >= 8 * 20, "{line}: {change:?}");
            check(&manager);
        }
        // A careful run writes poison into all memory that comes back, which may be more than the
        // host has.
        if !crate::common::is_careful() {
            assert!(take_all(&manager, Order::PAGE) > 1000);
        }
        manager.give_back(taken).expect("held");
        check(&manager);
        // SAFETY: the manager is no longer used.
        unsafe { machine.retire() };
    }
}

/// Ranges that end before they begin are empty in every build.
#[test]
fn ranges_that_end_before_they_begin_are_empty() {
    let machine = FakeMachine::builder().ram(gib(0, 6)).build();
    FakeVmemmap::install(machine);
    let manager = bring_up_with(machine, &[], &parameters("memmap_init=eager")).expect("bring-up");
    let before = manager.totals();
    let numbers = [0, 1, 511, 512, 5000, 1 << 20, 1 << 51, u64::MAX];
    for (high, start) in numbers.into_iter().enumerate() {
        for end in numbers[..=high].iter().copied() {
            let range = PfnRange { start: Pfn(start), end: Pfn(end) };
            assert_eq!((range.pages(), range.is_empty()), (0, true));
            assert_eq!(manager.give_back(range), Err(FreeError::Empty(range)));
            assert_eq!(manager.begin_references(range), Err(ReferenceError::NotARun(range)));
            assert_eq!(manager.optimize_vmemmap(&[range]).expect("nothing").blocks, 0);
            assert_eq!(manager.restore_vmemmap(&[range]).expect("nothing").blocks, 0);
            let block = |pfn: u64| BlockNumber(u32::try_from(pfn).unwrap_or(u32::MAX));
            let blocks = BlockRange { start: block(start), end: block(end) };
            let empty = Err(IsolateError::Empty(blocks));
            assert_eq!((blocks.blocks(), manager.isolation().isolate(blocks)), (0, empty));
            assert_eq!(manager.isolation().unisolate(blocks), Err(IsolateError::Empty(blocks)));
            assert_eq!(manager.isolation().survey(blocks), empty);
            assert_eq!(manager.isolation().claim(blocks), Err(IsolateError::Empty(blocks)));
        }
    }
    check(&manager);
    assert_eq!(manager.totals(), before);
}

/// Memory that was requested zeroed can be accessed, and is zero.
#[test]
fn zeros_are_written_only_where_the_direct_map_reaches() {
    for line in ["", "init_on_alloc=1", "page_owner=on page_poison=1"] {
        let limit = (5 << 30) + (77 << 20);
        let manager =
            up(FakeMachine::builder().ram(gib(0, 3)).ram(gib(4, 7)).direct_limit(limit), line);
        for of in [0, 3, 9].map(order) {
            let request = Request { zeroed: true, reserves: Reserves::All, ..Request::new(of) };
            let mut held = Vec::new();
            for _ in 0..60 {
                let range = manager.allocate(&request).expect("there is memory below");
                assert!(range.end.address() <= limit, "{range:?}");
                for pfn in (range.start.0..range.end.0).step_by(97) {
                    assert_eq!(manager.platform().load(pfn << 12 | 0x128), 0);
                }
                held.push(range);
            }
            held.into_iter().for_each(|range| manager.give_back(range).expect("held"));
        }
        let mut pages = [Pfn(0); 300];
        let request = Request { zeroed: true, ..Request::pages(1) };
        assert_eq!(manager.allocate_bulk(&request, &mut pages), Ok(300));
        assert!(
            pages
                .iter()
                .all(|page| page.address() < limit && manager.platform().load(page.address()) == 0)
        );
        pages
            .iter()
            .for_each(|page| manager.give_back(PfnRange::new(page.0, page.0 + 1)).expect("held"));
        if !line.is_empty() {
            check(&manager);
            continue;
        }
        // The memory above is ordinary memory, but it cannot be cleared.
        let high = Pfn(6 << 18);
        let taken = manager.allocate_at(high, Order::MAX, MigrateType::Movable).expect("free");
        let large = Request { zeroed: true, ..Request::new(Order::MAX) };
        let mut cleared = 0;
        while manager.allocate(&large).is_ok() {
            cleared += 1;
        }
        assert!((2..=4).contains(&cleared), "{cleared}");
        manager.give_back(taken).expect("held");
        assert_eq!(manager.allocate(&large), Err(AllocateError::OutOfMemory { order: Order::MAX }));
        assert!(
            manager.allocate(&Request::new(Order::MAX)).is_ok(),
            "without zeros there is one above"
        );
        check(&manager);
    }
}

/// Types for which no memory is kept are refused, so that ordinary requests lose no memory.
#[test]
fn types_without_memory_are_refused() {
    let manager = up(FakeMachine::builder().ram(gib(0, 6)), "");
    let before = manager.totals();
    for kind in [MigrateType::MovableOnly, MigrateType::Cma, MigrateType::Isolate] {
        let refused = AllocateError::BadType(kind);
        for of in (0..=18).map(order) {
            assert_eq!(manager.allocate_order(of, kind), Err(refused), "{of:?}");
            assert_eq!(
                manager.allocate(&Request { migrate_type: kind, ..Request::new(of) }),
                Err(refused)
            );
            assert_eq!(manager.allocate_at(Pfn(5 << 18), of, kind), Err(refused));
        }
        let mut pages = [Pfn(0); 4];
        let request = Request { migrate_type: kind, ..Request::pages(1) };
        assert_eq!(manager.allocate_bulk(&request, &mut pages), Err(refused));
        assert!(refused.to_string().contains(kind.name()), "{refused}");
    }
    assert_eq!(manager.totals(), before);
    check(&manager);
}

/// A hole beside memory that is added late is no memory, and no cache has it.
#[test]
#[cfg(feature = "hotplug")]
fn a_hole_that_is_added_late_is_no_memory() {
    use framewright::LazyManager;
    use framewright::lazy::AddError;
    use framewright::units::PhysRange;
    let machine = FakeMachine::builder().ram(mib(0, 256)).build();
    let lazy: LazyManager<_> = LazyManager::new(machine).with_largest_gap(1 << 20);
    // SAFETY: nobody but the test uses this machine's memory.
    let add = |start, end| unsafe { lazy.add(PhysRange::new(start, end)) };
    add(1 << 20, 100 << 20).expect("there is room");
    add(0x6e0_1000, 256 << 20).expect("there is room");
    let manager = lazy.bring_up().expect("it comes up");
    let before = settled(manager);
    let hole = PhysRange::new(0x6e0_0000, 0x6e0_1000);
    assert_eq!(add(hole.start, hole.end), Err(AddError::NoBlock(hole.whole_frames())));
    assert_eq!(settled(manager), before);
    check(manager);
}
