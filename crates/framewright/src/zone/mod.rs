//! Zones: the memory of a node by the width of the addresses that reach it.
//!
//! [`zone_runs`] cuts memory into zones; a [`Zone`] holds the blocks of one of them. `paint` fills
//! it at bring-up, `serve` allocates and frees, `settle` merges what was freed, `supply` fills and
//! empties the caches of CPUs, `report` lends free memory to the hypervisor, `shuffle` puts free
//! blocks into random order, `describe` finds page descriptors and reference counts, `home` says
//! what caches keep, `deferred` brings up what was withheld, `isolate` takes blocks out of
//! circulation, `verify` recounts everything, `blocks` lists what each block is used for.
//!
//! Orders of memory: Relaxed everywhere: counters are written under the zone lock, marks by who
//! changes a parameter; who reads them without takes them for what they were at some moment.

mod areas;
mod blocks;
mod coalesce;
mod deferred;
mod describe;
pub(crate) mod fallback;
mod flow;
mod hugetlb;
pub(crate) mod initialise;
mod isolate;
mod kind;
mod largest;
mod pcp;
mod pfn_range;
mod reporting;
mod runs;
mod serve;
mod shuffle;
mod unpublish;
mod verify;
mod watermark;

pub use crate::block::Segment;
pub(crate) use crate::block::segment;
pub use areas::{FreeAreas, ORDERS};
pub use blocks::{BlockRun, BlockUse};
pub(crate) use describe::Counted;
pub use flow::ZoneFlow;
pub(crate) use isolate::Change;
pub use isolate::{IsolateError, IsolatedPages};
pub use kind::{ZoneId, ZoneKind};
pub(crate) use reporting::{Batch, Collected, Cursor, Goal, MOST_PIECES, Returned};
pub use runs::{ZoneRun, ZoneRuns, zone_runs};
pub use serve::FreeError;
pub use shuffle::Shuffled;
pub use verify::{Counts, Fault, FaultKind};
pub use watermark::{
    LOWMEM_RESERVE_RATIO, Watermarks, default_min_free_kbytes, lowmem_reserve, watermarks,
};

use crate::block::lists::FreeLists;
pub use crate::block::lists::ZoneEvents;
use crate::block::placement::Placement;
use crate::block::table::BlockTable;
use crate::block::{BLOCK_ORDERS, MigrateType};
use crate::page::{Array, Descriptors, Partial};
use crate::platform::Platform;
use crate::sync::SpinLock;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::{BLOCK_ORDER, Order, PfnRange, PhysRange};
use crate::vmemmap::{DeferredInit, Sections};

/// What CPUs change, on cache lines of its own, so that what they only read stays in all their
/// caches.
#[repr(C, align(128))]
struct Changing {
    free_pages: AtomicU64,
    map_pages: AtomicU64,
    isolated_pages: AtomicU64,
    reporting_pages: AtomicU64,
    reported_pages: AtomicU64,
    unreported_pages: AtomicU64,
    deferred_pages: AtomicU64,
    /// All that came back since bring-up.
    freed_pages: AtomicU64,
    lists: SpinLock<FreeLists>,
}

/// Marks and reserves: read by every request, changed when somebody changes a parameter.
struct ReportedBitmap {
    /// min, low, high and promo.
    marks: [AtomicU64; 4],
    reserve: [AtomicU64; ZoneKind::COUNT],
}

/// One zone of one node. Counts are in pages and may be read at any time; they are exact when
/// nobody allocates.
pub struct Zone {
    id: ZoneId,
    span: PfnRange,
    pfn_range: PfnRange,
    present_pages: u64,
    stray_pages: u64,
    /// Those that are withheld included.
    managed_pages: u64,
    reserved_pages: u64,
    marks: ReportedBitmap,
    table: BlockTable,
    table_memory: PhysRange,
    segments: &'static [Segment],
    partials: &'static [Partial],
    descriptors: Option<Descriptors>,
    /// Whether free blocks are shuffled.
    shuffles: bool,
    array: Option<Array>,
    sections: Sections,
    deferred_init: DeferredInit,
    changing: Changing,
}

impl Zone {
    /// A zone without memory.
    pub(crate) fn new(id: ZoneId) -> Self {
        Self {
            id,
            span: PfnRange::new(0, 0),
            pfn_range: PfnRange::new(0, 0),
            present_pages: 0,
            stray_pages: 0,
            managed_pages: 0,
            reserved_pages: 0,
            marks: ReportedBitmap {
                marks: core::array::from_fn(|_| AtomicU64::new(0)),
                reserve: core::array::from_fn(|_| AtomicU64::new(0)),
            },
            table: BlockTable::EMPTY,
            table_memory: PhysRange::new(0, 0),
            segments: &[],
            partials: &[],
            descriptors: None,
            shuffles: false,
            array: None,
            sections: Sections::none(),
            deferred_init: DeferredInit::new(),
            changing: Changing {
                free_pages: AtomicU64::new(0),
                map_pages: AtomicU64::new(0),
                isolated_pages: AtomicU64::new(0),
                reporting_pages: AtomicU64::new(0),
                reported_pages: AtomicU64::new(0),
                unreported_pages: AtomicU64::new(0),
                deferred_pages: AtomicU64::new(0),
                freed_pages: AtomicU64::new(0),
                lists: SpinLock::new(FreeLists::EMPTY),
            },
        }
    }

    /// Node and kind.
    #[must_use]
    pub const fn id(&self) -> ZoneId {
        self.id
    }

    /// From its first frame to its last, holes included: the node's frames within the kind's
    /// limits, as Linux counts them.
    #[must_use]
    pub const fn span(&self) -> PfnRange {
        self.span
    }

    /// Frames that are memory.
    #[must_use]
    pub const fn present_pages(&self) -> u64 {
        self.present_pages
    }

    /// Present frames that lie in a block of another zone and so are reserved.
    #[must_use]
    pub const fn stray_pages(&self) -> u64 {
        self.stray_pages
    }

    /// Frames that the allocator was given by now.
    #[must_use]
    pub fn managed_pages(&self) -> u64 {
        self.managed_pages - self.deferred_pages()
    }

    /// Frames that the allocator will have been given when nothing is withheld any more.
    pub(crate) const fn final_managed_pages(&self) -> u64 {
        self.managed_pages
    }

    /// Frames that are withheld until their part of the memory map is initialised (SPEC 2).
    #[must_use]
    pub fn deferred_pages(&self) -> u64 {
        self.changing.deferred_pages.load(Ordering::Relaxed)
    }

    /// Present frames that the allocator was not given, counted on their own (invariant 9).
    #[must_use]
    pub const fn reserved_pages(&self) -> u64 {
        self.reserved_pages
    }

    /// Managed frames that hold the descriptors of other pages of their block (the inside form).
    #[must_use]
    pub fn map_pages(&self) -> u64 {
        self.changing.map_pages.load(Ordering::Relaxed)
    }

    /// Frames of isolated blocks that nobody has: not free, for nobody gets them.
    #[must_use]
    pub fn isolated_pages(&self) -> u64 {
        self.changing.isolated_pages.load(Ordering::Relaxed)
    }

    /// Free frames that are with the hypervisor at this moment: not free, for nobody gets them
    /// until they are back.
    #[must_use]
    pub fn reporting_pages(&self) -> u64 {
        self.changing.reporting_pages.load(Ordering::Relaxed)
    }

    /// Frames of free blocks that the hypervisor was told of.
    #[must_use]
    pub fn reported_pages(&self) -> u64 {
        self.changing.reported_pages.load(Ordering::Relaxed)
    }

    /// Frames of free blocks of 2 MiB and more that the hypervisor was not told of. Zero until the
    /// first device for reports is registered.
    #[must_use]
    pub fn unreported_pages(&self) -> u64 {
        self.changing.unreported_pages.load(Ordering::Relaxed)
    }

    /// Frames that are free. Where pages have descriptors, up to eight of them in each block that
    /// somebody allocated whole and freed in part wait until there are more, as their descriptors
    /// would need just as many.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.changing.free_pages.load(Ordering::Relaxed)
    }

    /// Free-page marks.
    #[must_use]
    pub fn watermarks(&self) -> Watermarks {
        let [min_pages, low_pages, high_pages, promo_pages] =
            [0, 1, 2, 3].map(|mark: usize| self.marks.marks[mark].load(Ordering::Relaxed));
        Watermarks { min_pages, low_pages, high_pages, promo_pages }
    }

    /// The low mark alone, for requests.
    pub(crate) fn low_pages(&self) -> u64 {
        self.marks.marks[1].load(Ordering::Relaxed)
    }

    /// The min mark alone.
    pub(crate) fn min_pages(&self) -> u64 {
        self.marks.marks[0].load(Ordering::Relaxed)
    }

    /// Pages kept from requests that could use zones up to each kind.
    #[must_use]
    pub fn lowmem_reserve(&self) -> [u64; ZoneKind::COUNT] {
        [0, 1, 2].map(|kind: usize| self.marks.reserve[kind].load(Ordering::Relaxed))
    }

    /// What it did since bring-up, as far as that is counted.
    pub(crate) fn events<P: Platform>(&self, platform: &P) -> ZoneEvents {
        self.changing.lists.lock(platform).events
    }

    /// Its runs of blocks, ascending.
    #[must_use]
    pub const fn segments(&self) -> &'static [Segment] {
        self.segments
    }

    /// Free blocks by order, 9 first, over all migrate types.
    pub(crate) fn free_blocks<P: Platform>(&self, platform: &P) -> [u32; BLOCK_ORDERS] {
        let lists = self.lock_coalesced(platform);
        core::array::from_fn(|slot| {
            let order = u8::try_from(slot).ok().and_then(|slot| Order::new(BLOCK_ORDER + slot));
            order.map_or(0, |order| {
                let blocks =
                    |&kind| lists.blocks(kind, order, false) + lists.blocks(kind, order, true);
                MigrateType::ALL.iter().map(blocks).sum()
            })
        })
    }

    /// Pages that requests for zones up to `highest` leave, given a mark (SPEC 3.5).
    pub(crate) fn watermark_for(&self, mark_pages: u64, highest: ZoneKind) -> u64 {
        mark_pages.saturating_add(self.marks.reserve[highest as usize].load(Ordering::Relaxed))
    }

    /// Where its table lies; empty when it has none.
    #[must_use]
    pub const fn table_memory(&self) -> PhysRange {
        self.table_memory
    }

    /// Entries of its table.
    pub(crate) fn table_entries(&self) -> usize {
        self.table.len() as usize
    }

    /// The array, where it describes the zone.
    pub(crate) const fn array(&self) -> Option<Array> {
        self.array
    }

    pub(crate) const fn set_array(&mut self, array: Array) {
        self.array = Some(array);
    }

    pub(crate) fn set_table_memory(&mut self, range: PhysRange) {
        self.table_memory = range;
    }

    /// Leaves it to chance which of equally good places memory is taken from.
    pub(crate) fn randomise_placement(&mut self, seed: u64) {
        self.changing.lists.get_mut().placement = Placement::random(seed);
    }

    /// Requests that are under way may still use the old ones, or some of each.
    pub(crate) fn set_watermarks(&self, marks: Watermarks, reserve: [u64; ZoneKind::COUNT]) {
        let Watermarks { min_pages, low_pages, high_pages, promo_pages } = marks;
        for (place, pages) in
            self.marks.marks.iter().zip([min_pages, low_pages, high_pages, promo_pages])
        {
            place.store(pages, Ordering::Relaxed);
        }
        for (place, pages) in self.marks.reserve.iter().zip(reserve) {
            place.store(pages, Ordering::Relaxed);
        }
    }
}
