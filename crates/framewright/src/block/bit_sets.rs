//! Sets of block indices, each a hierarchy of bitmaps.
//!
//! A word of a level is meaningful only while its bit in the level above is set, so a set over
//! uncleared memory is empty once its one top word is zero. Finding the lowest member reads one
//! word per level. Linked lists would cost a dependent cache miss per block and would lose the
//! address order that keeps whole blocks free.
//!
//! Orders of memory: Relaxed everywhere. Words are written under the zone lock, or by whoever has
//! the memory alone, and the lock's Acquire and Release order these writes. Whatever is read
//! without the lock is a hint.

use crate::sync::in_place::write_fields;
use crate::sync::prefetch;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use core::mem::MaybeUninit;

/// 64^6 exceeds every index.
const LEVELS: usize = 6;

/// Some of the 64 neighbouring indices that share a word of a set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Neighbours {
    /// The first of the 64 indices, whether or not it is included.
    pub(crate) base: u32,
    /// A bit for each included index, the lowest bit for `base`.
    pub(crate) bits: u64,
}

impl Neighbours {
    /// Returns `count` indices from `index` on, which must share one word.
    pub(crate) const fn new(index: u32, count: u32) -> Self {
        Self { base: index & !63, bits: (u64::MAX >> (64 - count)) << (index & 63) }
    }

    /// Returns the lowest index.
    pub(crate) const fn first(self) -> u32 {
        self.base + self.bits.trailing_zeros()
    }

    /// Returns the number of indices.
    pub(crate) const fn count(self) -> u32 {
        self.bits.count_ones()
    }
}

/// Sets, numbered from 0. Changed under the zone lock only.
pub(crate) struct BitSets {
    words: &'static [AtomicU64],
    /// For each level, leaves first: the index of the first set's first word, and the number of
    /// words per set. The levels of all sets lie together, the top first, so that a zone with empty
    /// sets touches only one or two cache lines.
    levels: [(usize, usize); LEVELS],
    depth: usize,
}

impl BitSets {
    /// Initialises sets in place that can have no members.
    pub(crate) fn write(place: &mut MaybeUninit<Self>) -> &mut Self {
        write_fields!(Self at place, { words: &[], levels: [(0, 0); LEVELS], depth: 1 }, {})
    }

    /// Lays out the levels of `sets` sets for `blocks` indices. Returns the number of levels and of
    /// words.
    const fn lay_out(
        levels: &mut [(usize, usize); LEVELS],
        sets: usize,
        blocks: usize,
    ) -> (usize, usize) {
        let (mut depth, mut bits) = (0, blocks);
        loop {
            let words = bits.div_ceil(64);
            levels[depth].1 = words;
            depth += 1;
            if words <= 1 || depth == LEVELS {
                break;
            }
            bits = words;
        }
        let (mut total, mut level) = (0, depth);
        while level > 0 {
            level -= 1;
            levels[level].0 = total;
            total += levels[level].1 * sets;
        }
        (depth, total)
    }

    /// Returns the number of words that `sets` sets for `blocks` indices take.
    pub(crate) const fn words_for(sets: usize, blocks: usize) -> usize {
        Self::lay_out(&mut [(0, 0); LEVELS], sets, blocks).1
    }

    /// Sets up `sets` empty sets for `blocks` indices over [`words_for`](Self::words_for) words of
    /// any content.
    #[inline(never)]
    pub(crate) fn attach(&mut self, words: &'static [AtomicU64], sets: usize, blocks: usize) {
        self.words = words;
        (self.depth, _) = Self::lay_out(&mut self.levels, sets, blocks);
        let (top, per_set) = self.levels[self.depth - 1];
        for word in &words[top..top + per_set * sets] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Returns new sets, [attached](Self::attach) to `words`.
    #[cfg(test)]
    pub(crate) fn new(words: &'static [AtomicU64], count: usize, blocks: usize) -> Self {
        let mut sets = Self { words, levels: [(0, 0); LEVELS], depth: 1 };
        sets.attach(words, count, blocks);
        sets
    }

    fn word(&self, set: usize, level: usize, index: usize) -> &AtomicU64 {
        let (first, per_set) = self.levels[level];
        &self.words[first + set * per_set + index]
    }

    /// Prefetches the leaf of an index, which is to be written soon.
    pub(crate) fn prefetch(&self, set: usize, index: u32) {
        prefetch(self.word(set, 0, index as usize / 64));
    }

    /// Returns a member of a set that is not empty. At each level `choose` picks a set bit of the
    /// word, given the word and its level.
    pub(crate) fn member(&self, set: usize, choose: impl Fn(u64, usize) -> u32) -> Option<u32> {
        let mut index = 0;
        for level in (0..self.depth).rev() {
            let word = self.word(set, level, index).load(Ordering::Relaxed);
            index = index * 64 + choose(word, level) as usize;
        }
        u32::try_from(index).ok()
    }

    /// Returns the lowest member from `from` on of a set that is not empty.
    pub(crate) fn next(&self, set: usize, from: u32) -> Option<u32> {
        let from = from as usize;
        // Where to leave the path to `from` for higher indices, as low as possible: a level and a
        // place in it.
        let mut turn = None;
        for level in (0..self.depth).rev() {
            let place = from >> (6 * level);
            if place / 64 >= self.levels[level].1 {
                break;
            }
            let above = self.word(set, level, place / 64).load(Ordering::Relaxed) >> (place % 64);
            if level == 0 && above != 0 {
                return u32::try_from(place + above.trailing_zeros() as usize).ok();
            }
            if above & !1 != 0 {
                turn = Some((level, place + (above & !1).trailing_zeros() as usize));
            }
            if above & 1 == 0 {
                break;
            }
        }
        let (level, place) = turn?;
        let lowest = (0..level).rev().fold(place, |place, level| {
            let word = self.word(set, level, place).load(Ordering::Relaxed);
            place * 64 + word.trailing_zeros() as usize
        });
        u32::try_from(lowest).ok()
    }

    /// Returns the aligned group of 64 indices that holds the lowest member of a set that is not
    /// empty: the first index of the group, and a bit for each index that is a member.
    pub(crate) fn lowest_members(&self, set: usize) -> Option<Neighbours> {
        let lowest = self.member(set, |word, _| word.trailing_zeros())?;
        let bits = self.word(set, 0, lowest as usize / 64).load(Ordering::Relaxed);
        Some(Neighbours { base: lowest & !63, bits })
    }

    /// Returns which of the 64 indices from `base` on are members.
    pub(crate) fn members(&self, set: usize, base: u32) -> u64 {
        for level in (1..self.depth).rev() {
            let bit = base as usize >> (6 * level);
            if self.word(set, level, bit / 64).load(Ordering::Relaxed) >> (bit % 64) & 1 == 0 {
                return 0;
            }
        }
        self.word(set, 0, base as usize / 64).load(Ordering::Relaxed)
    }

    /// Returns whether the leaf of `base` is meaningful. It does not branch per level, as the words
    /// do not depend on one another.
    fn has_leaf(&self, set: usize, base: u32) -> bool {
        let bit = |level: usize| {
            let bit = base as usize >> (6 * level);
            self.word(set, level, bit / 64).load(Ordering::Relaxed) >> (bit % 64)
        };
        (1..self.depth).fold(1, |all, level| all & bit(level)) & 1 != 0
    }

    /// Inserts indices. Returns which of the word's 64 indices were members before.
    #[cfg_attr(feature = "smp", inline)]
    #[cfg_attr(not(feature = "smp"), inline(never))]
    pub(crate) fn insert_members(&self, set: usize, members: Neighbours) -> u64 {
        let Neighbours { base, bits } = members;
        if !self.has_leaf(set, base) {
            self.make_leaf(set, base);
        }
        let word = self.word(set, 0, base as usize / 64);
        let old = word.load(Ordering::Relaxed);
        word.store(old | bits, Ordering::Relaxed);
        old
    }

    /// Makes the leaf of `base` meaningful and empty.
    #[cold]
    #[inline(never)]
    fn make_leaf(&self, set: usize, base: u32) {
        let mut valid = true;
        for level in (1..self.depth).rev() {
            let bit = base as usize >> (6 * level);
            let word = self.word(set, level, bit / 64);
            let old = if valid { word.load(Ordering::Relaxed) } else { 0 };
            valid = old >> (bit % 64) & 1 != 0;
            word.store(old | 1 << (bit % 64), Ordering::Relaxed);
        }
        self.word(set, 0, base as usize / 64).store(0, Ordering::Relaxed);
    }

    /// Removes members. Returns whether the set is empty afterwards.
    pub(crate) fn remove_members(&self, set: usize, members: Neighbours) -> bool {
        let Neighbours { base, bits } = members;
        let mut gone = bits;
        for level in 0..self.depth {
            let word = self.word(set, level, base as usize >> (6 * level) >> 6);
            let left = word.load(Ordering::Relaxed) & !gone;
            word.store(left, Ordering::Relaxed);
            if left != 0 {
                return false;
            }
            gone = 1 << (base >> (6 * (level + 1)) & 63);
        }
        true
    }

    /// Returns the leaves of `count` sets from `first` on.
    pub(crate) fn leaves(&self, first: usize, count: usize) -> &'static [AtomicU64] {
        let (start, per_set) = self.levels[0];
        let start = start + first * per_set;
        &self.words[start..start + count * per_set]
    }

    /// Returns whether each set is a single word. Such a word is the top level, so it is read
    /// before it is written.
    pub(crate) const fn are_single_words(&self) -> bool {
        self.depth == 1
    }

    /// Returns the number of members of a set, for verification.
    pub(crate) fn count(&self, set: usize) -> u64 {
        self.count_below(set, self.depth, 0)
    }

    fn count_below(&self, set: usize, level: usize, index: usize) -> u64 {
        let Some(level) = level.checked_sub(1) else { return 1 };
        let mut word = self.word(set, level, index).load(Ordering::Relaxed);
        let mut members = 0;
        while word != 0 {
            members += self.count_below(set, level, index * 64 + word.trailing_zeros() as usize);
            word &= word - 1;
        }
        members
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    #[test]
    fn words_of_members_over_dirty_memory_behave_as_a_set() {
        for blocks in [1, 63, 64, 65, 4096, 4097, 300_000] {
            let count = BitSets::words_for(2, blocks);
            let words: Vec<AtomicU64> =
                (0..count).map(|_| AtomicU64::new(0xdead_beef_dead_beef)).collect();
            let sets = BitSets::new(words.leak(), 2, blocks);
            let mut model: BTreeSet<u32> = BTreeSet::new();
            let mut seed = 1_u64;
            for _ in 0..2000 {
                seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let base = u32::try_from((seed >> 33) % blocks as u64).expect("small") & !63;
                let inside = (blocks as u64 - u64::from(base)).min(64);
                let bits = (seed.rotate_left(17) & seed) & (u64::MAX >> (64 - inside));
                let before = sets.members(1, base);
                let near: Vec<u32> = model.range(base..base + 64).copied().collect();
                assert!(
                    (0..64)
                        .filter(|bit| before >> bit & 1 != 0)
                        .map(|bit| base + bit)
                        .eq(near.iter().copied())
                );
                if bits == 0 {
                    continue;
                }
                let named = |bits: u64| {
                    (0..64).filter(move |bit| bits >> bit & 1 != 0).map(move |bit| base + bit)
                };
                if seed >> 20 & 1 == 0 || model.is_empty() {
                    assert_eq!(sets.insert_members(1, Neighbours { base, bits }), before);
                    model.extend(named(bits));
                } else if before & bits != 0 {
                    model.retain(|&index| !named(bits).any(|gone| gone == index));
                    assert_eq!(sets.remove_members(1, Neighbours { base, bits }), model.is_empty());
                }
                if let Some(&lowest) = model.first() {
                    assert_eq!(sets.lowest_members(1).map(|found| found.base), Some(lowest & !63));
                }
                if !model.is_empty() {
                    let from = u32::try_from((seed >> 13) % (blocks as u64 + 70)).expect("small");
                    assert_eq!(sets.next(1, from), model.range(from..).next().copied());
                }
                assert_eq!(sets.count(1), model.len() as u64);
                assert_eq!(sets.count(0), 0);
            }
        }
    }
}
