//! The limits of a zone: watermarks, and what it keeps back from requests that could use other
//! zones.
//!
//! ```text
//!                               marks                 reserve against it
//!   any request                 watermarks            by its highest zone: DMA, DMA32, Normal
//!   movable, in any memory      + movable_watermarks  MOVABLE_CLASS
//! ```
//!
//! Memory that only movable requests may have is no zone of its own, but the limits are those that
//! it would have as one (Linux: `mm/page_alloc.c`, `__setup_per_zone_wmarks`,
//! `setup_per_zone_lowmem_reserve`): other requests keep a share of the memory that they can have,
//! and of the reserve against movable requests no more is kept than is free of that memory.
//!
//! Orders of memory: Relaxed: a request may use old limits, or some old and some new ones.

use super::watermark::{MOVABLE_CLASS, RESERVE_CLASSES, Watermarks};
use super::{MigrateType, Zone, ZoneKind};
use crate::platform::Platform;
use crate::sync::table_atomic::{AtomicU64, Ordering};

/// Watermarks and reserves: read by every request, written when a parameter changes.
pub(super) struct Limits {
    /// min, low, high and promo, for all requests.
    watermarks: [AtomicU64; 4],
    /// What is added to them for movable requests.
    movable_watermarks: [AtomicU64; if cfg!(feature = "moving") { 4 } else { 0 }],
    reserve: [AtomicU64; RESERVE_CLASSES],
    /// Managed pages of all parts of the zone.
    zone_pages: [AtomicU64; if cfg!(any(feature = "smp", feature = "hotplug")) { 1 } else { 0 }],
    /// Pages of the grades *movable only* and *removable* when the limits were set.
    movable_pages: [AtomicU64; if cfg!(feature = "moving") { 2 } else { 0 }],
}

/// How many pages of a zone have which grade, as far as limits depend on it.
#[derive(Clone, Copy, Default)]
pub(crate) struct PagesForLimits {
    /// Pages that any request may have.
    pub(crate) ungraded: u64,
    /// Pages that only movable requests may have.
    pub(crate) graded: u64,
    /// Those of them that these requests take first.
    pub(crate) movable_only: u64,
}

impl Limits {
    /// Limits that keep nothing.
    pub(super) fn new() -> Self {
        Self {
            watermarks: core::array::from_fn(|_| AtomicU64::new(0)),
            movable_watermarks: core::array::from_fn(|_| AtomicU64::new(0)),
            reserve: core::array::from_fn(|_| AtomicU64::new(0)),
            zone_pages: core::array::from_fn(|_| AtomicU64::new(0)),
            movable_pages: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Zone {
    /// The numbers of free pages at which the zone as a whole changes its behaviour, for requests
    /// that may not have memory with a grade.
    #[must_use]
    pub fn watermarks(&self) -> Watermarks {
        marks(&self.limits.watermarks)
    }

    /// What the zone's memory with a grade adds to its watermarks for movable requests.
    #[must_use]
    pub fn movable_watermarks(&self) -> Watermarks {
        marks(&self.limits.movable_watermarks)
    }

    /// The watermark with a number, min first, for movable requests or all others.
    #[inline]
    fn mark_pages(&self, mark: usize, migrate_type: MigrateType) -> u64 {
        let pages = self.limits.watermarks[mark].load(Ordering::Relaxed);
        match self.limits.movable_watermarks.get(mark) {
            Some(more) if migrate_type == MigrateType::Movable => {
                pages.saturating_add(more.load(Ordering::Relaxed))
            }
            _ => pages,
        }
    }

    /// Whether memory with a grade adds to the zone's limits.
    #[inline]
    pub(crate) fn has_graded_limits(&self) -> bool {
        let least = self.limits.movable_watermarks.first();
        least.is_some_and(|pages| pages.load(Ordering::Relaxed) != 0)
    }

    /// The low watermark alone, for the allocation path.
    pub(crate) fn low_pages(&self, migrate_type: MigrateType) -> u64 {
        self.mark_pages(1, migrate_type)
    }

    /// The high watermark alone.
    pub(crate) fn high_pages(&self, migrate_type: MigrateType) -> u64 {
        self.mark_pages(2, migrate_type)
    }

    /// The promo watermark alone.
    pub(crate) fn promo_pages(&self, migrate_type: MigrateType) -> u64 {
        self.mark_pages(3, migrate_type)
    }

    /// The min watermark alone.
    pub(crate) fn min_pages(&self, migrate_type: MigrateType) -> u64 {
        self.mark_pages(0, migrate_type)
    }

    /// Pages that the zone as a whole keeps back from each class of requests.
    #[must_use]
    pub fn lowmem_reserve(&self) -> [u64; RESERVE_CLASSES] {
        core::array::from_fn(|class| self.limits.reserve[class].load(Ordering::Relaxed))
    }

    /// How much memory the limits are set for.
    pub(crate) fn pages_for_limits(&self) -> PagesForLimits {
        let of = |grade: usize| {
            self.limits.movable_pages.get(grade).map_or(0, |pages| pages.load(Ordering::Relaxed))
        };
        let [movable_only, removable] = [0, 1].map(of);
        let graded = movable_only + removable;
        let ungraded = self.final_managed_pages().saturating_sub(graded);
        PagesForLimits { ungraded, graded, movable_only }
    }

    /// The free pages that a request of this type, whose highest usable zone is `highest`, has to
    /// leave: the watermark plus the zone's reserve against such requests (`__zone_watermark_ok` in
    /// Linux's `mm/page_alloc.c`).
    pub(crate) fn watermark_for(
        &self,
        watermark_pages: u64,
        highest: ZoneKind,
        migrate_type: MigrateType,
    ) -> u64 {
        let has_all = cfg!(feature = "moving")
            && highest == ZoneKind::Normal
            && migrate_type == MigrateType::Movable;
        let class = if has_all { MOVABLE_CLASS } else { highest as usize };
        watermark_pages.saturating_add(self.limits.reserve[class].load(Ordering::Relaxed))
    }

    /// This part's share of `pages` that the zone as a whole keeps back: as large as its share of
    /// the zone's memory, so that windows whose memory has gone keep nothing back from others; and
    /// at least that of one among equal parts, as the memory of large windows may be graded while
    /// `pages` are for requests that cannot have it.
    #[inline(never)]
    pub(crate) fn share_of(&self, pages: u64) -> u64 {
        let Some(all) = self.limits.zone_pages.first() else { return pages };
        let part = pages.saturating_mul(self.final_managed_pages());
        let share = part.checked_div(all.load(Ordering::Relaxed)).unwrap_or(pages);
        share.max(pages / u64::from(self.parts().max(1)))
    }

    /// Sets watermarks and reserve of a zone with `zone_pages` managed pages. Requests under way
    /// may still use the old values, or some old and some new ones.
    pub(crate) fn set_watermarks(
        &self,
        zone_pages: u64,
        watermarks: Watermarks,
        movable: Watermarks,
        reserve: [u64; RESERVE_CLASSES],
    ) {
        store(&self.limits.watermarks, watermarks.all());
        store(&self.limits.movable_watermarks, movable.all());
        store(&self.limits.reserve, reserve);
        if let Some(all) = self.limits.zone_pages.first() {
            all.store(zone_pages, Ordering::Relaxed);
        }
    }

    /// Notes how much memory has which grade, for the limits that are set next.
    #[inline(never)]
    pub(crate) fn note_grades<P: Platform>(&self, platform: &P) {
        if cfg!(feature = "moving") {
            // Under the lock, so that no older numbers replace newer ones.
            let locked = self.read(platform);
            store(&self.limits.movable_pages, locked.graded_block_pages());
        }
    }
}

fn store<const N: usize>(limits: &[AtomicU64], pages: [u64; N]) {
    for (limit, pages) in limits.iter().zip(pages) {
        limit.store(pages, Ordering::Relaxed);
    }
}

/// Reads the marks that are stored; none where there is no place for them.
fn marks(limits: &[AtomicU64]) -> Watermarks {
    let [min_pages, low_pages, high_pages, promo_pages] = [0, 1, 2, 3]
        .map(|mark: usize| limits.get(mark).map_or(0, |pages| pages.load(Ordering::Relaxed)));
    Watermarks { min_pages, low_pages, high_pages, promo_pages }
}
