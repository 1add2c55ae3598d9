//! Deferring the merge of freed blocks, and coalescing: merging those blocks later.
//!
//! ```text
//!   freed one by one ──defer_merge──> a bit in `deferred_merge` ──64 neighbours──> 128 MiB
//!                                       └──coalesce, 16 words at a time──> lists
//! ```
//!
//! All of it runs under the zone lock.

use super::bit_sets::Neighbours;
use super::buddy::{Buddy, GRADES};
use super::deferred_merge::{DeferredMerges, GRADED_MERGE_DEFERRED, MERGE_DEFERRED, MOST_PAGES};
use super::migrate_type::MigrateType;
use super::state::BlockState;
use super::table::blocks_of;
use crate::units::{BLOCK_ORDER, Order, PAGES_PER_BLOCK};

/// The type of the blocks in each set of [`Buddy::graded_merges`].
const GRADED: [MigrateType; GRADES] = [MigrateType::MovableOnly, MigrateType::Cma];

impl Buddy {
    /// Returns whether to defer merges. Not while blocks are shuffled, because their order would
    /// not be random; and not while somebody coalesces, because that would never end.
    pub(super) fn decides_to_defer(&mut self) -> bool {
        self.largest == Order::MAX && self.coalescing == 0 && !self.placement.coin()
    }

    /// Defers no merge until [`end_coalescing`](Self::end_coalescing).
    pub(crate) const fn begin_coalescing(&mut self) {
        self.coalescing += 1;
    }

    /// Ends what [`begin_coalescing`](Self::begin_coalescing) began.
    pub(crate) const fn end_coalescing(&mut self) {
        self.coalescing -= 1;
    }

    /// Returns whether no block has a deferred merge.
    pub(crate) fn is_coalesced(&self) -> bool {
        self.deferred.is_empty() && self.graded_sets().all(|(_, set)| set.is_empty())
    }

    /// Returns the sets of graded blocks, each with its type.
    fn graded_sets(&self) -> impl Iterator<Item = (MigrateType, &DeferredMerges)> {
        let most = if cfg!(feature = "moving") { GRADES } else { 0 };
        GRADED.into_iter().zip(&self.graded_merges).take(most)
    }

    /// Returns whether there are free blocks of a grade that are in no list yet.
    pub(super) fn defers_grade(&self, migrate_type: MigrateType) -> bool {
        migrate_type.grade_index().is_some_and(|grade| !self.graded_merges[grade].is_empty())
    }

    /// Returns whether the merge of a block is deferred, which means that the block is free.
    pub(crate) fn is_deferred(&self, index: u32) -> bool {
        self.deferred.contains(index) || self.graded_sets().any(|(_, set)| set.contains(index))
    }

    /// Prefetches the word that deferring the merge of a block writes.
    pub(crate) fn prefetch_deferred(&self, index: u32) {
        self.deferred.prefetch(index);
    }

    /// Frames of blocks whose merge is deferred: by the running total, and recounted bit by bit.
    pub(crate) fn deferred_pages(&self) -> (u64, u64) {
        let all = || self.graded_sets().map(|(_, set)| set).chain([&self.deferred]);
        let counted: u64 = all().map(DeferredMerges::count).sum();
        (all().map(DeferredMerges::pages).sum(), counted * PAGES_PER_BLOCK)
    }

    /// Returns a block that is in a set of deferred merges although its entry says something else.
    pub(crate) fn wrongly_deferred(&self) -> Option<u32> {
        let wrong = |set: &DeferredMerges, expected: BlockState| {
            let mut from = 0;
            while let Some(index) = set.members_from(from) {
                if !self.table.is_ready(index) || self.table.state(index) != expected {
                    return Some(index);
                }
                from = index + 1;
            }
            None
        };
        let mut graded = self.graded_sets().zip(GRADED_MERGE_DEFERRED);
        wrong(&self.deferred, MERGE_DEFERRED)
            .or_else(|| graded.find_map(|((_, set), expected)| wrong(set, expected)))
    }

    /// Frees `blocks` adjacent blocks from `index` on, in one segment and one word of 64, whose
    /// entries say [`MERGE_DEFERRED`](super::deferred_merge::MERGE_DEFERRED). Returns false and
    /// changes nothing if one of them is free already, or if they have to be freed by
    /// [`free`](Self::free).
    pub(crate) fn defer_merge(&mut self, index: u32, blocks: u32) -> bool {
        if !self.decides_to_defer() {
            return false;
        }
        let members = Neighbours::new(index, blocks);
        let Some(near) = self.deferred.insert(members) else { return false };
        if near == u64::MAX || self.deferred.is_over_full() {
            self.coalesce_near(members.base);
        }
        true
    }

    /// [`defer_merge`](Self::defer_merge) for one block.
    pub(crate) fn defer_merge_of_one(&mut self, index: u32) -> bool {
        if !self.decides_to_defer() {
            return false;
        }
        let Some(near) = self.deferred.insert_one(index) else { return false };
        if near == u64::MAX || self.deferred.is_over_full() {
            self.coalesce_near(index & !63);
        }
        true
    }

    /// [`defer_merge`](Self::defer_merge) for blocks of one grade, whose entries say
    /// [`GRADED_MERGE_DEFERRED`].
    #[inline(never)]
    pub(crate) fn defer_graded_merge(&mut self, index: u32, blocks: u32, grade: usize) -> bool {
        if !cfg!(feature = "moving") || !self.decides_to_defer() {
            return false;
        }
        let members = Neighbours::new(index, blocks);
        let Some(near) = self.graded_merges[grade].insert(members) else { return false };
        let pages = u64::from(blocks) * PAGES_PER_BLOCK;
        self.pages += pages;
        self.graded_pages[grade] += pages;
        let waiting_pages = self.deferred.pages()
            + self.graded_merges.iter().map(DeferredMerges::pages).sum::<u64>();
        if (near == u64::MAX || waiting_pages > MOST_PAGES)
            && let Some(near) = self.graded_merges[grade].take_near(members.base)
        {
            self.merge_graded(near, grade);
        }
        true
    }

    /// Takes up to `most` blocks of a grade whose merge is deferred: the lowest, all from one group
    /// of 64.
    pub(super) fn take_graded(&mut self, most: u32, grade: usize) -> Option<Neighbours> {
        if !cfg!(feature = "moving") {
            return None;
        }
        let taken = self.graded_merges[grade].take(most)?;
        self.uncount_graded(taken, grade);
        self.end_reported(taken.first(), Order::BLOCK, false);
        Some(taken)
    }

    /// Merges blocks that were taken out of the set of their grade.
    fn merge_graded(&mut self, freed: Neighbours, grade: usize) {
        self.uncount_graded(freed, grade);
        self.free_by_segment(freed, GRADED[grade]);
    }

    /// Uncounts blocks that left the set of their grade.
    fn uncount_graded(&mut self, left: Neighbours, grade: usize) {
        let pages = u64::from(left.count()) * PAGES_PER_BLOCK;
        self.pages -= pages;
        self.graded_pages[grade] -= pages;
    }

    /// Merges the deferred blocks among the 64 from `base` on: either all 64 form one block, or too
    /// many merges are deferred.
    #[inline(never)]
    fn coalesce_near(&mut self, base: u32) {
        let Some(near) = self.deferred.take_near(base) else { return };
        self.free_by_segment(near, MigrateType::Movable);
    }

    /// Merges the blocks of up to `most` words of the sets, the lowest first, and puts them into
    /// the lists.
    pub(crate) fn coalesce(&mut self, most: u32) {
        for _ in 0..most {
            if let Some(near) = self.deferred.take(64) {
                self.free_by_segment(near, MigrateType::Movable);
                continue;
            }
            let Some(grade) = self.graded_sets().position(|(_, set)| !set.is_empty()) else {
                return;
            };
            if let Some(near) = self.graded_merges[grade].take(64) {
                self.merge_graded(near, grade);
            }
        }
    }

    fn free_by_segment(&mut self, freed: Neighbours, migrate_type: MigrateType) {
        let Neighbours { base, mut bits } = freed;
        while bits != 0 {
            let end = self.segment_of(base + bits.trailing_zeros()).end;
            let own = bits & (u64::MAX >> (64 - (end.min(base + 64) - base)));
            self.free_neighbours(Neighbours { base, bits: own }, migrate_type);
            bits &= !own;
        }
    }

    /// Frees blocks of one segment in the largest aligned pieces that they form.
    fn free_neighbours(&mut self, freed: Neighbours, migrate_type: MigrateType) {
        let Neighbours { base, mut bits } = freed;
        while bits != 0 {
            let start = bits.trailing_zeros();
            let run = (bits >> start).trailing_ones();
            let level = run.ilog2().min(if start == 0 { 6 } else { start.trailing_zeros() });
            let order = u8::try_from(level)
                .ok()
                .and_then(|level| Order::new(BLOCK_ORDER + level))
                .unwrap_or(Order::BLOCK);
            self.free_divided(base + start, order, migrate_type);
            bits &= !Neighbours::new(start, blocks_of(order)).bits;
        }
    }
}
