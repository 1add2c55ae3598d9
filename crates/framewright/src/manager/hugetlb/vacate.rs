//! Removes free pages of pools from memory that is to be emptied (Linux: `mm/hugetlb.c`,
//! `replace_free_hugepage_folios`).
//!
//! Another page of the same node takes the place of each, so that the pool keeps its size; the old
//! page becomes free memory in an isolated block. Nobody uses it, so nothing is copied. Pages in
//! use stay, because their users know where they are.

use crate::block::{BlockState, Chain, LENT, PageList};
use crate::hugetlb::Taken;
use crate::manager::facets::Hugetlb;
use crate::manager::hugetlb::allocate::Place;
use crate::manager::hugetlb::pool::Pool;
use crate::manager::moving::ObstacleKind;
use crate::manager::request::ORDINARY;
use crate::platform::Platform;
use crate::units::{Pfn, PfnRange, PoolSize};

impl<P: Platform> Hugetlb<'_, P> {
    /// Removes from its pool the page that an isolated block is part of, or only checks whether it
    /// may be removed. Returns the page and, as an error, the obstacle.
    #[inline(never)]
    pub(in crate::manager) fn vacate(
        self,
        block: PfnRange,
        only_looks: bool,
    ) -> (PfnRange, Result<(), ObstacleKind>) {
        for size in PoolSize::ALL {
            let start = Pfn(block.start.0 & !(size.frames() - 1));
            let pool = self.manager.pool(size);
            if let Ok(place) = pool.place(start) {
                let page = PfnRange { start, end: start.add(size.frames()) };
                return (page, pool.vacate_page(&place, only_looks));
            }
        }
        // The page left its pool just now.
        (block, Err(ObstacleKind::Busy))
    }
}

impl<P: Platform> Pool<'_, P> {
    fn vacate_page(&self, place: &Place, only_looks: bool) -> Result<(), ObstacleKind> {
        // Without the lock these are hints, as the page can be allocated or freed at any moment.
        if let Some(flags) = self.flags(place) {
            let is_lent = flags & LENT != 0;
            return Err(if is_lent { ObstacleKind::Reporting } else { ObstacleKind::Pool });
        }
        if place.zone.table().state(place.index).has(BlockState::POISONED) {
            return Err(ObstacleKind::Poisoned);
        }
        if only_looks {
            return Ok(());
        }
        // Take only available memory: moving anything for this would need a budget and a mover of
        // its own.
        let mut new = Taken::NONE;
        self.take_of_zones(&mut new, place.zone.id().node, 1, ORDINARY);
        self.prepare_pages(&new);
        let mut accounting = self.accounting();
        let good = self.good_page(&new);
        // While pages are on their way, this may be one of them.
        let leaves = !self.manager.hugetlb().pages_move()
            && good.is_some()
            && self.leave(&mut accounting, place, true);
        if let Some((slot, zone, page)) = good.filter(|_| leaves) {
            accounting.list(self.size, slot).append(zone.table(), PageList::of(page));
        }
        drop(accounting);
        if leaves {
            let old = PageList::unreported(Chain::one(place.index, false));
            self.give_back_list(place.zone, old);
            return Ok(());
        }
        self.give_back(&new);
        Err(if good.is_some() { ObstacleKind::Busy } else { ObstacleKind::NoMemory })
    }
}
