//! Zones: the memory of a node by the width of the addresses that reach it.
//!
//! A [`Zone`] is what everybody may read, and `LockedZone` what its lock
//! guards. [`zone_runs`] cuts memory into zones (`runs`), `initialise` and `describe` fill a zone
//! at bring-up, and `deferred` brings up later what was withheld then, `unaccepted` what has to be
//! accepted first.
//!
//! ```text
//!          one request     a CPU's cache     blocks of 1 GiB
//!   out    alloc, below    refill            largest
//!   in     free            drain             largest
//!              \             /
//!     page_alloc, page_free, halves, split;  block::buddy
//! ```
//!
//! `hugetlb` moves blocks to and from the pools, `reporting` lends free memory to the hypervisor,
//! `isolate` takes blocks out of circulation, `occupied` says what is in them, `grade` says who may
//! have them, `unpublish` takes their descriptors, `shuffle` puts free blocks into random order.
//! `areas`, `blocks` and `verify` look at everything. Rules of compaction and of reserves are in
//! `compaction_index`, `defer` and `reserve`.
//!
//! Orders of memory: Relaxed: counters are written under the zone lock, watermarks by whoever
//! changes a parameter. Read without it they are what they were at some moment. What is withheld is
//! Acquire, so that what came up since is in the free pages that are read after it.

mod alloc;
mod areas;
mod behind;
mod below;
mod blocks;
mod careful;
mod compaction_index;
mod defer;
mod deferred;
mod describe;
mod drain;
mod error;
pub(crate) mod fallback;
mod free;
mod grade;
mod halves;
pub(crate) mod hotplug;
mod hugetlb;
pub(crate) mod initialise;
mod isolate;
mod kind;
mod largest;
mod locked;
mod neighbours;
mod occupied;
mod page_alloc;
mod page_free;
mod parts;
mod pfn_range;
mod refill;
pub(crate) mod release;
pub(crate) mod remembered;
mod reporting;
mod reserve;
mod runs;
mod shuffle;
mod split;
mod unaccepted;
mod unaccepted_again;
mod unpublish;
mod verify;
mod watermark;

pub use crate::block::buddy::ZoneEvents;
pub(crate) use crate::block::segment;
pub use crate::block::{BlockState, DescriptorForm, MigrateType, Segment, State};
pub use areas::{FreeAreas, ORDERS};
pub(crate) use behind::Follower;
pub use blocks::{BlockRun, BlockUse};
pub use compaction_index::{
    COMPACTION_PROACTIVENESS, ContigInfo, EXTFRAG_THRESHOLD, ProactiveMarks, Suitability,
    suitability, weighted_score,
};
pub use defer::Defer;
pub(crate) use describe::Counted;
pub use error::FreeError;
pub use grade::{Grade, GradedMemory};
pub(crate) use hotplug::Pieces;
pub use hotplug::Presence;
pub(crate) use hugetlb::ForPool;
pub(crate) use isolate::Change;
pub use isolate::{IsolateError, IsolatedPages};
pub use kind::{ZoneId, ZoneKind};
pub use locked::ZoneFlow;
pub(crate) use neighbours::FreeRun;
pub(crate) use occupied::{
    Cost, FrameBits, Fullness, Held, InBlock, Occupied, UsedFrames, set_frames,
};
pub use parts::ZoneParts;
pub(crate) use pfn_range::{near, range_of};
pub(crate) use refill::Refill;
pub(crate) use reporting::{Batch, Collected, Cursor, Goal, MOST_PIECES, Returned};
pub use reserve::takes_reserve_first;
pub use runs::{ZoneRun, ZoneRuns, zone_runs};
pub use shuffle::Shuffled;
pub(crate) use unaccepted::{AcceptRun, AcceptWanted, LastBlock, RunEnd};
pub use verify::{Counts, Fault, FaultKind};
pub use watermark::{
    LOWMEM_RESERVE_RATIO, Watermarks, default_min_free_kbytes, lowmem_reserve, pages_to_accept,
    watermarks,
};

use crate::block::BLOCK_ORDERS;
use crate::block::list::ListId;
use crate::block::placement::Placement;
use crate::block::table::BlockTable;
use crate::page::{Array, Descriptors};
use crate::platform::Platform;
use crate::sync::in_place::write_fields;
use crate::sync::table_atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use crate::sync::{SpinGuard, SpinLock};
use crate::units::{BLOCK_ORDER, Order, PfnRange, PhysRange};
use crate::vmemmap::{DeferredInit, Sections};
use core::mem::MaybeUninit;
use locked::{COALESCED_AT_ONCE, Counters, LockedZone, ReadGuard, ZoneGuard};
use remembered::Remembered;

/// What CPUs change, on cache lines of its own, so that what they only read stays in all their
/// caches.
#[repr(C, align(128))]
struct Changing {
    counters: Counters,
    deferred_pages: AtomicU64,
    unaccepted_pages: AtomicU64,
    /// Those of them with a grade.
    unaccepted_graded_pages: AtomicU64,
    lost_pages: AtomicU64,
    accepting_runs: AtomicU32,
    locked: SpinLock<LockedZone>,
}

impl Changing {
    /// Of a zone without memory, in place.
    fn write(place: &mut MaybeUninit<Self>) -> &mut Self {
        write_fields!(
            Changing at place,
            {
                counters: Counters::new(),
                deferred_pages: AtomicU64::new(0),
                unaccepted_pages: AtomicU64::new(0),
                unaccepted_graded_pages: AtomicU64::new(0),
                lost_pages: AtomicU64::new(0),
                accepting_runs: AtomicU32::new(0),
            },
            { locked: |place| SpinLock::write(place, LockedZone::write) },
        )
    }
}

/// Watermarks and reserves: read by every request, changed when somebody changes a parameter.
struct Limits {
    /// min, low, high and promo.
    watermarks: [AtomicU64; 4],
    reserve: [AtomicU64; ZoneKind::COUNT],
}

/// One zone of one node, or a part of one: where several CPUs use a zone, its memory is divided at
/// multiples of 1 GiB into parts, each with a lock, tables and counters of its own. Counts are in
/// pages and may be read at any time; they are exact when nobody allocates.
pub struct Zone {
    id: ZoneId,
    part: u16,
    /// Of the zone; a window that comes makes them one more.
    parts: AtomicU16,
    span: PfnRange,
    pfn_range: PfnRange,
    /// Changed, as what is managed and reserved, under the lock.
    present_pages: AtomicU64,
    stray_pages: u64,
    /// Those that are withheld included.
    managed_pages: AtomicU64,
    reserved_pages: AtomicU64,
    limits: Limits,
    /// As the locked part has it, to look without the lock.
    table: BlockTable,
    table_memory: PhysRange,
    /// As the locked part has them.
    segments: &'static [Segment],
    /// As the locked part has them.
    descriptors: Option<Descriptors>,
    /// Whether free blocks are shuffled.
    shuffles: bool,
    /// Whether its tables lie in its own memory, and go with it.
    has_own_tables: bool,
    /// What it knows of its memory while they are gone.
    remembered: Remembered,
    array: Option<Array>,
    sections: Sections,
    deferred_init: DeferredInit,
    changing: Changing,
}

/// A counter of what there is.
#[inline]
fn counted(exists: bool, counter: &AtomicU64) -> u64 {
    if exists { counter.load(Ordering::Relaxed) } else { 0 }
}

impl Zone {
    /// Part `part` of `parts` of a zone, without memory.
    pub(crate) fn new(id: ZoneId, part: u16, parts: u16) -> Self {
        let mut place = MaybeUninit::uninit();
        Self::write(&mut place, id, part, parts);
        // SAFETY: it was just written.
        unsafe { place.assume_init() }
    }

    /// [`new`](Self::new) in place.
    #[inline(never)]
    pub(crate) fn write(
        place: &mut MaybeUninit<Self>,
        id: ZoneId,
        part: u16,
        parts: u16,
    ) -> &mut Self {
        write_fields!(
            Zone at place,
            {
                id: id,
                part: part,
                parts: AtomicU16::new(parts),
                span: PfnRange::new(0, 0),
                pfn_range: PfnRange::new(0, 0),
                present_pages: AtomicU64::new(0),
                stray_pages: 0,
                managed_pages: AtomicU64::new(0),
                reserved_pages: AtomicU64::new(0),
                limits: Limits {
                    watermarks: core::array::from_fn(|_| AtomicU64::new(0)),
                    reserve: core::array::from_fn(|_| AtomicU64::new(0)),
                },
                table_memory: PhysRange::new(0, 0),
                segments: &[],
                descriptors: None,
                shuffles: false,
                has_own_tables: false,
                remembered: Remembered::NOTHING,
                array: None,
                sections: Sections::none(),
                deferred_init: DeferredInit::new(),
            },
            { table: BlockTable::write, changing: Changing::write },
        )
    }

    /// Says which zone it is, before it has memory.
    pub(crate) fn name(&mut self, id: ZoneId, part: u16, parts: u16) {
        (self.id, self.part) = (id, part);
        self.set_parts(parts);
    }

    /// The lock. What changed under it is published when it is released.
    #[inline]
    fn lock<'a, P: Platform>(&'a self, platform: &'a P) -> ZoneGuard<'a, P> {
        ZoneGuard::new(&self.changing.counters, self.changing.locked.lock(platform))
    }

    /// The lock, to look, and to change what is not counted.
    fn read<'a, P: Platform>(&'a self, platform: &'a P) -> ReadGuard<'a, P> {
        ReadGuard(self.changing.locked.lock(platform))
    }

    /// Sees whatever was done under the lock before; whoever takes it after sees what the caller
    /// did before.
    pub(crate) fn pass_lock<P: Platform>(&self, platform: &P) {
        drop(self.read(platform));
    }

    /// The lock, with no merge deferred: free neighbours are merged and in the lists. Whoever looks
    /// for something in the tables, or wants more than one block, takes it this way. What is freed
    /// under the guard may be deferred again.
    fn lock_coalesced<'a, P: Platform>(&'a self, platform: &'a P) -> ZoneGuard<'a, P> {
        ZoneGuard::new(&self.changing.counters, self.coalesced(platform))
    }

    /// [`lock_coalesced`](Self::lock_coalesced), to look.
    fn read_coalesced<'a, P: Platform>(&'a self, platform: &'a P) -> ReadGuard<'a, P> {
        ReadGuard(self.coalesced(platform))
    }

    /// Coalescing changes no counter.
    fn coalesced<'a, P: Platform>(&'a self, platform: &'a P) -> SpinGuard<'a, LockedZone, P> {
        let mut locked = self.changing.locked.lock(platform);
        if locked.buddy.is_coalesced() {
            return locked;
        }
        // Nobody defers a merge meanwhile, so that others who free all the time cannot keep one
        // here for ever.
        locked.buddy.begin_coalescing();
        while !locked.buddy.is_coalesced() {
            locked.buddy.coalesce(COALESCED_AT_ONCE);
            // What the caller does has a hold of its own.
            drop(locked);
            locked = self.changing.locked.lock(platform);
        }
        locked.buddy.end_coalescing();
        locked
    }

    /// Node and kind.
    #[must_use]
    pub const fn id(&self) -> ZoneId {
        self.id
    }

    /// Which of the zone's parts this is, ascending by address from 0 on.
    #[must_use]
    pub const fn part(&self) -> u16 {
        self.part
    }

    /// How many parts the zone has.
    #[must_use]
    #[inline]
    pub fn parts(&self) -> u16 {
        if !cfg!(any(feature = "smp", feature = "hotplug")) {
            return 1;
        }
        self.parts.load(Ordering::Relaxed)
    }

    /// The zone has so many parts now.
    pub(crate) fn set_parts(&self, parts: u16) {
        self.parts.store(parts, Ordering::Relaxed);
    }

    /// From its first frame to its last, holes included: the node's frames within the kind's
    /// limits, as Linux counts them; of these a part has those between its borders.
    #[must_use]
    pub const fn span(&self) -> PfnRange {
        self.span
    }

    /// Frames that are memory.
    #[must_use]
    pub fn present_pages(&self) -> u64 {
        self.present_pages.load(Ordering::Relaxed)
    }

    /// Present frames that lie in a block of another zone and so are reserved.
    #[must_use]
    pub const fn stray_pages(&self) -> u64 {
        self.stray_pages
    }

    /// Frames that the allocator was given by now.
    #[must_use]
    pub fn managed_pages(&self) -> u64 {
        // Read first: what is withheld of less cannot be more.
        let withheld_pages = self.withheld_pages();
        self.final_managed_pages().saturating_sub(withheld_pages)
    }

    /// Frames that the allocator will have been given when nothing is withheld any more.
    pub(crate) fn final_managed_pages(&self) -> u64 {
        self.managed_pages.load(Ordering::Relaxed).saturating_sub(self.lost_pages())
    }

    /// Frames that are withheld until their part of the memory map is initialised.
    #[must_use]
    pub fn deferred_pages(&self) -> u64 {
        // Nobody has what a part of the library that is left out would count, here and below.
        if cfg!(feature = "vmemmap") {
            self.changing.deferred_pages.load(Ordering::Acquire)
        } else {
            0
        }
    }

    /// Present frames that the allocator was not given, counted on their own (invariant 9).
    #[must_use]
    pub fn reserved_pages(&self) -> u64 {
        self.kept_pages() + self.lost_pages()
    }

    /// Those of them that were never meant for it, as tables are.
    pub(crate) fn kept_pages(&self) -> u64 {
        self.reserved_pages.load(Ordering::Relaxed)
    }

    /// Managed frames that hold the descriptors of other pages of their block (the inside form),
    /// and those that nobody has of blocks with too few of them to hold any, eight at most each:
    /// nobody gets these until more of the block is free.
    #[must_use]
    pub fn descriptor_pages(&self) -> u64 {
        counted(cfg!(feature = "vmemmap"), &self.changing.counters.descriptor_pages)
    }

    /// Frames of isolated blocks that nobody has: not free, for nobody gets them.
    #[must_use]
    pub fn isolated_pages(&self) -> u64 {
        counted(cfg!(feature = "moving"), &self.changing.counters.isolated_pages)
    }

    /// Free frames that are with the hypervisor at this moment: not free, for nobody gets them
    /// until they are back.
    #[must_use]
    pub fn reporting_pages(&self) -> u64 {
        counted(cfg!(feature = "reporting"), &self.changing.counters.reporting_pages)
    }

    /// Frames of free blocks that were reported to the hypervisor.
    #[must_use]
    pub fn reported_pages(&self) -> u64 {
        counted(cfg!(feature = "reporting"), &self.changing.counters.reported_pages)
    }

    /// Frames of free blocks of 2 MiB and more that were not reported to the hypervisor. Zero until
    /// the first device for reports is registered.
    #[must_use]
    pub fn unreported_pages(&self) -> u64 {
        counted(cfg!(feature = "reporting"), &self.changing.counters.unreported_pages)
    }

    /// Frames that are free. Where pages have descriptors inside their blocks, the first eight that
    /// come back to a block that somebody allocated whole are none of them: they wait until there
    /// are more, which they can describe ([`descriptor_pages`](Self::descriptor_pages)).
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.changing.counters.free_pages.load(Ordering::Relaxed)
    }

    /// The free pages at which the zone as a whole changes its behaviour.
    #[must_use]
    pub fn watermarks(&self) -> Watermarks {
        let [min_pages, low_pages, high_pages, promo_pages] =
            [0, 1, 2, 3].map(|mark: usize| self.limits.watermarks[mark].load(Ordering::Relaxed));
        Watermarks { min_pages, low_pages, high_pages, promo_pages }
    }

    /// The low watermark alone, for requests.
    pub(crate) fn low_pages(&self) -> u64 {
        self.limits.watermarks[1].load(Ordering::Relaxed)
    }

    /// The min watermark alone.
    pub(crate) fn min_pages(&self) -> u64 {
        self.limits.watermarks[0].load(Ordering::Relaxed)
    }

    /// Pages that the zone as a whole keeps from requests that could use zones up to each kind.
    #[must_use]
    pub fn lowmem_reserve(&self) -> [u64; ZoneKind::COUNT] {
        [0, 1, 2].map(|kind: usize| self.limits.reserve[kind].load(Ordering::Relaxed))
    }

    /// What it did since bring-up, as far as that is counted.
    pub(crate) fn events<P: Platform>(&self, platform: &P) -> ZoneEvents {
        self.read(platform).buddy.events
    }

    /// Its runs of blocks, ascending.
    #[must_use]
    pub const fn segments(&self) -> &'static [Segment] {
        self.segments
    }

    /// Free blocks by order, 9 first, over all migrate types.
    pub(crate) fn free_blocks<P: Platform>(&self, platform: &P) -> [u32; BLOCK_ORDERS] {
        let locked = self.read_coalesced(platform);
        core::array::from_fn(|slot| {
            let order = u8::try_from(slot).ok().and_then(|slot| Order::new(BLOCK_ORDER + slot));
            let blocks =
                |order| ListId::of_order(order).map(|list| locked.buddy.blocks(list)).sum();
            order.map_or(0, blocks)
        })
    }

    /// A part's share of what the zone as a whole keeps.
    pub(crate) fn share_of(&self, pages: u64) -> u64 {
        if !cfg!(any(feature = "smp", feature = "hotplug")) {
            return pages;
        }
        let parts = self.parts();
        if parts == 1 { pages } else { pages.div_ceil(u64::from(parts)) }
    }

    /// Pages that requests for zones up to `highest` leave, given a watermark: the zone's reserve
    /// against them comes on top (`__zone_watermark_ok` in Linux's `mm/page_alloc.c`).
    pub(crate) fn watermark_for(&self, watermark_pages: u64, highest: ZoneKind) -> u64 {
        let reserve = &self.limits.reserve[highest as usize];
        watermark_pages.saturating_add(reserve.load(Ordering::Relaxed))
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
        if !cfg!(feature = "debug") {
            return;
        }
        self.changing.locked.get_mut().buddy.placement = Placement::random(seed);
    }

    /// Requests that are under way may still use the old ones, or some of each.
    pub(crate) fn set_watermarks(&self, watermarks: Watermarks, reserve: [u64; ZoneKind::COUNT]) {
        let Watermarks { min_pages, low_pages, high_pages, promo_pages } = watermarks;
        let pages = [min_pages, low_pages, high_pages, promo_pages];
        for (limit, pages) in self.limits.watermarks.iter().zip(pages) {
            limit.store(pages, Ordering::Relaxed);
        }
        for (limit, pages) in self.limits.reserve.iter().zip(reserve) {
            limit.store(pages, Ordering::Relaxed);
        }
    }

    /// Pages that were handed out and came back. Exact at the zone; see [`ZoneFlow`] for caches.
    pub(crate) fn flow<P: Platform>(&self, platform: &P) -> ZoneFlow {
        let locked = self.read(platform);
        let used = self.managed_pages().saturating_sub(locked.unused_pages());
        let freed_pages = locked.freed_pages;
        ZoneFlow { allocated_pages: used + freed_pages, freed_pages }
    }
}
