//! Which split blocks have room: for every migrate type and order a set of block indices, as a bitmap of bitmaps.
//!
//! A word of a level is meaningful only while its bit in the level above is set, so that a set over uncleared memory is empty once its one
//! top word is zero. Finding the lowest member costs one word a level; lists of blocks cost a dependent miss a block and lose the order of
//! addresses that keeps whole blocks free (DESIGN 2).

use crate::block::MigrateType;
use crate::sync::table_atomic::{AtomicU64, Ordering};

/// Orders of free runs in a split block: 0..=9, the last when every frame is free.
pub(crate) const ORDERS: usize = 10;
/// Sets.
const SETS: usize = ORDERS * MigrateType::COUNT;
/// 64^6 exceeds every index.
const LEVELS: usize = 6;

/// See the module documentation. Changed under the zone lock only.
#[repr(C)]
pub(crate) struct Room {
    /// Per type, bit n says that the set of order n is not empty.
    occupied: [u16; MigrateType::COUNT],
    words: &'static [AtomicU64],
    shape: Shape,
}

/// Where words lie. The levels of all sets lie together, the top first, so that a zone that splits nothing touches one or two lines.
#[derive(Clone, Copy)]
struct Shape {
    /// Levels, leaves first: the first word of the first set, and words in a set.
    levels: [(usize, usize); LEVELS],
    depth: usize,
    total: usize,
}

impl Shape {
    const fn of(blocks: usize) -> Self {
        let (mut levels, mut depth, mut bits) = ([(0, 0); LEVELS], 0, blocks);
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
            total += levels[level].1 * SETS;
        }
        Self { levels, depth, total }
    }
}

/// Words that all sets for `blocks` indices take.
pub(crate) const fn words_for(blocks: usize) -> usize {
    Shape::of(blocks).total
}

impl Room {
    pub(crate) const EMPTY: Self = Self { words: &[], shape: Shape::of(0), occupied: [0; MigrateType::COUNT] };

    /// Empty sets for `blocks` indices over [`words_for`] words of any content.
    pub(crate) fn new(words: &'static [AtomicU64], blocks: usize) -> Self {
        let shape = Shape::of(blocks);
        let (top, per_set) = shape.levels[shape.depth - 1];
        for word in &words[top..top + per_set * SETS] {
            word.store(0, Ordering::Relaxed);
        }
        Self { words, shape, occupied: [0; MigrateType::COUNT] }
    }

    fn word(&self, set: usize, level: usize, index: usize) -> &AtomicU64 {
        let (first, per_set) = self.shape.levels[level];
        &self.words[first + set * per_set + index]
    }

    /// The smallest order from `order` up whose set of `migrate_type` is not empty.
    pub(crate) fn smallest(&self, migrate_type: MigrateType, order: u8) -> Option<u8> {
        let mask = self.occupied[migrate_type as usize] >> order;
        #[expect(clippy::cast_possible_truncation, reason = "at most sixteen bits")]
        let above = mask.trailing_zeros() as u8;
        (mask != 0).then_some(order + above)
    }

    /// The 64 blocks that the lowest member of a set is among: the first of them, and a bit for each that is a member.
    #[inline]
    pub(crate) fn lowest_members(&self, migrate_type: MigrateType, order: u8) -> Option<(u32, u64)> {
        let lowest = self.first(migrate_type, order)?;
        let set = migrate_type as usize * ORDERS + usize::from(order);
        Some((lowest & !63, self.word(set, 0, lowest as usize / 64).load(Ordering::Relaxed)))
    }

    /// Takes members out, given as [`lowest_members`](Self::lowest_members) gives them.
    pub(crate) fn remove_members(&mut self, migrate_type: MigrateType, order: u8, (base, mut members): (u32, u64)) {
        let set = migrate_type as usize * ORDERS + usize::from(order);
        let last = members.checked_ilog2();
        if let Some(last) = last {
            members &= !(1 << last);
            let word = self.word(set, 0, base as usize / 64);
            word.store(word.load(Ordering::Relaxed) & !members, Ordering::Relaxed);
            // The last one tells the levels above.
            self.remove(migrate_type, order, base + last);
        }
    }

    /// The lowest member of a set.
    pub(crate) fn first(&self, migrate_type: MigrateType, order: u8) -> Option<u32> {
        self.member(migrate_type, order, |word, _| word.trailing_zeros())
    }

    /// Some member of a set, by the bits of `chance`.
    pub(crate) fn any(&self, migrate_type: MigrateType, order: u8, chance: u64) -> Option<u32> {
        self.member(migrate_type, order, |word, level| {
            // The lowest bit at or above a place that depends on the level, going round.
            let turn = (chance >> (level * 6) & 63) as u32;
            (word.rotate_right(turn).trailing_zeros() + turn) % 64
        })
    }

    #[inline]
    fn member(&self, migrate_type: MigrateType, order: u8, choose: impl Fn(u64, usize) -> u32) -> Option<u32> {
        if self.occupied[migrate_type as usize] >> order & 1 == 0 {
            return None;
        }
        let set = migrate_type as usize * ORDERS + usize::from(order);
        let mut index = 0;
        for level in (0..self.shape.depth).rev() {
            let word = self.word(set, level, index).load(Ordering::Relaxed);
            index = index * 64 + choose(word, level) as usize;
        }
        u32::try_from(index).ok()
    }

    pub(crate) fn insert(&mut self, migrate_type: MigrateType, order: u8, block: u32) {
        let set = migrate_type as usize * ORDERS + usize::from(order);
        let mut valid = true;
        for level in (0..self.shape.depth).rev() {
            let bit = block as usize >> (6 * level);
            let word = self.word(set, level, bit / 64);
            let old = if valid { word.load(Ordering::Relaxed) } else { 0 };
            valid = old >> (bit % 64) & 1 != 0;
            word.store(old | 1 << (bit % 64), Ordering::Relaxed);
        }
        self.occupied[migrate_type as usize] |= 1 << order;
    }

    /// Takes a member out.
    pub(crate) fn remove(&mut self, migrate_type: MigrateType, order: u8, block: u32) {
        let set = migrate_type as usize * ORDERS + usize::from(order);
        for level in 0..self.shape.depth {
            let bit = block as usize >> (6 * level);
            let word = self.word(set, level, bit / 64);
            let left = word.load(Ordering::Relaxed) & !(1 << (bit % 64));
            word.store(left, Ordering::Relaxed);
            if left != 0 {
                return;
            }
        }
        self.occupied[migrate_type as usize] &= !(1 << order);
    }

    /// Words that mean nothing, because no block of these types, neighbours in [`MigrateType::ALL`], has room: half a word for every second block when there are at least
    /// two types. Empty when one has. Whoever writes there calls [`end_scratch`](Self::end_scratch).
    pub(crate) fn scratch(&self, types: &[MigrateType]) -> &'static [AtomicU64] {
        let Some(&first) = types.first().filter(|_| types.iter().all(|&kind| self.occupied[kind as usize] == 0)) else {
            return &[];
        };
        let (start, per_set) = self.shape.levels[0];
        let start = start + first as usize * ORDERS * per_set;
        &self.words[start..start + types.len() * ORDERS * per_set]
    }

    /// What stands in the words of [`scratch`](Self::scratch) means nothing again.
    pub(crate) fn end_scratch(&self, scratch: &[AtomicU64]) {
        // Of more levels only the top is looked at before it is written.
        if self.shape.depth == 1 {
            scratch.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }

    /// Members of one set, for verification.
    pub(crate) fn count(&self, migrate_type: MigrateType, order: u8) -> u64 {
        let set = migrate_type as usize * ORDERS + usize::from(order);
        self.count_below(set, self.shape.depth, 0)
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

    fn room(blocks: usize) -> Room {
        let words: Vec<AtomicU64> = (0..words_for(blocks)).map(|_| AtomicU64::new(0xdead_beef_dead_beef)).collect();
        Room::new(words.leak(), blocks)
    }

    #[test]
    fn sets_over_dirty_memory_behave_as_sets() {
        for blocks in [1, 63, 64, 65, 4096, 4097, 300_000] {
            let mut room = room(blocks);
            let mut model: BTreeSet<u32> = BTreeSet::new();
            let mut seed = 1_u64;
            for _ in 0..2000 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let block = u32::try_from((seed >> 33) % blocks as u64).expect("small");
                if model.remove(&block) {
                    room.remove(MigrateType::Movable, 3, block);
                } else {
                    model.insert(block);
                    room.insert(MigrateType::Movable, 3, block);
                }
                assert_eq!(room.first(MigrateType::Movable, 3), model.first().copied());
                let any = room.any(MigrateType::Movable, 3, seed.wrapping_mul(seed));
                assert!(any.map_or(model.is_empty(), |member| model.contains(&member)));
                assert_eq!(room.smallest(MigrateType::Movable, 1).is_some(), !model.is_empty());
                if seed.is_multiple_of(50)
                    && let Some((base, members)) = room.lowest_members(MigrateType::Movable, 3)
                {
                    let near: Vec<u32> = (0..64).filter(|bit| members >> bit & 1 != 0).map(|bit| base + bit).collect();
                    assert!(near.iter().eq(model.range(base..base + 64)) && near.first() == model.first());
                    room.remove_members(MigrateType::Movable, 3, (base, members & seed));
                    model.retain(|block| !(near.contains(block) && seed >> (block - base) & 1 != 0));
                }
            }
            assert_eq!(room.count(MigrateType::Movable, 3), model.len() as u64);
            assert_eq!(room.first(MigrateType::Movable, 2), None);
            assert_eq!(room.smallest(MigrateType::Unmovable, 0), None);
        }
    }

    #[test]
    fn orders_and_types_do_not_mix() {
        let mut room = room(100);
        for (migrate_type, order, block) in [(MigrateType::Movable, 0, 5), (MigrateType::Reclaimable, 9, 7)] {
            room.insert(migrate_type, order, block);
        }
        assert_eq!(room.smallest(MigrateType::Movable, 0), Some(0));
        assert_eq!(room.smallest(MigrateType::Movable, 1), None);
        assert_eq!(room.smallest(MigrateType::Reclaimable, 0), Some(9));
        assert_eq!(room.first(MigrateType::Reclaimable, 9), Some(7));
        assert_eq!(room.first(MigrateType::Movable, 9), None);
    }
}
