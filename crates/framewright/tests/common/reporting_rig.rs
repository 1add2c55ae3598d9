//! Code shared by the tests of free page reporting: a manager, a device that plays the host, and a
//! clock.
use crate::common::{Fake, bring_up_with, check, mib, parameters};
use framewright::Request;
use framewright::reporting::{Content, Event, Reporter};
use framewright::units::{Order, PfnRange};
use framewright_testkit::reporting::{FakeHost, FakeReportDevice, Traits};
use framewright_testkit::{FakeMachine, Owner};
use std::sync::Arc;

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;
/// The start of the only zone of these tests' machines, in MiB.
pub const BASE: u64 = 4096;

pub type Reporting = Reporter<'static, FakeMachine, FakeReportDevice>;

pub struct Rig {
    pub manager: &'static Fake,
    pub host: Arc<FakeHost>,
    pub reporter: Option<Reporting>,
    pub now_ns: u64,
}

/// The traits of a device that this run can register. In a careful run the device must leave poison
/// in memory because careful runs poison free memory.
pub fn usual() -> Traits {
    let content = if crate::common::is_careful() { Content::Poison } else { Content::Undefined };
    Traits { content, ..Traits::default() }
}

/// Returns [`usual`] for a device that does not touch memory, for larger machines.
pub fn weightless() -> Traits {
    Traits { writes: false, ..usual() }
}

/// Builds a machine of one zone.
pub fn machine(size_mib: u64, cpus: u32) -> &'static FakeMachine {
    FakeMachine::builder().ram(mib(BASE, BASE + size_mib)).cpus(cpus).build()
}

impl Rig {
    /// Makes a manager with a registered device.
    pub fn new(machine: &'static FakeMachine, line: &str, traits: Traits) -> Self {
        let manager = bring_up_with(machine, &[], &parameters(line)).expect("bring-up");
        let manager: &'static Fake = Box::leak(Box::new(manager));
        let (host, device) = FakeHost::new(machine, traits);
        let reporter = manager
            .register_reporting(device)
            .map_err(|(error, _)| error)
            .expect("the only device");
        let mut rig = Self { manager, host, reporter: Some(reporter), now_ns: 5 * SECOND };
        assert!(matches!(rig.events()[..], [Event::Enabled { .. }]));
        rig
    }

    pub fn reporter(&mut self) -> &mut Reporting {
        self.reporter.as_mut().expect("registered")
    }

    /// Polls once and returns after how many nanoseconds to poll again.
    pub fn poll(&mut self) -> Option<u64> {
        let now_ns = self.now_ns;
        self.reporter().poll(now_ns).map(|deadline_ns| deadline_ns - now_ns)
    }

    /// Lets `ns` nanoseconds pass, and polls whenever the reporter asks for it.
    pub fn run(&mut self, ns: u64) {
        let end_ns = self.now_ns + ns;
        for _ in 0..2_000_000 {
            match self.reporter.as_mut().expect("registered").poll(self.now_ns) {
                Some(deadline_ns) if deadline_ns <= end_ns => {
                    self.now_ns = deadline_ns.max(self.now_ns)
                }
                _ => {
                    self.now_ns = end_ns;
                    return;
                }
            }
        }
        panic!(
            "polls without end: {:?} {:?}",
            self.reporter().phase(),
            self.manager.reporting_counters()
        );
    }

    /// Polls until there is nothing left to report, for at most 120 seconds of the rig's clock.
    pub fn settle(&mut self) {
        self.run(120 * SECOND);
        check(self.manager);
    }

    pub fn events(&mut self) -> Vec<Event> {
        core::iter::from_fn(|| self.reporter().event()).collect()
    }

    pub fn free_pages(&self) -> u64 {
        self.manager.totals().free_pages
    }

    pub fn unreported_pages(&self) -> u64 {
        self.manager.zones().iter().map(|zone| zone.unreported_pages()).sum()
    }

    pub fn reported_pages(&self) -> u64 {
        self.manager.zones().iter().map(|zone| zone.reported_pages()).sum()
    }

    /// Allocates past the caches of CPUs, and tells the host.
    pub fn take(&self, order: u8) -> PfnRange {
        self.try_take(order).expect("there is memory")
    }

    pub fn try_take(&self, order: u8) -> Option<PfnRange> {
        let taken =
            self.manager.allocate(&Request::new(Order::new(order).expect("an order"))).ok()?;
        self.host.handed_out(taken);
        Some(taken)
    }

    pub fn free(&self, range: PfnRange) {
        self.manager.give_back_to_zone(range).expect("it is held");
    }

    /// All of memory in blocks of `order`, as far as there are any.
    pub fn take_all(&self, order: u8) -> Vec<PfnRange> {
        core::iter::from_fn(|| self.try_take(order)).collect()
    }
}
