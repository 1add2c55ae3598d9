//! Deferring the merge of freed blocks, and coalescing: merging those blocks later.
//!
//! ```text
//!   freed one by one ──defer_merge──> a bit in `deferred_merge` ──64 neighbours──> 128 MiB
//!                                       └──coalesce, 16 words at a time──> lists
//! ```
//!
//! Under the zone lock.

use super::bit_sets::Neighbours;
use super::buddy::Buddy;
use super::migrate_type::MigrateType;
use super::table::blocks_of;
use crate::units::{BLOCK_ORDER, Order, PAGES_PER_BLOCK};

impl Buddy {
    /// Whether merges are deferred: not while blocks are shuffled, as their order would not be
    /// random, and not while somebody coalesces, who would never come to an end.
    #[inline]
    pub(super) fn defers_merges(&mut self) -> bool {
        self.largest == Order::MAX && self.coalescing == 0 && !self.placement.coin()
    }

    /// No merge is deferred until [`end_coalescing`](Self::end_coalescing).
    pub(crate) const fn begin_coalescing(&mut self) {
        self.coalescing += 1;
    }

    /// Somebody has coalesced all.
    pub(crate) const fn end_coalescing(&mut self) {
        self.coalescing -= 1;
    }

    /// Whether no merge is deferred.
    pub(crate) const fn is_coalesced(&self) -> bool {
        self.deferred.is_empty()
    }

    /// Whether the merge of a block is deferred, so that it is free.
    #[inline]
    pub(crate) fn is_deferred(&self, index: u32) -> bool {
        self.deferred.contains(index)
    }

    /// Asks for the word that deferring the merge of a block writes to.
    #[inline]
    pub(crate) fn prefetch_deferred(&self, index: u32) {
        self.deferred.prefetch(index);
    }

    /// Frames of blocks whose merge is deferred: as counted, and counted one by one.
    pub(crate) fn deferred_pages(&self) -> (u64, u64) {
        (self.deferred.pages(), self.deferred.count() * PAGES_PER_BLOCK)
    }

    /// Frees `blocks` neighbours from `index` on, of one segment and one word of 64, whose entries
    /// say [`MERGE_DEFERRED`](super::deferred_merge::MERGE_DEFERRED). False, and nothing is
    /// changed, when one of them is free already, or when they have to be freed by
    /// [`free`](Self::free).
    #[inline]
    pub(crate) fn defer_merge(&mut self, index: u32, blocks: u32) -> bool {
        if !self.defers_merges() {
            return false;
        }
        let members = Neighbours::new(index, blocks);
        let deferred = self.deferred.insert(members);
        if deferred == Some(u64::MAX) || self.deferred.is_full() {
            self.coalesce_near(members.base);
        }
        deferred.is_some()
    }

    /// [`defer_merge`](Self::defer_merge) of one block.
    #[inline]
    pub(crate) fn defer_merge_of_one(&mut self, index: u32) -> bool {
        if !self.defers_merges() {
            return false;
        }
        let deferred = self.deferred.insert_one(index);
        if deferred == Some(u64::MAX) || self.deferred.is_full() {
            self.coalesce_near(index & !63);
        }
        deferred.is_some()
    }

    /// All of 64 neighbours become one block, or so many merges are deferred that those of the 64
    /// no longer are.
    #[inline(never)]
    fn coalesce_near(&mut self, base: u32) {
        let Some(near) = self.deferred.take_near(base) else { return };
        self.free_by_segment(near);
    }

    /// Merges the blocks of up to `most` words of the set and puts them into the lists, the lowest
    /// first.
    pub(crate) fn coalesce(&mut self, most: u32) {
        for _ in 0..most {
            let Some(near) = self.deferred.take(64) else { return };
            self.free_by_segment(near);
        }
    }

    fn free_by_segment(&mut self, freed: Neighbours) {
        let Neighbours { base, mut bits } = freed;
        while bits != 0 {
            let end = self.segment_of(base + bits.trailing_zeros()).end;
            let own = bits & (u64::MAX >> (64 - (end.min(base + 64) - base)));
            self.free_neighbours(Neighbours { base, bits: own });
            bits &= !own;
        }
    }

    /// Frees blocks of one segment in pieces as large as they make together.
    fn free_neighbours(&mut self, freed: Neighbours) {
        let Neighbours { base, mut bits } = freed;
        while bits != 0 {
            let start = bits.trailing_zeros();
            let run = (bits >> start).trailing_ones();
            let level = run.ilog2().min(if start == 0 { 6 } else { start.trailing_zeros() });
            let order = u8::try_from(level)
                .ok()
                .and_then(|level| Order::new(BLOCK_ORDER + level))
                .unwrap_or(Order::BLOCK);
            self.free_divided(base + start, order, MigrateType::Movable);
            bits &= !Neighbours::new(start, blocks_of(order)).bits;
        }
    }
}
