//! Memory that moves: vacating, ranges at a given place, the cheapest place, compaction. The
//! contents of each page are stamped by handle, so that a move that loses data is found.

use crate::common::{
    Fake, blocks, bring_up_with, check, gib, idle_pages, is_careful, mib, order, settled,
    with_pages,
};
use framewright::manager::{
    Budget, CompactError, ContiguousError, ContiguousRequest, Obstacle, ObstacleKind, RangeError,
    VacateError,
};
use framewright::parameters::Pages;
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{IsolateError, MigrateType};
use framewright::{MoveFailed, MoveToken, Mover, NotNow, Occupant};
use framewright_testkit::workload::{Habits, Handle, Handles};
use framewright_testkit::{FakeMachine, Owner};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

const BOTH: [Pages; 2] = [Pages::None, Pages::Inside];

fn machine(size_mib: u64, pages: Pages) -> Fake {
    let machine = FakeMachine::builder().ram(mib(0, size_mib)).build();
    bring_up_with(machine, &[], &with_pages(pages)).expect("bring-up")
}

fn pages_of(range: BlockRange) -> PfnRange {
    PfnRange { start: range.start.start(), end: range.end.start() }
}

fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

fn below(seed: &mut u64, limit: usize) -> usize {
    usize::try_from(random(seed)).expect("31 bits") % limit
}

/// Fills a machine with runs of handles, and frees handles at random until `percent` of its memory
/// is in use, so that every block holds some.
fn churn<'m>(manager: &'m Fake, percent: u64, orders: &[u8]) -> Handles<'m, FakeMachine> {
    let handles = Handles::new(manager, 1 << 20).expect("memory");
    let all = manager.totals().managed_pages;
    let mut seed = 5;
    while manager.totals().free_pages * 100 > all * 3 {
        let of = orders[below(&mut seed, orders.len())];
        if handles.allocate(order(of)).is_err() {
            break;
        }
    }
    let held: Vec<Handle> = handles.held().collect();
    let mut left = handles.pages();
    for handle in held {
        // Handles are freed at random, so that holes are everywhere.
        if left * 100 <= all * percent {
            break;
        }
        if random(&mut seed) % 100 >= percent {
            left -= handles.range(handle).map_or(0, PfnRange::pages);
            handles.free(handle).expect("held");
        }
    }
    settled(manager);
    handles
}

fn look_at_all(handles: &Handles<'_, FakeMachine>) {
    for handle in handles.held() {
        handles.check(handle).expect("contents survive");
    }
}

fn whole_blocks(manager: &Fake) -> u64 {
    settled(manager);
    manager
        .views()
        .map(|zone| {
            let free = zone.free_blocks();
            (0..).zip(free).map(|(slot, blocks)| u64::from(blocks) << slot).sum::<u64>()
        })
        .sum()
}

#[test]
fn what_is_in_vacated_blocks_is_elsewhere_and_intact() {
    for pages in BOTH {
        let manager = machine(64, pages);
        let handles = churn(&manager, 50, &[0, 0, 0, 1, 3, 5]);
        let before = (handles.pages(), settled(&manager).allocated_pages);
        let range = blocks(18, 3);
        let moved = manager.moving().by(&handles).vacate(range, Budget::UNLIMITED);
        let moved = moved.expect("all of it moves");
        assert!(moved.moved_pages > 200, "{moved:?}");
        look_at_all(&handles);
        let inside = |handle| {
            handles.range(handle).is_some_and(|run| !run.intersection(pages_of(range)).is_empty())
        };
        assert!(!handles.held().any(inside));
        assert_eq!(manager.isolation().survey(range).expect("there").free_pages, 3 * 512);
        check(&manager);
        let claimed = manager.isolation().claim(range).expect("all free");
        assert_eq!(claimed, pages_of(range));
        manager.give_back_to_zone(claimed).expect("ours");
        assert_eq!((handles.pages(), settled(&manager).allocated_pages), before);
        drop(handles);
        check(&manager);
        assert_eq!(settled(&manager).allocated_pages, 0);
    }
}

#[test]
fn without_a_mover_only_free_memory_is_vacated() {
    let manager = machine(64, Pages::None);
    assert!(manager.moving().vacate(blocks(20, 2), Budget::UNLIMITED).is_ok());
    manager.isolation().unisolate(blocks(20, 2)).expect("isolated");
    let one = manager.allocate_at(Pfn(21 * 512 + 7), Order::PAGE, MigrateType::Movable);
    let one = one.expect("free");
    let error = manager.moving().vacate(blocks(20, 2), Budget::UNLIMITED).expect_err("in use");
    let VacateError::Obstacles { obstacles, moved } = error else { panic!("{error:?}") };
    assert_eq!((obstacles.count, moved.moved_runs), (1, 0));
    assert_eq!(obstacles.first, Obstacle { run: one, kind: ObstacleKind::Unknown });
    assert_eq!(manager.totals().isolated_pages, 0);
    assert_eq!(
        manager.moving().compact(None, u64::MAX, Budget::UNLIMITED),
        Err(CompactError::NoMover)
    );
    manager.give_back(one).expect("ours");
    check(&manager);
}

/// A mover that panics in the middle of a move: the blocks come back into circulation.
#[test]
fn a_mover_that_panics_leaves_nothing_isolated() {
    let manager = machine(64, Pages::None);
    let handles = Handles::new(&manager, 1024).expect("memory");
    // The last handle does not lie where the manager's tables are.
    let mut all: Vec<_> =
        (0..1024).map(|_| handles.allocate(Order::PAGE).expect("memory")).collect();
    let one = all.pop().expect("some");
    all.into_iter().for_each(|handle| handles.free(handle).expect("held"));
    settled(&manager);
    let at = handles.range(one).expect("held").start;
    handles.set_habits(Habits { die_from: 1, ..Habits::default() });
    let moving = manager.moving().by(&handles);
    let block = BlockNumber::containing(at);
    let around = BlockRange { start: block, end: BlockNumber(block.0 + 1) };
    let attempts: [&dyn Fn(); 3] = [
        &|| _ = moving.vacate(around, Budget::UNLIMITED),
        &|| _ = moving.allocate_range(pages_of(around), Budget::UNLIMITED),
        &|| _ = moving.compact(None, u64::MAX, Budget::UNLIMITED),
    ];
    let mut deaths = 0;
    for attempt in attempts {
        let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(attempt));
        if died.is_ok() {
            // There was nothing to compact.
            continue;
        }
        deaths += 1;
        assert_eq!(manager.totals().isolated_pages, 0);
        manager.isolation().isolate(around).expect("in circulation");
        manager.isolation().unisolate(around).expect("isolated just now");
    }
    assert!(deaths >= 2);
    look_at_all(&handles);
    check(&manager);
    // The first move succeeds, the second does not.
    handles.set_habits(Habits { die_from: 2, ..Habits::default() });
    let moved = moving.vacate(around, Budget::UNLIMITED).expect("nothing else is there");
    assert_eq!(moved.moved_runs, 1);
    manager.isolation().unisolate(around).expect("isolated");
    look_at_all(&handles);
}

/// Exactly every third run is refused and named, the others move, and no run is begun twice.
#[test]
fn refused_runs_are_named_and_no_run_is_begun_twice() {
    struct Picky<'a> {
        handles: &'a Handles<'a, FakeMachine>,
        begun: Mutex<(BTreeSet<u64>, BTreeSet<u64>)>,
    }
    // SAFETY: `Handles` makes all the moves, and keeps the contract.
    unsafe impl Mover for Picky<'_> {
        fn occupant(&self, pfn: Pfn) -> Occupant {
            self.handles.occupant(pfn)
        }
        fn begin(&self, run: PfnRange) -> Result<MoveToken, NotNow> {
            let mut begun = self.begun.lock().expect("no panic");
            assert!(begun.0.insert(run.start.0), "begun twice: {run:?}");
            if begun.0.len().is_multiple_of(3) {
                begun.1.insert(run.start.0);
                return Err(NotNow::Busy);
            }
            self.handles.begin(run)
        }
        unsafe fn relocate(
            &self,
            token: MoveToken,
            run: PfnRange,
            to: PfnRange,
        ) -> Result<(), MoveFailed> {
            // SAFETY: passed on from the caller.
            unsafe { self.handles.relocate(token, run, to) }
        }
        unsafe fn abort(&self, token: MoveToken, run: PfnRange) {
            // SAFETY: passed on from the caller.
            unsafe { self.handles.abort(token, run) };
        }
    }
    let manager = machine(64, Pages::None);
    let handles = Handles::new(&manager, 4096).expect("memory");
    for _ in 0..600 {
        handles.allocate(Order::PAGE).expect("memory");
    }
    settled(&manager);
    let ranges = || handles.held().filter_map(|handle| handles.range(handle));
    // A block that holds nothing of the manager's.
    let isolation = manager.isolation();
    let is_ours = |range: &BlockRange| {
        isolation.isolate(*range).expect("there");
        let survey = isolation.survey(*range).expect("isolated");
        isolation.unisolate(*range).expect("isolated");
        let own = ranges().filter(|run| pages_of(*range).contains(run.start)).count() as u64;
        own > 10 && [survey.in_use_pages, survey.free_pages] == [own, 512 - own]
    };
    let range = (0..32).map(|block| BlockRange::new(block, block + 1)).find(is_ours).expect("one");
    let starts = || -> BTreeSet<u64> {
        let inside = ranges().filter(|run| pages_of(range).contains(run.start));
        inside.map(|run| run.start.0).collect()
    };
    let inside = starts();
    let picky = Picky { handles: &handles, begun: Mutex::default() };
    let mut named = Vec::new();
    let error = manager
        .moving()
        .by(&picky)
        .vacate_naming(range, Budget::UNLIMITED, &mut |obstacle| named.push(obstacle))
        .expect_err("refused");
    let VacateError::Obstacles { moved, obstacles } = error else { panic!("{error:?}") };
    let (begun, refused) = picky.begun.into_inner().expect("no panic");
    assert_eq!(begun, inside);
    let is_busy = |found: &Obstacle| found.kind == ObstacleKind::Busy;
    assert!(!refused.is_empty() && named.iter().all(is_busy), "{named:?}");
    assert_eq!(obstacles.count, named.len() as u64);
    assert!(named.iter().map(|found| found.run.start.0).eq(refused.iter().copied()));
    assert_eq!(moved.moved_runs, (begun.len() - refused.len()) as u64);
    assert_eq!(starts(), refused);
    look_at_all(&handles);
    check(&manager);
}

#[test]
fn a_pinned_page_is_named_and_everything_else_undone() {
    for pages in BOTH {
        let manager = machine(64, pages);
        let handles = churn(&manager, 40, &[0, 2]);
        // Not in the last block, where the manager's tables lie.
        let is_inside = |handle| {
            let run = handles.range(handle).expect("held");
            (18 * 512..28 * 512).contains(&run.start.0)
        };
        let pinned = handles.held().find(|&handle| is_inside(handle)).expect("some");
        handles.pin(pinned, true).expect("held");
        let run = handles.range(pinned).expect("held");
        let block = BlockNumber::containing(run.start);
        let range = BlockRange { start: block, end: BlockNumber(block.0 + 1) };
        let error = manager.moving().by(&handles).vacate(range, Budget::UNLIMITED);
        let Err(VacateError::Obstacles { obstacles, .. }) = error else { panic!("{error:?}") };
        let first = Obstacle { run, kind: ObstacleKind::Pinned };
        assert_eq!((obstacles.count, obstacles.first), (1, first));
        assert_eq!(manager.totals().isolated_pages, 0);
        check(&manager);
        handles.pin(pinned, false).expect("held");
        manager.moving().by(&handles).vacate(range, Budget::UNLIMITED).expect("pinned no more");
        manager.isolation().unisolate(range).expect("isolated");
        look_at_all(&handles);
    }
}

#[test]
fn a_deadline_that_is_over_moves_nothing_and_a_budget_stops_in_time() {
    let manager = machine(64, Pages::None);
    let handles = churn(&manager, 50, &[0]);
    let moving = manager.moving().by(&handles);
    let over = moving.vacate(blocks(18, 4), Budget::until(0));
    assert!(matches!(over, Err(VacateError::OutOfTime { moved }) if moved.moved_runs == 0));
    let ten = moving.vacate(blocks(18, 4), Budget::runs(10));
    assert!(matches!(ten, Err(VacateError::OutOfTime { moved }) if moved.moved_runs == 10));
    assert_eq!(manager.totals().isolated_pages, 0);
    let compacted = moving.compact(None, u64::MAX, Budget::runs(7)).expect("a mover");
    assert!(compacted.is_cut_short && compacted.moved.moved_runs == 7);
    look_at_all(&handles);
    check(&manager);
}

#[test]
fn a_mover_that_fails_leaves_everything_where_it_was() {
    let manager = machine(64, Pages::None);
    let handles = churn(&manager, 50, &[0, 3]);
    let before = settled(&manager);
    handles.set_habits(Habits { fail_every: 1, ..Habits::default() });
    let error = manager.moving().by(&handles).vacate(blocks(18, 1), Budget::UNLIMITED);
    let Err(VacateError::Obstacles { obstacles, moved }) = error else { panic!("{error:?}") };
    assert!(moved.moved_runs == 0 && obstacles.first.kind == ObstacleKind::Failed);
    look_at_all(&handles);
    check(&manager);
    assert_eq!(settled(&manager), before);
}

#[test]
fn a_mover_that_lies_is_found_out_where_memory_is_poisoned() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).build();
    let mut parameters = with_pages(Pages::None);
    parameters.page_poison = true;
    let manager = bring_up_with(machine, &[], &parameters).expect("bring-up");
    let handles = churn(&manager, 50, &[0]);
    handles.set_habits(Habits { lie_every: 5, ..Habits::default() });
    let error = manager.moving().by(&handles).vacate(blocks(18, 1), Budget::UNLIMITED);
    let Err(VacateError::Obstacles { obstacles, moved }) = error else { panic!("{error:?}") };
    assert_eq!(obstacles.first.kind, ObstacleKind::NotMoved);
    let lies = manager.moving().events().obstacles[ObstacleKind::NotMoved as usize];
    assert!(lies == obstacles.count && lies * 4 <= moved.moved_runs, "{lies} {moved:?}");
    let damaged = handles.held().filter(|&handle| handles.check(handle).is_err());
    assert_eq!(damaged.count() as u64, lies);
}

#[test]
fn a_range_is_taken_to_the_frame_and_nothing_beside_it() {
    for pages in BOTH {
        for (start, end) in
            [(3, 1000), (0, 512), (17, 20), (500, 520), (100, 1536), (0, 1), (511, 513)]
        {
            let manager = machine(64, pages);
            let base = 18 * 512;
            let range = PfnRange::new(base + start, base + end);
            settled(&manager);
            let idle = idle_pages(&manager);
            let taken = manager.moving().allocate_range(range, Budget::UNLIMITED);
            assert_eq!(taken, Ok(range), "{pages:?}");
            check(&manager);
            assert_eq!(manager.totals().isolated_pages, 0);
            for beside in [range.start.0 - 1, range.end.0] {
                let one = manager.allocate_at(Pfn(beside), Order::PAGE, MigrateType::Movable);
                // The last eight frames of a block may hold descriptors.
                assert!(one.is_ok() || pages == Pages::Inside, "free as before");
                one.into_iter().for_each(|one| manager.give_back(one).expect("ours"));
            }
            for frame in [range.start, Pfn(range.end.0 - 1)] {
                assert!(manager.allocate_at(frame, Order::PAGE, MigrateType::Movable).is_err());
            }
            manager.give_back_to_zone(range).expect("ours");
            assert_eq!(settled(&manager).allocated_pages, 0);
            assert_eq!(idle_pages(&manager), idle);
            check(&manager);
        }
    }
}

#[test]
fn a_range_in_use_is_moved_away_first() {
    for pages in BOTH {
        let manager = machine(128, pages);
        let handles = churn(&manager, 60, &[0, 0, 1, 4]);
        let allocated = settled(&manager).allocated_pages;
        let range = PfnRange::new(18 * 512 + 40, 25 * 512 + 300);
        let taken = manager.moving().by(&handles).allocate_range(range, Budget::UNLIMITED);
        if (pages == Pages::Inside || is_careful()) && taken.is_err() {
            // Descriptors lie where the range ends, or random placement left no run for the target.
            assert!(matches!(taken, Err(RangeError::Vacate(VacateError::Obstacles { .. }))));
            check(&manager);
            continue;
        }
        assert_eq!(taken, Ok(range));
        look_at_all(&handles);
        check(&manager);
        assert_eq!(settled(&manager).allocated_pages, allocated + range.pages());
        manager.give_back_to_zone(range).expect("ours");
        assert_eq!(settled(&manager).allocated_pages, allocated);
        check(&manager);
    }
}

#[test]
fn a_range_that_cannot_be_had_leaves_nothing_behind() {
    let manager = machine(64, Pages::None);
    let moving = manager.moving();
    let empty = PfnRange::new(9000, 9000);
    assert_eq!(moving.allocate_range(empty, Budget::UNLIMITED), Err(RangeError::Empty(empty)));
    for place in [PfnRange::new(1 << 30, (1 << 30) + 5), PfnRange::new(1000, 9000)] {
        let error = moving.allocate_range(place, Budget::UNLIMITED);
        assert!(matches!(error, Err(RangeError::Place(_))), "{error:?}");
    }
    let one = manager.allocate_at(Pfn(20 * 512 + 9), Order::PAGE, MigrateType::Movable);
    let one = one.expect("free");
    let before = settled(&manager);
    let error = moving.allocate_range(PfnRange::new(19 * 512 + 5, 22 * 512), Budget::UNLIMITED);
    assert!(matches!(error, Err(RangeError::Vacate(VacateError::Obstacles { .. }))));
    assert_eq!((settled(&manager), manager.totals().isolated_pages), (before, 0));
    check(&manager);
    // A range beside it can be taken.
    let beside = PfnRange::new(19 * 512 + 5, 20 * 512 + 9);
    moving.allocate_range(beside, Budget::UNLIMITED).expect("free");
    let twice = moving.allocate_range(beside, Budget::UNLIMITED);
    assert!(twice.is_err());
    manager.isolation().isolate(blocks(25, 1)).expect("free");
    let isolated = moving.allocate_range(PfnRange::new(25 * 512, 26 * 512), Budget::UNLIMITED);
    assert!(matches!(
        isolated,
        Err(RangeError::Vacate(VacateError::Isolate(IsolateError::Isolated(_))))
    ));
    manager.isolation().unisolate(blocks(25, 1)).expect("isolated still");
    manager.give_back_to_zone(beside).expect("ours");
    manager.give_back(one).expect("ours");
    assert_eq!(settled(&manager).allocated_pages, 0);
    check(&manager);
}

#[test]
fn runs_of_more_than_a_gib_and_of_odd_sizes_are_had() {
    let machine = FakeMachine::builder().ram(gib(0, 8)).build();
    let manager = bring_up_with(machine, &[], &with_pages(Pages::None)).expect("bring-up");
    let moving = manager.moving();
    for pages in [1025, 512 * 700 + 13, 3 << 18, (2 << 18) + 1] {
        let taken = moving
            .allocate_contiguous(&ContiguousRequest::new(pages), Budget::UNLIMITED)
            .expect("free");
        assert_eq!(taken.pages(), pages);
        check(&manager);
        manager.give_back_to_zone(taken).expect("ours");
    }
    assert!(matches!(
        moving.allocate_contiguous(&ContiguousRequest::new(9 << 18), Budget::UNLIMITED),
        Err(ContiguousError::NoPlace { .. })
    ));
    assert!(moving.allocate_contiguous(&ContiguousRequest::new(0), Budget::UNLIMITED).is_err());
    assert_eq!(settled(&manager).allocated_pages, 0);
}

#[test]
fn the_place_with_the_least_to_move_is_found_and_pins_are_passed_by() {
    let manager = machine(256, Pages::None);
    let handles = churn(&manager, 60, &[0]);
    let request = ContiguousRequest { align: order(11), ..ContiguousRequest::new(4 * 512) };
    let moving = manager.moving().by(&handles);
    let found = moving.find_contiguous(&request).expect("a place");
    let in_use = |range: PfnRange| {
        handles
            .held()
            .filter_map(|handle| handles.range(handle))
            .filter(|run| !run.intersection(range).is_empty())
            .count() as u64
    };
    // Places where only handles have memory.
    let windows = (2..32).map(|at| blocks(at * 4, 4)).filter(|&window| {
        let used = manager.isolation().survey(window).expect("there").in_use_pages;
        used == in_use(pages_of(window))
    });
    let best = windows.map(|window| in_use(pages_of(window))).min().expect("some");
    assert!(found.start.is_aligned(order(11)) && in_use(found) <= best, "{} {best}", in_use(found));
    // With a pin in that place, another place is taken.
    let inside = handles
        .held()
        .find(|&handle| handles.range(handle).is_some_and(|run| found.contains(run.start)));
    let inside = inside.expect("not all free");
    handles.pin(inside, true).expect("held");
    let taken = moving.allocate_contiguous(&request, Budget::UNLIMITED).expect("elsewhere");
    assert!(!taken.contains(handles.range(inside).expect("held").start));
    look_at_all(&handles);
    check(&manager);
    manager.give_back_to_zone(taken).expect("ours");
}

#[test]
fn compaction_makes_nearly_all_free_memory_whole_and_moves_no_more_than_it_must() {
    for pages in BOTH {
        let manager = machine(1024, pages);
        let handles = churn(&manager, 80, &[0]);
        settled(&manager);
        let free = idle_pages(&manager);
        let before = whole_blocks(&manager);
        // The ideal for the present placement is to empty the emptiest blocks.
        let mut used = std::collections::BTreeMap::new();
        for run in handles.held().filter_map(|handle| handles.range(handle)) {
            *used.entry(BlockNumber::containing(run.start)).or_insert(0_u64) += 1;
        }
        let moved = manager
            .moving()
            .by(&handles)
            .compact(None, u64::MAX, Budget::UNLIMITED)
            .expect("a mover");
        look_at_all(&handles);
        check(&manager);
        let after = whole_blocks(&manager);
        // The blocks that stay split hold descriptors.
        let whole = after * 512 + manager.totals().descriptor_pages;
        assert!(whole * 100 >= free * 95, "{pages:?}: {before} -> {after} of {free}: {moved:?}");
        let mut counts: Vec<u64> = used.into_values().collect();
        counts.sort_unstable();
        let gained = usize::try_from(moved.blocks).expect("few");
        let ideal: u64 = counts.iter().take(gained).sum();
        assert!(moved.moved.moved_pages * 10 <= ideal * 13, "{moved:?} {ideal}");
        // Nothing is left to do.
        let again = manager.moving().by(&handles).compact(None, u64::MAX, Budget::UNLIMITED);
        let again = again.expect("a mover");
        assert!(again.blocks <= 1, "{pages:?} {moved:?} {again:?}");
    }
}

#[test]
fn compaction_of_larger_runs_keeps_them_aligned_and_intact() {
    let manager = machine(256, Pages::None);
    let handles = churn(&manager, 50, &[0, 1, 2, 3, 5, 7]);
    let before = whole_blocks(&manager);
    let moved =
        manager.moving().by(&handles).compact(None, u64::MAX, Budget::UNLIMITED).expect("a mover");
    assert!(whole_blocks(&manager) > before && moved.blocks != 0);
    look_at_all(&handles);
    check(&manager);
    drop(handles);
    assert_eq!(settled(&manager).allocated_pages, 0);
}

/// Several CPUs allocate, free and look, while one vacates, compacts and takes ranges.
#[test]
fn traffic_goes_on_while_memory_moves() {
    for pages in BOTH {
        let machine = FakeMachine::builder().cpus(4).ram(mib(0, 128)).build();
        let manager = bring_up_with(machine, &[], &with_pages(pages)).expect("bring-up");
        let handles = Handles::new(&manager, 1 << 15).expect("memory");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for worker in 0..3_u64 {
                let (handles, stop) = (&handles, &stop);
                scope.spawn(move || {
                    let mut seed = worker + 1;
                    let mut mine = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let of = [0, 0, 0, 1, 2, 5, 9][below(&mut seed, 7)];
                        if mine.len() < 2500
                            && let Ok(handle) = handles.allocate(order(of))
                        {
                            mine.push(handle);
                        }
                        if !mine.is_empty() && random(&mut seed).is_multiple_of(2) {
                            let at = below(&mut seed, mine.len());
                            let handle = mine[at];
                            if random(&mut seed).is_multiple_of(3) {
                                handles.check(handle).expect("intact");
                            } else {
                                handles.free(mine.swap_remove(at)).expect("mine");
                            }
                        }
                    }
                    for handle in mine {
                        handles.free(handle).expect("mine");
                    }
                });
            }

            let moving = manager.moving().by(&handles);
            let mut seed = 99;
            for round in 0..60 {
                let start = 9 + u32::try_from(random(&mut seed) % 50).expect("small");
                match round % 3 {
                    0 => {
                        let range = blocks(start, 2);
                        if moving.vacate(range, Budget::UNLIMITED).is_ok() {
                            manager.isolation().unisolate(range).expect("isolated");
                        }
                    }
                    1 => {
                        let start = u64::from(start) * 512 + random(&mut seed) % 512;
                        let range = PfnRange::new(start, start + 1 + random(&mut seed) % 900);
                        if moving.allocate_range(range, Budget::UNLIMITED).is_ok() {
                            manager.give_back_to_zone(range).expect("ours");
                        }
                    }
                    _ => _ = moving.compact(None, 4, Budget::UNLIMITED).expect("a mover"),
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        look_at_all(&handles);
        drop(handles);
        assert_eq!(settled(&manager).allocated_pages, 0, "{pages:?}");
        assert_eq!(manager.totals().isolated_pages, 0);
        check(&manager);
    }
}
