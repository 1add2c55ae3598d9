//! One pass over all zones: how much of each may be reported, and how far it has got.

use crate::manager::{Loan, Manager};
use crate::parameters::Pace;
use crate::platform::Platform;
use crate::units::{BLOCK_ORDER, Order, PAGES_PER_BLOCK};
use crate::zone::{Cursor, Goal, MOST_PIECES, Zone};

/// Calls that an adaptive pass may make at least in each zone, where that much stayed free: 1 GiB.
const BURST_CALLS: u64 = 16;
/// Of what is free a pass at Linux's pace reports one part in so many, and an adaptive one at most.
const SHARE: u64 = 16;
/// At Linux's pace a pass reports so many calls more than the share: Linux counts what it may
/// report of each list of free blocks by itself, those of 2 MiB and those of 4 MiB, and goes one
/// call over in each (Linux: `mm/page_reporting.c`, `page_reporting_cycle`).
const CALLS_OVER: u64 = 2;

/// What a device takes at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Capacity(pub(super) usize);

impl Capacity {
    /// 0 and everything above 32 mean 32.
    pub(super) const fn of(capacity: usize) -> Self {
        Self(if capacity == 0 || capacity > MOST_PIECES { MOST_PIECES } else { capacity })
    }

    /// Pages that one call may take out of circulation: so many pieces of the order, at least of 2
    /// MiB, but not more than 64 MiB.
    pub(super) fn pages(self, order: Order) -> u64 {
        let unit = order.get().clamp(BLOCK_ORDER, BLOCK_ORDER + 5);
        ((self.0 as u64) << unit).min(MOST_PIECES as u64 * PAGES_PER_BLOCK)
    }
}

/// What may be reported in a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Everything.
    Flush,
    /// As the pace says.
    Paced(Pace),
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) kind: Kind,
    pub(super) order: Order,
    pub(super) started_ns: u64,
    /// The number of the zone that it is at.
    pub(super) zone: usize,
    /// Pages that it may still report there; nothing before it has begun with the zone.
    pub(super) allowance_pages: Option<u64>,
    pub(super) cursor: Cursor,
    /// Where that was before the last call.
    pub(super) before: Cursor,
    /// The number of the list of pool pages that it is at, once it is through with the zones.
    pub(super) pool: usize,
    /// Something was handed to the device, and so much the last time.
    pub(super) has_spent: bool,
    spent_pages: u64,
    /// Something was refused before: all is looked for by its address, so that what is refused
    /// again is passed but once.
    pub(super) by_address: bool,
    /// Something was refused.
    pub(super) has_failed: bool,
    /// What there was when it began.
    pub(super) seen: u64,
    /// There is more for another pass.
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

    /// What the next call may hold; nothing when the zone has had its share.
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

    /// Pages that may be out of a zone at once: a quarter of it, so that small zones, too, have
    /// more than that above their low mark while they are mostly free.
    fn most_of(&self, zone: &Zone) -> u64 {
        (zone.managed_pages() / 4).max(self.order.pages())
    }

    fn allowance<P: Platform>(&self, platform: &P, zone: &Zone, call_pages: u64) -> u64 {
        let (pages, share_pages) =
            self.share(zone.free_pages(), call_pages, || zone.unreported_floor(platform));
        match self.kind {
            // What stayed free in split blocks is not counted anywhere.
            Kind::Paced(Pace::Adaptive) if self.order < Order::BLOCK => pages + share_pages,
            _ => pages,
        }
    }

    /// What a pass may report where so much is free, of which `stayed_pages` was since the pass
    /// before; and a share of what is free.
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

    /// Lends free pages of the next pool that has any to report; none when all have had their
    /// share, or this one.
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
            // A page of 1 GiB, which goes out in parts, may be more than what is left.
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

    /// Pages of the zone were handed to the device.
    pub(super) fn spend(&mut self, pages: u64) {
        (self.has_spent, self.spent_pages) = (true, pages);
        self.allowance_pages = self.allowance_pages.map(|left| left.saturating_sub(pages));
    }

    /// What was handed to the device last was refused: goes on behind it, where that is known, else
    /// with the next zone or pool.
    pub(super) fn go_behind<P: Platform>(&mut self, manager: &Manager<P>) {
        self.has_failed = true;
        match manager.zones().get(self.zone) {
            // What was refused takes nothing from the rest, nor does what went with it.
            Some(_) if self.by_address => {
                let more = |left: u64| left.saturating_add(self.spent_pages);
                self.allowance_pages = self.allowance_pages.map(more);
            }
            Some(zone) => self.next_zone(manager.platform(), zone),
            None => (self.pool, self.allowance_pages) = (self.pool + 1, None),
        }
    }

    /// The zone has no more, or no more in this pass.
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
