//! Free blocks of 2 MiB that nobody has merged yet.
//!
//! Merging at once costs every second free a removal from a list and an insertion, and the next
//! request takes what was merged apart again. So a movable block that comes back is a bit in a set
//! and nothing else: its entry goes on saying that it is allocated, as if a CPU had it in its
//! cache, and it counts as free. Requests for one block take the lowest bit. 64 neighbours that are
//! all loose are one free block of 128 MiB at once; what else is loose is *settled*, which is
//! merged and put into the lists, when somebody wants more than one block or looks at what is free
//! (`Zone::lock_coalesced`).

use super::bit_sets::{BitSets, neighbours};
use super::buddy;
use super::lists::FreeLists;
use super::segment::{self, Segment};
use super::state::{BlockState, MigrateType, State};
use super::table::{BlockTable, blocks_of};
use crate::sync::table_atomic::AtomicU64;
use crate::units::{BLOCK_ORDER, Order, PAGES_PER_BLOCK};
use core::ops::Range;

/// What the entry of each loose block says, so that nobody has to write it there.
pub(crate) const MERGE_DEFERRED: BlockState =
    BlockState::head(State::Whole, Order::BLOCK, MigrateType::Movable);

/// See the module documentation. Changed under the zone lock only.
pub(crate) struct DeferredMerges {
    set: BitSets<1>,
    blocks: u32,
}

/// Words that the set for `blocks` indices takes.
pub(crate) const fn words_for(blocks: usize) -> usize {
    BitSets::<1>::words_for(blocks)
}

impl DeferredMerges {
    pub(crate) const EMPTY: Self = Self { set: BitSets::EMPTY, blocks: 0 };

    /// No loose block of `blocks` indices, over [`words_for`] words of any content.
    pub(crate) fn new(words: &'static [AtomicU64], blocks: usize) -> Self {
        Self { set: BitSets::new(words, blocks), blocks: 0 }
    }

    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// Their frames.
    #[inline]
    pub(crate) const fn pages(&self) -> u64 {
        self.blocks as u64 * PAGES_PER_BLOCK
    }

    /// Asks for the word that a block is inserted into. Of use under the lock only: until then it
    /// is somebody else's, who would have to fetch it back.
    #[inline]
    pub(crate) fn prefetch(&self, index: u32) {
        self.set.prefetch(0, index);
    }

    /// Whether a block is loose.
    #[inline]
    pub(crate) fn contains(&self, index: u32) -> bool {
        let (base, bit) = neighbours(index, 1);
        self.blocks != 0 && self.set.members(0, base) & bit != 0
    }

    /// Loose blocks, counted one by one.
    pub(crate) fn count(&self) -> u64 {
        if self.blocks == 0 { 0 } else { self.set.count(0) }
    }

    /// Puts blocks in, given as [`neighbours`] gives them. Returns all of the 64 that are loose
    /// then; nothing, and nothing is changed, when one of them was before.
    #[inline]
    pub(crate) fn insert(&mut self, (base, bits): (u32, u64)) -> Option<u64> {
        let before = self.set.insert_members(0, (base, bits));
        if before & bits != 0 {
            return self.undo((base, bits & !before));
        }
        self.blocks += bits.count_ones();
        Some(before | bits)
    }

    /// The same for one block, which is not counted bit by bit.
    #[inline]
    fn insert_one(&mut self, index: u32) -> Option<u64> {
        let block = neighbours(index, 1);
        let before = self.set.insert_members(0, block);
        if before & block.1 != 0 {
            return None;
        }
        self.blocks += 1;
        Some(before | block.1)
    }

    #[cold]
    fn undo(&mut self, added: (u32, u64)) -> Option<u64> {
        if added.1 != 0 {
            self.set.remove_members(0, added);
        }
        None
    }

    /// Takes up to `most` of the lowest blocks, neighbours within 64: the first of the 64, and a
    /// bit for each.
    #[inline]
    pub(crate) fn take(&mut self, most: u32) -> Option<(u32, u64)> {
        if self.blocks == 0 || most == 0 {
            return None;
        }
        let (base, members) = self.set.lowest_members(0)?;
        let taken = if most < members.count_ones() {
            members & !(0..most).fold(members, |rest, _| rest & (rest - 1))
        } else {
            members
        };
        self.remove((base, taken));
        Some((base, taken))
    }

    #[inline]
    fn remove(&mut self, members: (u32, u64)) {
        self.set.remove_members(0, members);
        self.blocks -= members.1.count_ones();
    }
}

impl FreeLists {
    /// Whether blocks may be loose: not while they are shuffled, as their order would not be by
    /// chance.
    #[inline]
    pub(super) fn defers_merges(&mut self) -> bool {
        self.largest == Order::MAX && !self.placement.coin()
    }

    /// Frees `blocks` neighbours from `index` on, of one segment and one word of 64, whose entries
    /// say [`MERGE_DEFERRED`]. False, and nothing is changed, when one of them is free already, or
    /// when they have to be freed by [`buddy::free`].
    #[inline]
    pub(crate) fn defer_merge(
        &mut self,
        table: &BlockTable,
        segment: &Range<u32>,
        index: u32,
        blocks: u32,
    ) -> bool {
        if !self.defers_merges() {
            return false;
        }
        let members = neighbours(index, blocks);
        let loose = self.deferred.insert(members);
        if loose == Some(u64::MAX) {
            self.coalesce_64(table, segment, members.0);
        }
        loose.is_some()
    }

    /// The same for one block.
    #[inline]
    pub(crate) fn defer_merge_of_one(
        &mut self,
        table: &BlockTable,
        segment: &Range<u32>,
        index: u32,
    ) -> bool {
        if !self.defers_merges() {
            return false;
        }
        let loose = self.deferred.insert_one(index);
        if loose == Some(u64::MAX) {
            self.coalesce_64(table, segment, index & !63);
        }
        loose.is_some()
    }

    /// Blocks that are neighbours and all loose become one, unless a segment ends among them.
    #[inline(never)]
    fn coalesce_64(&mut self, table: &BlockTable, segment: &Range<u32>, base: u32) {
        if segment.start <= base && base + 64 <= segment.end {
            self.deferred.remove((base, u64::MAX));
            free_neighbours(self, table, segment, base, u64::MAX);
        }
    }

    /// Merges up to `most` words of loose blocks and puts them into the lists, the lowest first.
    pub(crate) fn coalesce(&mut self, table: &BlockTable, segments: &[Segment], most: u32) {
        for _ in 0..most {
            let Some((base, mut bits)) = self.deferred.take(64) else { return };
            while bits != 0 {
                let first = base + bits.trailing_zeros();
                let Some(segment) = segment::find_index(segments, first) else { return };
                let indices = segment.indices();
                let inside = indices.end.min(base + 64) - base;
                let own = bits & (u64::MAX >> (64 - inside));
                free_neighbours(self, table, &indices, base, own);
                bits &= !own;
            }
        }
    }
}

/// Frees blocks whose entries say [`MERGE_DEFERRED`], in pieces as large as they make together.
fn free_neighbours(
    lists: &mut FreeLists,
    table: &BlockTable,
    segment: &Range<u32>,
    base: u32,
    bits: u64,
) {
    let mut bits = bits;
    while bits != 0 {
        let start = bits.trailing_zeros();
        let run = (bits >> start).trailing_ones();
        let level = run.ilog2().min(if start == 0 { 6 } else { start.trailing_zeros() });
        let order = u8::try_from(level)
            .ok()
            .and_then(|level| Order::new(BLOCK_ORDER + level))
            .unwrap_or(Order::BLOCK);
        buddy::free_divided(lists, table, segment, base + start, order, MigrateType::Movable);
        bits &= !neighbours(start, blocks_of(order)).1;
    }
}
