//! Memory that comes online in the middle of a range that somebody has isolated: it is in
//! circulation, and nobody is told otherwise.

use crate::common::{Fake, bring_up_with, check, gib, is_careful, mib, parameters};
use crate::one_page::{Moment, OnePage};
use framewright::manager::{Budget, VacateError};
use framewright::units::{Order, Pfn};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright::zone::{Grade, IsolateError, MigrateType};
use framewright_testkit::reporting::{Answer, FakeHost, Traits};
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

/// What was accepted for an isolation may go to the hypervisor before it is isolated.
#[test]
fn an_isolation_beside_a_reporter_does_not_say_that_it_cannot_wait() {
    // A careful run poisons free memory, which this device does not keep.
    if is_careful() {
        return;
    }
    let machine = FakeMachine::builder().ram(gib(0, 3)).cpus(2).accepts().build();
    let line = "page_reporting.page_reporting_order=9 page_reporting.page_reporting_delay_ms=0";
    let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
    machine.accept().set_forgets(true);
    machine.accept().set_reads_past_pages(false);
    let (host, reports) = FakeHost::new(machine, Traits::default());
    host.answer(Answer::After(0));
    let registered = manager.register_reporting(reports);
    let mut reporter = registered.map_err(|(error, _)| error).expect("the only one");
    let (stop, manager) = (AtomicBool::new(false), &manager);
    let mut now_ns = 1;
    let mut report = || {
        manager.reporting().flush();
        now_ns = reporter.poll(now_ns).unwrap_or(now_ns).max(now_ns) + 1_000_000;
    };
    (0..200).for_each(|_| report());
    thread::scope(|scope| {
        scope.spawn(|| {
            machine.run_on(1, || {
                while !stop.load(Ordering::Relaxed) {
                    report();
                }
            });
        });
        let range = BlockRange { start: BlockNumber(16), end: BlockNumber(1400) };
        let isolated = machine.run_on(0, || {
            (0..40).try_for_each(|_| {
                manager.isolation().isolate(range)?;
                manager.isolation().unisolate(range)
            })
        });
        stop.store(true, Ordering::Relaxed);
        isolated.expect("nothing is in the way");
    });
    check(manager);
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
