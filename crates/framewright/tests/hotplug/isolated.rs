//! Memory that comes online in the middle of a range that somebody has isolated: it is in
//! circulation, and nobody is told otherwise.

use crate::common::{Fake, bring_up_with, check, mib, parameters};
use framewright::manager::{Budget, VacateError};
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{Grade, IsolateError, MigrateType};
use framewright::{MoveFailed, MoveToken, Mover, NotNow, Occupant};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// The block that is offline at first, and a range around it.
const BLOCK: BlockRange = BlockRange { start: BlockNumber(100), end: BlockNumber(101) };
const AROUND: BlockRange = BlockRange { start: BlockNumber(96), end: BlockNumber(104) };
const START: Pfn = BLOCK.start.start();

fn machine(cpus: u32) -> Fake {
    let machine = FakeMachine::builder().ram(mib(0, 512)).cpus(cpus).build();
    let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
    offline(&manager);
    manager
}

fn offline(manager: &Fake) {
    manager.hotplug().offline(mib(200, 202), Budget::UNLIMITED).expect("it is free");
}

fn online(manager: &Fake) {
    manager.hotplug().online(mib(200, 202), Grade::Any).expect("it is offline");
}

/// Moves one page, and brings the block online when it is first asked.
struct Late<'a> {
    manager: &'a Fake,
    is_online: AtomicBool,
    page: AtomicU64,
}

// SAFETY: the test moves the only run that it says is movable, and nobody else uses it.
unsafe impl Mover for Late<'_> {
    fn occupant(&self, pfn: Pfn) -> Occupant {
        if !self.is_online.swap(true, Ordering::Relaxed) {
            online(self.manager);
        }
        if pfn.0 == self.page.load(Ordering::Relaxed) {
            Occupant::Movable(PfnRange::of_order(pfn, Order::PAGE))
        } else {
            Occupant::Free
        }
    }

    fn begin(&self, _: PfnRange) -> Result<MoveToken, NotNow> {
        Ok(MoveToken(0))
    }

    unsafe fn relocate(
        &self,
        _: MoveToken,
        from: PfnRange,
        to: PfnRange,
    ) -> Result<(), MoveFailed> {
        crate::copy(self.manager, from, to);
        self.page.store(to.start.0, Ordering::Relaxed);
        Ok(())
    }

    unsafe fn abort(&self, _: MoveToken, _: PfnRange) {}
}

#[test]
fn a_range_with_memory_that_came_online_is_not_vacated() {
    let manager = machine(1);
    let page = manager
        .allocate_at(AROUND.start.start(), Order::PAGE, MigrateType::Movable)
        .expect("it is free");
    let mover = Late {
        manager: &manager,
        is_online: AtomicBool::new(false),
        page: AtomicU64::new(page.start.0),
    };
    let vacated = manager.moving().by(&mover).vacate(AROUND, Budget::UNLIMITED);
    assert_eq!(vacated, Err(VacateError::Isolate(IsolateError::NotIsolated(START))));
    assert_eq!(manager.totals().isolated_pages, 0);
    let page = Pfn(mover.page.load(Ordering::Relaxed));
    manager.give_back(PfnRange::of_order(page, Order::PAGE)).expect("it is held");
    check(&manager);
}

#[test]
fn what_is_isolated_of_a_range_goes_back() {
    let manager = machine(1);
    manager.isolation().isolate(AROUND).expect("it is free");
    online(&manager);
    let not_isolated = IsolateError::NotIsolated(START);
    assert_eq!(manager.isolation().claim(AROUND), Err(not_isolated));
    assert_eq!(manager.isolation().unisolate(AROUND), Err(not_isolated));
    manager.isolation().unisolate_rest(AROUND).expect("it is of one zone");
    assert_eq!(manager.totals().isolated_pages, 0);
    let none = BlockRange { end: AROUND.start, ..AROUND };
    assert_eq!(manager.isolation().unisolate_rest(none), Err(IsolateError::Empty(none)));
    // Nothing is restricted any more.
    let run = manager.allocate_at(START, Order::BLOCK, MigrateType::Movable).expect("it is free");
    manager.give_back(run).expect("it is held");
    check(&manager);
}

/// One caller puts a range back, with a block that came online in it, while another gives that
/// block a grade: if this succeeds, the block has the grade.
#[test]
fn a_grade_that_was_set_is_there() {
    let manager = machine(2);
    for round in 0..1000 {
        manager.isolation().isolate(AROUND).expect("it is free");
        online(&manager);
        let page = manager
            .allocate_at(START.add(5), Order::PAGE, MigrateType::Movable)
            .expect("it is free");
        let barrier = Barrier::new(2);
        let set = thread::scope(|scope| {
            let set = scope.spawn(|| {
                barrier.wait();
                manager.moving().set_grade(BLOCK, Grade::Removable)
            });
            barrier.wait();
            for _ in 0..(round % 64) * 20 {
                std::hint::spin_loop();
            }
            manager.isolation().unisolate_rest(AROUND).expect("it is of one zone");
            set.join().expect("no panic")
        });
        let grade = manager.moving().grade_of(START);
        assert!(set.is_err() || grade == Some(Grade::Removable), "{set:?} {grade:?}");
        manager.moving().set_grade(BLOCK, Grade::Any).expect("it is free");
        manager.give_back(page).expect("it is held");
        offline(&manager);
    }
    check(&manager);
}
