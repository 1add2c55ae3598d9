//! Reservations (Linux: `mm/hugetlb.c`, `hugetlb_acct_memory`): pages that are set aside before it
//! is known where they will be used.

use crate::hugetlb::{PoolError, Taken};
use crate::manager::hugetlb::pool::Pool;
use crate::manager::hugetlb::resize::PAGES_OF_A_HOLD;
use crate::manager::hugetlb::resizing::PagesOnTheWay;
use crate::platform::Platform;
use crate::units::{NodeId, NodeMask};

/// How many surplus pages are allocated between two checks of what is still missing, and given back
/// together.
const PAGES_AT_ONCE: u64 = PAGES_OF_A_HOLD;

impl<P: Platform> Pool<'_, P> {
    /// Reserves `pages` pages, all or nothing: free pages and, if those do not suffice, surplus
    /// pages that are allocated from `nodes` for this, as far as overcommit allows. Also fails if
    /// `nodes` have fewer free pages than are to be reserved. This holds only at the moment of the
    /// call, because it is not known which nodes the pages will come from.
    ///
    /// # Errors
    /// [`PoolError::NoPage`].
    pub fn reserve(&self, pages: u64, nodes: NodeMask) -> Result<(), PoolError> {
        let (manager, size) = (self.manager, self.size);
        let no_page = PoolError::NoPage(size);
        let allowed = manager.hugetlb().nodes_with_memory(nodes);
        let mut added = 0;
        loop {
            let room = {
                let mut accounting = self.accounting();
                let on_nodes: u64 =
                    self.nodes_of(nodes).map(|node| accounting.node(size, node).free).sum();
                let counts = accounting.counts_mut(size);
                // Pages that were added are reserved. Available pages are left to others until
                // there are enough, because the reservation may still fail.
                let missing = pages - added;
                let available = counts.available().min(missing);
                let room = counts.overcommit.saturating_sub(counts.all.surplus);
                if available == missing {
                    if pages <= on_nodes {
                        counts.reserved += missing;
                        drop(accounting);
                        if added != 0 {
                            // Others freed the missing pages, so the added ones are not needed,
                            // unless the freed pages lie on other nodes.
                            let spare = added.min(on_nodes - pages);
                            self.cancel_reservation(0, spare, NodeMask::ALL);
                        }
                        return Ok(());
                    }
                    0
                } else if size.is_gigantic() || room < missing - available {
                    0
                } else {
                    (missing - available).min(PAGES_AT_ONCE)
                }
            };
            let more = if room == 0 { 0 } else { self.add_surplus_pages(allowed, room) };
            if more == 0 {
                self.cancel_reservation(added, added, NodeMask::ALL);
                return Err(no_page);
            }
            added += more;
        }
    }

    /// Cancels a reservation. Free surplus pages become free memory, at most as many as were
    /// reserved, from all nodes alike.
    ///
    /// # Errors
    /// [`PoolError::NotReserved`].
    pub fn unreserve(&self, pages: u64) -> Result<(), PoolError> {
        let reserved = self.counts().reserved;
        if reserved < pages || !self.cancel_reservation(pages, pages, NodeMask::ALL) {
            return Err(PoolError::NotReserved { pages, reserved });
        }
        Ok(())
    }
}

impl<P: Platform> Pool<'_, P> {
    /// Returns the nodes of a set that exist.
    pub(super) fn nodes_of(&self, nodes: NodeMask) -> impl Iterator<Item = NodeId> + use<P> {
        let count = self.manager.nodes.len();
        nodes.nodes().filter(move |node| node.index() < count)
    }

    /// Allocates up to `most` pages as free surplus pages of the pool; returns how many.
    fn add_surplus_pages(&self, nodes: NodeMask, most: u64) -> u64 {
        let size = self.size;
        let _moving = PagesOnTheWay::start(self.manager);
        let room = |_| u64::MAX;
        let shares = self.accounting().deal_growth(size, most, nodes, &room);
        let mut added = 0;
        for node in nodes.nodes() {
            let share = shares[node.index()].min(most - added);
            if share != 0 {
                added += self.publish_surplus(node, self.take_pages(node, share));
            }
        }
        if added == 0
            && let Some((node, taken)) = self.take_one(nodes.nodes())
        {
            added = self.publish_surplus(node, taken);
        }
        added
    }

    /// Makes pages visible as free surplus pages, as many as overcommit allows.
    fn publish_surplus(&self, node: NodeId, mut taken: Taken) -> u64 {
        let size = self.size;
        if taken.pages() == 0 {
            return 0;
        }
        self.prepare_pages(&taken);
        let added = {
            let mut accounting = self.accounting();
            let added = accounting.add_surplus(size, node, taken.pages());
            // Reserve them at once, before anybody else gets them.
            accounting.counts_mut(size).reserved += added;
            let mut left = added;
            for (slot, list) in taken.lists_mut() {
                let Some(zone) = self.manager.zones().get(slot) else { continue };
                let list = list.take(zone.table(), left);
                left -= list.pages();
                accounting.list(size, slot).append(zone.table(), list);
            }
            added
        };
        self.give_back(&taken);
        added
    }

    /// Cancels the reservation of `reserved` pages and gives back up to `surplus` free surplus
    /// pages of these nodes. Returns false, with nothing changed, if fewer pages are reserved.
    pub(super) fn cancel_reservation(&self, reserved: u64, surplus: u64, nodes: NodeMask) -> bool {
        let size = self.size;
        let nodes = self.manager.hugetlb().nodes_with_memory(nodes);
        let (mut cancelled, mut wanted) = (reserved, surplus);
        loop {
            let shares = {
                let mut accounting = self.accounting();
                let counts = accounting.counts_mut(size);
                let Some(left) = counts.reserved.checked_sub(cancelled) else { return false };
                (counts.reserved, cancelled) = (left, 0);
                let most = wanted.min(counts.available()).min(counts.all.surplus);
                accounting.deal_removal(size, most, nodes, |counts| counts.free.min(counts.surplus))
            };
            if shares.iter().all(|&share| share == 0) {
                self.manager.hugetlb().recheck_suspects();
                return true;
            }
            let _moving = PagesOnTheWay::start(self.manager);
            for node in nodes.nodes() {
                let mut left = shares[node.index()];
                while left != 0 {
                    let taken = self.remove_surplus(node, left.min(PAGES_AT_ONCE));
                    let pages = taken.pages();
                    if pages == 0 {
                        // Others have taken them meanwhile; other nodes may have as many.
                        break;
                    }
                    self.give_back(&taken);
                    left -= pages;
                    wanted -= pages;
                }
            }
        }
    }

    fn remove_surplus(&self, node: NodeId, most: u64) -> Taken {
        let size = self.size;
        let mut taken = Taken::NONE;
        let mut accounting = self.accounting();
        let most = most.min(self.within_reach(&mut accounting, node, &taken));
        let pages = accounting.drop_surplus(size, node, most);
        self.take_off(&mut accounting, node, pages, &mut taken);
        taken
    }
}
