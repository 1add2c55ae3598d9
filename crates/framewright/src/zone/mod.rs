//! Zones: the memory of a node, grouped by how many address bits a device needs to reach it.
//!
//! A [`Zone`] holds what anybody may read without a lock, and `LockedZone` what the zone lock
//! guards. [`zone_runs`] cuts memory into zones (`runs`). `initialise` and `describe` fill a zone
//! at bring-up. `deferred` later brings up memory that bring-up withheld, and `unaccepted` memory
//! that has to be accepted first.
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
//! `isolate` takes blocks out of circulation, `occupied` tells what their frames hold, `grade`
//! limits which requests may have them, `unpublish` takes their descriptors, and `shuffle` puts
//! free blocks into random order. `areas`, `blocks` and `verify` walk a whole zone. The rules of
//! compaction and of reserves are in `compaction_index`, `defer` and `reserve`.
//!
//! Orders of memory: Relaxed: counters are written under the zone lock, and watermarks by the CPU
//! that changes a parameter. Without the lock a reader gets values that were true at some moment.
//! Counters of withheld pages are read with Acquire, so that a later read of the free pages
//! includes the pages that have come up since.

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
mod limits;
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
    LOWMEM_RESERVE_RATIO, MOVABLE_CLASS, RESERVE_CLASSES, Watermarks, default_min_free_kbytes,
    lowmem_reserve, movable_watermarks, pages_to_accept, watermarks,
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
use limits::Limits;
use locked::{COALESCED_AT_ONCE, Counters, LockedZone, ReadGuard, ZoneGuard};
use remembered::Remembered;

/// Fields that CPUs write. They have cache lines of their own, so that the fields that are only
/// read stay in every CPU's cache.
#[repr(C, align(128))]
struct Changing {
    counters: Counters,
    deferred_pages: AtomicU64,
    unaccepted_pages: AtomicU64,
    /// Those of `unaccepted_pages` that have a grade.
    unaccepted_graded_pages: AtomicU64,
    lost_pages: AtomicU64,
    accepting_runs: AtomicU32,
    locked: SpinLock<LockedZone>,
}

impl Changing {
    /// Initialises the fields of a zone without memory, in place.
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

/// One zone of one node, or one part of such a zone. Where several CPUs use a zone, its memory is
/// divided at multiples of 1 GiB into parts, each with a lock, tables and counters of its own.
/// Counts are in pages and may be read at any time. They are exact while nobody allocates or frees.
pub struct Zone {
    id: ZoneId,
    part: u16,
    /// Number of parts of the zone. A hotplug window that is added makes one more.
    parts: AtomicU16,
    span: PfnRange,
    pfn_range: PfnRange,
    /// Changed under the lock, as are `managed_pages` and `reserved_pages`.
    present_pages: AtomicU64,
    stray_pages: u64,
    /// Includes pages that are withheld.
    managed_pages: AtomicU64,
    reserved_pages: AtomicU64,
    limits: Limits,
    /// The locked part's table, for lookups without the lock.
    table: BlockTable,
    table_memory: PhysRange,
    /// The locked part's segments.
    segments: &'static [Segment],
    /// The locked part's descriptors.
    descriptors: Option<Descriptors>,
    /// Whether free blocks are shuffled.
    shuffles: bool,
    /// Whether the zone's tables lie in its own memory and disappear with it.
    has_own_tables: bool,
    /// What the zone remembers of its memory while its tables are gone.
    remembered: Remembered,
    array: Option<Array>,
    sections: Sections,
    deferred_init: DeferredInit,
    changing: Changing,
}

/// The value of a counter, or 0 if the feature that counts is left out of this build.
#[inline]
fn counted(exists: bool, counter: &AtomicU64) -> u64 {
    if exists { counter.load(Ordering::Relaxed) } else { 0 }
}

impl Zone {
    /// Makes part `part` of a zone that has `parts` of them, without memory.
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
                limits: Limits::new(),
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

    /// Names a zone that has no memory yet.
    pub(crate) fn name(&mut self, id: ZoneId, part: u16, parts: u16) {
        (self.id, self.part) = (id, part);
        self.set_parts(parts);
    }

    /// Takes the lock. Dropping the guard publishes the counters before it releases the lock.
    #[inline]
    fn lock<'a, P: Platform>(&'a self, platform: &'a P) -> ZoneGuard<'a, P> {
        ZoneGuard::new(&self.changing.counters, self.changing.locked.lock(platform))
    }

    /// Takes the lock to look, or to change what no published counter counts.
    fn read<'a, P: Platform>(&'a self, platform: &'a P) -> ReadGuard<'a, P> {
        ReadGuard(self.changing.locked.lock(platform))
    }

    /// Takes and releases the lock: the caller sees everything that was done under the lock before,
    /// and whoever takes the lock afterwards sees everything that the caller did before.
    pub(crate) fn pass_lock<P: Platform>(&self, platform: &P) {
        drop(self.read(platform));
    }

    /// Takes the lock once no merge is deferred: all free neighbours are merged and in the lists.
    /// Callers that search the tables or want more than one block use this. What is freed under the
    /// guard may be deferred again.
    fn lock_coalesced<'a, P: Platform>(&'a self, platform: &'a P) -> ZoneGuard<'a, P> {
        ZoneGuard::new(&self.changing.counters, self.coalesced(platform))
    }

    /// [`lock_coalesced`](Self::lock_coalesced) for callers that only look.
    fn read_coalesced<'a, P: Platform>(&'a self, platform: &'a P) -> ReadGuard<'a, P> {
        ReadGuard(self.coalesced(platform))
    }

    /// Takes the lock and does all deferred merges, which changes no published counter.
    fn coalesced<'a, P: Platform>(&'a self, platform: &'a P) -> SpinGuard<'a, LockedZone, P> {
        let mut locked = self.changing.locked.lock(platform);
        if locked.buddy.is_coalesced() {
            return locked;
        }
        // While this runs no CPU may defer another merge. Otherwise CPUs that free all the time
        // could keep this loop busy for ever.
        locked.buddy.begin_coalescing();
        while !locked.buddy.is_coalesced() {
            locked.buddy.coalesce(COALESCED_AT_ONCE);
            // Drop the lock even when all is coalesced, so that the caller's work starts a new hold
            // of it.
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

    /// The number of this part: parts count from 0, ascending by address.
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

    /// Sets the zone's number of parts.
    pub(crate) fn set_parts(&self, parts: u16) {
        self.parts.store(parts, Ordering::Relaxed);
    }

    /// The frames from the zone's first to its last, holes included: the node's frames within the
    /// kind's limits, as Linux counts them. A part has those of them between its borders.
    #[must_use]
    pub const fn span(&self) -> PfnRange {
        self.span
    }

    /// Frames that are memory, managed or not.
    #[must_use]
    pub fn present_pages(&self) -> u64 {
        self.present_pages.load(Ordering::Relaxed)
    }

    /// Present frames that lie in a block of another zone and so are reserved.
    #[must_use]
    pub const fn stray_pages(&self) -> u64 {
        self.stray_pages
    }

    /// Frames that the allocator has been given so far.
    #[must_use]
    pub fn managed_pages(&self) -> u64 {
        // Read the withheld pages first, so that memory that goes meanwhile makes the result too
        // small rather than too large.
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
        // Where a feature is left out, what it would count cannot exist, here and below.
        if cfg!(feature = "vmemmap") {
            self.changing.deferred_pages.load(Ordering::Acquire)
        } else {
            0
        }
    }

    /// Present frames that the allocator was not given. They have a counter of their own (invariant
    /// 9).
    #[must_use]
    pub fn reserved_pages(&self) -> u64 {
        self.kept_pages() + self.lost_pages()
    }

    /// Reserved frames that were never meant for the allocator, such as those of its tables.
    pub(crate) fn kept_pages(&self) -> u64 {
        self.reserved_pages.load(Ordering::Relaxed)
    }

    /// Managed frames that hold the descriptors of the other pages of their block (the inside
    /// form), and unallocated frames of blocks that have too few of them to hold descriptors, at
    /// most eight a block. Requests cannot have the latter until more of the block is free.
    #[must_use]
    pub fn descriptor_pages(&self) -> u64 {
        counted(cfg!(feature = "vmemmap"), &self.changing.counters.descriptor_pages)
    }

    /// Unallocated frames of isolated blocks. They do not count as free, because no request can
    /// have them.
    #[must_use]
    pub fn isolated_pages(&self) -> u64 {
        counted(cfg!(feature = "moving"), &self.changing.counters.isolated_pages)
    }

    /// Unallocated frames that the hypervisor has at this moment. They do not count as free,
    /// because no request can have them until they are back.
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
    /// the first reporting device is registered.
    #[must_use]
    pub fn unreported_pages(&self) -> u64 {
        counted(cfg!(feature = "reporting"), &self.changing.counters.unreported_pages)
    }

    /// Frames that are free. Where pages have descriptors inside their blocks, the first eight
    /// frames that are freed of a block that was allocated whole do not count: they wait until
    /// there are more, which they can then describe ([`descriptor_pages`](Self::descriptor_pages)).
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.changing.counters.free_pages.load(Ordering::Relaxed)
    }

    /// Counts of the zone's events since bring-up.
    pub(crate) fn events<P: Platform>(&self, platform: &P) -> ZoneEvents {
        self.read(platform).buddy.events
    }

    /// The zone's runs of blocks, ascending.
    #[must_use]
    pub const fn segments(&self) -> &'static [Segment] {
        self.segments
    }

    /// The number of free blocks of each order from 9 on, over all migrate types.
    pub(crate) fn free_blocks<P: Platform>(&self, platform: &P) -> [u32; BLOCK_ORDERS] {
        let locked = self.read_coalesced(platform);
        core::array::from_fn(|slot| {
            let order = u8::try_from(slot).ok().and_then(|slot| Order::new(BLOCK_ORDER + slot));
            let blocks =
                |order| ListId::of_order(order).map(|list| locked.buddy.blocks(list)).sum();
            order.map_or(0, blocks)
        })
    }

    /// Where the zone's table lies; empty if it has none.
    #[must_use]
    pub const fn table_memory(&self) -> PhysRange {
        self.table_memory
    }

    /// The number of entries of the zone's table.
    pub(crate) fn table_entries(&self) -> usize {
        self.table.len() as usize
    }

    /// The descriptor array, if one describes the zone.
    pub(crate) const fn array(&self) -> Option<Array> {
        self.array
    }

    pub(crate) const fn set_array(&mut self, array: Array) {
        self.array = Some(array);
    }

    pub(crate) fn set_table_memory(&mut self, range: PhysRange) {
        self.table_memory = range;
    }

    /// Makes the zone choose at random among equally good places to take memory from.
    pub(crate) fn randomise_placement(&mut self, seed: u64) {
        if !cfg!(feature = "debug") {
            return;
        }
        self.changing.locked.get_mut().buddy.placement = Placement::random(seed);
    }

    /// Pages that the zone handed out and got back since bring-up. [`ZoneFlow`] says how the caches
    /// of CPUs count.
    pub(crate) fn flow<P: Platform>(&self, platform: &P) -> ZoneFlow {
        let locked = self.read(platform);
        let used = self.managed_pages().saturating_sub(locked.unused_pages());
        let freed_pages = locked.freed_pages;
        ZoneFlow { allocated_pages: used + freed_pages, freed_pages }
    }
}
