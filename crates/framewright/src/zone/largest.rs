//! The short way of blocks of 1 GiB, which no cache keeps: taken from the front of their list and
//! put back there, when nothing else is to be thought of.
//!
//! Of an operation that takes 10 ns the lock is 5, so the rest is a handful of loads, each of which
//! is a part of what the usual way does. There is nothing to merge a block of the largest order
//! with, and nothing to divide.
//!
//! Orders of memory: Relaxed: a counter, written under the zone lock.

use super::segment::Segment;
use super::{Zone, ZoneKind};
use crate::block::MigrateType;
use crate::block::lists::FreeLists;
use crate::platform::Platform;
use crate::sync::SpinGuard;
use crate::sync::table_atomic::Ordering;
use crate::units::{Order, Pfn};
use crate::vmemmap_space::BlockNumber;

impl Zone {
    /// Takes the block of the largest order that is next in its list, if the zone stays above its
    /// low mark for the usual request. Nothing when that takes more than to unlink it, or when the
    /// zone has several segments.
    #[inline(always)]
    pub(crate) fn take_largest<P: Platform>(
        &self,
        platform: &P,
        migrate_type: MigrateType,
    ) -> Option<Pfn> {
        let [segment] = self.segments else { return None };
        let left = self.free_pages().checked_sub(Order::MAX.pages())?;
        if left < self.watermark_for(self.low_pages(), ZoneKind::Normal) {
            return None;
        }
        match self.changing.lists.try_lock(platform) {
            Some(lists) => self.unlink_largest(lists, segment, migrate_type),
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
        self.unlink_largest(
            self.changing.lists.lock_between_short_sections(platform),
            segment,
            migrate_type,
        )
    }

    #[inline(always)]
    fn unlink_largest<P: Platform>(
        &self,
        mut lists: SpinGuard<'_, FreeLists, P>,
        segment: &Segment,
        migrate_type: MigrateType,
    ) -> Option<Pfn> {
        let (index, free_pages) = lists.take_largest(&self.table, migrate_type)?;
        self.changing.free_pages.store(free_pages, Ordering::Relaxed);
        drop(lists);
        Some(segment.block_of(index).start())
    }

    /// Gives back a block of the largest order. False, and nothing is changed, when it is not just
    /// that, or not of this zone, or when more is to be done than to link it.
    #[inline(always)]
    pub(crate) fn give_largest<P: Platform>(&self, platform: &P, start: Pfn) -> bool {
        let [segment] = self.segments else { return false };
        let Some(last) = segment.end().start().0.checked_sub(Order::MAX.pages()) else {
            return false;
        };
        if start < segment.start.start() || start.0 > last || !start.is_aligned(Order::MAX) {
            return false;
        }
        // A whole GiB of one segment is a group of entries.
        let index = segment.index_of(BlockNumber::containing(start));
        match self.changing.lists.try_lock(platform) {
            Some(lists) => self.link_largest(lists, index),
            None => self.give_largest_later(platform, index),
        }
    }

    #[cold]
    #[inline(never)]
    fn give_largest_later<P: Platform>(&self, platform: &P, index: u32) -> bool {
        self.link_largest(self.changing.lists.lock_between_short_sections(platform), index)
    }

    #[inline(always)]
    fn link_largest<P: Platform>(
        &self,
        mut lists: SpinGuard<'_, FreeLists, P>,
        index: u32,
    ) -> bool {
        let Some(free_pages) = lists.give_largest(&self.table, index) else { return false };
        self.changing.free_pages.store(free_pages, Ordering::Relaxed);
        self.note_freed(Order::MAX.pages());
        true
    }
}
