//! One pass over all zones: how much of each zone may be reported, and how far the pass has got.

use crate::manager::{Loan, Manager};
use crate::parameters::Pace;
use crate::platform::Platform;
use crate::units::{BLOCK_ORDER, Order, PAGES_PER_BLOCK};
use crate::zone::{Cursor, Goal, MOST_PIECES, Zone};

/// The fewest calls that an adaptive pass may make in each zone if enough memory stayed free: 1
/// GiB.
const BURST_CALLS: u64 = 16;
/// A pass at Linux's pace reports one part in this many of the free memory. An adaptive pass may
/// report that much, or a burst.
const SHARE: u64 = 16;
/// At Linux's pace a pass reports this many calls more than the share. Linux computes the budget
/// separately for its lists of 2 MiB and of 4 MiB free blocks, and goes one call over in each
/// (Linux: `mm/page_reporting.c`, `page_reporting_cycle`).
const CALLS_OVER: u64 = 2;

/// The number of ranges that a device takes at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity(pub(super) usize);

impl Capacity {
    /// Takes 0 and everything above 32 as 32.
    pub(super) const fn of(capacity: usize) -> Self {
        Self(if capacity == 0 || capacity > MOST_PIECES { MOST_PIECES } else { capacity })
    }

    /// Returns the pages that one call may take out of circulation: as many pieces of the order as
    /// the capacity, with at least 2 MiB for each, but not more than 64 MiB.
    pub(super) fn pages(self, order: Order) -> u64 {
        let unit = order.get().clamp(BLOCK_ORDER, BLOCK_ORDER + 5);
        ((self.0 as u64) << unit).min(MOST_PIECES as u64 * PAGES_PER_BLOCK)
    }
}

/// How much a pass may report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// All free memory.
    Flush,
    /// As much as the pace allows.
    Paced(Pace),
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) kind: Kind,
    pub(super) order: Order,
    pub(super) started_ns: u64,
    /// The number of the zone that the pass is at.
    pub(super) zone: usize,
    /// How many pages the pass may still report there; nothing before it has begun with the zone.
    pub(super) allowance_pages: Option<u64>,
    pub(super) cursor: Cursor,
    /// The cursor before the last call.
    pub(super) before: Cursor,
    /// The number of the list of pool pages that the pass is at, once it has done the zones.
    pub(super) pool: usize,
    /// Whether memory was handed to the device, and how many pages in the last call.
    pub(super) has_spent: bool,
    spent_pages: u64,
    /// Whether an earlier submission failed. All memory is then searched by address, so that the
    /// pass meets what is refused again only once.
    pub(super) by_address: bool,
    /// Whether a submission failed in this pass.
    pub(super) has_failed: bool,
    /// The value of `Reporter::seen` at the start of the pass.
    pub(super) seen: u64,
    /// Whether there is more for another pass.
    pub(super) left_over: bool,
}

impl Pass {
    pub(super) fn new(kind: Kind, order: Order, started_ns: u64) -> Self {
        Self {
            kind,
            order,
            started_ns,
            zone: 0,
            allowance_pages: None,
            cursor: Cursor::default(),
            before: Cursor::default(),
            pool: 0,
            has_spent: false,
            spent_pages: 0,
            by_address: false,
            has_failed: false,
            seen: 0,
            left_over: false,
        }
    }

    /// Returns what the next call may take; nothing if the zone has had its share.
    pub(super) fn goal<P: Platform>(
        &mut self,
        platform: &P,
        zone: &Zone,
        capacity: Capacity,
    ) -> Option<Goal> {
        let call_pages = capacity.pages(self.order).min(self.most_of(zone));
        let allowance = match self.allowance_pages {
            Some(pages) => pages,
            None => self.allowance(platform, zone, call_pages),
        };
        self.allowance_pages = Some(allowance);
        let most_pages = call_pages.min(allowance);
        let least_pages = self.order.pages().min(call_pages);
        (most_pages >= least_pages).then_some(Goal {
            order: self.order,
            most_pieces: capacity.0,
            most_pages,
            guard_pages: call_pages,
            by_address: self.by_address,
        })
    }

    /// Returns how many pages may be out of a zone at once: a quarter of it, so that small zones,
    /// too, have more than that above their low mark while they are mostly free.
    fn most_of(&self, zone: &Zone) -> u64 {
        (zone.managed_pages() / 4).max(self.order.pages())
    }

    fn allowance<P: Platform>(&self, platform: &P, zone: &Zone, call_pages: u64) -> u64 {
        let (pages, share_pages) =
            self.share(zone.free_pages(), call_pages, || zone.unreported_floor(platform));
        match self.kind {
            // No counter says what stayed free in split blocks.
            Kind::Paced(Pace::Adaptive) if self.order < Order::BLOCK => pages + share_pages,
            _ => pages,
        }
    }

    /// Returns how much a pass may report if `free_pages` are free, of which `stayed_pages` stayed
    /// free since the previous pass; and a share of the free pages.
    fn share(
        &self,
        free_pages: u64,
        call_pages: u64,
        stayed_pages: impl FnOnce() -> u64,
    ) -> (u64, u64) {
        let share_pages = free_pages.div_ceil(call_pages * SHARE) * call_pages;
        let pages = match self.kind {
            Kind::Flush => u64::MAX,
            Kind::Paced(Pace::Fixed) => share_pages + CALLS_OVER * call_pages,
            Kind::Paced(Pace::Adaptive) => {
                stayed_pages().min(share_pages.max(BURST_CALLS * call_pages))
            }
        };
        (pages, share_pages)
    }

    /// Lends free pages of the pool list that the pass is at. Otherwise moves on to the next list
    /// and returns none.
    pub(super) fn lend<P: Platform>(&mut self, manager: &Manager<P>, capacity: Capacity) -> Loan {
        let number = self.pool;
        let call_pages = capacity.pages(self.order);
        let size = manager
            .hugetlb()
            .list(number)
            .map(|(size, _, _)| size)
            .filter(|size| size.order() >= self.order);
        let (free_pages, unreported_pages) = manager.hugetlb().free_frames(number);
        if let Some(size) = size.filter(|_| unreported_pages != 0) {
            let allowance = self.allowance_pages.unwrap_or_else(|| {
                self.share(free_pages, call_pages, || manager.hugetlb().floor(number)).0
            });
            // A 1 GiB page goes out in parts, so it may be larger than the allowance left.
            let least_pages = if size.is_gigantic() { 1 } else { size.frames() };
            self.allowance_pages = Some(allowance);
            if allowance >= least_pages {
                let loan = manager.hugetlb().lend(number, call_pages.min(allowance), capacity.0);
                if !loan.is_empty() {
                    self.spend(loan.len() as u64 * size.frames());
                    return loan;
                }
            } else {
                self.left_over = true;
            }
        }
        self.pool += 1;
        self.allowance_pages = None;
        Loan::EMPTY
    }

    /// Counts pages that were handed to the device.
    pub(super) fn spend(&mut self, pages: u64) {
        (self.has_spent, self.spent_pages) = (true, pages);
        self.allowance_pages = self.allowance_pages.map(|left| left.saturating_sub(pages));
    }

    /// Continues after the memory that was submitted last and failed, if its place is known, or
    /// else with the next zone or pool.
    pub(super) fn go_behind<P: Platform>(&mut self, manager: &Manager<P>) {
        self.has_failed = true;
        match manager.zones().get(self.zone) {
            // Refused memory, and what was submitted with it, does not count against the allowance.
            Some(_) if self.by_address => {
                let more = |left: u64| left.saturating_add(self.spent_pages);
                self.allowance_pages = self.allowance_pages.map(more);
            }
            Some(zone) => self.next_zone(manager.platform(), zone),
            None => (self.pool, self.allowance_pages) = (self.pool + 1, None),
        }
    }

    /// Moves on to the next zone, because this one has no more, or no more in this pass.
    pub(super) fn next_zone<P: Platform>(&mut self, platform: &P, zone: &Zone) {
        zone.end_sweep(platform, self.cursor);
        self.zone += 1;
        self.allowance_pages = None;
        self.cursor = Cursor::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_counts_units_of_two_mebibytes() {
        let order = |order| Order::new(order).expect("an order");
        for (capacity, of, pages) in [
            (0, 9, 32 * 512),
            (32, 9, 32 * 512),
            (64, 9, 32 * 512),
            (1, 9, 512),
            (5, 9, 5 * 512),
            (32, 18, 32 * 512),
            (1, 18, 32 * 512),
            (4, 10, 4 * 1024),
            (32, 0, 32 * 512),
            (3, 5, 3 * 512),
        ] {
            assert_eq!(Capacity::of(capacity).pages(order(of)), pages, "{capacity} of order {of}");
        }
    }
}
