//! Free pages of pools leave memory that is to be empty (Linux: `mm/hugetlb.c`,
//! `replace_free_hugepage_folios` and `dissolve_free_hugetlb_folios`).
//!
//! ```text
//!   another page of its node --> in its place --> the old one is free memory, in an isolated block
//!   there is none            --> the pool has one page less, where memory leaves the machine
//! ```
//!
//! Nobody uses it, so that nothing is copied. Pages in use stay: their users know where they are.

use crate::block::{Chain, PageList};
use crate::manager::facets::Hugetlb;
use crate::manager::hugetlb::allocate::Place;
use crate::manager::hugetlb::pool::Pool;
use crate::manager::moving::ObstacleKind;
use crate::platform::Platform;
use crate::units::{Pfn, PoolSize};

/// What a page of a pool may do to leave.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::manager) enum Way {
    /// Nothing: it is only asked for.
    None,
    /// Another takes its place.
    Replaced,
    /// That, or its pool shrinks.
    Dissolved,
}

impl<P: Platform> Hugetlb<'_, P> {
    /// Has the page of which an isolated block is a part leave it; says what is in its way.
    #[inline(never)]
    pub(in crate::manager) fn vacate(self, block: Pfn, way: Way) -> Result<(), ObstacleKind> {
        for size in PoolSize::ALL {
            let start = Pfn(block.0 & !(size.frames() - 1));
            let pool = self.manager.pool(size);
            if let Ok(place) = pool.place(start) {
                return pool.vacate_page(&place, way);
            }
        }
        // It left at this moment.
        Err(ObstacleKind::Busy)
    }
}

impl<P: Platform> Pool<'_, P> {
    fn vacate_page(&self, place: &Place, way: Way) -> Result<(), ObstacleKind> {
        // A hint, for it can be used and freed at any moment: without the lock.
        if self.flags(place).is_some() {
            return Err(ObstacleKind::Pool);
        }
        if way == Way::None {
            return Ok(());
        }
        // Not as hard as can be: what that would move is what the caller moves.
        let new = self.take_pages(place.zone.id().node, 1);
        self.prepare_pages(&new);
        let (mut leaves, mut refused) = (false, ObstacleKind::Busy);
        {
            let mut accounting = self.accounting();
            let good = self.good_page(&new);
            if good.is_none() && way != Way::Dissolved {
                refused = ObstacleKind::NoMemory;
            } else if !self.manager.hugetlb().pages_move() {
                // Else it is perhaps one of them.
                leaves = self.leave(&mut accounting, place, good.is_some());
                refused = ObstacleKind::Pool;
            }
            if let Some((slot, zone, page)) = good.filter(|_| leaves) {
                accounting.list(self.size, slot).append(zone.table(), PageList::of(page));
            } else {
                drop(accounting);
                self.give_back(&new);
            }
        }
        if !leaves {
            return Err(refused);
        }
        self.give_back_list(place.zone, PageList::unreported(Chain::one(place.index, false)));
        Ok(())
    }
}
