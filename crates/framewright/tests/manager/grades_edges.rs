//! Where grades meet the rest: short paths, pools, places by address, other settings at bring-up,
//! and several CPUs that change grades.

use crate::common::{
    Fake, blocks, bring_up_with, check, gib, graded, is_in, mib, order, parameters, settled,
    unmovable,
};
use framewright::hugetlb::PoolSize;
use framewright::manager::{AreaError, AreaName, Budget, GradeError, MOST_AREAS, Shortfall};
use framewright::parameters::Pages;
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{Grade, MigrateType};
use framewright::{AllocateError, Platform, Request, Reserves};
use framewright_jobs::NoHelpers;
use framewright_testkit::{FakeMachine, FakeVmemmap, Owner};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

fn fake(machine: &'static FakeMachine, line: &str) -> Fake {
    bring_up_with(machine, &[], &parameters(line)).expect("bring-up")
}

fn machine(size_mib: u64, line: &str) -> Fake {
    fake(FakeMachine::builder().ram(mib(0, size_mib)).build(), line)
}

fn name(text: &str) -> AreaName {
    AreaName::new(text).expect("a name")
}

fn settled_empty(manager: &Fake) {
    assert_eq!(settled(manager).allocated_pages, 0);
    assert_eq!(manager.totals().isolated_pages, 0);
    check(manager);
}

/// The short path for blocks of 1 GiB.
#[test]
fn the_largest_blocks_come_from_movable_memory_first() {
    let manager = fake(FakeMachine::builder().ram(gib(4, 12)).build(), "zone_parts=1");
    let range = blocks(3 << 10, 1024);
    manager.moving().set_grade(range, Grade::MovableOnly).expect("free");
    let mut held = Vec::new();
    for _ in 0..2 {
        let start = manager.allocate_order(Order::MAX, MigrateType::Movable).expect("memory");
        let run = PfnRange { start, end: start.add(Order::MAX.pages()) };
        assert!(is_in(range, run), "{run:?}");
        held.push(run);
    }
    held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
    settled_empty(&manager);
}

/// Watermarks do not count memory that an unmovable request cannot have, on either path.
#[test]
fn the_largest_unmovable_blocks_keep_the_marks() {
    let line = "zone_parts=1 min_free_kbytes=1100000";
    let manager = fake(FakeMachine::builder().ram(gib(4, 12)).build(), line);
    manager.moving().set_grade(blocks(3 << 10, 1024), Grade::MovableOnly).expect("free");
    let (mut held, mut long) = (Vec::new(), 0);
    // Makes blocks of the type, so that the short path has some.
    while let Ok(run) =
        manager.allocate(&Request { reserves: Reserves::All, ..unmovable(Order::MAX) })
    {
        held.push(run);
    }
    held.drain(..).for_each(|run| manager.give_back(run).expect("ours"));
    while let Ok(run) = manager.allocate(&unmovable(Order::MAX)) {
        held.push(run);
        long += 1;
    }
    held.drain(..).for_each(|run| manager.give_back(run).expect("ours"));
    while let Ok(start) = manager.allocate_order(Order::MAX, MigrateType::Unmovable) {
        held.push(PfnRange { start, end: start.add(Order::MAX.pages()) });
    }
    assert_eq!(held.len(), long);
    held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
    settled_empty(&manager);
}

/// Taking the grade away from a block that has none neither changes the block's type nor lets it
/// get a grade.
#[test]
fn taking_a_grade_away_changes_nothing_else() {
    let manager = machine(64, "");
    let fixed = manager.allocate(&unmovable(order(3))).expect("memory");
    settled(&manager);
    let block = BlockNumber::containing(fixed.start);
    let range = blocks(block.0, 1);
    manager.moving().set_grade(range, Grade::Any).expect("it has none");
    let kind = manager.block_state(block).expect("there").migrate_type();
    assert_eq!(kind, MigrateType::Unmovable);
    let set = manager.moving().set_grade(range, Grade::MovableOnly);
    assert!(matches!(set, Err(GradeError::InUse(_))), "{set:?}");
    manager.give_back(fixed).expect("ours");
    settled_empty(&manager);
}

/// Below an address limit or at a given place, an unmovable allocation turns its block into an
/// unmovable block.
#[test]
fn places_by_address_are_for_whom_they_are() {
    let manager = machine(128, "");
    let low = Request { max_address: 100 << 20, ..unmovable(Order::PAGE) };
    let low = manager.allocate(&low).expect("memory");
    let at = Pfn(40 * 512 + 7);
    let at = manager.allocate_at(at, Order::PAGE, MigrateType::Unmovable).expect("free");
    for run in [low, at] {
        let block = BlockNumber::containing(run.start);
        let set = manager.moving().set_grade(blocks(block.0, 1), Grade::MovableOnly);
        assert!(matches!(set, Err(GradeError::InUse(_))), "{run:?} {set:?}");
        manager.give_back(run).expect("ours");
    }
    let range = blocks(20, 4);
    manager.moving().set_grade(range, Grade::Removable).expect("free");
    for (start, of) in [(20 * 512, 9), (21 * 512, 3), (22 * 512, 10)] {
        let at = |kind| manager.allocate_at(Pfn(start), order(of), kind);
        let fixed = at(MigrateType::Unmovable);
        assert!(matches!(fixed, Err(AllocateError::NotFree(_))), "{fixed:?}");
        let run = at(MigrateType::Movable).expect("free");
        manager.give_back(run).expect("ours");
        settled(&manager);
    }
    settled_empty(&manager);
    assert_eq!(graded(&manager), 4 * 512);
}

/// The half rule holds also for requests that can use only some of the memory.
#[test]
fn removable_memory_comes_last_below_a_limit_and_first_when_it_is_most() {
    let manager = machine(192, "");
    let range = blocks(8, 8);
    manager.moving().set_grade(range, Grade::Removable).expect("free");
    for of in [0, 3, 9] {
        let limited = Request { max_address: 180 << 20, ..Request::new(order(of)) };
        let run = manager.allocate(&limited).expect("memory");
        assert!(!is_in(range, run), "{run:?}");
        manager.give_back(run).expect("ours");
    }
    settled_empty(&manager);
    let most = blocks(8, 72);
    manager.moving().set_grade(most, Grade::Removable).expect("free");
    for of in [0, 3, 9] {
        let limited = Request { max_address: 180 << 20, ..Request::new(order(of)) };
        let run = manager.allocate(&limited).expect("memory");
        assert!(is_in(most, run), "{run:?}");
        manager.give_back(run).expect("ours");
        manager.drain().expect("in order");
    }
    settled_empty(&manager);
}

/// While blocks of 4 MiB are shuffled, larger pieces are gathered from them, also from graded
/// memory.
#[test]
fn large_pieces_are_gathered_of_whatever_a_request_may_have() {
    for grade in [Grade::Removable, Grade::MovableOnly] {
        let manager = machine(256, "page_alloc.shuffle=1");
        let range = blocks(32, 32);
        manager.moving().set_grade(range, grade).expect("free");
        check(&manager);
        // Allocates everything else.
        let mut held = Vec::new();
        while let Ok(run) = manager.allocate(&unmovable(Order::BLOCK)) {
            assert!(!is_in(range, run));
            held.push(run);
        }
        // Frees so many small pieces that removable memory is not the larger part of the free
        // memory.
        held.sort_unstable_by_key(|run| run.start);
        let mut number = 0;
        held.retain(|&run| {
            number += 1;
            let keeps = number % 2 != 0;
            if !keeps {
                manager.give_back(run).expect("ours");
            }
            keeps
        });
        assert!(manager.allocate(&unmovable(order(12))).is_err());
        for _ in 0..2 {
            held.push(manager.allocate(&Request::new(order(12))).expect("it may have it"));
            check(&manager);
        }
        held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
        settled_empty(&manager);
        assert_eq!(graded(&manager), 32 * 512);
    }
}

/// Pools take no graded memory, with or without debug aids.
#[test]
fn pools_take_no_memory_with_a_grade() {
    for line in ["", "page_poison=1", "page_owner=on"] {
        let manager = machine(128, line);
        let range = blocks(16, 16);
        manager.moving().set_grade(range, Grade::MovableOnly).expect("free");
        let size = PoolSize::TwoMib;
        let _ = manager.pool(size).resize(100, &NoHelpers);
        check(&manager);
        let all = range.start.0..range.end.0;
        let grades = |manager: &Fake| {
            let of = |block| manager.moving().grade_of(BlockNumber(block).start());
            all.clone().all(|block| of(block) == Some(Grade::MovableOnly))
        };
        assert!(grades(&manager), "{line}");
        assert_eq!(graded(&manager), 16 * 512, "{line}");
        manager.pool(size).resize(0, &NoHelpers).expect("nobody else resizes");
        assert!(grades(&manager), "{line}");
        settled_empty(&manager);
    }
}

/// Huge pages that are kept from bring-up on stay whole.
#[test]
fn huge_pages_of_the_command_line_live_beside_movable_memory() {
    for more in ["kernelcore=1G", "movablecore=2G", "cma=64M@0-8G", "kernelcore=4G cma=64M"] {
        let line = format!(
            "{more} hugetlb_free_vmemmap=on hugepagesz=1G hugepages=2 hugepagesz=2M hugepages=100"
        );
        let build = FakeMachine::builder().ram(gib(0, 8)).cpus(2).build();
        FakeVmemmap::install(build);
        let manager = fake(build, &line);
        manager.vmemmap().initialise_deferred(&NoHelpers);
        check(&manager);
        let filled = manager.hugetlb().fill(&parameters(&line), &NoHelpers);
        check(&manager);
        // With debug aids each page is an allocation of its own, with a map.
        let without = |pages| if crate::common::is_careful() { 0 } else { pages };
        let pools = filled.pools.map(|pool| (pool.got, pool.without_vmemmap));
        assert_eq!(pools, [(100, without(100)), (2, without(2))], "{line}");
        assert_eq!(manager.totals().isolated_pages, 0);
    }
}

/// Bring-up runs with interrupts off, also on machines with several CPUs.
#[test]
fn bring_up_grades_memory_where_nobody_may_wait() {
    let build = FakeMachine::builder().ram(gib(0, 3)).cpus(4).build();
    let state = build.irq_save();
    let early = build.memblock(&[]);
    let line = parameters("kernelcore=1G cma=32M");
    let input = framewright::BringUp { parameters: &line, started_ns: None };
    let brought_up = framewright::Manager::bring_up(early, &input).map_err(|failed| failed.error);
    // SAFETY: what `irq_save` returned, once, on this CPU.
    unsafe { build.irq_restore(state) };
    let manager = brought_up.expect("bring-up");
    assert!(graded(&manager) > 1 << 18, "{}", graded(&manager));
    assert!(manager.moving().area(0).is_some());
    check(&manager);
}

/// The shortfall report counts memory that the request cannot have as kept from it.
#[test]
fn a_shortfall_tells_what_is_kept_from_unmovable_requests() {
    for grade in [Grade::MovableOnly, Grade::Removable] {
        let manager = machine(128, "");
        manager.moving().set_grade(blocks(16, 32), grade).expect("free");
        let mut held = Vec::new();
        let wanted = unmovable(Order::PAGE);
        while let Ok(run) = manager.allocate(&wanted) {
            assert!(!is_in(blocks(16, 32), run), "{run:?}");
            held.push(run);
        }
        let zone = manager.zones().last().expect("one");
        assert_eq!(zone.free_pages_of(grade), 32 * 512);
        assert!(zone.free_pages() > zone.watermarks().high_pages, "free, and not for it");
        let why = manager.shortfall(&wanted).expect("right in itself");
        if let Shortfall::Watermark { free_pages, kept_pages } = why {
            assert!(kept_pages >= free_pages, "{why:?}");
        } else {
            assert!(matches!(why, Shortfall::Fragmented { largest: None, .. }), "{why:?}");
        }
        held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
        settled_empty(&manager);
    }
}

#[test]
fn areas_overlap_nothing_and_leave_what_they_cannot_have() {
    let manager = machine(256, "");
    let moving = manager.moving();
    for (start, end) in [(20, 20), (24, 20), (u32::MAX, 0), (0, u32::MAX)] {
        let range = BlockRange { start: BlockNumber(start), end: BlockNumber(end) };
        let made = moving.create_area(name("none"), range);
        assert!(matches!(made, Err(AreaError::Grade(_) | AreaError::Memory(_))), "{made:?}");
    }
    let first = moving.create_area(name("first"), blocks(20, 8)).expect("free");
    for range in [blocks(20, 8), blocks(22, 2), blocks(16, 5), blocks(27, 4)] {
        let made = moving.create_area(name("second"), range);
        assert_eq!(made, Err(AreaError::Overlaps(first)), "{range:?}");
    }
    assert_eq!(moving.grade_of(Pfn(16 * 512)), Some(Grade::Any));
    manager.moving().set_grade(blocks(80, 2), Grade::MovableOnly).expect("free");
    for number in 1..u32::try_from(MOST_AREAS).expect("few") {
        moving.create_area(name(&format!("{number}")), blocks(26 + 2 * number, 2)).expect("free");
    }
    assert_eq!(moving.create_area(name("last"), blocks(80, 2)), Err(AreaError::TooMany));
    assert_eq!(moving.grade_of(Pfn(80 * 512)), Some(Grade::MovableOnly));
    settled(&manager);
    check(&manager);
}

/// Names and places are given out once, even if several CPUs ask at the same time.
#[test]
fn areas_that_are_made_at_the_same_time_do_not_overlap() {
    for _ in 0..20 {
        let build = FakeMachine::builder().ram(mib(0, 128)).cpus(3).build();
        let manager = &fake(build, "");
        let made: Vec<_> = thread::scope(|scope| {
            let users: Vec<_> = (0..2)
                .map(|cpu| {
                    scope.spawn(move || {
                        build.run_on(cpu + 1, || {
                            (0..4)
                                .filter(|&at| {
                                    let name = name(&format!("area{at}"));
                                    manager.moving().create_area(name, blocks(20 + at, 1)).is_ok()
                                })
                                .count()
                        })
                    })
                })
                .collect();
            users.into_iter().map(|user| user.join().expect("no panic")).collect()
        });
        let areas: Vec<_> =
            (0..8).filter_map(|number| manager.moving().area(number)).map(|area| area.1).collect();
        assert_eq!(areas.len(), made.iter().sum::<usize>());
        assert!(areas.len() <= 4, "{areas:?}");
        assert_eq!(manager.moving().area_pages(), areas.len() as u64 * 512);
        check(manager);
    }
}

/// Several CPUs take runs that share blocks at once: every request that asks for no more than there
/// is succeeds.
#[test]
fn several_cpus_have_runs_of_one_area() {
    let build = FakeMachine::builder().ram(mib(0, 128)).cpus(3).build();
    let manager = &fake(build, "");
    let number = manager.moving().create_area(name("shared"), blocks(20, 3)).expect("free");
    thread::scope(|scope| {
        for cpu in 0..2 {
            scope.spawn(move || {
                build.run_on(cpu + 1, || {
                    let moving = manager.moving();
                    for round in 0..200 {
                        let pages = 1 + (round * 37 + u64::from(cpu) * 11) % 400;
                        let run = moving
                            .allocate_in_area(number, pages, Order::PAGE, Budget::UNLIMITED)
                            .unwrap_or_else(|error| panic!("{pages} pages: {error}"));
                        // SAFETY: the area gave the run to this thread, which no longer uses it.
                        unsafe { moving.release_to_area(number, run) }.expect("ours");
                    }
                })
            });
        }
    });
    let (_, _, counts) = manager.moving().area(number).expect("there");
    assert_eq!((counts.available_pages, counts.fail_pages), (3 * 512, 0));
    assert_eq!(counts.success_pages, counts.released_pages);
    assert_eq!(graded(manager), 3 * 512);
    settled(manager);
    check(manager);
}

/// Everything at once: grades that change under requests of all kinds.
#[test]
fn grades_change_while_everybody_allocates() {
    let lines: [(&str, Pages); 5] = [
        ("", Pages::None),
        ("", Pages::Inside),
        ("page_alloc.shuffle=1", Pages::None),
        ("zone_parts=4", Pages::Inside),
        ("page_poison=1", Pages::None),
    ];
    for (line, pages) in lines {
        let build = if line.contains("parts") {
            FakeMachine::builder()
                .ram(mib(0, 64))
                .ram(mib(5 * 1024 - 64, 5 * 1024 + 64))
                .ram(mib(6 * 1024 - 32, 6 * 1024 + 32))
                .cpus(5)
                .build()
        } else {
            FakeMachine::builder().ram(mib(0, 256)).cpus(5).build()
        };
        let mut settings = parameters(line);
        settings.pages = pages;
        let manager = &bring_up_with(build, &[], &settings).expect("bring-up");
        let range = if line.contains("parts") { blocks(2560 - 24, 40) } else { blocks(40, 40) };
        let done = &AtomicBool::new(false);
        thread::scope(|scope| {
            let users: Vec<_> = (0..3)
                .map(|cpu| {
                    scope.spawn(move || {
                        build.run_on(cpu + 1, || {
                            traffic(manager, cpu, blocks(0, 0));
                        })
                    })
                })
                .collect();
            scope.spawn(move || {
                build.run_on(4, || {
                    let mut seed = 5_u64;
                    while !done.load(Ordering::Relaxed) {
                        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        let first = u32::try_from(seed >> 40).expect("24 bits") % 36;
                        let grade = [Grade::Any, Grade::MovableOnly, Grade::Removable]
                            [usize::try_from(seed >> 60).expect("small") % 3];
                        let _ = manager.moving().set_grade(blocks(range.start.0 + first, 4), grade);
                    }
                })
            });
            for user in users {
                user.join().expect("no panic");
            }
            done.store(true, Ordering::Relaxed);
        });
        settled_empty(manager);
        manager.moving().set_grade(range, Grade::MovableOnly).expect("nobody has any");
        has_all(manager, 40);
        thread::scope(|scope| {
            for cpu in 0..3 {
                scope.spawn(move || {
                    build.run_on(cpu + 1, || {
                        traffic(manager, cpu + 7, range);
                    })
                });
            }
        });
        settled_empty(manager);
        for block in range.start.0..range.end.0 {
            let grade = manager.moving().grade_of(BlockNumber(block).start());
            assert_eq!(grade, Some(Grade::MovableOnly), "{line} {block}");
        }
        has_all(manager, 40);
    }
}

/// Checks that `blocks` graded blocks are free, except for frames that hold the descriptors of
/// blocks that are kept split.
fn has_all(manager: &Fake, blocks: u64) {
    let (free, all) = (graded(manager), blocks * 512);
    let descriptors = manager.totals().descriptor_pages;
    assert!(free <= all && free + descriptors >= all, "{free} and {descriptors} of {all}");
}

/// Random requests; unmovable runs never lie in `fixed_never`, which is graded all the time.
fn traffic(manager: &Fake, seed: u32, fixed_never: BlockRange) {
    let mut seed = u64::from(seed) * 77 + 1;
    let mut held: Vec<PfnRange> = Vec::new();
    for _ in 0..1500 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        let bits = seed >> 33;
        if bits & 3 == 0 || held.len() > 150 {
            if !held.is_empty() {
                let at = usize::try_from(bits >> 8).expect("small") % held.len();
                manager.give_back(held.swap_remove(at)).expect("ours");
            }
            continue;
        }
        let kind = [
            MigrateType::Movable,
            MigrateType::Movable,
            MigrateType::Unmovable,
            MigrateType::Reclaimable,
        ][usize::try_from(bits >> 3).expect("small") % 4];
        let of =
            [0, 0, 0, 1, 3, 5, 7, 9, 9, 10, 11][usize::try_from(bits >> 6).expect("small") % 11];
        let limit = if bits >> 20 & 7 == 0 { 200 << 20 } else { u64::MAX };
        let pages = order(of).pages() - u64::from(of > 1 && bits >> 24 & 7 == 0);
        let request = Request { migrate_type: kind, max_address: limit, ..Request::pages(pages) };
        match manager.allocate(&request) {
            Ok(run) => {
                let may_be = kind == MigrateType::Movable || !is_in(fixed_never, run);
                assert!(may_be, "{kind:?} {run:?}");
                held.push(run);
            }
            Err(AllocateError::OutOfMemory { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
}

/// A pool may not have graded memory. A pool that finds nothing does not make requests that may
/// have graded memory fail.
#[test]
fn a_pool_that_finds_nothing_keeps_graded_memory_from_nobody() {
    let manager = machine(512, "");
    manager.moving().set_grade(blocks(64, 64), Grade::MovableOnly).expect("free");
    let request = Request { reserves: Reserves::All, fail_fast: true, ..unmovable(Order::BLOCK) };
    let mut held: Vec<PfnRange> = std::iter::from_fn(|| manager.allocate(&request).ok()).collect();
    let node = framewright::units::NodeId::ZERO;
    let pool = manager.pool(PoolSize::TwoMib);
    let resized = pool.resize(4, &NoHelpers).expect("nobody else resizes");
    assert_eq!(resized.reached, 0, "all that is left is graded");
    let exact = framewright::memblock::NodeChoice::Exact(node);
    let movable = Request { node: exact, ..Request::new(Order::BLOCK) };
    held.push(manager.allocate(&movable).expect("it may have graded memory"));
    held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
    settled_empty(&manager);
}
