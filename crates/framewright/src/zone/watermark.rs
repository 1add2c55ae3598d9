//! Watermarks and lowmem reserves (`__setup_per_zone_wmarks` in Linux's `mm/page_alloc.c`).

use super::kind::ZoneKind;
use crate::units::{PAGE_SIZE, PAGES_PER_BLOCK};

/// How many classes of requests zones keep different amounts of memory back from: one for each
/// kind of zone, for requests that may use no higher one, and [`MOVABLE_CLASS`].
pub const RESERVE_CLASSES: usize = ZoneKind::COUNT + 1;

/// The class of requests that may also have memory which only movable requests get, as if that were
/// one more zone above the others (Linux: `ZONE_MOVABLE`).
pub const MOVABLE_CLASS: usize = ZoneKind::COUNT;

/// The default ratios of the lowmem reserves, by kind of the lower zone: for each this many frames
/// of the zones above, it keeps back one frame from requests that could also use those zones. The
/// last is Linux's number for its zone Movable, which has nothing above it.
pub const LOWMEM_RESERVE_RATIO: [u64; RESERVE_CLASSES] = [256, 256, 32, 0];

const KIB_PER_PAGE: u64 = PAGE_SIZE / 1024;

/// The numbers of free pages at which a zone changes its behaviour.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Watermarks {
    /// Ordinary requests fail rather than go below this.
    pub min_pages: u64,
    /// Below this, requests try other zones first.
    pub low_pages: u64,
    /// Reclaim may rest above this.
    pub high_pages: u64,
    /// Promotion to this node may go on above this.
    pub promo_pages: u64,
}

impl core::ops::AddAssign for Watermarks {
    #[inline(never)]
    fn add_assign(&mut self, other: Self) {
        self.min_pages = self.min_pages.saturating_add(other.min_pages);
        self.low_pages = self.low_pages.saturating_add(other.low_pages);
        self.high_pages = self.high_pages.saturating_add(other.high_pages);
        self.promo_pages = self.promo_pages.saturating_add(other.promo_pages);
    }
}

impl Watermarks {
    /// The marks, lowest first.
    pub(super) const fn all(self) -> [u64; 4] {
        [self.min_pages, self.low_pages, self.high_pages, self.promo_pages]
    }
}

/// The limits of what is kept free over all zones.
const LEAST_MIN_FREE_KBYTES: u64 = 128;
const MOST_MIN_FREE_KBYTES: u64 = 1 << 18;

/// The default of `min_free_kbytes` for a machine of `managed_pages`: the square root of 16 times
/// its KiB, between 128 and 262144.
#[must_use]
pub fn default_min_free_kbytes(managed_pages: u64) -> u64 {
    let square = managed_pages.saturating_mul(KIB_PER_PAGE).saturating_mul(16);
    // Bit by bit up to the limit: the root function of `core` is ten times as much code.
    let (mut root, mut bit) = (0, MOST_MIN_FREE_KBYTES);
    while bit != 0 {
        let candidate: u64 = root | bit;
        if candidate * candidate <= square {
            root = candidate;
        }
        bit /= 2;
    }
    root.clamp(LEAST_MIN_FREE_KBYTES, MOST_MIN_FREE_KBYTES)
}

/// The watermarks of a zone of `managed_pages` in a machine of `total_pages`, without memory that
/// only movable requests may have. Its share of `min_free_kbytes` is proportional.
#[must_use]
#[cfg_attr(feature = "pools", inline(never))]
pub fn watermarks(
    managed_pages: u64,
    total_pages: u64,
    min_free_kbytes: u64,
    scale_factor: u64,
) -> Watermarks {
    let (min_total, total_pages) = (min_free_kbytes / KIB_PER_PAGE, total_pages.max(1));
    // In two parts, because a 128-bit division is much code. Exact for zones of up to 128 TiB, as
    // no more than 2 TiB are kept free; a larger zone may get a smaller watermark.
    let share = (min_total / total_pages).saturating_mul(managed_pages);
    let rest = (min_total % total_pages).saturating_mul(managed_pages) / total_pages;
    let min_pages = share.saturating_add(rest);
    let gap = (min_pages / 4).max(managed_pages.saturating_mul(scale_factor) / 10_000);
    let low_pages = min_pages.saturating_add(gap);
    let high_pages = low_pages.saturating_add(gap);
    Watermarks { min_pages, low_pages, high_pages, promo_pages: high_pages.saturating_add(gap) }
}

/// What `movable_pages` of a zone, which only movable requests may have, add to the watermarks for
/// these requests. The min mark does not depend on `min_free_kbytes`; the distances between marks
/// are those of other memory, but at most a sixteenth of the memory.
#[must_use]
pub fn movable_watermarks(
    movable_pages: u64,
    total_pages: u64,
    min_free_kbytes: u64,
    scale_factor: u64,
) -> Watermarks {
    if movable_pages == 0 {
        return Watermarks::default();
    }
    let as_others = watermarks(movable_pages, total_pages, min_free_kbytes, scale_factor);
    let gap = (as_others.low_pages - as_others.min_pages).min(movable_pages / 16);
    let min_pages = (movable_pages / 1024).clamp(32, 128);
    let [low_pages, high_pages, promo_pages] = [1, 2, 3].map(|gaps| min_pages + gaps * gap);
    Watermarks { min_pages, low_pages, high_pages, promo_pages }
}

/// How many pages a zone of `kind` keeps back from each class of requests. `managed` are the node's
/// zones without memory that only movable requests may have, and then the memory that they take
/// first. The zone keeps one frame in `ratio` of those above it; none if `ratio` is 0.
#[must_use]
pub fn lowmem_reserve(
    kind: ZoneKind,
    managed: [u64; RESERVE_CLASSES],
    ratio: u64,
) -> [u64; RESERVE_CLASSES] {
    let mut reserve = [0; RESERVE_CLASSES];
    let mut above = 0_u64;
    for highest in kind as usize + 1..RESERVE_CLASSES {
        above = above.saturating_add(managed[highest]);
        reserve[highest] = above.checked_div(ratio).unwrap_or(0);
    }
    reserve
}

/// How many pages of a zone Linux accepts before a request checks the watermarks
/// (`mm/page_alloc.c`, `cond_accept_memory`). `free_pages` includes unaccepted pages, and this many
/// more accepted ones are needed to reach `mark_pages`. One block while there are no watermarks
/// yet.
#[must_use]
pub const fn pages_to_accept(mark_pages: u64, free_pages: u64, unaccepted_pages: u64) -> u64 {
    let lacking = if mark_pages == 0 {
        PAGES_PER_BLOCK
    } else {
        mark_pages.saturating_sub(free_pages.saturating_sub(unaccepted_pages))
    };
    if lacking < unaccepted_pages { lacking } else { unaccepted_pages }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn min_free_kbytes_follows_the_square_root_and_its_limits() {
        // 16 GiB: sqrt(16 Mi * 16) = 16 Ki.
        assert_eq!(default_min_free_kbytes(4 << 20), 16_384);
        assert_eq!(default_min_free_kbytes(1), 128);
        assert_eq!(default_min_free_kbytes(1 << 40), 262_144);
        assert_eq!(default_min_free_kbytes(u64::MAX), 262_144);
        for pages in (0..40).flat_map(|bits| [1_u64 << bits, (1 << bits) - 1, 3 << bits]) {
            let root = (pages * KIB_PER_PAGE * 16).isqrt();
            assert_eq!(default_min_free_kbytes(pages), root.clamp(128, 262_144), "{pages}");
        }
    }

    #[test]
    fn marks_rise_by_the_larger_of_a_quarter_and_the_scale() {
        let marks = watermarks(1000, 1000, 4000, 10);
        assert_eq!(
            (marks.min_pages, marks.low_pages, marks.high_pages, marks.promo_pages),
            (1000, 1250, 1500, 1750)
        );
        let marks = watermarks(10_000_000, 10_000_000, 4000, 10);
        assert_eq!((marks.min_pages, marks.low_pages), (1000, 11_000));
        assert_eq!(watermarks(0, 0, 128, 10), Watermarks::default());
    }

    #[test]
    fn lower_zones_keep_a_share_of_what_lies_above() {
        let managed = [4000, 768_000, 2_560_000, 0];
        assert_eq!(lowmem_reserve(ZoneKind::Dma, managed, 256), [0, 3000, 13_000, 13_000]);
        assert_eq!(lowmem_reserve(ZoneKind::Dma32, managed, 256), [0, 0, 10_000, 10_000]);
        assert_eq!(lowmem_reserve(ZoneKind::Normal, managed, 32), [0; RESERVE_CLASSES]);
        assert_eq!(lowmem_reserve(ZoneKind::Dma, managed, 0), [0; RESERVE_CLASSES]);
        // What only movable requests get is above all zones, for them alone.
        let managed = [4000, 768_000, 2_560_000, 256_000];
        assert_eq!(lowmem_reserve(ZoneKind::Dma, managed, 256), [0, 3000, 13_000, 14_000]);
        assert_eq!(lowmem_reserve(ZoneKind::Normal, managed, 32), [0, 0, 0, 8000]);
    }

    #[test]
    fn movable_memory_adds_marks_of_its_own() {
        assert_eq!(movable_watermarks(0, 1000, 4000, 10), Watermarks::default());
        for (pages, min) in [(512, 32), (32 << 10, 32), (64 << 10, 64), (1 << 30, 128)] {
            assert_eq!(movable_watermarks(pages, 1 << 20, 4096, 10).min_pages, min, "{pages}");
        }
        // A quarter of a share of 4096 pages; a thousandth of the memory; and a sixteenth.
        for (pages, total, gap) in
            [(1 << 20, 1 << 20, 1048), (1 << 18, 1 << 20, 262), (1 << 20, 1, 1 << 16)]
        {
            let marks = movable_watermarks(pages, total, 4096 * 4, 10);
            assert_eq!(marks.low_pages - marks.min_pages, gap.max(1024 >> 2), "{pages}");
            assert_eq!(
                marks.promo_pages - marks.min_pages,
                3 * (marks.low_pages - marks.min_pages)
            );
        }
    }
}
