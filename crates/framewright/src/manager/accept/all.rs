//! Accepts memory before any request needs it: all of it, on several CPUs, or a little whenever a
//! CPU has nothing better to do.

use super::demand::order_within;
use super::{Attempt, Behind};
use crate::block::MigrateType;
use crate::manager::facets::Acceptance;
use crate::parameters::AcceptPolicy;
use crate::platform::{AcceptMemory, Platform};
use crate::units::{Order, Pfn};
use crate::zone::{AcceptWanted, Zone};
use core::convert::Infallible;
use framewright_jobs::{Helpers, Job};

/// Each thread of a job claims at a time its share of the rest divided by this.
const SHARES: u64 = 2;
/// How long a poll should work.
const STEP_NS: u64 = 2_000_000;
/// How long the pause after a poll is.
const BREATH_NS: u64 = 20_000_000;
/// How long the pause is if nothing is left to accept.
const REST_NS: u64 = 1_000_000_000;
/// The order that a poll accepts at first, and always without a clock: 4 MiB.
const FIRST_ORDER: u8 = 10;

/// Accepts memory in the background. One for each manager is enough; several share the work. Its
/// only state is how much it accepts at a time.
pub struct Acceptor<'m, P: Platform> {
    acceptance: Acceptance<'m, P>,
    order: Order,
}

impl<'m, P: Platform> Acceptance<'m, P> {
    /// Returns an acceptor, which accepts memory in the background whenever it is polled, with
    /// `accept_memory=background`.
    #[must_use]
    pub const fn acceptor(self) -> Acceptor<'m, P> {
        let order = match Order::new(FIRST_ORDER) {
            Some(order) => order,
            None => Order::BLOCK,
        };
        Acceptor { acceptance: self, order }
    }

    /// Accepts all memory, on as many threads as the platform has CPUs and `helpers` has helpers.
    /// Requests go on meanwhile and accept the memory that they lack. Returns when nothing is left,
    /// so it may wait for other CPUs: call it where [`Platform::can_wait`] allows that. Whole GiBs
    /// are accepted in one piece, during which a thread keeps its CPU.
    pub fn accept_all<H: Helpers + ?Sized>(self, helpers: &H) {
        let manager = self.manager;
        let Some(device) = manager.platform.accept_memory() else { return };
        if self.unaccepted_pages() == 0 {
            return;
        }
        let most = manager.platform.cpus().max(1);
        let threads = u64::from(manager.vmemmap.threads.unwrap_or(most).clamp(1, most));
        let job =
            Job::new(0..threads).min_chunk(1).max_threads(u32::try_from(threads).unwrap_or(1));
        let ended = job.run(helpers, |_, _| {
            while self.accept_some(device, self.unaccepted_pages() / (SHARES * threads)) {}
            Ok::<(), Infallible>(())
        });
        debug_assert!(ended.is_ok(), "a plain job without an error");
        // Wait for what others are accepting, and accept what had to wait for them.
        while self.unaccepted_pages() != 0 {
            if !self.accept_some(device, Order::MAX.pages()) {
                manager.platform.relax();
            }
        }
    }

    /// Accepts one run of at most `pages` pages, at least a block, from near memory first. Returns
    /// whether going on at once makes sense.
    fn accept_some(self, device: &dyn AcceptMemory, pages: u64) -> bool {
        let manager = self.manager;
        let wanted = |ahead: bool| AcceptWanted {
            order: order_within(pages),
            max: Pfn(u64::MAX),
            migrate_type: MigrateType::Movable,
            ahead,
        };
        let node = manager.local_node();
        let is_near = |zone: &&Zone| zone.id().node == node;
        let near = manager.zones().iter().filter(is_near);
        let far = manager.zones().iter().filter(|zone| !is_near(zone));
        for zone in near.chain(far) {
            // The run that waits for the block behind it may be the zone's last one, and that block
            // may be the first of another zone, which is accepted last.
            for ahead in [true, false] {
                let claim = || zone.claim_highest(manager.platform, &wanted(ahead));
                match manager.accept_one(device, zone, Behind::Waits, claim) {
                    Attempt::Pages(_) => return true,
                    Attempt::Nothing => break,
                    Attempt::Waits => {}
                }
            }
        }
        false
    }
}

impl<P: Platform> Acceptor<'_, P> {
    /// Accepts some memory at `now_ns`, by any clock that only goes forward, and returns when to
    /// poll again. One call takes some 2 ms if the platform has a clock, or as long as accepting 2
    /// MiB takes. It does nothing without `accept_memory=background`, nor while free memory is
    /// reported to a host that forgets acceptance: it would take back the memory that the host was
    /// given.
    ///
    /// To be called where nobody waits for this CPU.
    pub fn poll(&mut self, now_ns: u64) -> u64 {
        let manager = self.acceptance.manager;
        let device = manager.platform.accept_memory();
        let Some(device) = device.filter(|device| {
            self.acceptance.policy() == AcceptPolicy::Background
                && !(device.forgets() && manager.reporting.is_registered())
                && self.acceptance.unaccepted_pages() != 0
        }) else {
            return now_ns.saturating_add(REST_NS);
        };
        let before = manager.platform.now_ns();
        self.acceptance.accept_some(device, self.order.pages());
        if let (Some(before), Some(after)) = (before, manager.platform.now_ns()) {
            let level = self.order.get();
            let next = match after.saturating_sub(before) {
                short if short < STEP_NS / 2 => level + 1,
                long if long > STEP_NS => level - 1,
                _ => level,
            };
            self.order = Order::new(next).unwrap_or(self.order).max(Order::BLOCK);
        }
        now_ns.saturating_add(BREATH_NS)
    }
}
