//! Passes of free page reporting: what begins and ends them, what they leave unreported, and what
//! they count.

use crate::common::reporting_rig::{MS, Rig, SECOND, machine, usual, weightless};
use crate::common::{Fake, bring_up_with, check, gib, parameters, unmovable};
use framewright::Request;
use framewright::reporting::{Acknowledged, Content, Progress, ReportDevice, SubmitError};
use framewright::units::{Order, PfnRange, PhysRange};
use framewright::vmemmap_space::{BlockNumber, BlockRange};
use framewright_testkit::reporting::{Answer, FakeHost, Traits};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::{Arc, Mutex, OnceLock};

fn blocks(range: PfnRange) -> BlockRange {
    let [start, end] = [range.start, range.end].map(BlockNumber::containing);
    BlockRange { start, end }
}

/// A machine half of which is free and reported, and a block in use that nothing else uses.
fn half_used(traits: Traits) -> (Rig, PfnRange) {
    let mut rig = Rig::new(machine(256, 1), "page_reporting.page_reporting_order=3", traits);
    let all = rig.take_all(9);
    // The rest of the split blocks stays in use.
    let _ = rig.take_all(0);
    let (half, rest) = all.split_at(all.len() / 2);
    half.iter().for_each(|block| rig.free(*block));
    rig.settle();
    (rig, rest[rest.len() - 1])
}

/// Every other run of 8 pages of a block.
fn runs(block: PfnRange) -> impl Iterator<Item = PfnRange> {
    let starts = (block.start.0..block.end.0).step_by(16);
    starts.map(|start| PfnRange::new(start, start + 8))
}

fn reported_runs(rig: &Rig, block: PfnRange) -> usize {
    runs(block).filter(|run| rig.host.has_discarded(*run)).count()
}

#[test]
fn a_lower_order_is_taken_without_a_flush() {
    let mut rig = Rig::new(machine(512, 1), "page_reporting.page_reporting_order=18", weightless());
    rig.settle();
    assert_eq!(rig.manager.reporting_counters().calls, 0);
    rig.manager.reporting().set_order(Order::BLOCK);
    rig.settle();
    assert_eq!((rig.unreported_pages(), rig.reporter().order()), (0, Order::BLOCK));
}

#[test]
fn with_a_large_order_it_comes_to_rest() {
    for order in [10, 12] {
        let line = format!("page_reporting.page_reporting_order={order}");
        let mut rig = Rig::new(machine(512, 1), &line, weightless());
        let mut held = rig.take_all(9);
        held.sort_by_key(|block| block.start);
        // One block that is free alone, and many that form large ones.
        let alone = held.remove(held.len() - 2);
        let large = held.len() - 64;
        held.drain(..large).for_each(|block| rig.free(block));
        rig.free(alone);
        rig.settle();
        assert!(rig.unreported_pages() >= 512);
        let passes = rig.manager.reporting_counters().passes;
        rig.run(100 * SECOND);
        let more = rig.manager.reporting_counters().passes - passes;
        assert_eq!(more, 0, "order {order}: passes on an idle machine");
    }
}

#[test]
fn a_flush_outlives_a_reset() {
    let mut rig = Rig::new(machine(256, 1), "", usual());
    rig.manager.reporting().pause();
    rig.host.plan([Answer::Never]);
    rig.manager.reporting().flush();
    rig.run(20 * SECOND);
    assert!(rig.reporter().is_silent());
    rig.reporter().reset();
    rig.run(100 * SECOND);
    let counters = rig.manager.reporting_counters();
    assert_eq!((counters.flushes, counters.errors, rig.unreported_pages()), (1, 0, 0));
    // The flush is done, so that another reset does not begin it again.
    rig.reporter().reset();
    rig.run(10 * SECOND);
    assert_eq!(rig.manager.reporting_counters().flushes, 1);
}

#[test]
fn a_flush_with_a_busy_device_is_complete() {
    let (mut rig, block) = half_used(Traits { capacity: 4, ..usual() });
    runs(block).for_each(|run| rig.free(run));
    rig.manager.reporting().pause();
    rig.run(SECOND);
    rig.host.plan([Answer::IsBusy, Answer::After(0), Answer::IsBusy]);
    let flushes = rig.manager.reporting_counters().flushes;
    rig.manager.reporting().flush();
    while rig.manager.reporting_counters().flushes == flushes {
        rig.run(MS);
    }
    assert_eq!((rig.manager.reporting_counters().busy, reported_runs(&rig, block)), (2, 32));
    check(rig.manager);
}

#[test]
fn a_sweep_that_an_isolation_interrupts_is_made_again() {
    let (mut rig, block) = half_used(Traits { capacity: 1, ..usual() });
    runs(block).for_each(|run| rig.free(run));
    let calls = rig.manager.reporting_counters().calls;
    rig.host.answer(Answer::After(1));
    while rig.manager.reporting_counters().calls == calls || rig.reporter().out_pages() != 8 {
        let wait_ns = rig.poll().expect("open");
        rig.now_ns += wait_ns;
    }
    // The first run of the block is out.
    rig.manager.isolation().isolate(blocks(block)).expect("nothing speaks against it");
    rig.run(10 * SECOND);
    assert!(reported_runs(&rig, block) < 32);
    rig.manager.isolation().unisolate(blocks(block)).expect("it is isolated");
    rig.settle();
    assert_eq!(reported_runs(&rig, block), 32);
}

#[test]
fn isolation_is_no_use() {
    let mut rig = Rig::new(machine(512, 1), "", weightless());
    rig.settle();
    let before = rig.manager.reporting_counters().reused_pages;
    let end = rig.manager.zones()[0].segments()[0].end().0;
    let range = BlockRange { start: BlockNumber(end - 64), end: BlockNumber(end - 32) };
    rig.manager.isolation().isolate(range).expect("nothing speaks against it");
    check(rig.manager);
    rig.manager.isolation().unisolate(range).expect("it is isolated");
    check(rig.manager);
    assert_eq!(rig.manager.reporting_counters().reused_pages, before);
    rig.settle();
    assert_eq!(rig.unreported_pages(), 0);
    // Allocating the memory does count as use.
    rig.take_all(9);
    assert!(rig.manager.reporting_counters().reused_pages > before);
}

#[test]
fn reports_leave_what_is_for_everybody_above_its_marks() {
    for line in ["kernelcore=72M", "kernelcore=84M"] {
        for order in [9, 6] {
            let line = format!("{line} page_reporting.page_reporting_order={order}");
            let machine = FakeMachine::builder().ram(gib(4, 12)).build();
            let manager = bring_up_with(machine, &[], &parameters(&line)).expect("bring-up");
            let (host, device) = FakeHost::new(machine, weightless());
            let device = manager.register_reporting(device);
            let mut reporter = device.map_err(|(error, _)| error).expect("the only device");
            host.answer(Answer::After(1));
            manager.reporting().flush();
            let mut now_ns = 5 * SECOND;
            for poll in 0..2000 {
                now_ns = reporter.poll(now_ns).expect("open").max(now_ns);
                // Memory that is allocated and freed is reported again, as often as there is enough
                // other memory.
                if poll < 500 {
                    let taken = manager.allocate(&unmovable(Order::new(10).expect("an order")));
                    let taken = taken.unwrap_or_else(|error| panic!("{line}: {error}"));
                    manager.give_back_to_zone(taken).expect("it is held");
                }
            }
            assert!(manager.reporting_counters().flushes == 1, "{line}");
            // All graded memory is reported.
            let left: u64 = manager.zones().iter().map(|zone| zone.unreported_pages()).sum();
            assert!(left <= 84 * 256, "{left}");
            check(&manager);
        }
    }
}

/// What a device does while a pass is under way.
type WhileAsked = Box<dyn Fn() + Send>;

/// A device that does something when it is asked what it leaves in memory, which happens at each
/// step.
struct Asked {
    then: Arc<Mutex<Option<WhileAsked>>>,
}

// SAFETY: nothing is discarded.
unsafe impl ReportDevice for Asked {
    fn capacity(&self) -> usize {
        32
    }

    unsafe fn submit(&mut self, _: &[PhysRange]) -> Result<(), SubmitError> {
        Ok(())
    }

    fn poll(&mut self) -> Progress {
        Progress::Done(Acknowledged::ALL)
    }

    fn reset(&mut self) -> bool {
        true
    }

    fn content(&self) -> Content {
        if let Some(then) = &*self.then.lock().expect("not poisoned") {
            then();
        }
        if crate::common::is_careful() { Content::Poison } else { Content::Undefined }
    }
}

#[test]
fn what_becomes_free_during_a_vain_pass_is_found() {
    static MANAGER: OnceLock<Fake> = OnceLock::new();
    let manager = MANAGER.get_or_init(|| {
        let line = "page_reporting.pools=1";
        bring_up_with(machine(256, 1), &[], &parameters(line)).expect("bring-up")
    });
    let whole = Request::new(Order::BLOCK);
    let mut held: Vec<PfnRange> = core::iter::from_fn(|| manager.allocate(&whole).ok()).collect();
    // Too little memory to report any of it.
    let few = held.pop().expect("there is memory");
    manager.give_back_to_zone(few).expect("it is held");
    let then = Arc::default();
    let device = manager.register_reporting(Asked { then: Arc::clone(&then) });
    let mut reporter = device.map_err(|(error, _)| error).expect("the only device");
    let held = Mutex::new(held);
    // Runs after the pass has visited the only zone, and before the pass ends.
    *then.lock().expect("not poisoned") = Some(Box::new(move || {
        if manager.reporting_counters().skipped == 1 {
            for block in held.lock().expect("not poisoned").drain(..) {
                manager.give_back_to_zone(block).expect("it is held");
            }
        }
    }));
    let mut now_ns = 5 * SECOND;
    while now_ns < 60 * SECOND {
        now_ns = reporter.poll(now_ns).expect("open").max(now_ns);
    }
    assert!(manager.reporting_counters().skipped > 0, "there was a pass in vain");
    assert!(manager.totals().free_pages > 100 * 512);
    assert_eq!(manager.zones()[0].unreported_pages(), 0);
    check(manager);
}
