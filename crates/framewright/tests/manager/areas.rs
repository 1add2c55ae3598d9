//! Reserve areas: lent to movable allocations, and taken back as one piece.

use crate::common::{Fake, bring_up_with, check, mib, parameters, settled};
use framewright::manager::{
    AreaError, AreaName, Budget, ContiguousError, ContiguousRequest, Moving, RangeError,
    VacateError, Vacated,
};
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::BlockRange;
use framewright::zone::{Grade, MigrateType};
use framewright::{AllocateError, Request};
use framewright_testkit::workload::Handles;
use framewright_testkit::{FakeMachine, Owner};

const MIB: u64 = 256;

fn machine(size_mib: u64, line: &str) -> Fake {
    let machine = FakeMachine::builder().ram(mib(0, size_mib)).build();
    bring_up_with(machine, &[], &parameters(line)).expect("bring-up")
}

fn name(text: &str) -> AreaName {
    AreaName::new(text).expect("a name")
}

/// 64 MiB with a pinned page in the second 16 MiB: requests of 16 MiB get the other places, and
/// then none.
#[test]
fn a_pinned_page_costs_one_place_and_is_counted() {
    let manager = machine(192, "");
    let area = BlockRange::new(40, 72);
    let moving = manager.moving();
    let number = moving.create_area(name("camera"), area).expect("free");
    check(&manager);
    let handles = Handles::new(&manager, 1 << 15).expect("memory");
    let base = area.start.start().0;
    // Borrows pages until one of them lies in the second place.
    let second = PfnRange::new(base + 16 * MIB, base + 32 * MIB);
    let pinned = loop {
        let handle = handles.allocate(Order::PAGE).expect("memory");
        if handles.range(handle).is_some_and(|run| second.contains(run.start)) {
            break handle;
        }
    };
    handles.pin(pinned, true).expect("held");
    let moving = moving.by(&handles);
    let get = || moving.allocate_in_area(number, 16 * MIB, Order::PAGE, Budget::UNLIMITED);
    let mut places = Vec::new();
    let pin = handles.range(pinned).expect("held").start;
    while let Ok(run) = get() {
        assert!(!run.contains(pin));
        places.push(run.start.0 - base);
        check(&manager);
    }
    assert_eq!((places.len(), places[0]), (3, 0));
    assert_eq!(get(), Err(AreaError::NoRun { pages: 16 * MIB }));
    let (_, _, counts) = moving.area(number).expect("there");
    assert_eq!(counts.success_pages, 3 * 16 * MIB);
    assert_eq!(counts.fail_pages, 2 * 16 * MIB);
    assert_eq!(counts.available_pages, 16 * MIB);
    for handle in handles.held() {
        handles.check(handle).expect("intact");
    }
    for place in places {
        let run = PfnRange::new(base + place, base + place + 16 * MIB);
        // SAFETY: the area gave the run to this test, which no longer uses it.
        unsafe { moving.release_to_area(number, run) }.expect("ours");
        // SAFETY: the call is refused.
        let again = unsafe { moving.release_to_area(number, run) };
        assert_eq!(again, Err(AreaError::NotOut(run)));
    }
    let (_, _, counts) = moving.area(number).expect("there");
    assert_eq!((counts.released_pages, counts.available_pages), (3 * 16 * MIB, 64 * MIB));
    drop(handles);
    check(&manager);
}

/// No place that contains an unmovable page is tried again, however many such places there are, and
/// nothing is tried after the deadline.
#[test]
fn places_with_an_obstacle_are_passed_by_at_once() {
    let manager = machine(192, "");
    let area = BlockRange::new(40, 72);
    let number = manager.moving().create_area(name("camera"), area).expect("free");
    let base = area.start.start().0;
    // No mover knows this page.
    let at = Pfn(base + 20 * MIB + 7);
    manager.allocate_at(at, Order::PAGE, MigrateType::Movable).expect("free");
    let handles = Handles::new(&manager, 1).expect("memory");
    let moving = manager.moving().by(&handles);
    let calls = || manager.platform().calls().irq_save;
    let before = calls();
    let get = |budget| moving.allocate_in_area(number, 30 * MIB, Order::PAGE, budget);
    let run = get(Budget::UNLIMITED).expect("there is room behind it");
    assert_eq!(run.start.0, at.0 + 1);
    // Each place costs about ten calls.
    assert!(calls() - before < 300, "{}", calls() - before);
    // SAFETY: the area gave the run to this test, which no longer uses it.
    unsafe { moving.release_to_area(number, run) }.expect("ours");
    let late = get(Budget::until(0));
    assert!(matches!(late, Err(AreaError::Moving(_))), "{late:?}");
    check(&manager);
}

/// Makes an area of 32 blocks that is free except for a page of the mover's in its block `kept`.
fn with_a_page_in_block(kept: u64, test: impl FnOnce(Moving<'_, FakeMachine>, usize, Pfn)) {
    let manager = machine(192, "");
    let area = BlockRange::new(40, 72);
    let number = manager.moving().create_area(name("camera"), area).expect("free");
    let start = area.start.start().add(kept * 512);
    let handles = Handles::new(&manager, 1 << 16).expect("memory");
    let page = loop {
        let handle = handles.allocate(Order::PAGE).expect("memory");
        let at = handles.range(handle).expect("held").start;
        if start <= at && at < start.add(512) {
            break handle;
        }
    };
    let others: Vec<_> = handles.held().filter(|&handle| handle != page).collect();
    others.into_iter().for_each(|handle| handles.free(handle).expect("held"));
    manager.drain().expect("in order");
    let at = handles.range(page).expect("held").start;
    test(manager.moving().by(&handles), number, at);
    check(&manager);
}

/// A budget of no runs still allows free memory to be taken, until the deadline.
#[test]
fn what_is_free_needs_no_budget_of_runs() {
    with_a_page_in_block(0, |moving, number, page| {
        let base = Pfn(page.0 & !511);
        let get = |budget| moving.allocate_in_area(number, 512, Order::BLOCK, budget);
        let is_out_of_time = |result: &_| {
            let error = RangeError::Vacate(VacateError::OutOfTime { moved: Vacated::default() });
            *result == Err(AreaError::Moving(error))
        };
        assert!(is_out_of_time(&get(Budget::until(0))));
        for block in 1..32 {
            let start = base.add(block * 512);
            assert_eq!(get(Budget::runs(0)), Ok(PfnRange { start, end: start.add(512) }));
        }
        // The rest is in use, and the error says that the budget is exhausted.
        assert!(is_out_of_time(&get(Budget::runs(0))));
        let first = PfnRange { start: base, end: base.add(512) };
        assert_eq!(get(Budget::UNLIMITED), Ok(first));
    });
}

/// Places whose pages would have to be moved are skipped, however many there are.
#[test]
fn places_that_would_need_a_move_are_passed_by_at_once() {
    with_a_page_in_block(10, |moving, number, page| {
        let run = moving.allocate_in_area(number, 30 * MIB, Order::PAGE, Budget::runs(0));
        // The search skips whole blocks.
        let start = Pfn((page.0 & !511) + 512);
        assert_eq!(run, Ok(PfnRange { start, end: start.add(30 * MIB) }));
        assert_eq!(moving.events().scanned_pages, 0, "nobody was asked");
    });
}

/// A block's descriptors are in the way of a place that has only part of the block, but not of a
/// place that has all of it.
#[test]
fn descriptors_in_a_block_cost_no_place_that_has_all_of_it() {
    let manager = machine(192, "pages=inside");
    let number =
        manager.moving().create_area(name("three"), BlockRange::new(40, 43)).expect("free");
    let second = Pfn(41 * 512 + 3);
    let page = manager.allocate_at(second, Order::PAGE, MigrateType::Movable).expect("free");
    let handles = Handles::new(&manager, 1 << 16).expect("memory");
    let moving = manager.moving().by(&handles);
    let get = || moving.allocate_in_area(number, 1020, Order::PAGE, Budget::UNLIMITED);
    let refused = get();
    assert!(refused.is_err(), "nobody knows the page: {refused:?}");
    manager.give_back(page).expect("ours");
    let page = loop {
        let handle = handles.allocate(Order::PAGE).expect("memory");
        let run = handles.range(handle).expect("held");
        if (41 * 512..42 * 512).contains(&run.start.0) {
            break run;
        }
    };
    let run = get().expect("the block can be vacated whole");
    assert!(run.start <= Pfn(41 * 512) && run.end >= Pfn(42 * 512), "{run:?} {page:?}");
    check(&manager);
}

/// The range for an area may be any range; only the memory in it is tried.
#[test]
fn an_area_is_looked_for_where_there_is_memory() {
    for (line, start) in [
        ("cma=16M@0-4096T", Some(0)),
        ("cma=16M@100M-4096T", Some(50)),
        ("cma=16M@1G-4096T", None),
        // Two blocks, and room for only one.
        ("cma=3M@0-3M", None),
    ] {
        let manager = machine(192, line);
        assert!(manager.platform().calls().irq_save < 100_000, "{line}");
        let area = manager.moving().area(0);
        assert_eq!(area.is_some(), start.is_some(), "{line}");
        if let (Some((_, pages, _)), Some(start)) = (area, start) {
            assert!(pages.start.0 >= start * 512, "{line}: {pages:?}");
            assert_eq!(pages.pages(), 16 * MIB);
        }
        check(&manager);
    }
}

/// Places aligned to 16 MiB: the first, the third and the fourth are handed out.
#[test]
fn aligned_requests_get_the_places_that_linux_gives() {
    let manager = machine(192, "");
    let area = BlockRange::new(40, 72);
    let moving = manager.moving();
    let number = moving.create_area(name("camera"), area).expect("free");
    let pin = manager
        .allocate_at(Pfn(area.start.start().0 + 20 * MIB), Order::PAGE, MigrateType::Movable)
        .expect("free");
    let align = Order::new(12).expect("16 MiB");
    let mut places = Vec::new();
    for _ in 0..4 {
        match moving.allocate_in_area(number, 16 * MIB, align, Budget::UNLIMITED) {
            Ok(run) => places.push((run.start.0 - area.start.start().0) / MIB),
            Err(error) => assert_eq!(error, AreaError::NoRun { pages: 16 * MIB }),
        }
    }
    assert_eq!(places, [0, 32, 48]);
    let (_, _, counts) = moving.area(number).expect("there");
    assert_eq!((counts.success_pages, counts.fail_pages), (12288, 4096));
    manager.give_back(pin).expect("ours");
    check(&manager);
}

#[test]
fn the_command_line_sets_areas_aside() {
    let manager = machine(256, "cma=32M");
    let moving = manager.moving();
    let (own, pages, _) = moving.area(0).expect("made at bring-up");
    assert_eq!(
        (own.as_str(), pages.pages(), moving.area_pages()),
        ("reserved", 32 * MIB, 32 * MIB)
    );
    assert_eq!(moving.grade_of(pages.start), Some(Grade::Removable));
    check(&manager);
    let placed = machine(256, "cma=32M@128M");
    assert_eq!(placed.moving().area(0).expect("made").1.start, Pfn(128 * MIB));
    let window = machine(256, "cma=32M@127M-200M");
    assert_eq!(window.moving().area(0).expect("made").1.start, Pfn(128 * MIB));
    let too_much = machine(64, "cma=1G");
    assert!(too_much.moving().area(0).is_none());
    assert_eq!(too_much.totals().isolated_pages, 0);
    check(&too_much);
    let per_node = machine(256, "cma_pernuma=16M numa_cma=0:8M");
    let names: Vec<String> = (0..8)
        .filter_map(|number| per_node.moving().area(number))
        .map(|(name, _, _)| name.as_str().to_owned())
        .collect();
    assert_eq!(names, ["pernuma0", "numa0"]);
    check(&per_node);
}

/// Each area lies in the first run of free blocks of its zone that no other area has.
#[test]
fn areas_of_the_command_line_lie_side_by_side() {
    let line = "cma=32M cma_pernuma=32M numa_cma=0:32M,9:64M";
    // All memory is one zone.
    let build = FakeMachine::builder().ram(mib(4096, 4096 + 256)).build();
    let manager = bring_up_with(build, &[], &parameters(line)).expect("bring-up");
    let moving = manager.moving();
    let mut ranges: Vec<PfnRange> =
        (0..3).map(|number| moving.area(number).expect("made").1).collect();
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.windows(2).all(|two| two[0].end <= two[1].start), "{ranges:?}");
    // There is no node 9.
    assert_eq!((moving.area_pages(), moving.failed_area_bytes()), (96 * MIB, 64 << 20));
    check(&manager);
    let absurd = machine(64, "cma_pernuma=15E numa_cma=0:15E,1:15E");
    assert_eq!((absurd.moving().area_pages(), absurd.moving().failed_area_bytes()), (0, u64::MAX));
}

/// A device's runs stay where they are, so that they must not lie in areas or in movable memory.
#[test]
fn contiguous_runs_leave_graded_memory_to_what_can_be_moved() {
    let manager = machine(64, "");
    let moving = manager.moving();
    let area = moving.create_area(name("camera"), BlockRange::new(10, 14)).expect("free");
    moving.set_grade(BlockRange::new(16, 20), Grade::MovableOnly).expect("free");
    let request = ContiguousRequest::new(512);
    let mut runs = Vec::new();
    while let Ok(run) = moving.allocate_contiguous(&request, Budget::UNLIMITED) {
        assert_eq!(moving.grade_of(run.start), Some(Grade::Any), "{run:?}");
        runs.push(run);
    }
    assert!(runs.len() >= 16 && moving.find_contiguous(&request).is_err());
    let wrong = ContiguousRequest { migrate_type: MigrateType::Cma, ..request };
    let refused = Err(ContiguousError::Request(AllocateError::BadType(MigrateType::Cma)));
    assert_eq!(moving.find_contiguous(&wrong), refused);
    assert_eq!(moving.allocate_contiguous(&wrong, Budget::UNLIMITED), refused);
    let movable = ContiguousRequest { migrate_type: MigrateType::Movable, ..request };
    let lent = moving.find_contiguous(&movable).expect("eight blocks");
    assert_ne!(moving.grade_of(lent.start), Some(Grade::Any));
    let run = moving.allocate_in_area(area, 4 * 512, Order::BLOCK, Budget::UNLIMITED);
    assert_eq!(run.map(PfnRange::pages), Ok(4 * 512));
    check(&manager);
}

#[test]
fn wrong_calls_change_nothing() {
    let manager = machine(128, "");
    let moving = manager.moving();
    let no_area = moving.allocate_in_area(3, 1, Order::PAGE, Budget::UNLIMITED);
    assert_eq!(no_area, Err(AreaError::NoArea(3)));
    let far = moving.allocate_in_area(999, 1, Order::PAGE, Budget::UNLIMITED);
    assert_eq!(far, Err(AreaError::NoArea(999)));
    let fixed = Request { migrate_type: MigrateType::Unmovable, ..Request::new(Order::PAGE) };
    let fixed = manager.allocate(&fixed).expect("memory");
    settled(&manager);
    let block = u32::try_from(fixed.start.0 / 512).expect("small");
    let before = settled(&manager);
    let error = moving.create_area(name("x"), BlockRange::new(block, block + 1));
    assert!(matches!(error, Err(AreaError::Grade(_))), "{error:?}");
    assert_eq!(settled(&manager), before);
    let one = moving.create_area(name("x"), BlockRange::new(20, 24)).expect("free");
    let twice = moving.create_area(name("x"), BlockRange::new(24, 26));
    assert_eq!(twice, Err(AreaError::Exists(name("x"))));
    let none = moving.allocate_in_area(one, 0, Order::PAGE, Budget::UNLIMITED);
    assert_eq!(none, Err(AreaError::Memory(AllocateError::BadSize { pages: 0 })));
    let much = moving.allocate_in_area(one, u64::MAX, Order::MAX, Budget::UNLIMITED);
    assert_eq!(much, Err(AreaError::NoRun { pages: u64::MAX }));
    let again = moving.allocate_in_area(one, u64::MAX, Order::PAGE, Budget::UNLIMITED);
    assert_eq!(again, Err(AreaError::NoRun { pages: u64::MAX }));
    assert_eq!(moving.area(one).expect("there").2.fail_pages, u64::MAX);
    let over = moving.allocate_in_area(one, 512, Order::PAGE, Budget::until(0));
    // The run is free, so that nothing has to be moved.
    assert!(over.is_ok());
    manager.give_back(fixed).expect("ours");
    check(&manager);
}
