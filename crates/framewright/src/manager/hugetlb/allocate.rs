//! Gives pages to users and takes them back (Linux: `mm/hugetlb.c`, `hugetlb_acct_memory`).

use crate::block::list::NONE;
use crate::block::{BlockState, Chain, IN_USE, LENT, PageList, RESTORE, Search, State, is_in_use};
use crate::hugetlb::{Accounting, PoolError, Taken};
use crate::manager::hugetlb::pool::Pool;
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::sync::SpinGuard;
use crate::units::{NodeId, NodeMask, Pfn, PfnRange};
use crate::zone::Zone;

/// A page of a pool, identified by its table entry.
pub(super) struct Place {
    pub(super) zone: &'static Zone,
    pub(super) slot: usize,
    pub(super) index: u32,
}

impl<P: Platform> Pool<'_, P> {
    /// Gives a page to a user, from the nearest node that has one free. With `reserved`, the page
    /// is one that was reserved ([`reserve`](Self::reserve)), and uses the reservation up. Once the
    /// page is in its place, the caller says so with [`commit`](Self::commit); a page that is freed
    /// before is reserved again. Without `reserved`, the page is one that is not reserved or, if
    /// there is none, a surplus page as far as overcommit allows.
    ///
    /// # Errors
    /// [`PoolError::NoPage`], [`PoolError::NoNode`], [`PoolError::NotReserved`].
    pub fn allocate(&self, choice: NodeChoice, reserved: bool) -> Result<PfnRange, PoolError> {
        let (nodes, exact) = self.nodes_for(choice)?;
        let nodes = nodes.iter().filter(|&node| exact.is_none_or(|exact| exact == node));
        let (manager, size) = (self.manager, self.size);
        {
            let mut accounting = self.accounting();
            let counts = accounting.counts(size);
            if reserved && counts.reserved == 0 {
                return Err(PoolError::NotReserved { pages: 1, reserved: 0 });
            }
            if reserved || counts.available() != 0 {
                for (node, (slot, zone)) in nodes
                    .clone()
                    .flat_map(|node| manager.hugetlb().node_zones(node).map(move |at| (node, at)))
                {
                    let mut search = accounting.list(size, slot).search();
                    loop {
                        if let Some(index) =
                            self.take_free(&mut accounting, &mut search, slot, reserved)
                        {
                            accounting.use_free(size, node);
                            accounting.counts_mut(size).reserved -= u64::from(reserved);
                            mark(zone, index, if reserved { RESTORE } else { 0 });
                            return zone
                                .frames_of(index, size.order())
                                .ok_or(PoolError::NoPage(size));
                        }
                        if search.is_over() {
                            break;
                        }
                        // Many pages are isolated: let others have the lock in between.
                        drop(accounting);
                        accounting = self.accounting();
                    }
                }
            }
            let counts = accounting.counts(size);
            if size.is_gigantic() || counts.all.surplus >= counts.overcommit {
                return Err(PoolError::NoPage(size));
            }
        }
        self.allocate_surplus(nodes, reserved)
    }

    /// Makes one step of the search for a page in a zone's list that may be handed out.
    fn take_free(
        &self,
        accounting: &mut Accounting,
        search: &mut Search,
        slot: usize,
        reserved: bool,
    ) -> Option<u32> {
        let zone = self.manager.zones().get(slot)?;
        let counts = accounting.counts(self.size);
        // Others may have taken the last pages since the step before.
        if if reserved { counts.reserved == 0 } else { counts.available() == 0 } {
            *search = Search::OVER;
            return None;
        }
        let good = |index| zone.is_good_in_pool(index);
        let (index, reported) =
            accounting.list(self.size, slot).take_good(zone.table(), &good, search)?;
        accounting.count_reused(self.size, reported);
        Some(index)
    }

    /// Notes that a page from `allocate` is in the place that it was reserved for. Freeing the page
    /// no longer restores the reservation.
    ///
    /// # Errors
    /// [`PoolError::NotAllocated`].
    pub fn commit(&self, page: Pfn) -> Result<(), PoolError> {
        let place = self.place(page)?;
        let _books = self.accounting();
        let flags = self
            .flags(&place)
            .filter(|flags| flags & LENT == 0)
            .ok_or(PoolError::NotAllocated(page))?;
        mark(place.zone, place.index, flags & !RESTORE);
        Ok(())
    }

    /// Takes a page back from its user. The page stays in the pool, unless its node has surplus
    /// pages and the page is not needed for a reservation: then it becomes free memory. Never fails
    /// for a page that was allocated from this pool.
    ///
    /// # Errors
    /// [`PoolError::NotAllocated`].
    ///
    /// # Safety
    /// See [*Owning memory*](crate::manager#owning-memory): the caller owns the page, which
    /// [`allocate`](Self::allocate) returned, and nobody uses it any more.
    pub unsafe fn free(&self, page: Pfn) -> Result<(), PoolError> {
        let place = self.place(page)?;
        let zone = place.zone;
        let leaves = {
            let accounting = self.accounting();
            let flags = self
                .flags(&place)
                .filter(|flags| flags & LENT == 0)
                .ok_or(PoolError::NotAllocated(page))?;
            self.end_use_locked(accounting, &place, flags, false)
        };
        if leaves {
            self.give_back_list(zone, PageList::unreported(Chain::one(place.index, false)));
        }
        Ok(())
    }

    /// Returns the place at which a page of this pool begins.
    pub(super) fn place(&self, page: Pfn) -> Result<Place, PoolError> {
        let wrong = PoolError::NotAllocated(page);
        let range = PfnRange { start: page, end: Pfn(page.0.checked_add(1).ok_or(wrong)?) };
        let (zone, segment) = self.manager.zone_of_range(range).map_err(|_| wrong)?;
        let index = segment.index_of(crate::vmemmap_space::BlockNumber::containing(page));
        let place = Place { zone, slot: usize::from(segment.zone), index };
        let fits = page.is_aligned(self.size.order()) && self.is_page(&place);
        fits.then_some(place).ok_or(wrong)
    }

    /// Returns the flags of a page in use; `None` for any other page. The caller holds the
    /// accounting lock.
    pub(super) fn flags(&self, place: &Place) -> Option<u32> {
        // Checked first, because a block outside any pool may go away, and its links with it.
        let is_page = self.is_page(place);
        let link = is_page.then(|| place.zone.table().links(place.index).0)?;
        is_in_use(link).then_some(link & !IN_USE)
    }

    /// Returns whether a page of this pool begins at a place.
    pub(super) fn is_page(&self, place: &Place) -> bool {
        let found = place.zone.head_unlocked(self.manager.platform, place.index);
        found.is_some_and(|(head, state)| {
            head == place.index && state.is(State::Pool) && state.order() == self.size.order()
        })
    }
}

impl<P: Platform> Pool<'_, P> {
    /// Ends the use of a page with these flags; `reported` says that all of it was just reported.
    /// Returns true if the page leaves the pool: then the caller gives it back to its zone.
    pub(super) fn end_use(&self, place: &Place, flags: u32, reported: bool) -> bool {
        self.end_use_locked(self.accounting(), place, flags, reported)
    }

    fn end_use_locked(
        &self,
        mut accounting: SpinGuard<'_, Accounting, P>,
        place: &Place,
        flags: u32,
        reported: bool,
    ) -> bool {
        let size = self.size;
        let (zone, node) = (place.zone, place.zone.id().node);
        let bad = zone.table().state(place.index).has(BlockState::POISONED);
        let restore = u64::from(flags & RESTORE != 0);
        let free = accounting.counts(size).all.free;
        let counts = accounting.counts_mut(size);
        if bad {
            // A reservation comes back only if a page is left for it.
            counts.reserved += restore.min(free - counts.reserved);
        } else {
            counts.reserved += restore;
        }
        let is_needed = free < counts.reserved;
        if !bad && (is_needed || accounting.node(size, node).surplus == 0) {
            accounting.end_use(size, node);
            let list = accounting.list(size, place.slot);
            if flags & LENT != 0 {
                list.push_lent(zone.table(), place.index, reported);
            } else {
                list.push_front(zone.table(), place.index);
            }
            if !is_needed && accounting.has_suspects() {
                drop(accounting);
                self.manager.hugetlb().recheck_suspects();
            }
            return false;
        }
        accounting.drop_used(size, node);
        alone(zone, place.index);
        true
    }

    /// Allocates a fresh page as surplus, as far as overcommit allows.
    fn allocate_surplus(
        &self,
        nodes: impl Iterator<Item = NodeId> + Clone,
        reserved: bool,
    ) -> Result<PfnRange, PoolError> {
        let size = self.size;
        let found = self.take_one(nodes).ok_or(PoolError::NoPage(size))?;
        let (node, taken) = found;
        self.prepare_pages(&taken);
        let allowed = {
            let mut accounting = self.accounting();
            let allowed = !reserved || accounting.counts(size).reserved != 0;
            // Nothing was reserved in the accounting for this page, so the limit may have been
            // reached meanwhile.
            if allowed
                && let Some((_, zone, page)) = self.good_page(&taken)
                && accounting.add_surplus(size, node, 1) == 1
            {
                accounting.use_free(size, node);
                accounting.counts_mut(size).reserved -= u64::from(reserved);
                accounting.count_reused(size, page.reported);
                mark(zone, page.first, if reserved { RESTORE } else { 0 });
                drop(accounting);
                if reserved {
                    // The free page that was kept for the reservation is not needed any more.
                    self.cancel_reservation(0, 1, NodeMask::ALL);
                }
                return zone.frames_of(page.first, size.order()).ok_or(PoolError::NoPage(size));
            }
            allowed
        };
        self.give_back(&taken);
        Err(if allowed {
            PoolError::NoPage(size)
        } else {
            PoolError::NotReserved { pages: 1, reserved: 0 }
        })
    }

    /// Returns the only page that was taken, unless it has become bad or isolated since. The caller
    /// holds the accounting lock.
    #[inline(never)]
    pub(super) fn good_page(&self, taken: &Taken) -> Option<(usize, &'static Zone, Chain)> {
        let (slot, list) = taken.lists().find(|(_, list)| list.pages() == 1)?;
        let zone = self.manager.zones().get(slot)?;
        let [page, reported] = list.chains();
        let page = if page.pages == 0 { reported } else { page };
        zone.is_good_in_pool(page.first).then_some((slot, zone, page))
    }

    /// Takes one page of the first node that has one: first of the available memory, then with all
    /// means against a shortage.
    pub(super) fn take_one(
        &self,
        nodes: impl Iterator<Item = NodeId> + Clone,
    ) -> Option<(NodeId, Taken)> {
        let at_hand = nodes.clone().map(|node| (node, self.take_pages(node, 1)));
        at_hand.into_iter().find(|(_, taken)| taken.pages() != 0).or_else(|| {
            nodes.map(|node| (node, self.take_hard(node, 1))).find(|(_, taken)| taken.pages() != 0)
        })
    }
}

/// Marks a page as in use.
fn mark(zone: &Zone, index: u32, flags: u32) {
    zone.table().set_next(index, NONE);
    zone.table().set_previous(index, IN_USE | flags);
}

/// Makes a page a chain of its own.
pub(super) fn alone(zone: &Zone, index: u32) {
    zone.table().set_next(index, NONE);
    zone.table().set_previous(index, NONE);
}
