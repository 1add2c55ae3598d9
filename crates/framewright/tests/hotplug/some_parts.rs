//! Removing as much memory as possible, part by part: memory that cannot be isolated, how much is
//! isolated at once, and a wish that shrinks.

use crate::add::{add, machine, pages_in, with_one_page_of_four};
use crate::common::{Fake, bring_up_with, check, gib, mib, parameters};
use framewright::Mover;
use framewright::manager::{
    Budget, MoveFailed, MoveToken, NotNow, Obstacle, ObstacleKind, Occupant, Removal,
};
use framewright::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange, PhysRange};
use framewright::vmemmap_space::BlockRange;
use framewright::zone::{Grade, MigrateType};
use framewright_testkit::workload::Handles;
use framewright_testkit::{FakeMachine, Owner};
use std::sync::atomic::{AtomicU64, Ordering};

const ALIGN: u64 = 2 << 20;

fn remove_some(
    manager: &Fake,
    mover: &dyn Mover,
    within: PhysRange,
    most: u64,
    budget: Budget,
) -> Removal {
    let hotplug = manager.hotplug().by(mover);
    // SAFETY: nothing looks up descriptors by number.
    unsafe { hotplug.remove_some(within, most, ALIGN, budget) }.expect("possible")
}

/// Adds 64 MiB with a counted run of 4 MiB at 24 MiB, and one page in four in use elsewhere.
fn around_a_counted_run(test: impl FnOnce(&Fake, &Handles<'_, framewright_testkit::FakeMachine>)) {
    let manager = machine(gib(4, 5), "");
    add(&manager, mib(4096, 4160), 0, Grade::Removable).expect("added");
    let order = Order::new(10).expect("4 MiB");
    let counted = manager.allocate_at(Pfn(4120 << 8), order, MigrateType::Movable).expect("free");
    manager.begin_references(counted).expect("whole");
    let handles = with_one_page_of_four(&manager, 40, mib(0, 0));
    test(&manager, &handles);
    check(&manager);
}

/// A run that cannot be divided lies across the edge of the searched part: the memory on both sides
/// of it comes, and then the run is named as the obstacle.
#[test]
fn what_lies_around_an_indivisible_run_comes() {
    // The first part contains the run's end, its first half, all but one block of it, or none of
    // it.
    for most in [38, 36, 34, 2] {
        around_a_counted_run(|manager, handles| {
            let range = mib(4096, 4160);
            let mut gone = Vec::new();
            let last = loop {
                match remove_some(manager, handles, range, most << 20, Budget::UNLIMITED) {
                    Removal::Run(run) => gone.push(run),
                    other => break other,
                }
            };
            let counted = mib(4120, 4124);
            let size: u64 = gone.iter().map(|run| run.size()).sum();
            assert!(gone.iter().all(|run| run.end <= counted.start || run.start >= counted.end));
            assert!(size >= 56 << 20, "{most}: {size:#x}, {last:?}");
            let Removal::Nothing(Some(Obstacle { run, kind })) = last else {
                panic!("{most}: {last:?}");
            };
            assert!(run.start >= counted.whole_frames().start, "{most}: {last:?}");
            assert!(run.end <= counted.whole_frames().end, "{most}: {last:?}");
            assert!(matches!(kind, ObstacleKind::Fixed | ObstacleKind::Unknown), "{kind:?}");
        });
    }
}

/// A block that another caller has isolated is treated in this way, too.
#[test]
fn what_lies_around_an_isolated_block_comes() {
    let manager = machine(gib(4, 5), "");
    let range = mib(4096, 4160);
    add(&manager, range, 0, Grade::Removable).expect("added");
    let handles = with_one_page_of_four(&manager, 40, mib(0, 0));
    let others = BlockRange::new(4120 / 2, 4122 / 2);
    let isolated = manager.isolation().isolate(others).expect("nobody has it");
    assert!(isolated.in_use_pages != 0, "{isolated:?}");
    let mut gone = 0;
    let last = loop {
        match remove_some(&manager, &handles, range, 64 << 20, Budget::UNLIMITED) {
            Removal::Run(run) => gone += run.size(),
            other => break other,
        }
    };
    assert!(gone >= 58 << 20, "{gone:#x}");
    let run = mib(4120, 4122).whole_frames();
    assert_eq!(last, Removal::Nothing(Some(Obstacle { run, kind: ObstacleKind::Busy })));
    manager.isolation().unisolate(others).expect("ours");
    check(&manager);
}

/// A mover that owns everything, in runs of one order, and reports each run as busy. It records how
/// much memory is isolated.
struct Watching<'m> {
    manager: &'m Fake,
    order: Order,
    most_isolated: AtomicU64,
    asked: AtomicU64,
}

// SAFETY: no move ever begins.
unsafe impl Mover for Watching<'_> {
    fn occupant(&self, pfn: Pfn) -> Occupant {
        let start = Pfn(pfn.0 & !(self.order.pages() - 1));
        Occupant::Movable(PfnRange::of_order(start, self.order))
    }

    fn begin(&self, _: PfnRange) -> Result<MoveToken, NotNow> {
        let isolated = self.manager.totals().isolated_pages;
        self.most_isolated.fetch_max(isolated, Ordering::Relaxed);
        self.asked.fetch_add(1, Ordering::Relaxed);
        Err(NotNow::Busy)
    }

    unsafe fn relocate(&self, _: MoveToken, _: PfnRange, _: PfnRange) -> Result<(), MoveFailed> {
        unreachable!("nothing begins")
    }

    unsafe fn abort(&self, _: MoveToken, _: PfnRange) {
        unreachable!("nothing begins")
    }
}

/// However much is wanted, a call with little time must not spend it before the first move.
#[test]
fn no_more_is_isolated_than_is_vacated_soon() {
    let (range, first) = (gib(4, 6), 4 << 9);
    let manager = machine(range, "pages=none");
    add(&manager, range, 0, Grade::Removable).expect("added");
    let (mut held, mut free) = (Vec::new(), 0);
    for block in (first..first + 1024).map(|block: u64| block * PAGES_PER_BLOCK) {
        match manager.allocate_at(Pfn(block + 7), Order::PAGE, MigrateType::Movable) {
            Ok(page) => held.push(page),
            // The window's tables.
            Err(_) => free += 1,
        }
    }
    assert!(free <= 4, "{free}");
    manager.drain().expect("in order");
    let (most_isolated, asked) = Default::default();
    let mover = Watching { manager: &manager, order: Order::PAGE, most_isolated, asked };
    let found = remove_some(&manager, &mover, range, range.size(), Budget::UNLIMITED);
    assert!(matches!(found, Removal::Nothing(Some(_))), "{found:?}");
    let isolated = mover.most_isolated.load(Ordering::Relaxed);
    assert!(0 < isolated && isolated <= 128 * PAGES_PER_BLOCK, "{isolated}");
    assert_eq!(mover.asked.load(Ordering::Relaxed), held.len() as u64);
    held.into_iter().for_each(|page| manager.give_back(page).expect("ours"));
    check(&manager);
}

/// A run that cannot be divided is isolated as a whole, however long it is, if at least as much
/// memory is wanted.
#[test]
fn the_owner_of_a_long_counted_run_is_asked() {
    let range = gib(4, 7);
    let manager = machine(range, "pages=none");
    add(&manager, range, 0, Grade::Removable).expect("added");
    // Each GiB is free except the one with the window's tables.
    let [counted, other] = [5, 6]
        .map(|gib| manager.allocate_at(Pfn(gib << 18), Order::MAX, MigrateType::Movable))
        .map(|run| run.expect("free"));
    manager.begin_references(counted).expect("whole");
    let (most_isolated, asked) = Default::default();
    let mover = Watching { manager: &manager, order: Order::MAX, most_isolated, asked };
    let found = remove_some(&manager, &mover, gib(5, 6), 1 << 30, Budget::UNLIMITED);
    assert!(matches!(found, Removal::Nothing(Some(_))), "{found:?}");
    let asked = mover.asked.load(Ordering::Relaxed);
    assert!(asked >= 1, "{found:?}");
    // No more memory than wanted is isolated.
    let found = remove_some(&manager, &mover, gib(5, 6), 512 << 20, Budget::UNLIMITED);
    let Removal::Nothing(Some(Obstacle { kind: ObstacleKind::Fixed, .. })) = found else {
        panic!("{found:?}");
    };
    assert_eq!(mover.asked.load(Ordering::Relaxed), asked);
    manager.give_back_reference(counted.start).expect("the last");
    manager.give_back(other).expect("ours");
    check(&manager);
}

/// A caller that got some memory wants that much less next time. Owners that were asked in vain are
/// not asked again for each run.
#[test]
fn a_wish_that_shrinks_goes_on_where_it_was() {
    let manager = machine(gib(4, 5), "");
    let range = mib(4096, 4224);
    add(&manager, range, 0, Grade::Removable).expect("added");
    let low = mib(4096, 4128);
    let handles = with_one_page_of_four(&manager, 80, low);
    let pinned = pages_in(&handles, low);
    assert!(pinned > 5000, "{pinned}");
    let asked = || manager.moving().events().failed_pages;
    let (mut wish, mut calls, before) = (range.size(), 0, asked());
    loop {
        match remove_some(&manager, &handles, range, wish, Budget::runs(64)) {
            Removal::Run(run) => wish -= run.size(),
            Removal::OutOfTime => {}
            Removal::Nothing(_) => break,
        }
        calls += 1;
        assert!(calls < 1000, "it begins again and again");
    }
    assert!(wish <= 32 << 20, "{wish:#x} after {calls}");
    let asked = asked() - before;
    assert!(asked <= 3 * pinned as u64, "{asked} of {pinned}");
    check(&manager);
}

/// The cost of a call with little time that goes on where another one ended does not depend on the
/// amount of memory to search. Otherwise no such call would get to the first move.
#[test]
fn a_search_that_goes_on_with_little_time_does_not_begin_with_all_there_is() {
    let looks = [4, 16].map(|gibs| {
        let range = gib(4, 4 + gibs);
        let machine = FakeMachine::builder().ram(mib(0, 256)).spare(range).nodes(2).build();
        let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
        add(&manager, range, 0, Grade::Removable).expect("added");
        // No block of it is free as a whole.
        let frames = range.whole_frames();
        for start in (frames.start.0..frames.end.0).step_by(512) {
            // This fails for the window's tables.
            let _ = manager.allocate_at(Pfn(start + 7), Order::PAGE, MigrateType::Movable);
        }
        [(); 3].map(|()| {
            let before = machine.calls().irq_save;
            // SAFETY: nothing looks up descriptors by number.
            let found =
                unsafe { manager.hotplug().remove_some(range, 1 << 30, ALIGN, Budget::until(0)) };
            assert_eq!(found, Ok(Removal::OutOfTime));
            machine.calls().irq_save - before
        })
    });
    let more = |call: usize| looks[1][call].saturating_sub(looks[0][call]);
    assert!(more(0) >= 48, "128 blocks at a time: {looks:?}");
    assert!(more(1) < 8 && more(2) < 8, "{looks:?}");
}
