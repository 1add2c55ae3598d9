//! The manager's state of all huge-page pools.

use crate::block::FreeList;
use crate::carve::{Carver, room};
use crate::debug::Aids;
use crate::hugetlb::{Accounting, NodeAccounts};
use crate::parameters::Parameters;
use crate::platform::Platform;
use crate::sync::SpinLock;
use crate::sync::table_atomic::{AtomicBool, AtomicU32, AtomicU64};
use crate::units::{PfnRange, PoolSize};
use crate::vmemmap::{BootPages, BootRange};

/// The manager's state of all pools.
pub(crate) struct Pools {
    pub(crate) accounting: SpinLock<Accounting>,
    /// The task that is resizing a pool; 0: none.
    pub(crate) resizer: AtomicU64,
    /// How many callers are moving pages in chains that are in no list ([`Moving`]).
    pub(crate) moving: AtomicU32,
    pub(crate) maps: SpinLock<Option<&'static dyn PoolVmemmap>>,
    pub(crate) has_vmemmap_hook: AtomicBool,
    /// Pages that enter a pool give up their part of the vmemmap.
    pub(crate) optimize: AtomicBool,
    /// Pages that leave a pool get their part of the vmemmap back.
    pub(crate) restore_eagerly: AtomicBool,
    pub(crate) flushes: AtomicU64,
    /// 2 MiB pages that pools took out of zones.
    pub(crate) taken_pages: AtomicU64,
    /// How often a node had fewer pages than a pool wanted.
    pub(crate) short_takes: AtomicU64,
    /// Pages requested on the command line that never got a map.
    pub(crate) boot_pages: BootPages,
    /// The `boot_pages` are in the pools.
    pub(crate) adopted: AtomicBool,
    /// The pools are being filled as the command line asked.
    pub(crate) at_boot: AtomicBool,
    /// The most threads that could have been of use in a resize at boot.
    pub(crate) threads_of_use: AtomicU32,
    /// The most threads that took part in one.
    pub(crate) threads_used: AtomicU32,
    /// The default huge page size is the larger one.
    pub(crate) default_is_gigantic: AtomicBool,
    /// The group that may share memory of huge pages.
    pub(crate) shared_group: AtomicU64,
}

impl Pools {
    /// Returns how many bytes [`carve`](Self::carve) takes.
    pub(crate) fn room(zones: usize, nodes: usize, parameters: &Parameters) -> u64 {
        let (zones, nodes) = if cfg!(feature = "pools") { (zones, nodes) } else { (0, 0) };
        room::<Self>(1)
            + room::<FreeList>((zones * PoolSize::COUNT) as u64)
            + room::<NodeAccounts>((nodes * PoolSize::COUNT) as u64)
            + room::<BootRange>(Self::boot_ranges(nodes, parameters) as u64)
    }

    /// Returns how many ranges of pages may come to have no map.
    fn boot_ranges(nodes: usize, parameters: &Parameters) -> usize {
        if may_have_no_vmemmap(parameters) { nodes * BootPages::RANGES_OF_A_NODE } else { 0 }
    }

    /// Makes pools without pages in the carver's memory.
    pub(crate) fn carve<P: Platform>(
        carver: &mut Carver<'_, P>,
        zones: usize,
        nodes: usize,
        parameters: &Parameters,
    ) -> &'static mut Self {
        let (zones, nodes) = if cfg!(feature = "pools") { (zones, nodes) } else { (0, 0) };
        let boot_ranges = carver.values(Self::boot_ranges(nodes, parameters), |_| BootRange::EMPTY);
        let lists = carver.values(zones * PoolSize::COUNT, |_| FreeList::EMPTY);
        let nodes = carver.values(nodes * PoolSize::COUNT, |_| NodeAccounts::default());
        carver.one(Self {
            accounting: SpinLock::new(Accounting::new(nodes, lists)),
            resizer: AtomicU64::new(0),
            moving: AtomicU32::new(0),
            maps: SpinLock::new(None),
            has_vmemmap_hook: AtomicBool::new(false),
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
        })
    }
}

/// Pages of one size and zone on their way into or out of a pool. Nobody else owns or sees them.
#[derive(Clone, Copy, Debug)]
pub struct PoolBatch<'a> {
    /// Their size.
    pub size: PoolSize,
    /// Where the pages are: runs of neighbouring whole pages, at most 32 runs, in the order in
    /// which the pool will have them.
    pub runs: &'a [PfnRange],
    /// The pools are being filled at boot: nothing was ever in these pages, so descriptors that
    /// were not built yet need not be built (Linux: `mm/hugetlb_vmemmap.c`,
    /// `hugetlb_vmemmap_init_early`).
    pub at_boot: bool,
}

/// A component that gives up the descriptors of huge pages while pools have them (Linux:
/// `mm/hugetlb_vmemmap.c`). The manager calls it with no lock held, in the context that resizes,
/// reserves, allocates or frees, and from several threads at once for different pages.
///
/// Its methods are unsafe to call because an implementer has to rely on the batch: it gives up the
/// descriptors of the pages in it.
pub trait PoolVmemmap: Sync {
    /// Gives up the descriptors of pages that join the pool right after this. Returns how many
    /// frames went to free memory; if any did, a resize that was short goes on. A page whose
    /// descriptors cannot be given up stays as it is and joins the pool all the same.
    ///
    /// # Safety
    /// The caller owns all pages of the batch until this returns (invariant 42), and no reference
    /// to any of their descriptors is used any more.
    unsafe fn before_publish(&self, batch: &PoolBatch<'_>) -> u64;

    /// Restores the descriptors of pages that become free memory right after this. Cannot fail.
    ///
    /// # Safety
    /// The caller owns all pages of the batch until this returns (invariant 42).
    unsafe fn before_free(&self, batch: &PoolBatch<'_>);

    /// Restores the descriptors of pages that are about to be divided into smaller ones, which come
    /// to [`before_publish`](Self::before_publish) next.
    ///
    /// # Safety
    /// As [`before_free`](Self::before_free).
    unsafe fn before_demotion(&self, batch: &PoolBatch<'_>) {
        // SAFETY: passed on to the caller.
        unsafe { self.before_free(batch) };
    }
}

/// Returns whether the command line fills pools with pages that need no map. This is not so if each
/// page is watched: debug aids see allocations, and these pages are not allocated.
pub(crate) fn may_have_no_vmemmap(parameters: &Parameters) -> bool {
    if !cfg!(feature = "pools") {
        return false;
    }
    let words = &parameters.huge_pages;
    let wanted = PoolSize::ALL.into_iter().any(|size| words.requested(size).pages != 0);
    words.free_vmemmap && wanted && !Aids::of(parameters).watch()
}
