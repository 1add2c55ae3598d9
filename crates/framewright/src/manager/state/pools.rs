//! What the manager keeps of all huge-page pools.

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

/// What the manager keeps of all pools.
pub(crate) struct Pools {
    pub(crate) accounting: SpinLock<Accounting>,
    /// The task that resizes; 0 is none.
    pub(crate) resizer: AtomicU64,
    /// How many move pages in chains that are in no list ([`Moving`]).
    pub(crate) moving: AtomicU32,
    pub(crate) maps: SpinLock<Option<&'static dyn PoolVmemmap>>,
    pub(crate) has_vmemmap_hook: AtomicBool,
    /// Pages that enter a pool give up their part of the vmemmap.
    pub(crate) optimize: AtomicBool,
    /// Pages that leave a pool get it back.
    pub(crate) restore_eagerly: AtomicBool,
    pub(crate) flushes: AtomicU64,
    /// 2 MiB pages that came out of zones.
    pub(crate) taken_pages: AtomicU64,
    /// Times that a node had fewer than were wanted.
    pub(crate) short_takes: AtomicU64,
    /// Pages of the command line that have no map.
    pub(crate) boot_pages: BootPages,
    /// They are in the pools.
    pub(crate) adopted: AtomicBool,
    /// Pools are being filled as the command line says.
    pub(crate) at_boot: AtomicBool,
    /// Most threads that a resize at boot was worth.
    pub(crate) threads_of_use: AtomicU32,
    /// Most that took part in one.
    pub(crate) threads_used: AtomicU32,
    /// The default size is the larger one.
    pub(crate) default_is_gigantic: AtomicBool,
    /// Who may share memory of huge pages.
    pub(crate) shared_group: AtomicU64,
}

impl Pools {
    /// Bytes of the counters and lists.
    pub(crate) fn room(zones: usize, nodes: usize, parameters: &Parameters) -> u64 {
        let (zones, nodes) = if cfg!(feature = "pools") { (zones, nodes) } else { (0, 0) };
        room::<Self>(1)
            + room::<FreeList>((zones * PoolSize::COUNT) as u64)
            + room::<NodeAccounts>((nodes * PoolSize::COUNT) as u64)
            + room::<BootRange>(Self::boot_ranges(nodes, parameters) as u64)
    }

    /// Most ranges of pages that are to have no map.
    fn boot_ranges(nodes: usize, parameters: &Parameters) -> usize {
        if may_have_no_vmemmap(parameters) { nodes * BootPages::RANGES_OF_A_NODE } else { 0 }
    }

    /// Pools without pages.
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

/// Pages of one size and zone on their way into a pool or out of it. Nobody else has them or sees
/// them.
#[derive(Clone, Copy, Debug)]
pub struct PoolBatch<'a> {
    /// Their size.
    pub size: PoolSize,
    /// Where they are: runs of neighbours, whole pages, in the order in which the pool will have
    /// them. At most 32 runs.
    pub runs: &'a [PfnRange],
    /// The pools are being filled at boot: nothing was ever in these pages, so that descriptors
    /// which were not built yet need not be (Linux: `mm/hugetlb_vmemmap.c`,
    /// `hugetlb_vmemmap_init_early`).
    pub at_boot: bool,
}

/// Who gives up the descriptors of huge pages while pools have them (Linux:
/// `mm/hugetlb_vmemmap.c`). Called with no lock held, in the context of who resizes, reserves,
/// allocates or frees, by several threads at once for different pages.
///
/// Its methods are unsafe to call, so that an implementer may rely on being told the truth: it
/// gives away descriptors by the numbers in the batch.
pub trait PoolVmemmap: Sync {
    /// The pages will be in the pool right after this. Says how many frames came back to the free
    /// memory, which makes a resize that was short go on. A page whose descriptors cannot be given
    /// up stays as it is and joins the pool all the same.
    ///
    /// # Safety
    /// The caller owns all pages of the batch until this returns (invariant 42), and no reference
    /// to a descriptor of theirs is used any more.
    unsafe fn before_publish(&self, batch: &PoolBatch<'_>) -> u64;

    /// The pages will be free memory right after this. Cannot fail.
    ///
    /// # Safety
    /// The caller owns all pages of the batch until this returns (invariant 42).
    unsafe fn before_free(&self, batch: &PoolBatch<'_>);

    /// The pages will be divided into smaller ones, which come to
    /// [`before_publish`](Self::before_publish) next.
    ///
    /// # Safety
    /// As [`before_free`](Self::before_free).
    unsafe fn before_demotion(&self, batch: &PoolBatch<'_>) {
        // SAFETY: passed on to the caller.
        unsafe { self.before_free(batch) };
    }
}

/// Whether the command line fills pools with pages that need no map. Not while each page is
/// watched: aids see allocations, which these are not.
pub(crate) fn may_have_no_vmemmap(parameters: &Parameters) -> bool {
    if !cfg!(feature = "pools") {
        return false;
    }
    let words = &parameters.huge_pages;
    let wanted = PoolSize::ALL.into_iter().any(|size| words.requested(size).pages != 0);
    words.free_vmemmap && wanted && !Aids::of(parameters).watch()
}
