//! A zone's free memory under its lock.
//!
//! [`Zone::lock`](super::Zone::lock) returns a [`ZoneGuard`], which dereferences to [`LockedZone`]
//! and whose drop publishes the counters that others read without the lock. Code that only looks
//! takes a [`ReadGuard`], which publishes nothing. The logic is in the methods of [`LockedZone`],
//! which do not depend on the platform: blocks in `block::buddy`, pages in `page_alloc` and
//! `page_free`, and the splitting of a block into pages in `split`.
//!
//! ```text
//!   Zone ──lock(platform)──> ZoneGuard ──deref──> LockedZone { buddy, free_index, ... }
//!     ^ free_pages, descriptor_pages, ...        drop: publish, then unlock
//! ```
//!
//! Orders of memory: Relaxed: counters are written under the lock. Readers without the lock get
//! values that were true at some moment.

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

/// How many words of 64 blocks are coalesced under one hold of the lock. Each takes at most a
/// microsecond.
pub(super) const COALESCED_AT_ONCE: u32 = 16;

/// The most vain looks (searches of a split block that find no run) under one hold of the lock.
/// Each costs a few cache lines: 50 to 300 ns.
pub(super) const MOST_VAIN_LOOKS: u32 = 32;

/// Pages that moved between a zone and its users since bring-up. Both counts only grow.
///
/// Only frees are counted: the pages that are in use now plus those that came back are the pages
/// that were handed out. The caches of CPUs are users, too: a page that moves between a caller and
/// its CPU's cache does not pass through the zone. In a block whose pages are to have descriptors
/// inside it, up to eight free frames may wait until they can hold these; they count as come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZoneFlow {
    /// Pages handed out to callers, CPU caches and pools.
    pub allocated_pages: u64,
    /// Pages that came back from any of these.
    pub freed_pages: u64,
}

impl AddAssign for ZoneFlow {
    fn add_assign(&mut self, other: Self) {
        add_fields!(self += other, allocated_pages, freed_pages);
    }
}

/// The published counters: how many pages of a zone are in which state.
#[repr(C)]
pub(super) struct Counters {
    pub(super) free_pages: AtomicU64,
    pub(super) descriptor_pages: AtomicU64,
    pub(super) isolated_pages: AtomicU64,
    pub(super) reporting_pages: AtomicU64,
    pub(super) reported_pages: AtomicU64,
    pub(super) unreported_pages: AtomicU64,
    pub(super) graded_pages: [AtomicU64; GRADES],
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
        }
    }

    /// Stores the current counts.
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
        if !buddy.reported.is_tracked() {
            return;
        }
        self.reporting_pages.store(locked.reporting_pages, Ordering::Relaxed);
        self.reported_pages.store(buddy.reported.reported_pages(), Ordering::Relaxed);
        self.unreported_pages.store(buddy.unreported_pages(), Ordering::Relaxed);
    }
}

/// See the module documentation. The fields that every operation changes come first.
#[repr(C)]
pub(crate) struct LockedZone {
    /// Free frames in split blocks without a grade. Such blocks are in no buddy list.
    pub(super) split_pages: u64,
    /// Free frames in split blocks of each grade.
    pub(super) graded_split_pages: [u64; GRADES],
    /// Frames that hold descriptors, and unallocated ones of blocks with too few of them to do so.
    pub(super) descriptor_pages: u64,
    /// Unallocated frames in isolated blocks. They are in no list and do not count as free.
    pub(super) isolated_pages: u64,
    /// Isolated blocks by migrate type, whatever their use.
    pub(super) isolated_blocks: [u32; MigrateType::COUNT],
    /// Unallocated frames that the hypervisor has. They are in no list and do not count as free.
    pub(super) reporting_pages: u64,
    /// Pages that came back since bring-up.
    pub(super) freed_pages: u64,
    /// Whether there are counts to publish that most zones do not have: those of grades or of
    /// reports.
    pub(super) is_unusual: bool,
    /// The spare: a split block all of whose frames are free, which is kept split.
    pub(super) spare: u32,
    /// Split blocks in which a search under this hold of the lock found less than the index said.
    pub(super) vain_looks: u32,
    /// The buddy system of free blocks.
    pub(super) buddy: Buddy,
    /// The index of split blocks with free frames.
    pub(super) free_index: FreeIndex,
    /// Runs of split blocks that the hypervisor has.
    pub(super) in_flight: InFlight,
    /// Frames of blocks that the manager keeps for itself.
    pub(super) kept_pages: u64,
    /// Heads of blocks that are not accepted yet.
    pub(super) unaccepted: Unaccepted,
    /// Blocks of which only a part is managed.
    pub(super) partials: Partials,
    /// Blocks of which only a part is memory, and which of their frames are.
    pub(super) present: &'static [Partial],
    /// How page descriptors are found.
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

    /// Managed frames that are not allocated.
    #[inline(never)]
    pub(super) const fn unused_pages(&self) -> u64 {
        self.free_pages() + self.descriptor_pages + self.isolated_pages + self.reporting_pages
    }

    /// Counts as freed the pages that became unused since [`unused_pages`](Self::unused_pages) was
    /// `before`.
    #[inline(never)]
    pub(super) const fn note_freed_since(&mut self, before: u64) {
        self.freed_pages += self.unused_pages().saturating_sub(before);
    }

    /// Whether a search that found nothing stopped at the limit of vain looks. Each vain look moved
    /// a block to the set where it belongs, so that another search, after other CPUs had the lock,
    /// gets further.
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

/// Holds the lock of a zone for changes.
pub(super) struct ZoneGuard<'a, P: Platform> {
    counters: &'a Counters,
    locked: SpinGuard<'a, LockedZone, P>,
}

impl<'a, P: Platform> ZoneGuard<'a, P> {
    #[inline]
    pub(super) const fn new(counters: &'a Counters, locked: SpinGuard<'a, LockedZone, P>) -> Self {
        Self { counters, locked }
    }

    /// Publishes the counters before the drop does, for stores that must be seen after the
    /// counters.
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
    // This runs before the drop of the field `locked` releases the lock.
    #[inline]
    fn drop(&mut self) {
        self.counters.publish(&self.locked);
    }
}

/// Holds the lock of a zone to look, or to change what no published counter counts.
pub(super) struct ReadGuard<'a, P: Platform>(pub(super) SpinGuard<'a, LockedZone, P>);

impl<P: Platform> Deref for ReadGuard<'_, P> {
    type Target = LockedZone;

    #[inline]
    fn deref(&self) -> &LockedZone {
        &self.0
    }
}
