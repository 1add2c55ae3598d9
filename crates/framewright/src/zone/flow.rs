//! How many pages left a zone and came back: counted at frees alone, and beside what each of them
//! stores anyway.
//!
//! What somebody has now and what came back make what was handed out, so that allocations count
//! nothing. The caches of CPUs are somebody: a page that goes to and fro between a caller and its
//! CPU's cache stays out of the zone. Up to eight pages of a block that wait for its descriptors
//! count as come back, and as had until they are free.

use super::Zone;
use crate::block::lists::FreeLists;
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;

/// Pages between a zone and everybody else since bring-up. Both only grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ZoneFlow {
    /// Handed out: to callers, to caches of CPUs, to pools.
    pub allocated_pages: u64,
    /// Come back from any of these.
    pub freed_pages: u64,
}

impl core::ops::AddAssign for ZoneFlow {
    fn add_assign(&mut self, other: Self) {
        self.allocated_pages += other.allocated_pages;
        self.freed_pages += other.freed_pages;
    }
}

/// Managed frames that nobody has.
pub(super) fn unused_pages(lists: &FreeLists) -> u64 {
    lists.free_pages() + lists.map_pages + lists.isolated_pages + lists.reporting_pages
}

impl Zone {
    /// Pages came back. With the lock of the lists, so that this is no locked instruction, on the
    /// line that `publish` writes. Relaxed: the lock orders it, and who looks without the lock
    /// wants some number.
    #[inline]
    pub(super) fn note_freed(&self, pages: u64) {
        let freed = &self.changing.freed_pages;
        freed.store(freed.load(Ordering::Relaxed) + pages, Ordering::Relaxed);
    }

    /// The same for all that nobody has now and somebody had when `before` was counted.
    pub(super) fn note_freed_since(&self, lists: &FreeLists, before: u64) {
        self.note_freed(unused_pages(lists).saturating_sub(before));
    }

    /// Pages that were handed out and came back. Exact at the zone; see the module documentation
    /// for caches.
    pub(crate) fn flow<P: Platform>(&self, platform: &P) -> ZoneFlow {
        let lists = self.changing.lists.lock(platform);
        let freed_pages = self.changing.freed_pages.load(Ordering::Relaxed);
        let used = self.managed_pages().saturating_sub(unused_pages(&lists));
        ZoneFlow { allocated_pages: used + freed_pages, freed_pages }
    }
}
