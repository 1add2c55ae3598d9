//! Free page reporting with a device that always refuses certain memory: the memory behind it does
//! not have to wait, wherever it lies.

use crate::common::reporting_rig::{SECOND, machine};
use crate::common::{Fake, bring_up_with, check, gib, order, parameters};
use framewright::Request;
use framewright::hugetlb::PoolSize;
use framewright::memblock::NodeChoice;
use framewright::reporting::{
    Acknowledged, Content, Event, Progress, ReportDevice, Reporter, SubmitError,
};
use framewright::units::{PfnRange, PhysRange};
use framewright_testkit::{FakeMachine, Owner, PoolOwner};

/// Pages of the largest piece.
const PIECE: u64 = 32 * 512;
const HOUR: u64 = 3600 * SECOND;

/// A device that refuses each range that contains one of these addresses.
struct Picky {
    bad: Vec<u64>,
    capacity: usize,
    answer: Acknowledged,
}

// SAFETY: nothing is discarded.
unsafe impl ReportDevice for Picky {
    fn capacity(&self) -> usize {
        self.capacity
    }

    unsafe fn submit(&mut self, ranges: &[PhysRange]) -> Result<(), SubmitError> {
        let is_good =
            |range: &PhysRange| !self.bad.iter().any(|&bad| range.start <= bad && bad < range.end);
        let bits = ranges.iter().enumerate().map(|(bit, range)| u32::from(is_good(range)) << bit);
        self.answer = Acknowledged(bits.sum());
        Ok(())
    }

    fn poll(&mut self) -> Progress {
        Progress::Done(self.answer)
    }

    fn reset(&mut self) -> bool {
        true
    }

    fn content(&self) -> Content {
        if crate::common::is_careful() { Content::Poison } else { Content::Undefined }
    }
}

struct Picked {
    manager: &'static Fake,
    reporter: Reporter<'static, FakeMachine, Picky>,
    now_ns: u64,
}

impl Picked {
    fn new(manager: Fake, bad: &[u64], capacity: usize) -> Self {
        let manager: &'static Fake = Box::leak(Box::new(manager));
        let device = Picky { bad: bad.to_vec(), capacity, answer: Acknowledged::NONE };
        let reporter = manager.register_reporting(device).map_err(|(error, _)| error);
        let mut reporter = reporter.expect("the only device");
        assert!(matches!(reporter.event(), Some(Event::Enabled { .. })));
        Self { manager, reporter, now_ns: 5 * SECOND }
    }

    fn run(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        while self.now_ns < end_ns {
            self.now_ns = self.reporter.poll(self.now_ns).expect("open").max(self.now_ns);
        }
        check(self.manager);
    }

    fn unreported_pages(&self) -> Vec<u64> {
        self.manager.zones().iter().map(|zone| zone.unreported_pages()).collect()
    }
}

#[test]
fn one_bad_page_does_not_keep_the_rest_of_its_zone_nor_other_zones() {
    let machine = FakeMachine::builder().ram(gib(1, 2)).ram(gib(4, 6)).build();
    let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
    let mut picked = Picked::new(manager, &[(1 << 30) + (64 << 20)], 32);
    picked.run(HOUR);
    let left = picked.unreported_pages();
    assert!((1..=PIECE).contains(&left[0]) && left[1] == 0, "{left:?}");
    // The refused range is tried once a minute, and one log line says so.
    let errors = picked.manager.reporting_counters().errors;
    picked.run(HOUR);
    let more = picked.manager.reporting_counters().errors - errors;
    assert!((50..=70).contains(&more), "{more} in an hour");
    assert!(matches!(picked.reporter.event(), Some(Event::Failing { .. })));
    assert_eq!(picked.reporter.event(), None);
    // Memory that becomes free is reported at its next turn.
    let used = picked.manager.allocate(&Request::new(order(15))).expect("there is memory");
    picked.manager.give_back(used).expect("it is held");
    picked.run(HOUR);
    assert_eq!(picked.unreported_pages(), left);
}

#[test]
fn bad_pages_in_every_gib_do_not_keep_small_blocks() {
    for (line, capacity) in [
        ("", 32),
        ("", 1),
        ("page_reporting.pace=fixed", 32),
        ("page_reporting.page_reporting_order=11", 32),
        ("page_reporting.page_reporting_order=6", 3),
    ] {
        let machine = FakeMachine::builder().ram(gib(4, 7)).build();
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        let whole = Request::new(order(9));
        let mut held: Vec<PfnRange> =
            core::iter::from_fn(|| manager.allocate(&whole).ok()).collect();
        held.sort_by_key(|block| block.start);
        // In the second half of the last GiB every other block is free.
        let border = 6 * 1024 + 512;
        let (large, small): (Vec<_>, Vec<_>) =
            held.into_iter().partition(|block| block.start.0 < border * 256);
        large.into_iter().for_each(|block| manager.give_back_to_zone(block).expect("held"));
        for block in small.iter().step_by(2) {
            manager.give_back_to_zone(*block).expect("held");
        }
        let bad: Vec<u64> =
            [4096, 4096 + 700, 5120, 5120 + 64, 6144 + 17].map(|mib| mib << 20).to_vec();
        let mut picked = Picked::new(manager, &bad, capacity);
        picked.run(6 * HOUR);
        let left = picked.unreported_pages()[0];
        let alone = if line.ends_with("=11") { small.len() as u64 / 2 * 512 + 512 } else { 0 };
        let most = bad.len() as u64 * PIECE + alone;
        assert!(left <= most, "{line}, capacity {capacity}: {left} of {most}");
    }
}

#[test]
fn a_flush_goes_on_behind_what_is_refused_and_does_not_count() {
    let machine = FakeMachine::builder().ram(gib(1, 2)).ram(gib(4, 6)).build();
    let manager = bring_up_with(machine, &[], &parameters("")).expect("bring-up");
    let mut picked = Picked::new(manager, &[(1 << 30) + (64 << 20)], 32);
    picked.manager.reporting().pause();
    // The first flush finds out what is refused, and does not look at the rest of that zone.
    for flush in 0..2 {
        picked.manager.reporting().flush();
        picked.run(SECOND);
        let left = picked.unreported_pages();
        assert_eq!(left[1], 0, "flush {flush}");
        assert!(flush == 0 || (1..=PIECE).contains(&left[0]), "{left:?}");
    }
    assert_eq!(picked.manager.reporting_counters().flushes, 0, "not all was reported");
    assert!(picked.manager.reporting_counters().errors >= 2);
    // SAFETY: the device stays, and nobody calls it. Once nothing is refused any more, the flush
    // counts.
    unsafe { picked.reporter.device_mut() }.bad.clear();
    picked.manager.reporting().flush();
    picked.run(SECOND);
    assert_eq!(
        (picked.unreported_pages(), picked.manager.reporting_counters().flushes),
        (vec![0, 0], 1)
    );
    let events: Vec<Event> = core::iter::from_fn(|| picked.reporter.event()).collect();
    assert!(matches!(events[..], [Event::Failing { .. }, Event::Recovered]), "{events:?}");
}

#[test]
fn a_bad_page_of_a_pool_does_not_keep_the_others() {
    if crate::common::is_careful() {
        return;
    }
    let line = "page_reporting.pools=1";
    let manager = bring_up_with(machine(1024, 1), &[], &parameters(line)).expect("bring-up");
    let pool = manager.pool(PoolSize::TwoMib);
    pool.resize(100, &framewright_jobs::NoHelpers).expect("nobody else resizes");
    // A page in the middle of the list is bad.
    let taken: Vec<PfnRange> =
        (0..50).map(|_| pool.allocate(NodeChoice::Any, false).expect("free")).collect();
    let bad = taken[49].start.address();
    for page in taken.iter().rev() {
        manager.pool(PoolSize::TwoMib).give_back_page(page.start).expect("in use");
    }
    let mut picked = Picked::new(manager, &[bad], 1);
    picked.run(HOUR);
    let counters = picked.manager.reporting_counters();
    assert_eq!(counters.pool_pages, 99 * 512, "{counters:?}");
    picked.manager.hugetlb().verify().unwrap_or_else(|fault| panic!("{fault}"));
}
