//! How much a CPU's cache keeps: at most an eighth of the CPU's share of the zones that the cache
//! serves, so that all CPUs of a node together keep at most an eighth of the node.
//!
//! As in Linux (`zone_highsize` in `mm/page_alloc.c`), the share is the size of the zones divided
//! by the number of CPUs that use them: the more CPUs, the less each keeps. Where memory is
//! plentiful, stacks are as large as is worthwhile ([`MOST`]). If their sum exceeds the eighth, all
//! shrink in proportion. If there is not even room for two words in each stack, the orders that are
//! used most get theirs first, and the others bypass the cache.

use crate::block::Lot;
use crate::block::lots::WORD_ORDERS as WORDS;
use crate::units::BLOCK_ORDER;

/// The orders that are cached by the word: 0..=3.
pub(super) const WORD_ORDERS: usize = WORDS as usize;
/// The orders that are cached: 0..=9.
pub(super) const ORDERS: usize = BLOCK_ORDER as usize + 1;
/// The number of stacks: one for each order and lot, the lots of an order side by side.
pub(super) const STACKS: usize = ORDERS * Lot::COUNT;
/// Under the model checkers caches are tiny, so that few steps fill one. Their machines are so
/// small that a share is all of the zone's part.
pub(super) const TINY: bool = cfg!(any(loom, shuttle));
/// All stacks together keep at most the CPU's share divided by this (Linux:
/// `MIN_PERCPU_PAGELIST_HIGH_FRACTION`).
const PART_OF_SHARE: u64 = if TINY { 1 } else { 8 };
/// Returns by what the share is divided for the limit of a stack. Single pages and whole blocks are
/// used most.
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
pub(super) const BLOCKS: usize = BLOCK * Lot::COUNT + MOVABLE;
/// The most entries by order and lot; the lots are unmovable, movable, reclaimable and to go back.
pub(super) const MOST: [[usize; Lot::COUNT]; ORDERS] = if TINY {
    let (words, runs) = ([3, 3, 3, 2], [4, 4, 4, 0]);
    [words, words, words, words, runs, runs, runs, runs, runs, runs]
} else {
    let (words, runs) = ([8, 32, 8, 16], [4, 16, 4, 0]);
    let (single, half, block) =
        ([16, 384, 16, MOST_WORDS], [4, MOST_RUNS, 4, 0], [4, MOST_BLOCKS_IN_BULK, 4, 0]);
    [single, words, words, words, runs, runs, runs, runs, half, block]
};
/// The most whole blocks, as long as they are neither allocated nor freed in bulk.
const MOST_BLOCKS: u32 = 64;
/// The most whole blocks while they are.
const MOST_BLOCKS_IN_BULK: usize = 96;
/// The most runs in any stack of runs smaller than a block.
pub(crate) const MOST_RUNS: usize = 32;
/// The most words that are returned together.
pub(crate) const MOST_WORDS: usize = 56;
/// The most blocks that are returned together: three quarters of a stack, so that some stay for
/// requests.
pub(crate) const MOST_RETURNED: usize = MOST_BLOCKS_IN_BULK / 4 * 3;
const _: () = assert!(MOST_WORDS <= MOST_RETURNED && MOST_RUNS <= MOST_RETURNED);
/// The least that a stack of words holds, where the eighth allows it: one word to take from and one
/// to put into.
const LEAST_WORDS: u64 = 2;
/// For runs whose length is not a power of two: what the share is divided by, and the least number
/// of pages.
const ODD_PARTS: u64 = 128;
const LEAST_ODD_PAGES: u64 = 8;

/// How much a CPU's cache keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// The most entries of each stack.
    pub(super) entries: [u32; STACKS],
    /// The most movable whole blocks while they are allocated or freed in bulk.
    pub(super) blocks_in_bulk: u32,
    /// The most pages of runs whose length is not a power of two.
    pub(super) odd_pages: u32,
}

/// Returns the order of a stack.
pub(super) const fn order_of(stack: usize) -> usize {
    stack / Lot::COUNT
}

/// Returns the number of pages in a full entry of a stack.
const fn entry_pages(stack: usize) -> u64 {
    match order_of(stack) {
        order if order < WORD_ORDERS => 64,
        order => 1 << order,
    }
}

/// The parameters from which the limit of a stack is computed.
struct Rule {
    /// The limit of the stack is the share shifted right by this, times `halves` halves.
    share_shift: u8,
    halves: u8,
    /// The binary logarithm of the number of pages in an entry.
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
        let (order, lot) = (order_of(stack), stack % Lot::COUNT);
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

/// From this many pages on a share is plentiful: all worthwhile limits together fit into the
/// eighth. They do so for every larger share, because they grow ever more slowly than the share.
const PLENTY_PAGES: u64 = {
    const STEP: u64 = 1 << 16;
    let mut share = STEP;
    while what_pays(share) > share / PART_OF_SHARE {
        share += STEP;
    }
    share
};

/// Returns the worthwhile limits of all stacks together, in pages.
const fn what_pays(share_pages: u64) -> u64 {
    let (mut sum, mut stack) = (odd_pages(share_pages), 0);
    while stack < STACKS {
        sum += RULES[stack].pays(share_pages);
        stack += 1;
    }
    sum
}

/// Returns the worthwhile limit for runs whose length is not a power of two, in pages.
const fn odd_pages(share_pages: u64) -> u64 {
    least(share_pages / ODD_PARTS, super::odd::MOST_PAGES)
}

const fn least(one: u64, other: u64) -> u64 {
    if one < other { one } else { other }
}

impl Rule {
    /// Returns the stack's worthwhile limit in pages; for blocks, the one in bulk.
    #[inline]
    const fn pays(&self, share_pages: u64) -> u64 {
        let pays = (share_pages >> self.share_shift) * self.halves as u64 / 2;
        least(pays, self.most_pages as u64)
    }
}

/// Returns the usual limit of whole blocks: two thirds of the one in bulk. The tiny caches of model
/// checkers do not grow in bulk.
const fn usual_blocks(in_bulk: u32) -> u32 {
    let usual = if TINY { in_bulk } else { in_bulk - in_bulk / 3 };
    if usual < MOST_BLOCKS { usual } else { MOST_BLOCKS }
}

impl Limits {
    /// Limits that keep nothing.
    pub(crate) const NONE: Self = Self { entries: [0; STACKS], blocks_in_bulk: 0, odd_pages: 0 };

    /// Returns the limits of a CPU whose share of its zones is `share_pages`.
    pub(crate) fn of_share(share_pages: u64) -> Self {
        Self::of_share_if(share_pages, !TINY && share_pages >= PLENTY_PAGES)
    }

    /// [`of_share`](Self::of_share) where it is known whether the share is plentiful. If it is, the
    /// worthwhile limits need not be added up, because all of them fit.
    #[expect(clippy::cast_possible_truncation, reason = "no more than in `MOST`")]
    #[inline]
    fn of_share_if(share_pages: u64, is_plenty: bool) -> Self {
        let mut limits = Self::NONE;
        let mut odd = odd_pages(share_pages);
        if is_plenty {
            for (entries, rule) in limits.entries.iter_mut().zip(&RULES) {
                *entries = (rule.pays(share_pages) >> rule.entry_shift) as u32;
            }
        } else {
            let budget = share_pages / PART_OF_SHARE;
            let sum = what_pays(share_pages);
            // All shrink in proportion. The products stay small wherever this happens.
            let scaled = |pages: u64| {
                if TINY || sum <= budget { pages } else { pages * budget / sum.max(1) }
            };
            odd = scaled(odd);
            let mut used = odd;
            for (entries, rule) in limits.entries.iter_mut().zip(&RULES) {
                *entries = (scaled(rule.pays(share_pages)) >> rule.entry_shift) as u32;
                used += u64::from(*entries) << rule.entry_shift;
            }
            // Even the smallest share keeps a few pages, while the eighth has room.
            let mut left = if TINY { u64::MAX } else { budget.saturating_sub(used) };
            let words = WORD_ORDERS * Lot::COUNT;
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

    /// Returns the limits of movable whole blocks: the usual one and the one in bulk.
    pub(super) const fn blocks(&self) -> [u32; 2] {
        [self.entries[BLOCKS], self.blocks_in_bulk]
    }

    /// Returns how many pages the limits allow at most.
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
