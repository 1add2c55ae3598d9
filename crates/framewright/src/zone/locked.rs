//! A zone's free memory under its lock.
//!
//! [`Zone::lock`](super::Zone::lock) gives a [`ZoneGuard`], through which a [`LockedZone`] is
//! reached and whose drop publishes the counters that others read without the lock. Whoever only
//! looks takes a [`ReadGuard`], which publishes nothing. The logic is methods of [`LockedZone`],
//! which knows no platform: blocks in `block::buddy`, pages in `page_alloc` and `page_free`, what a
//! block is split into in `split`.
//!
//! ```text
//!   Zone ──lock(platform)──> ZoneGuard ──deref──> LockedZone { buddy, free_index, ... }
//!     ^ free_pages, descriptor_pages, ...        drop: publish, then unlock
//! ```
//!
//! Orders of memory: Relaxed: counters are written under the lock, and whoever reads them without
//! it takes them for what they were at some moment.

use super::unaccepted::Unaccepted;
use crate::block::MigrateType;
use crate::block::buddy::{Buddy, GRADES};
use crate::block::free_index::FreeIndex;
use crate::block::in_flight::InFlight;
use crate::block::list::NONE;
use crate::block::segment;
use crate::page::{Descriptors, Partial, Partials};
use crate::platform::Platform;
use crate::sync::SpinGuard;
use crate::sync::add_fields::add_fields;
use crate::sync::in_place::write_fields;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::{Order, Pfn, PfnRange};
use core::mem::MaybeUninit;
use core::ops::{AddAssign, Deref, DerefMut};

/// Words of 64 blocks that are coalesced under one hold of the lock: each takes a microsecond at
/// most.
pub(super) const COALESCED_AT_ONCE: u32 = 16;

/// Vain looks of one hold of the lock, each of which costs a few cache lines: 50 to 300 ns.
pub(super) const MOST_VAIN_LOOKS: u32 = 32;

/// Pages between a zone and everybody else since bring-up. Both only grow.
///
/// Frees alone are counted: what somebody has now and what came back make what was handed out. The
/// caches of CPUs are somebody: a page that goes to and fro between a caller and its CPU's cache
/// stays out of the zone. Up to eight pages of a block that wait for its descriptors count as come
/// back, and as had until they are free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZoneFlow {
    /// Handed out: to callers, to caches of CPUs, to pools.
    pub allocated_pages: u64,
    /// Come back from any of these.
    pub freed_pages: u64,
}

impl AddAssign for ZoneFlow {
    fn add_assign(&mut self, other: Self) {
        add_fields!(self += other, allocated_pages, freed_pages);
    }
}

/// What is published: how many pages of a zone are in which state.
#[repr(C)]
pub(super) struct Counters {
    pub(super) free_pages: AtomicU64,
    pub(super) descriptor_pages: AtomicU64,
    pub(super) isolated_pages: AtomicU64,
    pub(super) reporting_pages: AtomicU64,
    pub(super) reported_pages: AtomicU64,
    pub(super) unreported_pages: AtomicU64,
    pub(super) graded_pages: [AtomicU64; GRADES],
    /// Blocks that everybody may have; any number but 0 while none has a grade.
    pub(super) ungraded_blocks: AtomicU64,
}

impl Counters {
    pub(super) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            free_pages: zero(),
            descriptor_pages: zero(),
            isolated_pages: zero(),
            reporting_pages: zero(),
            reported_pages: zero(),
            unreported_pages: zero(),
            graded_pages: core::array::from_fn(|_| zero()),
            ungraded_blocks: AtomicU64::new(1),
        }
    }

    /// Says what is so now.
    #[cfg_attr(feature = "smp", inline)]
    #[cfg_attr(not(feature = "smp"), inline(never))]
    pub(super) fn publish(&self, locked: &LockedZone) {
        self.free_pages.store(locked.free_pages(), Ordering::Relaxed);
        self.descriptor_pages.store(locked.descriptor_pages, Ordering::Relaxed);
        self.isolated_pages.store(locked.isolated_pages, Ordering::Relaxed);
        if cfg!(any(feature = "moving", feature = "reporting")) && locked.is_unusual {
            self.publish_unusual(locked);
        }
    }

    #[cold]
    fn publish_unusual(&self, locked: &LockedZone) {
        let buddy = &locked.buddy;
        for (counter, pages) in self.graded_pages.iter().zip(locked.graded_pages()) {
            counter.store(pages, Ordering::Relaxed);
        }
        self.ungraded_blocks.store(buddy.ungraded_blocks(), Ordering::Relaxed);
        if !buddy.reported.is_tracked() {
            return;
        }
        self.reporting_pages.store(locked.reporting_pages, Ordering::Relaxed);
        self.reported_pages.store(buddy.reported.reported_pages(), Ordering::Relaxed);
        self.unreported_pages.store(buddy.unreported_pages(), Ordering::Relaxed);
    }
}

/// See the module documentation. What every operation changes comes first.
#[repr(C)]
pub(crate) struct LockedZone {
    /// Free frames in split blocks, which are in no list.
    pub(super) split_pages: u64,
    /// Free frames in split blocks of each grade.
    pub(super) graded_split_pages: [u64; GRADES],
    /// Frames that hold descriptors, and free ones that are too few to do so.
    pub(super) descriptor_pages: u64,
    /// Free frames in isolated blocks, which are in no list and are not counted as free.
    pub(super) isolated_pages: u64,
    /// Isolated blocks by migrate type, whatever they are used for.
    pub(super) isolated_blocks: [u32; MigrateType::COUNT],
    /// Free frames that are with the hypervisor, which are in no list and are not counted as free.
    pub(super) reporting_pages: u64,
    /// All that came back since bring-up.
    pub(super) freed_pages: u64,
    /// There is something to publish that most zones have not: grades, reports.
    pub(super) is_unusual: bool,
    /// A split block all of whose frames are free, kept as it is.
    pub(super) spare: u32,
    /// Split blocks that turned out to have less than the index said, since the lock was taken to
    /// search.
    pub(super) vain_looks: u32,
    /// Free blocks.
    pub(super) buddy: Buddy,
    /// Split blocks with free frames.
    pub(super) free_index: FreeIndex,
    /// Runs of split blocks that are with the hypervisor.
    pub(super) in_flight: InFlight,
    /// Frames of blocks that the manager keeps for itself.
    pub(super) kept_pages: u64,
    /// Heads of memory that is not accepted yet.
    pub(super) unaccepted: Unaccepted,
    /// Blocks that are managed in part.
    pub(super) partials: Partials,
    /// Blocks that are memory in part: which of their frames are.
    pub(super) present: &'static [Partial],
    /// How descriptors are found.
    pub(super) descriptors: Option<Descriptors>,
}

impl LockedZone {
    /// A zone without memory, in place.
    pub(super) fn write(place: &mut MaybeUninit<Self>) -> &mut Self {
        write_fields!(
            LockedZone at place,
            {
                split_pages: 0,
                graded_split_pages: [0; GRADES],
                descriptor_pages: 0,
                isolated_pages: 0,
                isolated_blocks: [0; MigrateType::COUNT],
                reporting_pages: 0,
                freed_pages: 0,
                is_unusual: false,
                spare: NONE,
                vain_looks: 0,
                in_flight: InFlight::EMPTY,
                kept_pages: 0,
                unaccepted: Unaccepted::NONE,
                partials: Partials::NONE,
                present: &[],
                descriptors: None,
            },
            { buddy: Buddy::write, free_index: FreeIndex::write },
        )
    }

    /// Free frames.
    pub(super) const fn free_pages(&self) -> u64 {
        let [movable_only, cma] = self.graded_split_pages;
        self.buddy.free_pages() + self.split_pages + movable_only + cma
    }

    /// Free frames of each grade.
    pub(super) fn graded_pages(&self) -> [u64; GRADES] {
        let listed = self.buddy.graded_pages();
        core::array::from_fn(|grade| listed[grade] + self.graded_split_pages[grade])
    }

    /// Managed frames that nobody has.
    #[inline(never)]
    pub(super) const fn unused_pages(&self) -> u64 {
        self.free_pages() + self.descriptor_pages + self.isolated_pages + self.reporting_pages
    }

    /// Counts what nobody has now and somebody had when [`unused_pages`](Self::unused_pages) was
    /// `before`.
    #[inline(never)]
    pub(super) const fn note_freed_since(&mut self, before: u64) {
        self.freed_pages += self.unused_pages().saturating_sub(before);
    }

    /// Whether a search that found nothing ended before its time. Each vain look has moved a block
    /// to where it belongs, so another search, after others had the lock, comes further.
    pub(super) const fn is_cut_short(&self) -> bool {
        self.vain_looks >= MOST_VAIN_LOOKS
    }

    /// The frame `offset` frames into the block at `index`.
    #[inline]
    pub(super) fn frame(&self, index: u32, offset: usize) -> Option<Pfn> {
        segment::frame(self.buddy.segments, index, offset)
    }

    /// The frames of 2^`order` pages that begin `offset` frames into the block at `index`.
    pub(super) fn run(&self, index: u32, offset: usize, order: Order) -> Option<PfnRange> {
        segment::run(self.buddy.segments, index, offset, order)
    }
}

/// The lock of a zone, to change something.
pub(super) struct ZoneGuard<'a, P: Platform> {
    counters: &'a Counters,
    locked: SpinGuard<'a, LockedZone, P>,
}

impl<'a, P: Platform> ZoneGuard<'a, P> {
    #[inline]
    pub(super) const fn new(counters: &'a Counters, locked: SpinGuard<'a, LockedZone, P>) -> Self {
        Self { counters, locked }
    }

    /// Publishes the counters now, for what has to be seen after them.
    pub(super) fn publish(&self) {
        self.counters.publish(&self.locked);
    }
}

impl<P: Platform> Deref for ZoneGuard<'_, P> {
    type Target = LockedZone;

    #[inline]
    fn deref(&self) -> &LockedZone {
        &self.locked
    }
}

impl<P: Platform> DerefMut for ZoneGuard<'_, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut LockedZone {
        &mut self.locked
    }
}

impl<P: Platform> Drop for ZoneGuard<'_, P> {
    // Before the lock is released, which the drop of the field does afterwards.
    #[inline]
    fn drop(&mut self) {
        self.counters.publish(&self.locked);
    }
}

/// The lock of a zone, to look, and to change what is not counted.
pub(super) struct ReadGuard<'a, P: Platform>(pub(super) SpinGuard<'a, LockedZone, P>);

impl<P: Platform> Deref for ReadGuard<'_, P> {
    type Target = LockedZone;

    #[inline]
    fn deref(&self) -> &LockedZone {
        &self.0
    }
}
