//! Free pages of pools leave memory that is to be empty (Linux: `mm/hugetlb.c`,
//! `replace_free_hugepage_folios`).
//!
//! Another page of its node comes in its place, so that the pool keeps its size, and the old one is
//! free memory in an isolated block. Nobody uses it, so that nothing is copied. Pages in use stay:
//! their users know where they are.

use crate::block::{BlockState, Chain, PageList};
use crate::hugetlb::Taken;
use crate::manager::facets::Hugetlb;
use crate::manager::hugetlb::allocate::Place;
use crate::manager::hugetlb::pool::Pool;
use crate::manager::moving::ObstacleKind;
use crate::manager::request::ORDINARY;
use crate::platform::Platform;
use crate::units::{Pfn, PfnRange, PoolSize};

impl<P: Platform> Hugetlb<'_, P> {
    /// Has the page of which an isolated block is a part leave it, or says only whether it may: the
    /// page, and what is in its way.
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
        // It left at this moment.
        (block, Err(ObstacleKind::Busy))
    }
}

impl<P: Platform> Pool<'_, P> {
    fn vacate_page(&self, place: &Place, only_looks: bool) -> Result<(), ObstacleKind> {
        // Hints, for it can be used and freed at any moment: without the lock.
        if self.flags(place).is_some() {
            return Err(ObstacleKind::Pool);
        }
        if place.zone.table().state(place.index).has(BlockState::POISONED) {
            return Err(ObstacleKind::Poisoned);
        }
        if only_looks {
            return Ok(());
        }
        // Only what is at hand: nothing is moved for it, which had a budget and a mover of its own.
        let mut new = Taken::NONE;
        self.take_of_zones(&mut new, place.zone.id().node, 1, ORDINARY);
        self.prepare_pages(&new);
        let mut accounting = self.accounting();
        let good = self.good_page(&new);
        // While pages are on their way it is perhaps one of them.
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
