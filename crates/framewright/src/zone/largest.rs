//! The fast path for blocks of 1 GiB, which no cache keeps: they are taken from the front of their
//! list and put back there. All other cases are left to the general path.
//!
//! The lock alone takes 5 of an operation's 10 ns, so the rest is a handful of loads. Nothing
//! merges with a block of the largest order, and nothing is divided. Only the number of free pages
//! changes, so only that is published.
//!
//! Orders of memory: Relaxed: a counter that is written under the zone lock.

use super::locked::LockedZone;
use super::{Zone, ZoneKind};
use crate::block::{MigrateType, Segment};
use crate::platform::Platform;
use crate::sync::SpinGuard;
use crate::sync::table_atomic::Ordering;
use crate::units::{Order, Pfn};
use crate::vmemmap_space::BlockNumber;

impl Zone {
    /// Takes the next block of the largest order from its list, if an ordinary request leaves the
    /// zone above its low watermark. Returns nothing if more is needed than to unlink it, if the
    /// zone has several segments, or if it has free memory with a grade, which has to be taken
    /// first or does not count.
    #[inline(always)]
    pub(crate) fn take_largest<P: Platform>(
        &self,
        platform: &P,
        migrate_type: MigrateType,
    ) -> Option<Pfn> {
        let [segment] = self.segments else { return None };
        let left = self.free_pages().checked_sub(Order::MAX.pages())?;
        // Movable requests have the larger limits.
        let of = MigrateType::Movable;
        if left < self.watermark_for(self.low_pages(of), ZoneKind::Normal, of)
            || self.graded_pages() != 0
        {
            return None;
        }
        match self.changing.locked.try_lock(platform) {
            Some(locked) => self.unlink_largest(locked, segment, migrate_type),
            None => self.take_largest_later(platform, segment, migrate_type),
        }
    }

    #[cold]
    #[inline(never)]
    fn take_largest_later<P: Platform>(
        &self,
        platform: &P,
        segment: &Segment,
        migrate_type: MigrateType,
    ) -> Option<Pfn> {
        let locked = self.changing.locked.lock_between_short_sections(platform);
        self.unlink_largest(locked, segment, migrate_type)
    }

    #[inline(always)]
    fn unlink_largest<P: Platform>(
        &self,
        mut locked: SpinGuard<'_, LockedZone, P>,
        segment: &Segment,
        migrate_type: MigrateType,
    ) -> Option<Pfn> {
        let index = locked.buddy.take_largest(migrate_type)?;
        self.publish_free_pages(&locked);
        drop(locked);
        Some(segment.block_of(index).start())
    }

    /// Frees a block of the largest order. Returns false and changes nothing if it is not exactly
    /// that, not of this zone, or if more is needed than to link it.
    #[inline(always)]
    pub(crate) fn free_largest<P: Platform>(&self, platform: &P, start: Pfn) -> bool {
        let [segment] = self.segments else { return false };
        let Some(last) = segment.end().start().0.checked_sub(Order::MAX.pages()) else {
            return false;
        };
        if start < segment.start.start() || start.0 > last || !start.is_aligned(Order::MAX) {
            return false;
        }
        // An aligned GiB of one segment is exactly one group of entries.
        let index = segment.index_of(BlockNumber::containing(start));
        match self.changing.locked.try_lock(platform) {
            Some(locked) => self.link_largest(locked, index),
            None => self.free_largest_later(platform, index),
        }
    }

    #[cold]
    #[inline(never)]
    fn free_largest_later<P: Platform>(&self, platform: &P, index: u32) -> bool {
        self.link_largest(self.changing.locked.lock_between_short_sections(platform), index)
    }

    #[inline(always)]
    fn link_largest<P: Platform>(
        &self,
        mut locked: SpinGuard<'_, LockedZone, P>,
        index: u32,
    ) -> bool {
        let is_free = locked.buddy.free_largest(index);
        if is_free {
            locked.freed_pages += Order::MAX.pages();
            self.publish_free_pages(&locked);
        }
        is_free
    }

    #[inline(always)]
    fn publish_free_pages(&self, locked: &LockedZone) {
        self.changing.counters.free_pages.store(locked.free_pages(), Ordering::Relaxed);
    }
}
