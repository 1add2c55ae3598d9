//! What workers share: runs that they exchange, and the sums that must match when no worker runs.
//!
//! Other code may hold memory, too. How much may change in two ways: the manager moves it, which
//! makes no difference once a move has ended; or the reclaim hook frees it, which the manager
//! counts.

use crate::failure::Failure;
use crate::stamp::Held;
use framewright::SpinLock;
use framewright::zone::Counts;
use framewright::{Manager, Platform};

/// How many runs can wait for a new owner.
const SLOTS: usize = 64;

/// What all workers on one manager share.
pub struct Shared {
    exchange: SpinLock<[Held; SLOTS]>,
    /// The address of the manager's zones, which identifies the manager.
    zones: usize,
    /// Pages that other code had allocated at the start.
    others_pages: u64,
    /// Pages that the reclaim hook had freed by then.
    reclaimed_pages: u64,
}

impl Shared {
    /// Makes it for workers on `manager`. Until [`settle`](Self::settle), no other code may
    /// allocate or free memory of this manager, with two exceptions. Memory of other code may be
    /// moved, except during this call, [`account`](Self::account) and [`settle`](Self::settle). The
    /// [reclaim hook](framewright::Reclaim) may free memory, as many pages as it reports.
    #[must_use]
    pub fn new<P: Platform>(manager: &Manager<P>) -> Self {
        Self {
            exchange: SpinLock::new([Held::NOTHING; SLOTS]),
            zones: zones(manager),
            others_pages: in_use(manager),
            reclaimed_pages: reclaimed(manager),
        }
    }

    /// Checks that this is for workers on `manager`, because the waiting runs are that manager's
    /// memory.
    ///
    /// # Errors
    /// [`Failure::OtherManager`].
    pub(crate) fn check<P: Platform>(&self, manager: &Manager<P>) -> Result<(), Failure> {
        if self.zones == zones(manager) { Ok(()) } else { Err(Failure::OtherManager) }
    }

    /// Swaps `held` with the content of a slot.
    pub(crate) fn exchange<P: Platform>(&self, platform: &P, slot: usize, held: Held) -> Held {
        self.exchange.with(platform, |slots| {
            slots.get_mut(slot % SLOTS).map_or(held, |slot| core::mem::replace(slot, held))
        })
    }

    /// Recounts all tables and compares them with what is held. Meanwhile no worker may run and
    /// nothing may be moved. `held_pages` is the sum of `Worker::pages`.
    ///
    /// # Errors
    /// [`Failure::Tables`], [`Failure::Counters`], [`Failure::Pages`].
    pub fn account<P: Platform>(
        &self,
        manager: &Manager<P>,
        held_pages: u64,
    ) -> Result<Counts, Failure> {
        let counts = manager.verify().map_err(Failure::Tables)?;
        let unowned = counts.descriptor_pages + counts.isolated_pages + counts.reporting_pages;
        let balanced = counts.present_pages
            == counts.managed_pages
                + counts.reserved_pages
                + counts.deferred_pages
                + counts.unaccepted_pages
            && counts.managed_pages == counts.free_pages + counts.allocated_pages + unowned;
        if counts != manager.totals() || !balanced {
            return Err(Failure::Counters);
        }
        let slots = self.exchange.with(manager.platform(), |slots| *slots);
        let waiting: u64 = slots.iter().map(|held| held.range.pages()).sum();
        let given_up = reclaimed(manager).wrapping_sub(self.reclaimed_pages);
        let others_pages = self.others_pages.saturating_sub(given_up);
        let (held_pages, allocated_pages) = (held_pages + waiting + others_pages, in_use(manager));
        if held_pages == allocated_pages {
            Ok(counts)
        } else {
            Err(Failure::Pages { held_pages, allocated_pages })
        }
    }

    /// Frees the runs that wait for a new owner, drains all caches, and accounts for everything.
    /// For the end, when no worker holds anything.
    ///
    /// # Errors
    /// As for [`account`](Self::account), and [`Failure::Stamp`], [`Failure::Free`],
    /// [`Failure::Drain`], [`Failure::OtherManager`].
    pub fn settle<P: Platform>(&self, manager: &Manager<P>) -> Result<Counts, Failure> {
        self.check(manager)?;
        for slot in 0..SLOTS {
            let held = self.exchange(manager.platform(), slot, Held::NOTHING);
            if !held.range.is_empty() {
                held.check(manager.platform())?;
                // SAFETY: a worker left the run in the exchange, from which it was just taken
                // (invariant 42).
                unsafe { manager.free(held.range) }
                    .map_err(|error| Failure::Free { range: held.range, error })?;
            }
        }
        manager.drain().map_err(Failure::Drain)?;
        let cached = manager.caches().pages();
        if cached != 0 {
            return Err(Failure::Pages { held_pages: 0, allocated_pages: cached });
        }
        self.account(manager, 0)
    }
}

fn zones<P: Platform>(manager: &Manager<P>) -> usize {
    manager.zones().as_ptr().addr()
}

/// Returns how many pages the reclaim hook said it freed, for requests or in the background.
fn reclaimed<P: Platform>(manager: &Manager<P>) -> u64 {
    let events = manager.pressure().events();
    events.reclaim_pages.wrapping_add(events.background_pages)
}

/// Returns how many pages callers own.
fn in_use<P: Platform>(manager: &Manager<P>) -> u64 {
    manager.totals().allocated_pages.saturating_sub(manager.caches().pages())
}
