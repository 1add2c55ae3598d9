//! The free index: which split blocks have free runs. Each migrate type and order has a set of
//! block indices.
//!
//! Orders of memory: Relaxed, because all accesses are under the zone lock.

use crate::block::MigrateType;
use crate::block::bit_sets::{BitSets, Neighbours};
use crate::sync::in_place::write_fields;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use core::mem::MaybeUninit;

/// Orders of free runs in a split block: 0..=9. Order 9 means that every frame is free.
pub(crate) const ORDERS: usize = 10;
/// The number of sets.
const SETS: usize = ORDERS * MigrateType::COUNT;

/// See the module documentation. Changed under the zone lock only.
#[repr(C)]
pub(crate) struct FreeIndex {
    /// Per type, bit n says that the set of order n is not empty.
    occupied: [u16; MigrateType::COUNT],
    sets: BitSets,
}

/// Returns the number of words that all sets for `blocks` indices take.
pub(crate) const fn words_for(blocks: usize) -> usize {
    BitSets::words_for(SETS, blocks)
}

/// Returns the number of the set for a type and order.
const fn set_of(migrate_type: MigrateType, order: u8) -> usize {
    migrate_type as usize * ORDERS + order as usize
}

impl FreeIndex {
    /// Initialises sets in place that can have no members.
    pub(crate) fn write(place: &mut MaybeUninit<Self>) -> &mut Self {
        write_fields!(
            FreeIndex at place,
            { occupied: [0; MigrateType::COUNT] },
            { sets: BitSets::write },
        )
    }

    /// Sets up empty sets for `blocks` indices over [`words_for`] words of any content.
    pub(crate) fn attach(&mut self, words: &'static [AtomicU64], blocks: usize) {
        self.occupied = [0; MigrateType::COUNT];
        self.sets.attach(words, SETS, blocks);
    }

    /// Returns the smallest order, from `order` up, whose set of `migrate_type` is not empty.
    pub(crate) fn smallest(&self, migrate_type: MigrateType, order: u8) -> Option<u8> {
        let mask = self.occupied[migrate_type as usize] >> order;
        #[expect(clippy::cast_possible_truncation, reason = "at most sixteen bits")]
        let above = mask.trailing_zeros() as u8;
        (mask != 0).then_some(order + above)
    }

    fn is_empty(&self, migrate_type: MigrateType, order: u8) -> bool {
        self.occupied[migrate_type as usize] >> order & 1 == 0
    }

    /// Returns the aligned group of 64 blocks that holds the lowest member of a set: the first
    /// block of the group, and a bit for each block that is a member.
    pub(crate) fn lowest_members(
        &self,
        migrate_type: MigrateType,
        order: u8,
    ) -> Option<Neighbours> {
        if self.is_empty(migrate_type, order) {
            return None;
        }
        self.sets.lowest_members(set_of(migrate_type, order))
    }

    /// Removes members.
    pub(crate) fn remove_members(
        &mut self,
        migrate_type: MigrateType,
        order: u8,
        members: Neighbours,
    ) {
        if members.bits != 0 && self.sets.remove_members(set_of(migrate_type, order), members) {
            self.occupied[migrate_type as usize] &= !(1 << order);
        }
    }

    /// Returns the lowest member of a set.
    pub(crate) fn first(&self, migrate_type: MigrateType, order: u8) -> Option<u32> {
        if self.is_empty(migrate_type, order) {
            return None;
        }
        self.sets.member(set_of(migrate_type, order), |word, _| word.trailing_zeros())
    }

    /// Returns a member of a set, chosen by `random`.
    pub(crate) fn any(&self, migrate_type: MigrateType, order: u8, random: u64) -> Option<u32> {
        if self.is_empty(migrate_type, order) {
            return None;
        }
        self.sets.member(set_of(migrate_type, order), |word, level| {
            // The lowest set bit at or above a bit position that depends on the level, wrapping
            // round.
            let turn = (random >> (level * 6) & 63) as u32;
            (word.rotate_right(turn).trailing_zeros() + turn) % 64
        })
    }

    /// Finds the lowest block from `from` on that has a free run, and returns the first block of
    /// its aligned group of 64.
    pub(crate) fn next_near(&self, from: u32) -> Option<u32> {
        let sets = MigrateType::ALL.into_iter().flat_map(|kind| self.sets_of(kind));
        sets.filter_map(|set| self.sets.next(set, from)).min().map(|lowest| lowest & !63)
    }

    /// Returns which of the 64 blocks from `base` on have free runs and are of `migrate_type`.
    pub(crate) fn members_near(&self, migrate_type: MigrateType, base: u32) -> u64 {
        self.sets_of(migrate_type).fold(0, |all, set| all | self.sets.members(set, base))
    }

    /// Returns the sets of a type that are not empty.
    fn sets_of(&self, migrate_type: MigrateType) -> impl Iterator<Item = usize> {
        let occupied = self.occupied[migrate_type as usize];
        (0..16_u8)
            .filter(move |order| occupied >> order & 1 != 0)
            .map(move |order| set_of(migrate_type, order))
    }

    pub(crate) fn insert(&mut self, migrate_type: MigrateType, order: u8, block: u32) {
        self.sets.insert_members(set_of(migrate_type, order), Neighbours::new(block, 1));
        self.occupied[migrate_type as usize] |= 1 << order;
    }

    /// Removes a member.
    pub(crate) fn remove(&mut self, migrate_type: MigrateType, order: u8, block: u32) {
        self.remove_members(migrate_type, order, Neighbours::new(block, 1));
    }

    /// Words that mean nothing at the moment because some type has no block with a free run. If two
    /// such types are adjacent in [`MigrateType::ALL`] there are enough for half a word per two
    /// blocks, otherwise half as many; none if there is no such type. A caller that writes to the
    /// words must call [`end_scratch`](Self::end_scratch) afterwards.
    pub(crate) fn scratch(&self) -> &'static [AtomicU64] {
        // A bit for each type without a free run.
        let one = (0..).zip(self.occupied);
        let one = one.fold(0_u32, |all, (kind, orders)| all | u32::from(orders == 0) << kind);
        let two = one & one >> 1;
        let (found, types) = if two != 0 { (two, 2) } else { (one, usize::from(one != 0)) };
        let first = found.trailing_zeros() as usize % MigrateType::COUNT.next_power_of_two();
        self.sets.leaves(first * ORDERS, types * ORDERS)
    }

    /// Ends the use of the words of [`scratch`](Self::scratch), whose content means nothing again.
    pub(crate) fn end_scratch(&self, scratch: &[AtomicU64]) {
        // In sets of several levels only the top word is read before it is written.
        if self.sets.are_single_words() {
            scratch.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }

    /// Returns whether a block is a member of a set, for verification.
    pub(crate) fn contains(&self, migrate_type: MigrateType, order: u8, block: u32) -> bool {
        !self.is_empty(migrate_type, order)
            && self.sets.members(set_of(migrate_type, order), block & !63) >> (block % 64) & 1 != 0
    }

    /// Returns the number of members of one set, for verification.
    pub(crate) fn count(&self, migrate_type: MigrateType, order: u8) -> u64 {
        self.sets.count(set_of(migrate_type, order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    fn free_index(blocks: usize) -> FreeIndex {
        let words: Vec<AtomicU64> =
            (0..words_for(blocks)).map(|_| AtomicU64::new(0xdead_beef_dead_beef)).collect();
        let occupied = [0; MigrateType::COUNT];
        FreeIndex { occupied, sets: BitSets::new(words.leak(), SETS, blocks) }
    }

    #[test]
    fn there_is_scratch_memory_where_types_have_no_room() {
        for blocks in [64, 4097] {
            let mut index = free_index(blocks);
            assert!(!index.scratch().is_empty());
            for kind in [MigrateType::Movable, MigrateType::MovableOnly, MigrateType::Unmovable] {
                index.insert(kind, 3, 0);
            }
            // Those of Reclaimable and Isolate.
            assert!(index.scratch().len() * 4 >= blocks);
            index.scratch().iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
            index.end_scratch(index.scratch());
            for kind in MigrateType::ALL {
                let has_room = index.smallest(kind, 0).is_some();
                assert_eq!(index.members_near(kind, 0), u64::from(has_room), "{kind:?}");
            }
            let of_two = index.scratch().len();
            index.insert(MigrateType::Reclaimable, 3, 0);
            assert_eq!(index.scratch().len() * 2, of_two, "Isolate and Cma are not adjacent");
            index.remove(MigrateType::MovableOnly, 3, 0);
            assert_eq!(index.scratch().len(), of_two);
            for kind in MigrateType::ALL {
                index.insert(kind, 3, 0);
            }
            assert!(index.scratch().is_empty());
        }
    }

    #[test]
    fn sets_over_dirty_memory_behave_as_sets() {
        for blocks in [1, 63, 64, 65, 4096, 4097, 300_000] {
            let mut index = free_index(blocks);
            let mut model: BTreeSet<u32> = BTreeSet::new();
            let mut seed = 1_u64;
            for _ in 0..2000 {
                seed = seed
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let block = u32::try_from((seed >> 33) % blocks as u64).expect("small");
                if model.remove(&block) {
                    index.remove(MigrateType::Movable, 3, block);
                } else {
                    model.insert(block);
                    index.insert(MigrateType::Movable, 3, block);
                }
                assert_eq!(index.first(MigrateType::Movable, 3), model.first().copied());
                let any = index.any(MigrateType::Movable, 3, seed.wrapping_mul(seed));
                assert!(any.map_or(model.is_empty(), |member| model.contains(&member)));
                assert_eq!(index.smallest(MigrateType::Movable, 1).is_some(), !model.is_empty());
                if seed.is_multiple_of(50)
                    && let Some(Neighbours { base, bits: members }) =
                        index.lowest_members(MigrateType::Movable, 3)
                {
                    let near: Vec<u32> = (0..64)
                        .filter(|bit| members >> bit & 1 != 0)
                        .map(|bit| base + bit)
                        .collect();
                    assert!(
                        near.iter().eq(model.range(base..base + 64))
                            && near.first() == model.first()
                    );
                    index.remove_members(
                        MigrateType::Movable,
                        3,
                        Neighbours { base, bits: members & seed },
                    );
                    model
                        .retain(|block| !(near.contains(block) && seed >> (block - base) & 1 != 0));
                }
            }
            assert_eq!(index.count(MigrateType::Movable, 3), model.len() as u64);
            assert_eq!(index.first(MigrateType::Movable, 2), None);
            assert_eq!(index.smallest(MigrateType::Unmovable, 0), None);
        }
    }

    #[test]
    fn orders_and_types_do_not_mix() {
        let mut index = free_index(100);
        for (migrate_type, order, block) in
            [(MigrateType::Movable, 0, 5), (MigrateType::Reclaimable, 9, 7)]
        {
            index.insert(migrate_type, order, block);
        }
        assert_eq!(index.smallest(MigrateType::Movable, 0), Some(0));
        assert_eq!(index.smallest(MigrateType::Movable, 1), None);
        assert_eq!(index.smallest(MigrateType::Reclaimable, 0), Some(9));
        assert_eq!(index.first(MigrateType::Reclaimable, 9), Some(7));
        assert_eq!(index.first(MigrateType::Movable, 9), None);
    }
}
