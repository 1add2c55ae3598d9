//! Pages that cannot be moved and blocks that cannot be divided: calls pass them by, their
//! neighbours remain usable, and each is counted once.

use crate::common::{
    Fake, blocks, bring_up_with, check, filled, gib, mib, order, parameters, settled, with_pages,
};
use framewright::hugetlb::PoolSize;
use framewright::manager::{
    AreaName, Budget, ContiguousRequest, Obstacle, ObstacleKind, VacateError,
};
use framewright::memblock::NodeChoice;
use framewright::parameters::Pages;
use framewright::units::{NodeId, Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{IsolateError, MigrateType};
use framewright::{MoveFailed, MoveToken, Mover, NotNow, Occupant, Request};
use framewright_jobs::NoHelpers;
use framewright_testkit::workload::{Handle, Handles};
use framewright_testkit::{FakeMachine, Owner};

fn up(machine: &'static FakeMachine) -> &'static Fake {
    let manager = bring_up_with(machine, &[], &with_pages(Pages::None)).expect("bring-up");
    Box::leak(Box::new(manager))
}

/// Pins one page of each block in use for which `is_pinned` returns true.
fn pin(handles: &Handles<'_, FakeMachine>, mut is_pinned: impl FnMut(BlockNumber) -> bool) {
    let mut last = None;
    let mut all: Vec<(PfnRange, Handle)> =
        handles.held().filter_map(|handle| Some((handles.range(handle)?, handle))).collect();
    all.sort_unstable_by_key(|(run, _)| run.start);
    for (run, handle) in all {
        let block = BlockNumber::containing(run.start);
        if last.replace(block) != Some(block) && is_pinned(block) {
            handles.pin(handle, true).expect("held");
        }
    }
}

fn counted(manager: &Fake, start: u32, of: u8) -> PfnRange {
    let start = BlockNumber(start).start();
    let run = manager.allocate_at(start, order(of), MigrateType::Movable).expect("free");
    manager.begin_references(run).expect("whole");
    run
}

/// A range that begins inside the counted block is isolated from there on and put back in parts.
#[test]
fn a_counted_block_in_a_long_range_is_back_in_circulation_after_it() {
    let manager = up(FakeMachine::builder().ram(mib(4096, 5120)).build());
    let run = counted(manager, 2176, 10);
    let start = BlockNumber(2048).start().0 + 1;
    let range = PfnRange::new(start, BlockNumber(2248).start().0);
    let before = manager.totals();
    manager.moving().allocate_range(range, Budget::UNLIMITED).expect_err("nobody moves it");
    assert_eq!(manager.totals(), before);
    // All of it can be isolated again.
    manager.isolation().isolate(blocks(2048, 200)).expect("nothing is left isolated");
    manager.isolation().unisolate(blocks(2048, 200)).expect("isolated");
    manager.freeze_references(run.start, 1).expect("alone");
    manager.give_back_frozen(run.start).expect("frozen");
    assert_eq!((settled(manager).isolated_pages, manager.totals().allocated_pages), (0, 0));
    check(manager);
}

/// Wherever a range begins, and however large the counted blocks in it are.
#[test]
fn counted_blocks_inside_a_range_do_not_keep_it_from_being_isolated() {
    let manager = up(FakeMachine::builder().ram(gib(4, 8)).build());
    let runs = [counted(manager, 5 * 512, 18), counted(manager, 2176, 10)];
    check(manager);
    let before = manager.totals();
    for (start, end) in [(2049, 2249), (2048, 3500), (2100, 2178), (2176, 2178)] {
        let range = BlockRange::new(start, end);
        let found = manager.isolation().isolate(range).expect("all inside");
        assert_ne!(found.in_use_pages, 0, "{range:?}");
        check(manager);
        manager.isolation().unisolate(range).expect("isolated");
        assert_eq!(manager.totals(), before);
    }
    let inside = manager.isolation().isolate(BlockRange::new(2049, 2177));
    assert_eq!(inside, Err(IsolateError::Indivisible(runs[1].start)));
    check(manager);
}

#[test]
fn one_lent_block_that_cannot_be_divided_does_not_spoil_an_area() {
    let manager = up(FakeMachine::builder().ram(mib(0, 256)).build());
    let area = BlockRange::new(64, 96);
    let moving = manager.moving();
    let number = moving.create_area(AreaName::new("lent").expect("a name"), area).expect("free");
    let lent = counted(manager, 64, 10);
    let got = moving
        .allocate_in_area(number, PAGES_PER_BLOCK, Order::BLOCK, Budget::UNLIMITED)
        .expect("thirty other blocks are free");
    assert!(got.start >= lent.end && got.end <= area.end.start());
    // SAFETY: the run was handed out by this area just now, and nobody has used it.
    unsafe { moving.release_to_area(number, got) }.expect("ours");
    check(manager);
}

/// A page of each block is pinned: no block becomes whole, but there is room for smaller runs.
#[test]
fn a_small_run_is_had_where_no_block_can_be_emptied() {
    let manager = up(FakeMachine::builder().ram(mib(0, 64)).build());
    let handles = filled(manager, 1 << 18, |pfn| pfn % 2 == 0);
    pin(handles, |_| true);
    manager.moving().set_mover(Some(handles));
    let run = manager.allocate(&Request::new(order(3))).expect("compaction makes room beside pins");
    assert!(manager.allocate(&Request::new(Order::BLOCK)).is_err());
    assert_ne!(manager.moving().events().compact_successes, 0);
    manager.give_back(run).expect("ours");
    handles.held().for_each(|handle| handles.check(handle).expect("intact"));
    check(manager);
}

/// Only one place has no pinned page, and nothing is moved to find that out. It lies below other
/// places that cost less, whose pins are known by then.
#[test]
fn pinned_pages_are_asked_for_before_anything_is_moved() {
    let manager = up(FakeMachine::builder().ram(mib(4096, 4096 + 256)).build());
    let dense = BlockNumber(2048 + 64).start().0;
    let handles = filled(manager, 1 << 18, |pfn| pfn % if pfn < dense { 4 } else { 8 } == 0);
    let clean = 2048 + 32..2048 + 36;
    pin(handles, |block| !clean.contains(&block.0));
    let in_use: u64 = handles
        .held()
        .filter_map(|handle| handles.range(handle))
        .filter(|run| clean.contains(&BlockNumber::containing(run.start).0))
        .map(PfnRange::pages)
        .sum();
    let moving = manager.moving().by(handles);
    let run = moving
        .allocate_contiguous(&ContiguousRequest::new(4 * PAGES_PER_BLOCK), Budget::UNLIMITED)
        .expect("there is a place");
    assert_eq!(run.start, BlockNumber(clean.start).start());
    assert_eq!(moving.events().moved_pages, in_use);
    manager.give_back(run).expect("ours");
    handles.held().for_each(|handle| handles.check(handle).expect("intact"));
    check(manager);
}

#[test]
fn each_page_that_stays_is_counted_once() {
    let manager = up(FakeMachine::builder().ram(mib(0, 64)).build());
    let seven = manager.allocate(&Request::pages(8)).expect("memory");
    manager.give_back(PfnRange { start: Pfn(seven.end.0 - 1), ..seven }).expect("ours");
    settled(manager);
    let block = BlockNumber::containing(seven.start);
    let range = BlockRange { start: block, end: BlockNumber(block.0 + 1) };
    let mut named: Vec<Obstacle> = Vec::new();
    let before = manager.moving().events();
    let error = manager.moving().vacate_naming(range, Budget::UNLIMITED, &mut |it| named.push(it));
    assert!(matches!(error, Err(VacateError::Obstacles { .. })), "{error:?}");
    let after = manager.moving().events();
    assert_eq!(
        after.failed_pages - before.failed_pages,
        named.iter().map(|obstacle| obstacle.run.pages()).sum::<u64>()
    );
    let unknown = ObstacleKind::Unknown;
    let of_kind = named.iter().filter(|obstacle| obstacle.kind == unknown).count() as u64;
    let kind = unknown as usize;
    assert_eq!(after.obstacles[kind] - before.obstacles[kind], of_kind);
    assert!(named.iter().any(|obstacle| obstacle.kind == unknown && obstacle.run.pages() == 7));
}

#[test]
fn what_fails_on_one_node_is_tried_on_another() {
    let nodes = [0, 1].map(|node| mib(4096 + node * 1024, 4096 + node * 1024 + 64));
    let builder = FakeMachine::builder().ram(nodes[0]).ram(nodes[1]);
    let manager = up(builder.node(nodes[0], 0).node(nodes[1], 1).build());
    let handles = filled(manager, 1 << 18, |pfn| pfn % 2 == 0);
    let border = BlockNumber::containing(Pfn((4096 + 1024) << 8));
    pin(handles, |block| block < border);
    manager.moving().set_mover(Some(handles));
    let of = |node| Request {
        node: NodeChoice::Exact(NodeId::new(node).expect("a node")),
        ..Request::new(Order::BLOCK)
    };
    manager.allocate(&of(0)).expect_err("a page of each block is pinned");
    let run = manager.allocate(&of(1)).expect("nothing failed there");
    manager.give_back(run).expect("ours");
    check(manager);
}

/// An owner that answers with a run that does not contain the frame.
#[test]
fn an_answer_that_cannot_be_is_an_obstacle() {
    struct Nowhere;
    // SAFETY: it never names a run that contains its frame, so that no move begins.
    unsafe impl Mover for Nowhere {
        fn occupant(&self, _: Pfn) -> Occupant {
            Occupant::Movable(PfnRange::default())
        }
        fn begin(&self, _: PfnRange) -> Result<MoveToken, NotNow> {
            panic!("there is no such run")
        }
        unsafe fn relocate(
            &self,
            _: MoveToken,
            _: PfnRange,
            _: PfnRange,
        ) -> Result<(), MoveFailed> {
            panic!("there is no such run")
        }
        unsafe fn abort(&self, _: MoveToken, _: PfnRange) {}
    }
    let manager = up(FakeMachine::builder().ram(mib(0, 64)).build());
    let one = manager.allocate(&Request::new(Order::BLOCK)).expect("memory");
    let block = BlockNumber::containing(one.start);
    let range = BlockRange { start: block, end: BlockNumber(block.0 + 1) };
    let error = manager.moving().by(&Nowhere).vacate(range, Budget::UNLIMITED);
    let Err(VacateError::Obstacles { obstacles, .. }) = error else { panic!("{error:?}") };
    assert_eq!(obstacles.first, Obstacle { run: one, kind: ObstacleKind::Failed });
    manager.give_back(one).expect("ours");
    check(manager);
}

/// Linux ignores the word then, too (`mm/hugetlb_cma.c`).
#[test]
fn pages_come_from_areas_alone_only_where_areas_were_asked_for() {
    let machine = FakeMachine::builder().ram(gib(4, 7)).build();
    let line = "hugetlb_cma_only=on hugepagesz=1G hugepages=1";
    let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
    let fill = manager.hugetlb().fill(&parameters(line), &NoHelpers);
    assert_eq!(manager.pool(PoolSize::OneGib).counts().all.nr, 1, "{fill:?}");
    check(&manager);
}

/// Runs are not moved to where their users could not reach them, and can still be moved later.
#[test]
fn the_reference_mover_stays_within_the_direct_map() {
    let machine = FakeMachine::builder().ram(mib(0, 64)).direct_limit(32 << 20).build();
    let manager = up(machine);
    let handles = Handles::new(manager, 1 << 16).expect("memory");
    while handles.allocate(Order::PAGE).is_ok() {}
    assert!(handles.pages() > 7 << 8, "{}", handles.pages());
    let limit = Pfn::containing(32 << 20);
    assert!(handles.held().all(|handle| handles.range(handle).is_some_and(|run| run.end <= limit)));
    // All free memory lies above the limit.
    let is_ours = |block: &u32| {
        let start = BlockNumber(*block).start();
        (0..512).all(|frame| matches!(handles.occupant(start.add(frame)), Occupant::Movable(_)))
    };
    let around = blocks((0..16).find(is_ours).expect("one with nothing else in it"), 1);
    let moving = manager.moving().by(&handles);
    let error = moving.vacate(around, Budget::UNLIMITED).expect_err("out of reach");
    let VacateError::Obstacles { obstacles, moved } = error else { panic!("{error:?}") };
    assert_eq!((obstacles.first.kind, moved.moved_runs), (ObstacleKind::Failed, 0));
    handles.held().for_each(|handle| handles.check(handle).expect("intact"));
    machine.raise_direct_limit(64 << 20);
    let moved = moving.vacate(around, Budget::UNLIMITED).expect("in reach");
    assert_eq!(moved.moved_runs, obstacles.count);
    handles.held().for_each(|handle| handles.check(handle).expect("intact"));
    check(manager);
}
