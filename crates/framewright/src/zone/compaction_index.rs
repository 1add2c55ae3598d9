//! Whether moving pages would help a request of some order: Linux's fragmentation indices
//! (`mm/vmstat.c`), and what they mean for compaction (`mm/compaction.c`). This is arithmetic only:
//! nothing here looks at a zone.
//!
//! | index | is | says |
//! |---|---|---|
//! | fragmentation | near 0 | a request fails because memory is short |
//! | | near 1000 | it fails because what is free lies in pieces |
//! | | -1000 | it does not fail |
//! | unusable | 0 to 1000 | thousandths of free memory in pieces that are too small |

use super::areas::ORDERS;
use crate::units::Order;

/// The default of `extfrag_threshold`.
pub const EXTFRAG_THRESHOLD: u64 = 500;
/// The default of `compaction_proactiveness`.
pub const COMPACTION_PROACTIVENESS: u64 = 20;
/// The fragmentation index if a request of the order does not fail.
const FITS: i64 = -1000;
/// Requests up to this order are compacted for whatever the fragmentation index says, as in Linux
/// (`PAGE_ALLOC_COSTLY_ORDER`): reclaim alone seldom gives them what they need.
const CHEAP_ORDER: u8 = 3;

/// Free memory as a request of one order sees it (Linux: `contig_page_info`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContigInfo {
    /// The order of the request.
    pub order: Order,
    /// Free pages in all.
    pub free_pages: u64,
    /// Free runs of any order.
    pub free_runs: u64,
    /// How many runs of the order could be allocated.
    pub fitting_runs: u64,
}

impl ContigInfo {
    /// Takes counts of free runs by order ([`FreeAreas::by_order`](super::FreeAreas::by_order)).
    #[must_use]
    pub fn of(runs: &[u64; ORDERS], order: Order) -> Self {
        let mut info = Self { order, free_pages: 0, free_runs: 0, fitting_runs: 0 };
        for (of, &runs) in runs.iter().enumerate() {
            info.free_runs = info.free_runs.saturating_add(runs);
            info.free_pages = info.free_pages.saturating_add(runs.saturating_mul(1 << of));
            if let Some(above) = of.checked_sub(usize::from(order.get())) {
                let fitting = runs.saturating_mul(1 << above);
                info.fitting_runs = info.fitting_runs.saturating_add(fitting);
            }
        }
        info
    }

    /// Why a request of the order fails, in thousandths: towards 0 for lack of memory, towards 1000
    /// because of fragmentation, below 0 if a few large runs are almost enough. It is -1000 if the
    /// request does not fail, and 0 if nothing is free.
    #[must_use]
    pub fn fragmentation_index(&self) -> i64 {
        if self.free_runs == 0 {
            return 0;
        }
        if self.fitting_runs != 0 {
            return FITS;
        }
        let requests = u128::from(self.free_pages) * 1000 / u128::from(self.order.pages());
        let lack = (1000 + requests) / u128::from(self.free_runs);
        i64::try_from(lack).map_or(FITS, |lack| 1000 - lack)
    }

    /// Thousandths of free memory that a request of the order cannot use; 1000 if nothing is free.
    #[must_use]
    pub fn unusable_index(&self) -> u64 {
        if self.free_pages == 0 { 1000 } else { self.unusable_pages_of(1000) }
    }

    /// Percent of free memory that a request of the order cannot use; 0 if nothing is free. For the
    /// order of a block this is a zone's score for proactive compaction (Linux: `mm/compaction.c`,
    /// `fragmentation_score_zone`).
    #[must_use]
    pub fn score(&self) -> u64 {
        self.unusable_pages_of(100)
    }

    fn unusable_pages_of(&self, whole: u64) -> u64 {
        let fitting_pages = self.fitting_runs.saturating_mul(self.order.pages());
        let unusable_pages = self.free_pages.saturating_sub(fitting_pages);
        let part = u128::from(unusable_pages) * u128::from(whole);
        part.checked_div(u128::from(self.free_pages))
            .and_then(|part| u64::try_from(part).ok())
            .unwrap_or(0)
    }
}

/// Whether compaction can help a request that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Suitability {
    /// It can.
    Suitable,
    /// Too little is free: compaction itself needs room, so reclaim comes first.
    TooLittleFree,
    /// Memory is short rather than in pieces.
    NotFragmented,
}

/// Whether a zone is suitable for compaction (Linux: `mm/compaction.c`, `compaction_suitable`).
/// Twice the request must be free above `mark_pages`, a watermark plus the reserve that goes with
/// it. For requests above order 3 the fragmentation index must also be above `threshold`, or below
/// 0.
#[must_use]
pub fn suitability(info: &ContigInfo, mark_pages: u64, threshold: u64) -> Suitability {
    if info.free_pages <= mark_pages.saturating_add(2 * info.order.pages()) {
        return Suitability::TooLittleFree;
    }
    let index = info.fragmentation_index();
    if info.order.get() > CHEAP_ORDER && u64::try_from(index).is_ok_and(|index| index <= threshold)
    {
        return Suitability::NotFragmented;
    }
    Suitability::Suitable
}

/// Scores of a node between which proactive compaction works, in percent (Linux:
/// `mm/compaction.c`, `fragmentation_score_wmark`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProactiveMarks {
    /// Compaction of a zone ends at this score or below.
    pub low: u64,
    /// Compaction begins when a node's score is above this.
    pub high: u64,
}

impl ProactiveMarks {
    /// The marks for a `compaction_proactiveness` of 0 to 100; none for 0, which turns it off.
    #[must_use]
    pub fn of(proactiveness: u64) -> Option<Self> {
        let low = 100_u64.saturating_sub(proactiveness).max(5);
        (proactiveness != 0).then_some(Self { low, high: (low + 10).min(100) })
    }

    /// Whether a node of this score is to be compacted.
    #[must_use]
    pub const fn begins(&self, node_score: u64) -> bool {
        node_score > self.high
    }

    /// Whether compaction of a zone of this score goes on.
    #[must_use]
    pub const fn goes_on(&self, zone_score: u64) -> bool {
        zone_score > self.low
    }
}

/// A zone's contribution to the score of its node: its own score, weighted by its share of the
/// node's memory (Linux: `mm/compaction.c`, `fragmentation_score_zone_weighted`). A node's score is
/// the sum over its zones.
#[must_use]
pub fn weighted_score(zone_score: u64, present_pages: u64, node_present_pages: u64) -> u64 {
    let node = u128::from(node_present_pages) + 1;
    u64::try_from(u128::from(zone_score) * u128::from(present_pages) / node).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zone::FreeAreas;
    use proptest::prelude::*;

    const BLOCK: Order = Order::BLOCK;

    fn info(runs: &[(usize, u64)], order: Order) -> ContigInfo {
        let mut areas = FreeAreas::EMPTY;
        for &(of, runs) in runs {
            areas.runs[1][of] += runs;
        }
        ContigInfo::of(&areas.by_order(), order)
    }

    fn order(order: u8) -> Order {
        Order::new(order).expect("an order")
    }

    #[test]
    fn indices_are_those_of_linux() {
        for (runs, fragmentation, unusable) in [
            // The free memory is in as many pieces as possible.
            (&[(0, 20_000)][..], 998, 1000),
            (&[(8, 40)], 475, 1000),
            (&[(8, 40), (9, 1)], -1000, 952),
            (&[(9, 1)], -1000, 0),
            (&[(10, 1), (0, 1024)], -1000, 500),
            (&[], 0, 1000),
            // Memory is short.
            (&[(0, 1)], -1, 1000),
            (&[(0, 10)], 899, 1000),
            (&[(8, 1)], -500, 1000),
            (&[(18, 3)], -1000, 0),
        ] {
            let info = info(runs, BLOCK);
            assert_eq!(info.fragmentation_index(), fragmentation, "{runs:?}");
            assert_eq!(info.unusable_index(), unusable, "{runs:?}");
        }
        let of_order_10 = info(&[(9, 3), (11, 1)], order(10));
        assert_eq!((of_order_10.free_pages, of_order_10.free_runs), (3584, 4));
        assert_eq!((of_order_10.fitting_runs, of_order_10.unusable_index()), (2, 428));
        assert_eq!(info(&[(0, 1)], Order::PAGE).fragmentation_index(), -1000);
    }

    #[test]
    fn a_zone_is_suitable_when_memory_is_free_but_in_pieces() {
        let pieces = info(&[(0, 20_000)], BLOCK);
        let halves = info(&[(8, 40)], BLOCK);
        assert_eq!(suitability(&pieces, 100, EXTFRAG_THRESHOLD), Suitability::Suitable);
        assert_eq!(suitability(&halves, 100, EXTFRAG_THRESHOLD), Suitability::NotFragmented);
        assert_eq!(suitability(&halves, 100, 475), Suitability::NotFragmented);
        assert_eq!(suitability(&halves, 100, 474), Suitability::Suitable);
        // Twice the request above the mark, and one page.
        let room = 20_000 - 1024;
        assert_eq!(suitability(&pieces, room - 1, EXTFRAG_THRESHOLD), Suitability::Suitable);
        assert_eq!(suitability(&pieces, room, EXTFRAG_THRESHOLD), Suitability::TooLittleFree);
        assert_eq!(suitability(&pieces, u64::MAX, 0), Suitability::TooLittleFree);
        // Small requests do not ask for the index.
        let quarters = info(&[(2, 20)], order(3));
        assert_eq!(quarters.fragmentation_index(), 450);
        assert_eq!(suitability(&quarters, 0, EXTFRAG_THRESHOLD), Suitability::Suitable);
        let quarters = info(&[(3, 20)], order(4));
        assert_eq!(quarters.fragmentation_index(), 450);
        assert_eq!(suitability(&quarters, 0, EXTFRAG_THRESHOLD), Suitability::NotFragmented);
        // -1000 is below the threshold but no reason to refuse: the request may have failed at a
        // watermark.
        let fits = info(&[(9, 10)], BLOCK);
        assert_eq!(suitability(&fits, 0, 1000), Suitability::Suitable);
    }

    #[test]
    fn proactive_marks_follow_the_setting() {
        let marks = |proactiveness| {
            ProactiveMarks::of(proactiveness).map(|ProactiveMarks { low, high }| (low, high))
        };
        assert_eq!(marks(COMPACTION_PROACTIVENESS), Some((80, 90)));
        for (proactiveness, expected) in [
            (0, None),
            (1, Some((99, 100))),
            (5, Some((95, 100))),
            (50, Some((50, 60))),
            (94, Some((6, 16))),
            (95, Some((5, 15))),
            (100, Some((5, 15))),
            (u64::MAX, Some((5, 15))),
        ] {
            assert_eq!(marks(proactiveness), expected, "{proactiveness}");
        }
        let marks = ProactiveMarks { low: 80, high: 90 };
        assert!(!marks.begins(90) && marks.begins(91));
        assert!(!marks.goes_on(80) && marks.goes_on(81));
    }

    #[test]
    fn the_score_of_a_node_weighs_zones_by_size() {
        // A quarter of the node is all in pieces, the rest is whole.
        assert_eq!(weighted_score(100, 1 << 20, 4 << 20), 24);
        assert_eq!(weighted_score(100, 4 << 20, 4 << 20), 99);
        assert_eq!(weighted_score(0, 1 << 20, 4 << 20), 0);
        assert_eq!(weighted_score(100, 0, 0), 0);
        assert_eq!(info(&[(9, 1), (8, 2)], BLOCK).score(), 50);
        assert_eq!(info(&[], BLOCK).score(), 0);
    }

    proptest! {
        #[test]
        fn indices_keep_within_their_limits(
            runs in proptest::array::uniform19(prop_oneof![Just(0), 0_u64..1 << 20]),
            of in 0_u8..=18,
        ) {
            let info = ContigInfo::of(&runs, order(of));
            let fragmentation = info.fragmentation_index();
            // It is 1000 if there are thousands of pieces and hardly one request in all of them.
            prop_assert!((-1000..=1000).contains(&fragmentation));
            prop_assert!(info.unusable_index() <= 1000 && info.score() <= 100);
            let fits = runs[usize::from(of)..].iter().any(|&runs| runs != 0);
            prop_assert_eq!(fragmentation == FITS, fits);
            prop_assert_eq!(info.unusable_index() == 1000 && info.free_pages != 0, {
                info.free_pages != 0 && !fits
            });
            // Cutting in two a free run that is too small makes the index worse, never better.
            if let Some(cut) = (1..usize::from(of)).find(|&of| runs[of] != 0) {
                let mut pieces = runs;
                pieces[cut] -= 1;
                pieces[cut - 1] += 2;
                let after = ContigInfo::of(&pieces, order(of));
                prop_assert!(after.fragmentation_index() >= fragmentation);
                prop_assert_eq!(after.free_pages, info.free_pages);
                prop_assert_eq!(after.unusable_index(), info.unusable_index());
            }
        }

        #[test]
        fn no_count_makes_it_panic(
            runs in proptest::array::uniform19(any::<u64>()),
            of in 0_u8..=18,
            mark in any::<u64>(),
            threshold in any::<u64>(),
        ) {
            let info = ContigInfo::of(&runs, order(of));
            let _ = (info.fragmentation_index(), info.unusable_index(), info.score());
            let _ = suitability(&info, mark, threshold);
            let _ = weighted_score(mark, info.free_pages, info.free_runs);
        }
    }
}
