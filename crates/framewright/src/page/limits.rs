//! How much a CPU keeps for itself: at most an eighth of its share of the zones that it keeps
//! frames of, so that all CPUs of a node together keep at most an eighth of the node.
//!
//! As Linux does (`zone_highsize` in `mm/page_alloc.c`), the share is what the zones have over the
//! CPUs that use them: the more CPUs, the less each keeps. Where there is plenty, stacks are as
//! large as pays ([`MOST`]). Where their sum is above the eighth all shrink alike, and where not
//! even two words each are left, the orders that come and go most have theirs first, and the others
//! go past the cache.

use super::near::{LOTS, Lot};
use super::words::WORD_ORDERS as WORDS;
use crate::units::BLOCK_ORDER;

/// Orders that come by the word: 0..=3.
pub(super) const WORD_ORDERS: usize = WORDS as usize;
/// Orders that are cached: 0..=9.
pub(super) const ORDERS: usize = BLOCK_ORDER as usize + 1;
/// Stacks: one for each order and lot, the lots of an order side by side.
pub(super) const STACKS: usize = ORDERS * LOTS;
/// The model checkers have tiny caches: what a full one does is reached in few steps, and their
/// machines are so small that a share is all of the zone's part.
pub(super) const TINY: bool = cfg!(any(loom, shuttle));
/// All stacks together keep at most one part in so many of the CPU's share: Linux's
/// `MIN_PERCPU_PAGELIST_HIGH_FRACTION`.
const PART_OF_SHARE: u64 = if TINY { 1 } else { 8 };
/// A stack keeps at most one part in so many of the share. Single pages and whole blocks come and
/// go most.
const fn parts(order: usize, lot: usize) -> u64 {
    match (order, lot) {
        _ if TINY => 1,
        (0 | BLOCK, MOVABLE) => 32,
        (HALF, MOVABLE) => 128,
        (_, MOVABLE | BACK) => 256,
        _ => 1024,
    }
}
const HALF: usize = BLOCK - 1;
pub(super) const BLOCK: usize = BLOCK_ORDER as usize;
pub(super) const MOVABLE: usize = Lot::MOVABLE.index();
const BACK: usize = Lot::BACK.index();
/// The stack of movable whole blocks.
pub(super) const BLOCKS: usize = BLOCK * LOTS + MOVABLE;
/// Most entries, by order and lot: unmovable, movable, reclaimable, to go back.
pub(super) const MOST: [[usize; LOTS]; ORDERS] = if TINY {
    let (words, runs) = ([3, 3, 3, 2], [4, 4, 4, 0]);
    [words, words, words, words, runs, runs, runs, runs, runs, runs]
} else {
    let (words, runs) = ([8, 32, 8, 16], [4, 16, 4, 0]);
    let (single, half, block) =
        ([16, 384, 16, MOST_WORDS], [4, MOST_RUNS, 4, 0], [4, MOST_BLOCKS_IN_BULK, 4, 0]);
    [single, words, words, words, runs, runs, runs, runs, half, block]
};
/// Most whole blocks, as long as they neither come nor go in bulk.
const MOST_BLOCKS: u32 = 64;
/// Most whole blocks when they do.
const MOST_BLOCKS_IN_BULK: usize = 96;
/// The most runs that any stack has of less than whole blocks.
pub(crate) const MOST_RUNS: usize = 32;
/// The most words that go back together.
pub(crate) const MOST_WORDS: usize = 56;
/// The most blocks that go back together: three quarters of a stack, so that some stay for
/// requests.
pub(crate) const MOST_RETURNED: usize = MOST_BLOCKS_IN_BULK / 4 * 3;
const _: () = assert!(MOST_WORDS <= MOST_RETURNED && MOST_RUNS <= MOST_RETURNED);
/// What a stack of words has at least, where the eighth allows it: one to take from, one to put to.
const LEAST_WORDS: u64 = 2;
/// Runs that are no power of two: one part in so many, and that many pages at least.
const ODD_PARTS: u64 = 128;
const LEAST_ODD_PAGES: u64 = 8;

/// How much a CPU keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// Entries, by stack.
    pub(super) entries: [u32; STACKS],
    /// Movable whole blocks while they come or go in bulk.
    pub(super) blocks_in_bulk: u32,
    /// Pages of runs that are no power of two.
    pub(super) odd_pages: u32,
}

/// The order of a stack.
pub(super) const fn order_of(stack: usize) -> usize {
    stack / LOTS
}

/// Pages of a full entry of a stack.
const fn entry_pages(stack: usize) -> u64 {
    match order_of(stack) {
        order if order < WORD_ORDERS => 64,
        order => 1 << order,
    }
}

/// What the limit of a stack comes from.
struct Rule {
    /// The part of the share that it may have, in this many halves.
    share_shift: u8,
    halves: u8,
    /// The pages of an entry.
    entry_shift: u8,
    most_pages: u32,
}

#[expect(clippy::cast_possible_truncation, reason = "few entries")]
static RULES: [Rule; STACKS] = {
    const fn byte(of: u32) -> u8 {
        of as u8
    }
    let mut rules =
        [const { Rule { share_shift: 0, halves: 0, most_pages: 0, entry_shift: 0 } }; STACKS];
    let mut stack = 0;
    while stack < STACKS {
        let (order, lot) = (order_of(stack), stack % LOTS);
        let (parts, entry_pages) = (parts(order, lot), entry_pages(stack));
        assert!(parts.is_power_of_two() && entry_pages.is_power_of_two());
        rules[stack] = Rule {
            share_shift: byte(parts.ilog2()),
            halves: if stack == BLOCKS { 3 } else { 2 },
            entry_shift: byte(entry_pages.ilog2()),
            most_pages: MOST[order][lot] as u32 * (1 << entry_pages.ilog2()),
        };
        stack += 1;
    }
    rules
};

/// From so many pages on a share is plenty: what would pay is within the eighth. What would pay
/// grows ever more slowly, so that this stays so.
const PLENTY_PAGES: u64 = {
    const STEP: u64 = 1 << 16;
    let mut share = STEP;
    while what_pays(share) > share / PART_OF_SHARE {
        share += STEP;
    }
    share
};

/// What would pay all stacks of a share together, in pages.
const fn what_pays(share_pages: u64) -> u64 {
    let (mut sum, mut stack) = (odd_pages(share_pages), 0);
    while stack < STACKS {
        sum += RULES[stack].pays(share_pages);
        stack += 1;
    }
    sum
}

/// What would pay of runs that are no power of two.
const fn odd_pages(share_pages: u64) -> u64 {
    least(share_pages / ODD_PARTS, super::odd::MOST_PAGES)
}

const fn least(one: u64, other: u64) -> u64 {
    if one < other { one } else { other }
}

impl Rule {
    /// What would pay, in pages; of blocks, while they come or go in bulk.
    #[inline]
    const fn pays(&self, share_pages: u64) -> u64 {
        let pays = (share_pages >> self.share_shift) * self.halves as u64 / 2;
        least(pays, self.most_pages as u64)
    }
}

/// Of so many whole blocks that are kept while they come or go in bulk: two thirds. The tiny caches
/// of model checkers do not grow.
const fn usual_blocks(in_bulk: u32) -> u32 {
    let usual = if TINY { in_bulk } else { in_bulk - in_bulk / 3 };
    if usual < MOST_BLOCKS { usual } else { MOST_BLOCKS }
}

impl Limits {
    /// Nothing.
    pub(crate) const NONE: Self = Self { entries: [0; STACKS], blocks_in_bulk: 0, odd_pages: 0 };

    /// For a CPU whose share of its zones is so many pages.
    pub(crate) fn of_share(share_pages: u64) -> Self {
        Self::of_share_if(share_pages, !TINY && share_pages >= PLENTY_PAGES)
    }

    /// [`of_share`](Self::of_share), where it is known whether the share is plenty: then what would
    /// pay need not be added up, as all of it may be.
    #[expect(clippy::cast_possible_truncation, reason = "no more than in `MOST`")]
    #[inline]
    fn of_share_if(share_pages: u64, is_plenty: bool) -> Self {
        let budget = share_pages / PART_OF_SHARE;
        let sum = if is_plenty { 0 } else { what_pays(share_pages) };
        // All alike. Where that is to be done no product is large.
        let scaled = |pages: u64| {
            if TINY || sum <= budget { pages } else { pages * budget / sum.max(1) }
        };
        let mut limits = Self::NONE;
        let mut odd = scaled(odd_pages(share_pages));
        let mut used = odd;
        for (entries, rule) in limits.entries.iter_mut().zip(&RULES) {
            *entries = (scaled(rule.pays(share_pages)) >> rule.entry_shift) as u32;
            used += u64::from(*entries) << rule.entry_shift;
        }
        if !is_plenty {
            // Even the smallest zone has a few pages.
            let mut left = if TINY { u64::MAX } else { budget.saturating_sub(used) };
            let words = WORD_ORDERS * LOTS;
            for (entries, most) in limits.entries.iter_mut().zip(MOST.as_flattened()).take(words) {
                let wanted = LEAST_WORDS.min(*most as u64).saturating_sub(u64::from(*entries));
                let more = wanted.min(left / 64);
                *entries += more as u32;
                left -= more * 64;
            }
            odd += LEAST_ODD_PAGES.saturating_sub(odd).min(left);
        }
        limits.odd_pages = odd as u32;
        limits.blocks_in_bulk = limits.entries[BLOCKS];
        limits.entries[BLOCKS] = usual_blocks(limits.blocks_in_bulk);
        limits
    }

    /// Movable whole blocks, usually and while they come or go in bulk.
    pub(super) const fn blocks(&self) -> [u32; 2] {
        [self.entries[BLOCKS], self.blocks_in_bulk]
    }

    /// How many pages that is at most.
    #[cfg(test)]
    fn pages(&self) -> u64 {
        let stacks = self.entries.iter().enumerate();
        let usual: u64 = stacks.map(|(at, &entries)| u64::from(entries) * entry_pages(at)).sum();
        let in_bulk = u64::from(self.blocks_in_bulk - self.entries[BLOCKS]) << BLOCK_ORDER;
        usual + in_bulk + u64::from(self.odd_pages)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn no_share_is_exceeded() {
        let shares = (0..3000).chain((10..44).flat_map(|bits| {
            let share = 1_u64 << bits;
            [share - 1, share, share + share / 3]
        }));
        for share in shares.chain([u64::MAX]) {
            let limits = Limits::of_share(share);
            assert!(limits.pages() <= share / 8, "{share}: {limits:?}");
            let most = MOST.as_flattened();
            assert!(limits.entries.iter().zip(most).all(|(&is, &most)| is as usize <= most));
        }
    }

    #[test]
    fn plenty_is_the_same_in_fewer_instructions() {
        const { assert!(PLENTY_PAGES < 1 << 20) };
        let more = (0..3000).map(|step| PLENTY_PAGES + step * step * 7);
        for share in more.chain((20..64).map(|bits| 1 << bits)).chain([u64::MAX]) {
            let [plenty, any] = [true, false].map(|plenty| Limits::of_share_if(share, plenty));
            assert_eq!(plenty, any, "{share}");
        }
    }

    #[test]
    fn what_comes_and_goes_most_is_kept_first() {
        // Two words, one, none: of single pages first.
        let entries = |share| Limits::of_share(share).entries;
        assert_eq!(entries(8 * 63), [0; STACKS]);
        assert_eq!(entries(8 * 68)[..4], [1, 0, 0, 0]);
        let small = entries(8 * 64 * 9);
        assert_eq!((&small[..4], &small[4..]), (&[2, 2, 2, 2][..], &[0; STACKS - 4][..]));
        // 128 MiB: two words of orders 0 to 2 each, and a block.
        let share = entries(32 << 10);
        assert!(share[..12].iter().all(|&words| words >= 2) && share[BLOCKS] >= 1, "{share:?}");
    }

    #[test]
    fn with_plenty_stacks_are_as_large_as_pays() {
        let limits = Limits::of_share(1 << 30);
        let most = MOST.as_flattened().iter().map(|&most| u32::try_from(most).expect("few"));
        let most: Vec<u32> = most.collect();
        let expected: Vec<u32> =
            (0..STACKS).map(|at| if at == BLOCKS { 64 } else { most[at] }).collect();
        assert_eq!((limits.entries.to_vec(), limits.blocks_in_bulk), (expected, 96));
    }
}
