//! Pieces back to blocks that were taken whole, in pieces: all of them at once, or one half of a
//! block after the other.
//!
//! In both cases the block has one of two states, so that two comparisons say all that has to be
//! known of it, and what comes last does not come to the free map at all. Everything else goes the
//! general way of [`Tier::free_run`].

use super::tier::Tier;
use crate::block::deferred_merge::MERGE_DEFERRED;
use crate::block::lists::{NONE, Position};
use crate::block::{BlockState, MigrateType, buddy};
use crate::units::{Order, PAGES_PER_BLOCK};
use core::ops::Range;

/// A run of half a block.
pub(crate) const HALF: Order = match Order::new(Order::BLOCK.get() - 1) {
    Some(order) => order,
    None => Order::PAGE,
};
/// A block that was taken whole, in pieces, of which none came back: its free map is zero.
const HELD: BlockState =
    BlockState::split(MigrateType::Movable).with_pages(0, PAGES_PER_BLOCK, PAGES_PER_BLOCK);
/// Half of its frames, and as far as counts tell that may be in one run.
const HALF_FREE: BlockState = HELD
    .with_pages(PAGES_PER_BLOCK / 2, PAGES_PER_BLOCK, PAGES_PER_BLOCK)
    .with_free_order(Some(HALF.get()));

impl Tier<'_> {
    /// Frees the half at frame `start` of a block, if that is in one of the usual two states.
    /// False, and nothing is changed, when it is not, or when the half is free already.
    #[inline]
    pub(crate) fn free_half(&mut self, segment: &Range<u32>, index: u32, start: usize) -> bool {
        if !self.table.is_ready(index) {
            return false;
        }
        let entry = self.table.entry(index);
        let state = entry.state();
        if state == HELD {
            entry.set_state(HALF_FREE);
            self.table.free_map(index).set_half(start);
            self.lists.split_pages += HALF.pages();
            self.lists.free_index.insert(MigrateType::Movable, HALF.get(), index);
            return true;
        }
        // One block is kept split when it is all free, which the general way sees to.
        if state != HALF_FREE
            || self.lists.spare == NONE
            || !self.table.free_map(index).is_half_taken(start)
        {
            return false;
        }
        self.lists.free_index.remove(MigrateType::Movable, HALF.get(), index);
        self.lists.split_pages -= HALF.pages();
        self.lists.events.block_merges += 1;
        self.lists.reported.set_zero(index, false);
        self.free_whole(segment, index, MigrateType::Movable);
        true
    }

    /// Frees all frames of up to `blocks` neighbours within 64 that were taken whole, in pieces,
    /// and of which none came back; how many of them were so. Of others nothing is changed.
    #[inline]
    pub(crate) fn free_allocated(&mut self, segment: &Range<u32>, index: u32, blocks: u32) -> u32 {
        if !self.table.is_ready(index) {
            return 0;
        }
        let mut held = 0;
        while held < blocks && self.table.state(index + held) == HELD {
            self.table.set_state(index + held, MERGE_DEFERRED);
            held += 1;
        }
        self.lists.events.block_merges += u64::from(held);
        if held != 0 && !self.lists.defer_merge(self.table, segment, index, held) {
            for block in index..index + held {
                buddy::free(
                    self.lists,
                    self.table,
                    segment,
                    block,
                    Order::BLOCK,
                    MigrateType::Movable,
                    Position::Head,
                );
            }
        }
        held
    }
}
