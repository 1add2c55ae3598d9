//! Accepting memory before anybody asks for it: all of it, by several CPUs, or a little whenever
//! somebody has nothing better to do.

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

/// What each thread of a job claims at a time is so small a part of what is left for each.
const SHARES: u64 = 2;
/// How long a step should take: a task is not preempted meanwhile.
const STEP_NS: u64 = 2_000_000;
/// How long there is no poll afterwards.
const BREATH_NS: u64 = 20_000_000;
/// How long there is none when nothing is left to be accepted.
const REST_NS: u64 = 1_000_000_000;
/// What is accepted until it is known how long that takes: 4 MiB.
const FIRST_ORDER: u8 = 10;

/// How much is accepted in one step: as much as takes some 2 ms by what the last one took.
#[derive(Clone, Copy)]
struct Pace {
    order: Order,
    /// Until then the lowest memory is taken, so as not to cut a whole GiB for a little.
    is_known: bool,
}

impl Pace {
    const FIRST: Self = match Order::new(FIRST_ORDER) {
        Some(order) => Self { order, is_known: false },
        None => Self { order: Order::BLOCK, is_known: false },
    };

    /// Nobody could say how long anything takes.
    const NO_CLOCK: Self = Self { order: Order::MAX, is_known: true };

    /// Takes a step, which says how many pages came up, or nothing where there was none to be
    /// accepted.
    fn step(
        &mut self,
        platform: &impl Platform,
        step: impl FnOnce(Self) -> Option<u64>,
    ) -> Option<u64> {
        let before = platform.now_ns();
        let pages = step(*self)?;
        if let (Some(before), Some(after)) = (before, platform.now_ns())
            && pages != 0
        {
            let took_ns = after.saturating_sub(before).max(1);
            let order = order_within(STEP_NS.saturating_mul(pages) / took_ns);
            *self = Self { order, is_known: true };
        }
        Some(pages)
    }
}

/// Accepts memory in the background. One for each manager is enough; several share what there is.
/// Its only state is how much it accepts at a time.
pub struct Acceptor<'m, P: Platform> {
    acceptance: Acceptance<'m, P>,
    pace: Pace,
}

impl<'m, P: Platform> Acceptance<'m, P> {
    /// Accepts memory in the background whenever it is polled, with `accept_memory=background`.
    #[must_use]
    pub const fn acceptor(self) -> Acceptor<'m, P> {
        Acceptor { acceptance: self, pace: Pace::FIRST }
    }

    /// Accepts all memory, on as many threads as the platform has CPUs and `helpers` has helpers.
    /// Requests go on meanwhile and accept what they lack. Returns when nothing is left, so it may
    /// wait for other CPUs: call it where [`Platform::can_wait`] says so. Each thread accepts as
    /// much at a time as takes some 2 ms by [`Platform::now_ns`], up to 1 GiB where there is none,
    /// and is not preempted so long.
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
        let first = manager.platform.now_ns().map_or(Pace::NO_CLOCK, |_| Pace::FIRST);
        let ended = job.run(helpers, |_, _| {
            let mut pace = first;
            let step = |pace: Pace| {
                let share = order_within(self.unaccepted_pages() / (SHARES * threads));
                self.accept_some(device, Pace { order: pace.order.min(share), ..pace })
            };
            while pace.step(manager.platform, step).is_some() {}
            Ok::<(), Infallible>(())
        });
        debug_assert!(ended.is_ok(), "a plain job without an error");
        // What others are at, and what had to wait for them.
        let mut pace = first;
        while self.unaccepted_pages() != 0 {
            if pace.step(manager.platform, |pace| self.accept_some(device, pace)).is_none() {
                manager.platform.relax();
            }
        }
    }

    /// Accepts one run at this pace, a block at least. Near memory first. How many pages came up;
    /// nothing where it is not worth going on at once.
    fn accept_some(self, device: &dyn AcceptMemory, pace: Pace) -> Option<u64> {
        let manager = self.manager;
        let wanted = |ahead: bool| AcceptWanted {
            order: pace.order,
            max: Pfn(u64::MAX),
            migrate_type: MigrateType::Movable,
            ahead,
        };
        let node = manager.local_node();
        let is_near = |zone: &&Zone| zone.id().node == node;
        let near = manager.zones().iter().filter(is_near);
        let far = manager.zones().iter().filter(|zone| !is_near(zone));
        for zone in near.chain(far) {
            // What waits for the block behind it may be the zone's last, and that block the first
            // of another zone, which is accepted last.
            for ahead in [true, false] {
                let claim = || {
                    let wanted = wanted(ahead);
                    if pace.is_known {
                        zone.claim_highest(manager.platform, &wanted)
                    } else {
                        zone.claim_lowest(manager.platform, &wanted)
                    }
                };
                match manager.accept_one(device, zone, Behind::Waits, claim) {
                    Attempt::Pages(pages) => return Some(pages),
                    Attempt::Nothing => break,
                    Attempt::Waits => {}
                }
            }
        }
        None
    }
}

impl<P: Platform> Acceptor<'_, P> {
    /// Accepts some memory at `now_ns`, by any clock that only goes forward, and says when to come
    /// back. One call takes some 2 ms where the platform has a clock, or as long as 2 MiB take. It
    /// does nothing unless `accept_memory=background` was said, nor while free memory is reported
    /// to a host that forgets what was accepted: it would take back what that was given.
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
        self.pace.step(manager.platform, |pace| self.acceptance.accept_some(device, pace));
        now_ns.saturating_add(BREATH_NS)
    }
}
