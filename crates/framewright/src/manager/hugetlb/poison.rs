//! Pages of pools with memory errors (Linux: `mm/hugetlb.c`, `__get_huge_page_for_hwpoison`).
//!
//! Called from a task or an interrupt handler to which the machine check handler has passed the
//! frame, as locks are taken. The number of steps does not depend on the pool's size: the chain of
//! free pages is doubly linked, and a page's own links say which chain it is in, so a page can be
//! removed in place.

use crate::block::{BlockState, Chain, PageList};
use crate::hugetlb::{Accounting, PoolError, Suspect};
use crate::manager::facets::Hugetlb;
use crate::manager::hugetlb::allocate::{Place, alone};
use crate::manager::hugetlb::pool::Pool;
use crate::platform::Platform;
use crate::units::Pfn;

/// What happened to a page with a memory error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poisoned {
    /// The page was free and has left the pool. Nobody will ever own it again.
    Left,
    /// The page is not handed out any more but is still in the pool. If it is in use, it leaves
    /// when it is freed. A free page stays while pages of a pool are on their way, as in a resize,
    /// and while all free pages of its pool are reserved; it leaves as soon as neither holds.
    Stays,
}

impl<P: Platform> Pool<'_, P> {
    /// Notes a memory error in a frame of the pool. The page is not handed out any more. A free
    /// page leaves the pool, which then has one page less. All memory of the page is lost from then
    /// on, as nobody knows what else is wrong with it. How long this takes depends on the page's
    /// size alone: a page that leaves is announced to the hooks like a freed one, and may get its
    /// memory map back for that. Not for NMI and machine check handlers.
    ///
    /// # Errors
    /// [`PoolError::NotAllocated`] if the frame belongs to no pool, or its page is on its way into
    /// or out of one right now.
    pub fn poison(&self, frame: Pfn) -> Result<Poisoned, PoolError> {
        let (manager, size) = (self.manager, self.size);
        let start = Pfn(frame.0 & !(size.frames() - 1));
        let place = self.place(start).map_err(|_| PoolError::NotAllocated(frame))?;
        if !place.zone.poison_in_pool(manager.platform, place.index, size.order()) {
            return Err(PoolError::NotAllocated(frame));
        }
        let left = {
            let mut accounting = self.accounting();
            if self.flags(&place).is_some() {
                // In use; the user may also be free page reporting.
                false
            } else if !manager.hugetlb().pages_move() && self.leave(&mut accounting, &place, false)
            {
                true
            } else {
                // A page that there is no room to remember leaves when the pool shrinks.
                accounting.suspect(Suspect { size, slot: place.slot, index: place.index });
                false
            }
        };
        if !left {
            return Ok(Poisoned::Stays);
        }
        self.give_back_list(place.zone, PageList::unreported(Chain::one(place.index, false)));
        Ok(Poisoned::Left)
    }

    /// Takes a page out of its list, if it is free there, and out of the accounting, if a page is
    /// not reserved or another page is counted in its place. No pages may be on their way
    /// meanwhile. The caller gives the page back.
    #[inline(never)]
    pub(super) fn leave(
        &self,
        accounting: &mut Accounting,
        place: &Place,
        is_replaced: bool,
    ) -> bool {
        let (size, zone) = (self.size, place.zone);
        let free = self.is_page(place) && self.flags(place).is_none();
        if !free
            || !is_replaced && accounting.counts(size).available() == 0
            || !accounting.list(size, place.slot).remove(zone.table(), place.index)
        {
            return false;
        }
        let dropped = is_replaced || accounting.drop_page(size, zone.id().node);
        debug_assert!(dropped, "one was available");
        alone(zone, place.index);
        true
    }
}

impl<'m, P: Platform> Hugetlb<'m, P> {
    /// Looks again at pages that had memory errors and could not leave their pool. Called when no
    /// pages are on their way any more, and when a free page is no longer reserved.
    #[cold]
    #[inline(never)]
    pub(super) fn recheck_suspects(self) {
        let mut turn = 0;
        loop {
            let (suspect, left) = {
                let mut accounting = self.accounting();
                // A caller that has begun to move pages does this afterwards.
                if self.pages_move() {
                    return;
                }
                let Some(suspect) = accounting.take_suspect(&mut turn) else { return };
                let pool = self.manager.pool(suspect.size);
                let Some(place) = self.suspected(&suspect) else { continue };
                if !pool.leave(&mut accounting, &place, false) {
                    if accounting.counts(suspect.size).available() == 0 {
                        // All free pages are still reserved.
                        accounting.suspect(suspect);
                    }
                    continue;
                }
                (suspect, place)
            };
            self.manager
                .pool(suspect.size)
                .give_back_list(left.zone, PageList::unreported(Chain::one(left.index, false)));
        }
    }

    /// Returns the place of a suspect that is still in the pool and still has its error.
    fn suspected(self, suspect: &Suspect) -> Option<Place> {
        let &Suspect { size, slot, index } = suspect;
        let zone = self.manager.zones().get(slot)?;
        let place = Place { zone, slot, index };
        let is_bad = self.manager.pool(size).is_page(&place)
            && zone.table().state(index).has(BlockState::POISONED);
        is_bad.then_some(place)
    }
}
