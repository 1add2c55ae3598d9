//! Huge-page pools at work: [`Pool`], what people ask of one.
//!
//! `resize` grows and shrinks, `take` moves pages between zones and pools, `lend` gives pages to
//! users and takes them back, `promise` reserves, `demote` makes 2 MiB pages out of 1 GiB pages,
//! `poison` takes pages with memory errors out, `moving` says when pages are on their way, `report`
//! lends free pages to the hypervisor, `boot` fills pools as the command line says, `check`
//! recounts. The rules and the counters are in `pools::books`.
//!
//! One lock is around the books of all pools, as in Linux; it is never held while a zone's is
//! (invariant 11). Resizes and demotions follow one another, each holding [`Resizing`]; users of
//! pages do not wait for them.

pub(super) mod boot;
mod check;
mod demote;
mod lend;
mod moving;
mod poison;
mod promise;
mod reporting;
mod resize;
mod take;

use moving::Moving;

pub use boot::{BootFill, BootPool};
pub use poison::Poisoned;
pub(crate) use reporting::Loan;
pub use resize::Resized;
pub use take::{PoolBatch, PoolVmemmap};

use super::{Hugetlb, Manager};
use crate::block::FreeList;
use crate::carve::{Carver, room};
use crate::hugetlb::{Books, NodeBook, NodeCounts, PoolCounts, PoolError};
use crate::memblock::NodeChoice;
use crate::parameters::Parameters;
use crate::platform::Platform;
use crate::sync::SpinLock;
use crate::sync::table_atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::units::{MAX_NODES, NodeId};
use crate::units::{NodeMask, PoolSize};
use crate::vmemmap::{BootPages, BootRange};
use crate::zone::{Zone, ZoneId, ZoneKind};

/// Who resizes on a platform that cannot tell its tasks apart.
const SOMEBODY: u64 = u64::MAX;

/// What the manager keeps of all pools.
pub(super) struct Pools {
    books: SpinLock<Books>,
    /// The task that resizes; 0 is none.
    resizer: AtomicU64,
    /// How many move pages in chains that are in no list ([`Moving`]).
    moving: AtomicU32,
    maps: SpinLock<Option<&'static dyn PoolVmemmap>>,
    has_maps: AtomicBool,
    /// Pages that enter a pool give up their part of the vmemmap.
    optimize: AtomicBool,
    /// Pages that leave a pool get it back.
    restore_eagerly: AtomicBool,
    flushes: AtomicU64,
    /// 2 MiB pages that came out of zones.
    taken_pages: AtomicU64,
    /// Times that a node had fewer than were wanted.
    short_takes: AtomicU64,
    /// Pages of the command line that have no map.
    pub(super) boot_pages: BootPages,
    /// They are in the pools.
    adopted: AtomicBool,
    /// Pools are being filled as the command line says.
    at_boot: AtomicBool,
    /// Most threads that a resize at boot was worth.
    threads_of_use: AtomicU32,
    /// Most that took part in one.
    threads_used: AtomicU32,
    /// The default size is the larger one.
    default_is_gigantic: AtomicBool,
    /// Who may share memory of huge pages.
    shared_group: AtomicU64,
}

impl Pools {
    /// Memory that the books take.
    pub(super) fn room(zones: usize, nodes: usize, parameters: &Parameters) -> u64 {
        room::<FreeList>((zones * PoolSize::COUNT) as u64)
            + room::<NodeBook>((nodes * PoolSize::COUNT) as u64)
            + room::<BootRange>(Self::boot_ranges(nodes, parameters) as u64)
    }

    /// Most ranges of pages that are to have no map.
    fn boot_ranges(nodes: usize, parameters: &Parameters) -> usize {
        if boot::may_have_no_map(parameters) { nodes * BootPages::RANGES_OF_A_NODE } else { 0 }
    }

    /// Pools without pages.
    pub(super) fn carve<P: Platform>(
        carver: &mut Carver<'_, P>,
        zones: usize,
        nodes: usize,
        parameters: &Parameters,
    ) -> Self {
        let boot_ranges = carver.values(Self::boot_ranges(nodes, parameters), |_| BootRange::EMPTY);
        let lists = carver.values(zones * PoolSize::COUNT, |_| FreeList::EMPTY);
        let nodes = carver.values(nodes * PoolSize::COUNT, |_| NodeBook::default());
        Self {
            books: SpinLock::new(Books::new(nodes, lists)),
            resizer: AtomicU64::new(0),
            moving: AtomicU32::new(0),
            maps: SpinLock::new(None),
            has_maps: AtomicBool::new(false),
            optimize: AtomicBool::new(false),
            restore_eagerly: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
            taken_pages: AtomicU64::new(0),
            short_takes: AtomicU64::new(0),
            boot_pages: BootPages::new(boot_ranges),
            adopted: AtomicBool::new(false),
            at_boot: AtomicBool::new(false),
            threads_of_use: AtomicU32::new(1),
            threads_used: AtomicU32::new(1),
            default_is_gigantic: AtomicBool::new(false),
            shared_group: AtomicU64::new(0),
        }
    }
}

/// Nobody else resizes while this lives.
struct Resizing<'a, P: Platform> {
    resizer: &'a AtomicU64,
    /// Ends before the next resize begins.
    moving: Option<Moving<'a, P>>,
}

impl<P: Platform> Drop for Resizing<'_, P> {
    fn drop(&mut self) {
        self.moving = None;
        // Release pairs with the Acquire in `start_resizing`.
        self.resizer.store(0, Ordering::Release);
    }
}

/// The pool of one size. Any context that may take the manager's locks may read, allocate and free;
/// see each method for where waiting matters.
pub struct Pool<'a, P: Platform> {
    manager: &'a Manager<P>,
    size: PoolSize,
}

impl<P: Platform> Clone for Pool<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Pool<'_, P> {}

impl<P: Platform> Hugetlb<'_, P> {
    /// The size that `/proc/sys/vm/nr_hugepages` means: what `default_hugepagesz=` said, once
    /// [`fill`](Self::fill) was called; 2 MiB otherwise.
    #[must_use]
    pub fn default_size(self) -> PoolSize {
        // Relaxed: written at boot.
        if self.manager.pools.default_is_gigantic.load(Ordering::Relaxed) {
            PoolSize::OneGib
        } else {
            PoolSize::TwoMib
        }
    }

    /// Memory in all pools, in KiB: `Hugetlb` of `/proc/meminfo`.
    pub fn kbytes(self) -> u64 {
        let books = self.manager.pools.books.lock(self.manager.platform);
        PoolSize::ALL.into_iter().map(|size| books.counts(size).all.nr * size.kbytes()).sum()
    }
}

impl<P: Platform> Manager<P> {
    /// The pool of pages of one size.
    #[must_use]
    pub const fn pool(&self, size: PoolSize) -> Pool<'_, P> {
        Pool { manager: self, size }
    }

    /// Zones of a node that have memory, highest first, each with its place among all.
    fn node_zones(&self, node: NodeId) -> impl Iterator<Item = (usize, &'static Zone)> + '_ {
        ZoneKind::ALL.into_iter().rev().filter_map(move |kind| {
            let slot = usize::from(*self.slots.get(ZoneId { node, kind }.index())?);
            Some((slot, self.zones.get(slot)?))
        })
    }

    /// Nodes of a set that have memory that is managed.
    fn nodes_with_memory(&self, nodes: NodeMask) -> NodeMask {
        let mut found = NodeMask::EMPTY;
        for zone in self
            .zones
            .iter()
            .filter(|zone| zone.managed_pages() != 0 && nodes.contains(zone.id().node))
        {
            found = found.with(zone.id().node);
        }
        found
    }

    /// Waits until nobody else resizes.
    fn start_resizing(&self) -> Result<Resizing<'_, P>, PoolError> {
        let can_wait = self.platform.can_wait();
        let task = if can_wait { self.platform.current_task() } else { None };
        let me = task.map_or(SOMEBODY, core::num::NonZeroU64::get);
        // Acquire pairs with the Release when `Resizing` is dropped: resizes follow one another.
        // Relaxed: a task knows its own number, and that of another decides nothing.
        while let Err(owner) =
            self.pools.resizer.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
        {
            // A resize inside the reclaim hook of a resize would wait for itself.
            if !can_wait || me == SOMEBODY || owner == me {
                return Err(PoolError::Busy);
            }
            // It takes long, and its task may have lost its CPU.
            self.platform.yield_now();
        }
        Ok(Resizing { resizer: &self.pools.resizer, moving: Some(Moving::start(self)) })
    }
}

impl<P: Platform> Pool<'_, P> {
    /// The size of its pages.
    #[must_use]
    pub const fn size(&self) -> PoolSize {
        self.size
    }

    /// All counters at one moment. The files of `/sys/kernel/mm/hugepages` and `HugePages_*` of
    /// `/proc/meminfo` show them.
    pub fn counts(&self) -> PoolCounts {
        self.manager.pools.books.lock(self.manager.platform).counts(self.size)
    }

    /// The counters of one node: its files, and `HugePages_*` of its `meminfo`.
    ///
    /// # Errors
    /// [`PoolError::NoNode`].
    pub fn node_counts(&self, node: NodeId) -> Result<NodeCounts, PoolError> {
        self.existing(node)?;
        Ok(self.manager.pools.books.lock(self.manager.platform).node(self.size, node))
    }

    /// Writes `nr_overcommit_hugepages`: from now on at most so many surplus pages are allocated.
    /// Those that there are stay.
    ///
    /// # Errors
    /// [`PoolError::NotPossible`] for 1 GiB pages.
    pub fn set_overcommit(&self, pages: u64) -> Result<(), PoolError> {
        if self.size.is_gigantic() {
            return Err(PoolError::NotPossible(self.size));
        }
        self.manager.pools.books.lock(self.manager.platform).counts_mut(self.size).overcommit =
            pages;
        Ok(())
    }

    fn existing(&self, node: NodeId) -> Result<(), PoolError> {
        if node.index() < self.manager.nodes.len() { Ok(()) } else { Err(PoolError::NoNode(node)) }
    }

    /// Nodes in the order in which they are asked for a page.
    fn nodes_for(
        &self,
        choice: NodeChoice,
    ) -> Result<(&'static [NodeId], Option<NodeId>), PoolError> {
        let (first, exact) = match choice {
            NodeChoice::Any => (self.manager.local_node(), false),
            NodeChoice::Preferred(node) => (node, false),
            NodeChoice::Exact(node) => (node, true),
        };
        let node = self.manager.nodes.get(first.index()).ok_or(PoolError::NoNode(first))?;
        Ok((node.fallback, exact.then_some(first)))
    }
}

const _: () = assert!(
    MAX_NODES <= framewright_jobs::MAX_PARTS,
    "a resize is a job with a part for each node"
);
