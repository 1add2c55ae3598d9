//! Which blocks compaction chooses: a block with a page that stays is in nobody's way, each zone is
//! compacted by its own need, and a call that vacates and a call that compacts do not fail because
//! of each other.

use crate::common::reporting_rig::{self, Rig};
use crate::common::{Fake, bring_up_with, check, filled, mib, order, with_pages};
use framewright::manager::{Budget, MovingEvents};
use framewright::parameters::Pages;
use framewright::units::{NodeId, Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::ZoneKind;
use framewright::{MoveFailed, MoveToken, Mover, NotNow, Occupant, Request};
use framewright_testkit::workload::{Handle, Handles};
use framewright_testkit::{FakeMachine, Owner};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

type Held = Handles<'static, FakeMachine>;

const SECOND_NS: u64 = 1_000_000_000;

fn up(machine: &'static FakeMachine) -> &'static Fake {
    let manager = bring_up_with(machine, &[], &with_pages(Pages::None)).expect("bring-up");
    Box::leak(Box::new(manager))
}

fn events(manager: &Fake) -> MovingEvents {
    manager.moving().events()
}

/// The handles that are held in each block.
fn by_block(handles: &Held) -> BTreeMap<u32, Vec<Handle>> {
    let mut blocks = BTreeMap::<u32, Vec<Handle>>::new();
    for handle in handles.held() {
        let run = handles.range(handle).expect("held");
        blocks.entry(BlockNumber::containing(run.start).0).or_default().push(handle);
    }
    blocks
}

/// Half of each block is in use, except that the first `emptier` blocks have only four pages in
/// use, one of them pinned.
fn with_pins(emptier: usize) -> (&'static Fake, &'static Held, Vec<u32>) {
    let manager = up(FakeMachine::builder().ram(mib(4096, 4096 + 128)).build());
    let handles = filled(manager, 1 << 18, |pfn| pfn % 2 == 0);
    let blocks = by_block(handles);
    let pinned: Vec<u32> = blocks.keys().copied().take(emptier).collect();
    for block in &pinned {
        let (some, rest) = blocks[block].split_at(4);
        rest.iter().for_each(|&handle| handles.free(handle).expect("held"));
        handles.pin(some[1], true).expect("held");
    }
    manager.drain().expect("in order");
    manager.moving().set_mover(Some(handles));
    (manager, handles, pinned)
}

#[test]
fn a_pinned_page_in_the_emptiest_blocks_is_in_nobodys_way() {
    for emptier in [1, 5, 20] {
        let (manager, handles, pinned) = with_pins(emptier);
        let before = events(manager);
        let block = manager.allocate(&Request::new(Order::BLOCK)).expect("others can be emptied");
        // Pages in a block that cannot become whole are left where they are.
        let blocks = by_block(handles);
        assert!(pinned.iter().all(|block| blocks[block].len() == 4), "{emptier}");
        let told = events(manager);
        assert_eq!(told.compacted_blocks - before.compacted_blocks, 1);
        assert!(told.moved_pages - before.moved_pages <= 256, "{told:?}");
        assert!(!pinned.contains(&BlockNumber::containing(block.start).0));
        manager.give_back(block).expect("ours");
        // Every block that can be emptied is emptied: half of the blocks, except for the pinned
        // ones and the manager's.
        let all = manager.moving().compact(None, u64::MAX, Budget::UNLIMITED).expect("a mover");
        assert!(all.blocks >= (64 - emptier as u64) / 2 - 4 && !all.is_cut_short, "{all:?}");
        handles.held().for_each(|handle| handles.check(handle).expect("intact"));
        check(manager);
    }
}

/// No block can be emptied, but a run of four pages needs only a piece of one.
#[test]
fn a_small_run_moves_as_little_as_it_needs() {
    let (manager, handles, _) = with_pins(0);
    for of_block in by_block(handles).values() {
        handles.pin(of_block[of_block.len() / 2], true).expect("held");
    }
    let moved = || events(manager).moved_pages;
    let before = moved();
    let mut held = Vec::new();
    for _ in 0..10 {
        held.push(manager.allocate(&Request::new(order(2))).expect("there is room beside pins"));
    }
    assert!((1..=2 * 256).contains(&(moved() - before)), "{}", moved() - before);
    held.into_iter().for_each(|run| manager.give_back(run).expect("ours"));
    handles.held().for_each(|handle| handles.check(handle).expect("intact"));
    check(manager);
}

/// Larger runs, for which there is no room left at some moment: compaction then ends instead of
/// going on.
#[test]
fn where_there_is_no_room_compaction_ends() {
    let manager = up(FakeMachine::builder().ram(mib(4096, 4096 + 256)).build());
    let handles: &'static Held =
        Box::leak(Box::new(Handles::new(manager, 1 << 16).expect("memory")));
    let mut number = 0_u32;
    let one = |number: u32| Request {
        fail_fast: true,
        ..Request::new(order(if number.is_multiple_of(3) { 0 } else { 3 }))
    };
    while handles.adopt(&one(number)).is_ok() {
        number += 1;
    }
    let all: Vec<Handle> = handles.held().collect();
    all.into_iter().step_by(4).for_each(|handle| handles.free(handle).expect("held"));
    manager.drain().expect("in order");
    let first = *by_block(handles).values().next().expect("some").first().expect("some");
    handles.pin(first, true).expect("held");
    manager.moving().set_mover(Some(handles));
    let made = manager.moving().compact(None, u64::MAX, Budget::UNLIMITED).expect("a mover");
    let told = events(manager);
    // Each source fails at most once, and compaction notices after few runs.
    assert!(made.blocks > 10 && !made.is_cut_short, "{made:?}");
    let in_vain = told.begun_runs - made.moved.moved_runs;
    assert!(in_vain <= 128 * 32, "{in_vain} of {}", told.begun_runs);
    handles.held().for_each(|handle| handles.check(handle).expect("intact"));
    check(manager);
}

#[test]
fn background_compaction_passes_such_blocks_by() {
    let (manager, handles, pinned) = with_pins(20);
    let mut compactor = manager.moving().compactor();
    let score = || manager.moving().fragmentation_score(NodeId::new(0).expect("small"));
    assert!(score() > 90);
    let mut now = SECOND_NS;
    while now < 20 * SECOND_NS {
        now = compactor.poll(now);
    }
    assert!(score() <= 80, "{}", score());
    let blocks = by_block(handles);
    assert!(pinned.iter().all(|block| blocks[block].len() == 4));
    handles.held().for_each(|handle| handles.check(handle).expect("intact"));
    check(manager);
}

/// The mover does not know what most of memory holds. A poll does not ask it about all of that
/// memory.
#[test]
fn a_poll_ends_where_nobody_answers() {
    struct Nobody(std::sync::atomic::AtomicU64);
    // SAFETY: nothing is said to be movable.
    unsafe impl Mover for Nobody {
        fn occupant(&self, _: Pfn) -> Occupant {
            self.0.fetch_add(1, Ordering::Relaxed);
            Occupant::Unknown
        }
        fn begin(&self, _: PfnRange) -> Result<MoveToken, NotNow> {
            unreachable!()
        }
        unsafe fn relocate(
            &self,
            _: MoveToken,
            _: PfnRange,
            _: PfnRange,
        ) -> Result<(), MoveFailed> {
            unreachable!()
        }
        unsafe fn abort(&self, _: MoveToken, _: PfnRange) {
            unreachable!()
        }
    }
    let manager = up(FakeMachine::builder().ram(mib(4096, 4096 + 512)).build());
    let _handles = filled(manager, 1 << 18, |pfn| pfn % 2 == 0);
    let nobody: &'static Nobody = Box::leak(Box::new(Nobody(0.into())));
    manager.moving().set_mover(Some(nobody));
    let mut compactor = manager.moving().compactor();
    compactor.poll(SECOND_NS);
    // One page of each block, and no more.
    let asked = nobody.0.load(Ordering::Relaxed);
    assert!((100..=256).contains(&asked), "{asked}");
    // The zone is left alone for a while.
    let mut now = SECOND_NS;
    while now < 30 * SECOND_NS {
        now = compactor.poll(now);
    }
    assert_eq!(nobody.0.load(Ordering::Relaxed), asked);
    check(manager);
}

/// In the lower zone some of the free memory is whole blocks; in the upper zone all of it is single
/// pages.
#[test]
fn each_zone_is_compacted_by_its_own_need() {
    let machine = FakeMachine::builder().ram(mib(3840, 4096)).ram(mib(4096, 4096 + 64)).build();
    let manager = up(machine);
    let border = 4096 << 8;
    // Below: one block in four is free, and the others are free to a third.
    let stays = |pfn: u64| {
        let every = |of: u64, number: u64| number.is_multiple_of(of);
        if pfn >= border {
            every(2, pfn)
        } else {
            !every(4, pfn / PAGES_PER_BLOCK) && !every(3, pfn)
        }
    };
    let handles = filled(manager, 1 << 18, stays);
    manager.moving().set_mover(Some(handles));
    let score = |kind| {
        let zone = manager.views().find(|zone| zone.id().kind == kind).expect("there");
        100 - zone.free_block_pages() * 100 / zone.free_pages()
    };
    let [low, high] = [ZoneKind::Dma32, ZoneKind::Normal].map(score);
    assert!((40..80).contains(&low) && high > 90, "{low} {high}");
    // Sets the marks so that the score of the whole node is above the high one.
    manager.sysctl().set_compaction_proactiveness(20).expect("in range");
    let node = manager.moving().fragmentation_score(NodeId::new(0).expect("small"));
    manager.sysctl().set_compaction_proactiveness(100 - (node - 12)).expect("in range");
    let mark = node - 12;
    let places = |handles: &Held| -> Vec<PfnRange> {
        let all = handles.held().filter_map(|handle| handles.range(handle));
        all.filter(|run| run.start.0 < border).collect()
    };
    let before = places(handles);
    let mut compactor = manager.moving().compactor();
    let mut now = SECOND_NS;
    while now < 10 * SECOND_NS {
        now = compactor.poll(now);
    }
    assert!(score(ZoneKind::Normal) <= mark.max(10), "{}", score(ZoneKind::Normal));
    if low <= mark {
        assert_eq!(places(handles), before, "the lower zone needed nothing");
    }
    check(manager);
}

/// Runs of a megabyte: the limit of a poll in pages holds for larger runs, too, and a poll moves
/// runs of one node only.
#[test]
fn a_poll_moves_so_many_pages_of_one_node() {
    let builder = FakeMachine::builder().ram(mib(4096, 4608)).ram(mib(5120, 5632)).cpus(2);
    let builder = builder.node(mib(4096, 4608), 0).node(mib(5120, 5632), 1);
    let manager = up(builder.build());
    let handles: &'static Held =
        Box::leak(Box::new(Handles::new(manager, 1 << 14).expect("memory")));
    let half = Request { fail_fast: true, ..Request::new(order(8)) };
    while handles.adopt(&half).is_ok() {}
    let every_other: Vec<Handle> = handles
        .held()
        .filter(|handle| {
            let run = handles.range(*handle).expect("held");
            (run.start.0 / 256).is_multiple_of(2)
        })
        .collect();
    every_other.into_iter().for_each(|handle| handles.free(handle).expect("held"));
    manager.drain().expect("in order");
    manager.moving().set_mover(Some(handles));
    let mut compactor = manager.moving().compactor();
    let (mut now, mut polls) = (SECOND_NS, 0);
    while now < 5 * SECOND_NS {
        let before = by_block(handles);
        let moved = events(manager).moved_pages;
        now = compactor.poll(now);
        let moved = events(manager).moved_pages - moved;
        assert!(moved <= (1 << 12) + 32 * 256, "{moved}");
        let after = by_block(handles);
        let changed = |start: u32, end: u32| before.range(start..end).ne(after.range(start..end));
        assert!(!(changed(2048, 2304) && changed(2560, 2816)), "two nodes in one poll");
        polls += u32::from(moved != 0);
    }
    assert!(polls >= 4, "{polls}");
    handles.held().for_each(|handle| handles.check(handle).expect("intact"));
    check(manager);
}

/// Waits in the middle of its first move until another call has been refused one of its runs.
struct Slow {
    handles: &'static Held,
    is_moving: AtomicBool,
    may_go_on: AtomicBool,
}

// SAFETY: `Handles` makes all the moves, and keeps the contract.
unsafe impl Mover for Slow {
    fn serves(&self, manager: *const ()) -> bool {
        self.handles.serves(manager)
    }

    fn occupant(&self, pfn: Pfn) -> Occupant {
        self.handles.occupant(pfn)
    }

    fn begin(&self, run: PfnRange) -> Result<MoveToken, NotNow> {
        let begun = self.handles.begin(run);
        if begun == Err(NotNow::Busy) {
            self.may_go_on.store(true, Ordering::Release);
            // The other thread may have no CPU at this moment.
            std::thread::sleep(Duration::from_millis(1));
        }
        begun
    }

    unsafe fn relocate(
        &self,
        token: MoveToken,
        run: PfnRange,
        to: PfnRange,
    ) -> Result<(), MoveFailed> {
        self.is_moving.store(true, Ordering::Release);
        while !self.may_go_on.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // SAFETY: the caller upholds the same contract.
        unsafe { self.handles.relocate(token, run, to) }
    }

    unsafe fn abort(&self, token: MoveToken, run: PfnRange) {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.handles.abort(token, run) };
    }
}

#[test]
fn who_vacates_waits_for_who_compacts() {
    let machine = FakeMachine::builder().ram(mib(4096, 4096 + 64)).cpus(3).build();
    let manager = up(machine);
    let handles = filled(manager, 1 << 18, |pfn| pfn % 2 == 0);
    let slow = Slow { handles, is_moving: false.into(), may_go_on: false.into() };
    let source = *by_block(handles).keys().next().expect("some");
    let range = BlockRange::new(source, source + 1);
    let moving = || manager.moving().by(&slow);
    std::thread::scope(|scope| {
        let compacting =
            scope.spawn(|| machine.run_on(1, || moving().compact(None, 1, Budget::UNLIMITED)));
        while !slow.is_moving.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // 32 runs of the range are being moved, and so are refused at first.
        let vacated = machine.run_on(2, || moving().vacate(range, Budget::UNLIMITED));
        vacated.expect("the other has gone on");
        compacting.join().expect("no panic").expect("a mover");
    });
    manager.isolation().unisolate(range).expect("isolated");
    handles.held().for_each(|handle| handles.check(handle).expect("intact"));
    check(manager);
}

/// Blocks that became whole are reported to the hypervisor, and pages are not moved into reported
/// blocks.
#[test]
fn what_compaction_makes_whole_is_reported() {
    let mut rig = Rig::new(reporting_rig::machine(256, 1), "pages=none", reporting_rig::usual());
    let manager = rig.manager;
    let handles = filled(manager, 1 << 18, |pfn| pfn % 2 == 0);
    rig.settle();
    let before = manager.reporting_counters();
    assert!(before.reported_pages < 8 * 512, "{before:?}");
    manager.moving().set_mover(Some(handles));
    let made = manager.moving().compact(None, 20, Budget::UNLIMITED).expect("a mover");
    assert_eq!(made.blocks, 20);
    rig.settle();
    let after = manager.reporting_counters();
    assert!(after.reported_pages - before.reported_pages >= 19 * 512, "{after:?}");
    manager.moving().compact(None, 20, Budget::UNLIMITED).expect("a mover");
    let reused = manager.reporting_counters().reused_pages - after.reused_pages;
    assert_eq!(reused, 0, "pages are moved into blocks that are in use");
    handles.held().for_each(|handle| handles.check(handle).expect("intact"));
    rig.settle();
}
