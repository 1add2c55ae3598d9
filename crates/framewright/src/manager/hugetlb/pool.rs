//! The pool of one size, and the common parts of all pools.

use crate::hugetlb::{Accounting, NodeCounts, PoolCounts, PoolError};
use crate::manager::facets::Hugetlb;
use crate::manager::state::Manager;
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::sync::SpinGuard;
use crate::sync::table_atomic::Ordering;
use crate::units::{MAX_NODES, NodeId, NodeMask, PoolSize};
use crate::zone::{Zone, ZoneId, ZoneKind};

/// The pool of one size. Any context that may take the manager's locks may read, allocate and free;
/// the methods document where waiting matters.
pub struct Pool<'a, P: Platform> {
    pub(super) manager: &'a Manager<P>,
    pub(super) size: PoolSize,
}

impl<P: Platform> Clone for Pool<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Pool<'_, P> {}

impl<'m, P: Platform> Hugetlb<'m, P> {
    /// Returns the size that `/proc/sys/vm/nr_hugepages` refers to: the one from
    /// `default_hugepagesz=` after [`fill`](Self::fill) was called; 2 MiB before.
    #[must_use]
    pub fn default_size(self) -> PoolSize {
        // Relaxed: written at boot.
        if self.manager.pools.default_is_gigantic.load(Ordering::Relaxed) {
            PoolSize::OneGib
        } else {
            PoolSize::TwoMib
        }
    }

    /// Locks the accounting and the lists of all pools. Not to be called with a zone's lock held
    /// (invariant 11).
    pub(super) fn accounting(self) -> SpinGuard<'m, Accounting, P> {
        self.manager.pools.accounting.lock(self.manager.platform)
    }

    /// Returns the memory in all pools, in KiB: `Hugetlb` of `/proc/meminfo`.
    pub fn kbytes(self) -> u64 {
        let accounting = self.accounting();
        PoolSize::ALL.into_iter().map(|size| accounting.counts(size).all.nr * size.kbytes()).sum()
    }
}

impl<P: Platform> Manager<P> {
    /// Returns the pool of pages of one size.
    #[cfg(feature = "pools")]
    #[must_use]
    pub const fn pool(&self, size: PoolSize) -> Pool<'_, P> {
        Pool { manager: self, size }
    }

    /// For the parts that are enabled without pools.
    #[cfg(not(feature = "pools"))]
    pub(crate) const fn pool(&self, size: PoolSize) -> Pool<'_, P> {
        Pool { manager: self, size }
    }
}

impl<'m, P: Platform> Hugetlb<'m, P> {
    /// Returns the parts of a node's zones, the highest zone first, each with its index among all
    /// zones.
    pub(super) fn node_zones(
        self,
        node: NodeId,
    ) -> impl Iterator<Item = (usize, &'static Zone)> + use<'m, P> {
        let mut next = (Some(ZoneKind::Normal), 0);
        core::iter::from_fn(move || self.next_of_node(node, &mut next))
    }

    /// Returns the next item of [`node_zones`](Self::node_zones). `next` is a kind of zone and an
    /// index among its parts, and is advanced to the item after this one.
    #[inline(never)]
    fn next_of_node(
        self,
        node: NodeId,
        next: &mut (Option<ZoneKind>, usize),
    ) -> Option<(usize, &'static Zone)> {
        while let Some(kind) = next.0 {
            let id = ZoneId { node, kind };
            if let Some(zone) = self.manager.parts(id).turn(0, &mut next.1) {
                return Some((self.manager.number_of_part(id, next.1 - 1), zone));
            }
            *next = (kind.below(), 0);
        }
        None
    }

    /// Returns the nodes of a set that have managed memory.
    pub(in crate::manager) fn nodes_with_memory(self, nodes: NodeMask) -> NodeMask {
        let mut found = NodeMask::EMPTY;
        for zone in self.manager.zones() {
            if zone.final_managed_pages() != 0 && nodes.contains(zone.id().node) {
                found = found.with(zone.id().node);
            }
        }
        found
    }
}

impl<'m, P: Platform> Pool<'m, P> {
    /// Locks the accounting and the lists of all pools.
    pub(super) fn accounting(self) -> SpinGuard<'m, Accounting, P> {
        self.manager.hugetlb().accounting()
    }

    /// Returns the size of the pool's pages.
    #[must_use]
    pub const fn size(&self) -> PoolSize {
        self.size
    }

    /// Returns a consistent snapshot of all counters. The files of `/sys/kernel/mm/hugepages` and
    /// `HugePages_*` of `/proc/meminfo` show them.
    #[inline(never)]
    pub fn counts(&self) -> PoolCounts {
        self.accounting().counts(self.size)
    }

    /// Returns the counters of one node: its files, and `HugePages_*` of its `meminfo`.
    ///
    /// # Errors
    /// [`PoolError::NoNode`].
    pub fn node_counts(&self, node: NodeId) -> Result<NodeCounts, PoolError> {
        self.existing(node)?;
        Ok(self.accounting().node(self.size, node))
    }

    /// Writes `nr_overcommit_hugepages`: limits the surplus pages that may be allocated from now
    /// on. Existing surplus pages stay.
    ///
    /// # Errors
    /// [`PoolError::NotPossible`] for 1 GiB pages.
    pub fn set_overcommit(&self, pages: u64) -> Result<(), PoolError> {
        if self.size.is_gigantic() {
            return Err(PoolError::NotPossible(self.size));
        }
        self.accounting().counts_mut(self.size).overcommit = pages;
        Ok(())
    }

    pub(super) fn existing(&self, node: NodeId) -> Result<(), PoolError> {
        if node.index() < self.manager.nodes.len() { Ok(()) } else { Err(PoolError::NoNode(node)) }
    }

    /// Returns the nodes in the order in which they are asked for a page.
    pub(super) fn nodes_for(
        &self,
        choice: NodeChoice,
    ) -> Result<(crate::manager::Fallback, Option<NodeId>), PoolError> {
        let (first, exact) = match choice {
            NodeChoice::Any => (self.manager.local_node(), false),
            NodeChoice::Preferred(node) => (node, false),
            NodeChoice::Exact(node) => (node, true),
        };
        let node = self.manager.nodes.get(first.index()).ok_or(PoolError::NoNode(first))?;
        Ok((node.fallback, exact.then_some(first)))
    }
}

const _: () = assert!(MAX_NODES as u64 <= framewright_jobs::MAX_NODES as u64);
