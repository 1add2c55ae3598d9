//! Memory that comes online in the middle of a range that somebody has isolated: it is in
//! circulation, and nobody is told otherwise.

use crate::common::{Fake, bring_up_with, check, mib, parameters};
use crate::one_page::{Moment, OnePage};
use framewright::manager::{Budget, VacateError};
use framewright::units::{Order, Pfn};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{Grade, IsolateError, MigrateType};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
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

#[test]
fn a_range_with_memory_that_came_online_is_not_vacated() {
    let manager = machine(1);
    let page = manager
        .allocate_at(AROUND.start.start(), Order::PAGE, MigrateType::Movable)
        .expect("it is free");
    // An offline block is in the way, so it has to come online before the range is looked through.
    let is_offline = AtomicBool::new(true);
    let comes_online = |moment| {
        if matches!(moment, Moment::Asked) && is_offline.swap(false, Ordering::Relaxed) {
            online(&manager);
        }
    };
    let mover = OnePage::new(&manager, page, &comes_online);
    let vacated = manager.moving().by(&mover).vacate(AROUND, Budget::UNLIMITED);
    assert_eq!(vacated, Err(VacateError::Isolate(IsolateError::NotIsolated(START))));
    assert_eq!(manager.totals().isolated_pages, 0);
    manager.give_back(mover.page()).expect("it is held");
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
