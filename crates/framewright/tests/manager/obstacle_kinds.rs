//! Each kind of obstacle by name: what is in the way, where and why, when blocks are vacated and
//! when ranges are taken. Nothing else has changed afterwards.

use crate::common::pool_machine::TWO;
use crate::common::reporting_rig::{Rig, machine as reporting_machine, usual};
use crate::common::{
    Fake, bring_up_with, check, gib, is_careful, mib, parameters, settled, with_pages,
};
use framewright::manager::{
    Budget, Obstacle, ObstacleKind, Poisoned, RangeError, VacateError, Vacated,
};
use framewright::memblock::NodeChoice;
use framewright::parameters::Pages;
use framewright::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{BlockState, MigrateType, State};
use framewright::{MoveFailed, MoveToken, Mover, NotNow, Occupant, Request, Reserves};
use framewright_jobs::NoHelpers;
use framewright_testkit::workload::Handles;
use framewright_testkit::{Answer, FakeMachine, FakeVmemmap, Owner, PoolOwner};

const NOTHING: Vacated = Vacated { moved_runs: 0, moved_pages: 0 };

fn up(machine: &'static FakeMachine, line: &str) -> &'static Fake {
    let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
    Box::leak(Box::new(manager))
}

/// The blocks that a run lies in.
fn around(run: PfnRange) -> BlockRange {
    let end = BlockNumber::containing(Pfn(run.end.0 - 1));
    BlockRange { start: BlockNumber::containing(run.start), end: BlockNumber(end.0 + 1) }
}

fn block_of(pfn: Pfn) -> PfnRange {
    let start = BlockNumber::containing(pfn).start();
    PfnRange { start, end: start.add(PAGES_PER_BLOCK) }
}

/// Checks that exactly these obstacles are named and counted, and that nothing else has changed.
fn is_in_the_way(
    manager: &Fake,
    expected: &[Obstacle],
    vacate: impl FnOnce(&mut dyn FnMut(Obstacle)) -> Result<(), VacateError>,
) {
    let totals = settled(manager);
    let before = manager.moving().events();
    let mut named = Vec::new();
    let error = vacate(&mut |it| named.push(it));
    let Err(VacateError::Obstacles { moved, obstacles }) = error else {
        panic!("{error:?}, {expected:?}")
    };
    assert_eq!((moved, obstacles.first), (NOTHING, expected[0]));
    assert_eq!(obstacles.count, expected.len() as u64);
    // Calls that take ranges name only the first obstacle.
    assert!(named.is_empty() || named == expected, "{named:?}");
    let after = manager.moving().events();
    let grown: Vec<u64> = (0..ObstacleKind::COUNT)
        .map(|kind| after.obstacles[kind] - before.obstacles[kind])
        .collect();
    let mut by_kind = vec![0; ObstacleKind::COUNT];
    expected.iter().for_each(|it| by_kind[it.kind as usize] += 1);
    assert_eq!(grown, by_kind);
    let pages: u64 = expected.iter().map(|it| it.run.pages()).sum();
    assert_eq!(after.failed_pages - before.failed_pages, pages);
    assert_eq!(after.moved_pages, before.moved_pages);
    assert_eq!(settled(manager), totals);
    check(manager);
}

/// Checks [`is_in_the_way`] for the blocks, and for a range of all their frames.
fn stays(manager: &Fake, by: Option<&dyn Mover>, blocks: BlockRange, expected: &[Obstacle]) {
    let moving = || {
        let moving = manager.moving();
        by.map_or(moving, |mover| moving.by(mover))
    };
    is_in_the_way(manager, expected, |name| {
        moving().vacate_naming(blocks, Budget::UNLIMITED, name).map(|_| ())
    });
    let pages = PfnRange { start: blocks.start.start(), end: blocks.end.start() };
    is_in_the_way(manager, expected, |_| take(manager, by, pages));
}

fn take(manager: &Fake, by: Option<&dyn Mover>, range: PfnRange) -> Result<(), VacateError> {
    let moving = manager.moving();
    let moving = by.map_or(moving, |mover| moving.by(mover));
    match moving.allocate_range(range, Budget::UNLIMITED) {
        Err(RangeError::Vacate(error)) => Err(error),
        other => panic!("{other:?}"),
    }
}

/// A mover that gives one answer for every frame, and one for every move.
struct Says {
    occupant: Occupant,
    begins: Result<(), NotNow>,
}

// SAFETY: it never moves anything: each move is refused or fails.
unsafe impl Mover for Says {
    fn occupant(&self, _: Pfn) -> Occupant {
        self.occupant
    }

    fn begin(&self, _: PfnRange) -> Result<MoveToken, NotNow> {
        self.begins.map(|()| MoveToken(0))
    }

    unsafe fn relocate(&self, _: MoveToken, _: PfnRange, _: PfnRange) -> Result<(), MoveFailed> {
        Err(MoveFailed)
    }

    unsafe fn abort(&self, _: MoveToken, _: PfnRange) {
        panic!("there is memory")
    }
}

/// For a page and for a whole block.
#[test]
fn what_a_mover_says_is_what_is_said_of_it() {
    let manager = up(FakeMachine::builder().ram(mib(4096, 4096 + 64)).build(), "pages=none");
    let page = {
        // A page in a block that holds nothing else.
        let block = manager.allocate(&Request::new(Order::BLOCK)).expect("memory");
        manager.give_back(block).expect("ours");
        settled(manager);
        let at = block.start.add(77);
        manager.allocate_at(at, Order::PAGE, MigrateType::Movable).expect("free")
    };
    let block = manager.allocate(&Request::new(Order::BLOCK)).expect("memory");
    for run in [page, block] {
        for (occupant, begins, kind) in [
            (Occupant::Fixed, Ok(()), ObstacleKind::Fixed),
            (Occupant::Pinned, Ok(()), ObstacleKind::Pinned),
            (Occupant::Unknown, Ok(()), ObstacleKind::Unknown),
            (Occupant::Movable(run), Err(NotNow::Pinned), ObstacleKind::Pinned),
            (Occupant::Movable(run), Err(NotNow::Busy), ObstacleKind::Busy),
            (Occupant::Movable(run), Ok(()), ObstacleKind::Failed),
            (Occupant::Movable(PfnRange::new(3, 4)), Ok(()), ObstacleKind::Failed),
        ] {
            let says = Says { occupant, begins };
            stays(manager, Some(&says), around(run), &[Obstacle { run, kind }]);
        }
    }
    [page, block].into_iter().for_each(|run| manager.give_back(run).expect("ours"));
    check(manager);
}

/// Without a mover, or with that of another manager, all pages are unknown.
#[test]
fn a_mover_of_another_manager_is_not_asked() {
    let one = || up(FakeMachine::builder().ram(mib(4096, 4096 + 64)).build(), "pages=none");
    let (manager, other) = (one(), one());
    let handles = Handles::new(other, 16).expect("memory");
    let run = manager.allocate(&Request::new(Order::BLOCK)).expect("memory");
    let unknown = [Obstacle { run, kind: ObstacleKind::Unknown }];
    stays(manager, None, around(run), &unknown);
    stays(manager, Some(&handles), around(run), &unknown);
    manager.give_back(run).expect("ours");
}

/// Each run is named by itself, because each could have found a place.
#[test]
fn runs_without_a_place_to_go_are_named() {
    let manager = up(FakeMachine::builder().ram(mib(4096, 4096 + 64)).build(), "pages=none");
    let handles = Handles::new(manager, 1 << 15).expect("memory");
    let all = |order| Request { reserves: Reserves::All, ..Request::new(order) };
    let [whole, spare] = [0, 1].map(|_| handles.adopt(&all(Order::BLOCK)).expect("memory"));
    while handles.adopt(&all(Order::PAGE)).is_ok() {}
    assert_eq!(settled(manager).free_pages, 0);
    let kind = ObstacleKind::NoMemory;
    let run = handles.range(whole).expect("held");
    stays(manager, Some(&handles), around(run), &[Obstacle { run, kind }]);
    // A block that is all single-page handles, wherever the manager's tables are.
    let mut pages: Vec<PfnRange> =
        handles.held().filter_map(|handle| handles.range(handle)).collect();
    pages.sort_unstable_by_key(|run| run.start);
    pages.retain(|run| run.pages() == 1);
    let of_one = pages.chunk_by(|one, next| block_of(one.start) == block_of(next.start));
    let singles = of_one.into_iter().find(|runs| runs.len() == 512).expect("most are");
    let expected: Vec<Obstacle> = singles.iter().map(|&run| Obstacle { run, kind }).collect();
    stays(manager, Some(&handles), around(singles[0]), &expected);
    handles.held().for_each(|handle| handles.check(handle).expect("intact"));
    // With room for one block the run can go, but not while only the reserves are left.
    let others: Vec<_> =
        handles.held().filter(|&handle| handles.range(handle) != Some(run)).collect();
    for handle in others.into_iter().filter(|&handle| handle != spare).step_by(3) {
        let is_single = |at: PfnRange| at.pages() == 1 && !singles.contains(&at);
        if handles.range(handle).is_some_and(is_single) {
            handles.free(handle).expect("held");
        }
    }
    handles.free(spare).expect("held");
    settled(manager);
    let moving = manager.moving().by(&handles);
    assert_eq!(moving.vacate(around(run), Budget::UNLIMITED).expect("room").moved_pages, 512);
    manager.isolation().unisolate(around(run)).expect("isolated");
    let singles = around(singles[0]);
    assert_eq!(moving.vacate(singles, Budget::UNLIMITED).expect("room").moved_runs, 512);
    manager.isolation().unisolate(singles).expect("isolated");
    drop(handles);
    assert_eq!(settled(manager).allocated_pages, 0);
    check(manager);
}

/// Checks a whole reserved block, reserved frames, and frames of a block with a hole.
#[test]
fn memory_that_was_never_given_is_named() {
    let machine = FakeMachine::builder().ram(mib(0, 63)).ram(mib(128, 192)).build();
    let reserved = [mib(20, 25)];
    let manager = bring_up_with(machine, &reserved, &with_pages(Pages::None)).expect("up");
    let kind = ObstacleKind::Reserved;
    let named = |start: u64, end: u64| Obstacle { run: PfnRange::new(start, end), kind };
    let block = |block: u64| around(PfnRange::new(block * 512, block * 512 + 512));
    stays(&manager, None, block(10), &[named(10 * 512, 11 * 512)]);
    stays(&manager, None, block(12), &[named(12 * 512, 12 * 512 + 256)]);
    // Whole blocks are named one by one, and the half block together with the block before it.
    let all = [named(10 * 512, 11 * 512), named(11 * 512, 12 * 512 + 256)];
    stays(&manager, None, BlockRange::new(9, 14), &all);
    // The other half of the last block is free.
    let half = PfnRange::new(12 * 512 + 256, 13 * 512);
    manager.moving().allocate_range(half, Budget::UNLIMITED).expect("free");
    manager.give_back_to_zone(half).expect("ours");
    is_in_the_way(&manager, &[named(12 * 512 + 200, 12 * 512 + 256)], |_| {
        take(&manager, None, PfnRange::new(12 * 512 + 200, 12 * 512 + 300))
    });
    check(&manager);
}

/// Blocks that the manager keeps: here for pages of the command line, until a pool has them.
#[test]
fn blocks_that_the_manager_keeps_are_named_until_a_pool_has_them() {
    if is_careful() {
        // There are no kept blocks, because debug aids want a map for every page.
        return;
    }
    let machine = FakeMachine::builder().ram(gib(4, 7)).build();
    FakeVmemmap::install(machine);
    let line = "memmap_init=eager hugetlb_free_vmemmap=on hugepages=256";
    let manager = up(machine, line);
    // The kept memory also includes the array, which is never handed out.
    let is_kept = |block: &BlockNumber| {
        let state = manager.block_state(*block);
        state.is_some_and(|state| state.is(State::Whole) && state.has(BlockState::KEPT))
    };
    let kept: Vec<BlockNumber> = (2048..3584).map(BlockNumber).filter(is_kept).collect();
    assert!(!kept.is_empty());
    let of = |block: BlockNumber, kind| [Obstacle { run: block_of(block.start()), kind }];
    for &block in [kept.first(), kept.last()].into_iter().flatten() {
        stays(manager, None, around(block_of(block.start())), &of(block, ObstacleKind::Manager));
    }
    let filled = manager.hugetlb().fill(&parameters(line), &NoHelpers);
    assert_eq!(filled.pools[0].without_vmemmap, 256);
    let is_pool =
        |block: BlockNumber| manager.block_state(block).is_some_and(|state| state.is(State::Pool));
    for &block in [kept.first(), kept.last()].into_iter().flatten() {
        if !is_pool(block) {
            let run = around(block_of(block.start()));
            stays(manager, None, run, &of(block, ObstacleKind::Manager));
        }
    }
    // Next, the pages once a pool uses them.
    let pool = manager.pool(TWO);
    while pool.allocate(NodeChoice::Any, false).is_ok() {}
    let block = kept.into_iter().find(|&block| is_pool(block)).expect("some are");
    stays(manager, None, around(block_of(block.start())), &of(block, ObstacleKind::Pool));
}

/// A page of a pool that has an error remains a pool page while it is in use. Afterwards the error
/// is the obstacle, for ever.
#[test]
fn pages_of_pools_and_pages_with_errors_are_told_apart() {
    let manager = up(FakeMachine::builder().ram(mib(4096, 4096 + 64)).build(), "pages=none");
    let pool = manager.pool(TWO);
    pool.resize(3, &NoHelpers).expect("memory");
    let take = || pool.allocate(NodeChoice::Any, false).expect("free");
    let [used, free, bad] = [take(), take(), take()];
    pool.give_back_page(free.start).expect("held");
    let of = |run, kind| [Obstacle { run, kind }];
    for run in [used, bad] {
        stays(manager, None, around(run), &of(run, ObstacleKind::Pool));
    }
    assert_eq!(pool.poison(bad.start.add(9)), Ok(Poisoned::Stays));
    stays(manager, None, around(bad), &of(bad, ObstacleKind::Pool));
    pool.give_back_page(bad.start).expect("held");
    stays(manager, None, around(bad), &of(bad, ObstacleKind::Poisoned));
    // A free page with an error leaves the pool at once.
    assert_eq!(pool.poison(free.start), Ok(Poisoned::Left));
    stays(manager, None, around(free), &of(free, ObstacleKind::Poisoned));
    stays(manager, None, around(used), &of(used, ObstacleKind::Pool));
    let counts = pool.counts();
    assert_eq!((counts.all.nr, counts.all.free, counts.leaked), (1, 0, 2));
    // None of the good pages is in the way any more once it is free memory.
    pool.give_back_page(used.start).expect("held");
    pool.resize(0, &NoHelpers).expect("nobody else resizes");
    manager.moving().vacate(around(used), Budget::UNLIMITED).expect("free");
    manager.isolation().unisolate(around(used)).expect("isolated");
    check(manager);
    manager.hugetlb().verify().unwrap_or_else(|fault| panic!("{fault}"));
}

/// Polls until the device has something, and returns what it has.
fn submit(rig: &mut Rig) -> Vec<PfnRange> {
    rig.host.take_submissions();
    for _ in 0..1000 {
        let wait_ns = rig.poll().expect("not closed");
        if rig.reporter().out_pages() == 0 {
            rig.now_ns += wait_ns;
        } else if let Some(last) = rig.host.take_submissions().pop() {
            return last.into_iter().map(|range| range.whole_frames()).collect();
        }
    }
    panic!("nothing is submitted");
}

/// Whole blocks, and runs of a block the rest of which is in use.
#[test]
fn what_is_out_at_the_host_is_named_until_it_is_back() {
    let mut rig = Rig::new(reporting_machine(64, 1), "pages=none", usual());
    rig.host.plan([Answer::Never]);
    let out = submit(&mut rig)[0];
    let one = block_of(out.start);
    let kind = ObstacleKind::Reporting;
    stays(rig.manager, None, around(one), &[Obstacle { run: one, kind }]);
    rig.host.answer_now();
    rig.settle();
    rig.manager.moving().vacate(around(one), Budget::UNLIMITED).expect("it is back");
    rig.manager.isolation().unisolate(around(one)).expect("isolated");

    let line = "pages=none page_reporting.page_reporting_order=4";
    let mut rig = Rig::new(reporting_machine(64, 1), line, usual());
    let block = rig.take(9);
    rig.settle();
    let (start, free) = (block.start.0, PfnRange::new(block.start.0, block.start.0 + 64));
    rig.free(free);
    rig.host.plan([Answer::Never]);
    submit(&mut rig);
    let rest = PfnRange::new(start + 64, block.end.0);
    let expected =
        [Obstacle { run: free, kind }, Obstacle { run: rest, kind: ObstacleKind::Unknown }];
    stays(rig.manager, None, around(block), &expected);
    let manager = rig.manager;
    let few = PfnRange::new(start + 60, start + 64);
    is_in_the_way(manager, &[Obstacle { run: few, kind }], |_| take(manager, None, few));
    rig.host.answer_now();
    rig.settle();
    rig.manager.moving().allocate_range(few, Budget::UNLIMITED).expect("it is back");
    rig.free(few);
    rig.free(rest);
    rig.settle();
}

/// Descriptors are in the way of a range that has part of their block, but not of one that has all
/// of it.
#[test]
fn descriptors_are_named_where_their_block_stays() {
    let machine = FakeMachine::builder().ram(mib(4096, 4096 + 64)).build();
    let manager = bring_up_with(machine, &[], &with_pages(Pages::Inside)).expect("bring-up");
    let manager: &'static Fake = Box::leak(Box::new(manager));
    let whole = manager.allocate(&Request::new(Order::BLOCK)).expect("memory");
    manager.give_back(whole).expect("ours");
    settled(manager);
    let block = BlockNumber::containing(whole.start);
    let page = whole.start.add(300);
    let page = manager.allocate_at(page, Order::PAGE, MigrateType::Movable).expect("free");
    let frames = manager.vmemmap().descriptor_frames(block).expect("it is in pieces");
    let kind = ObstacleKind::Descriptors;
    for frame in frames {
        let run = PfnRange::of_order(frame, Order::PAGE);
        is_in_the_way(manager, &[Obstacle { run, kind }], |_| take(manager, None, run));
    }
    // Neighbouring frames are one obstacle.
    let touching = frames.chunk_by(|one, next| one.add(1) == *next).next().expect("eight");
    let run = PfnRange { start: touching[0], end: touching[touching.len() - 1].add(1) };
    is_in_the_way(manager, &[Obstacle { run, kind }], |_| take(manager, None, run));
    // If the whole block is vacated, only the page is in the way.
    stays(manager, None, around(page), &[Obstacle { run: page, kind: ObstacleKind::Unknown }]);
    manager.give_back(page).expect("ours");
    settled(manager);
    manager.moving().vacate(around(page), Budget::UNLIMITED).expect("free");
    manager.isolation().unisolate(around(page)).expect("isolated");
    check(manager);
}
