//! Demotion: turns 1 GiB pages into 2 MiB pages of the other pool (Linux: `mm/hugetlb.c`,
//! `demote_pool_huge_page`).
//!
//! Linux compares the free pages of a node with the pages that are reserved on all nodes, in
//! unsigned arithmetic, and takes as many as it was asked for although fewer may be unreserved.
//! Here a page is taken only while one is free and not reserved, and each is counted out of one
//! pool before it is counted into the other.

use crate::block::{Chain, PageList};
use crate::hugetlb::PoolError;
use crate::manager::hugetlb::allocate::alone;
use crate::manager::hugetlb::pool::Pool;
use crate::manager::hugetlb::take::Moment;
use crate::platform::Platform;
use crate::units::{NodeId, NodeMask, PoolSize};
use crate::zone::Zone;

impl<P: Platform> Pool<'_, P> {
    /// Reads `demote_size`: the size that `demote` divides pages into; `None` if there is no such
    /// file.
    #[must_use]
    pub const fn demote_size(&self) -> Option<PoolSize> {
        self.size.smaller()
    }

    /// Writes `demote_size`.
    ///
    /// # Errors
    /// [`PoolError::NotPossible`] unless it is a smaller size that has a pool.
    pub fn set_demote_size(&self, size_bytes: u64) -> Result<(), PoolError> {
        // There is at most one smaller size, so there is nothing to store.
        match PoolSize::of_bytes(size_bytes) {
            Some(size) if self.size.smaller() == Some(size) => Ok(()),
            _ => Err(PoolError::NotPossible(self.size)),
        }
    }

    /// Writes `demote`: turns up to `pages` free pages that are not reserved into pages of the
    /// smaller size, from all nodes in turn. The targets of both pools change accordingly. Returns
    /// how many pages were demoted. Asking for 0 pages returns at once.
    ///
    /// # Errors
    /// [`PoolError::NotPossible`] for 2 MiB pages, [`PoolError::NothingToDemote`],
    /// [`PoolError::Busy`].
    pub fn demote(&self, pages: u64) -> Result<u64, PoolError> {
        self.demote_on(pages, NodeMask::ALL)
    }

    /// Writes a node's `demote`.
    ///
    /// # Errors
    /// As [`demote`](Self::demote), and [`PoolError::NoNode`].
    pub fn demote_node(&self, node: NodeId, pages: u64) -> Result<u64, PoolError> {
        self.existing(node)?;
        self.demote_on(pages, NodeMask::only(node))
    }

    fn demote_on(&self, pages: u64, nodes: NodeMask) -> Result<u64, PoolError> {
        let (manager, size) = (self.manager, self.size);
        let smaller = size.smaller().ok_or(PoolError::NotPossible(size))?;
        if pages == 0 {
            return Ok(0);
        }
        let _resizing = manager.hugetlb().start_resizing()?;
        let nodes = manager.hugetlb().nodes_with_memory(nodes);
        let shares = {
            let mut accounting = self.accounting();
            let most = pages.min(accounting.counts(size).available());
            accounting
                .deal_removal(size, most, nodes, |counts| counts.free.min(counts.persistent()))
        };
        let mut demoted = 0;
        for node in nodes.nodes() {
            let mut left = shares[node.index()];
            while left != 0 && self.demote_page(smaller, node) {
                left -= 1;
                demoted += 1;
            }
        }
        // Nodes whose free pages are isolated, have errors or belong to an area gave less than
        // their share: other nodes may have more.
        for node in nodes.nodes() {
            while demoted < pages && self.demote_page(smaller, node) {
                demoted += 1;
            }
        }
        if demoted == 0 { Err(PoolError::NothingToDemote) } else { Ok(demoted) }
    }
}

impl<P: Platform> Pool<'_, P> {
    /// Demotes one page of a node, if there is one that is good, free and not reserved.
    fn demote_page(&self, smaller: PoolSize, node: NodeId) -> bool {
        let size = self.size;
        let found = self.manager.hugetlb().node_zones(node).find_map(|(slot, zone)| {
            // Nobody uses the page, so its parts count as reported if it does.
            let (index, reported) = self.take_for_demotion(slot, zone)?;
            Some((slot, zone, index, reported))
        });
        let Some((slot, zone, index, reported)) = found else { return false };
        let whole = Chain::one(index, reported);
        alone(zone, index);
        self.announce(zone, whole, Moment::Demotion);
        let parts =
            zone.divide_for_pool(self.manager.platform, whole, size.order(), smaller.order());
        // What could not be divided keeps its size and goes back to its list.
        let size = if parts.is_some() { smaller } else { size };
        self.manager.pool(size).announce(zone, parts.unwrap_or(whole), Moment::Publish);
        let mut accounting = self.accounting();
        match parts {
            Some(parts) => {
                accounting.add_free(smaller, node, parts.pages);
                accounting.counts_mut(smaller).target += parts.pages;
                accounting.list(smaller, slot).append(zone.table(), PageList::of(parts));
                true
            }
            None => {
                // The page became isolated or bad meanwhile.
                accounting.undo_demotion(size, node, 1);
                accounting.list(size, slot).append(zone.table(), PageList::of(whole));
                false
            }
        }
    }

    /// Takes a page that is good, free and not reserved out of a zone's list and the accounting.
    /// Also returns whether the page was reported.
    fn take_for_demotion(&self, slot: usize, zone: &Zone) -> Option<(u32, bool)> {
        let size = self.size;
        let good = |index| zone.is_divisible_in_pool(index);
        let mut search = None;
        loop {
            let mut accounting = self.accounting();
            let search = search.get_or_insert_with(|| accounting.list(size, slot).search());
            if search.is_over() || !accounting.can_demote(size, zone.id().node) {
                return None;
            }
            if let Some(found) = accounting.list(size, slot).take_good(zone.table(), &good, search)
            {
                accounting.drop_for_demotion(size, zone.id().node);
                return Some(found);
            }
        }
    }
}
