//! Split blocks without a free frame that become whole again: by all their runs at once, or by two
//! halves.
//!
//! ```text
//!   ALL_ALLOCATED ──first half──> HALF_FREE ──second half──> whole
//!         └──────────────── all runs together ─────────────────^
//! ```
//!
//! These two state words leave nothing else to check, so each step is one comparison, and the last
//! never reaches the free map. Everything else takes the general path, [`LockedZone::free_run`].
//! All of it is under the zone lock.

use super::locked::LockedZone;
use crate::block::deferred_merge::MERGE_DEFERRED;
use crate::block::list::{NONE, Position};
use crate::block::{BlockState, MigrateType};
use crate::units::{Order, PAGES_PER_BLOCK};

/// A run of half a block.
pub(super) const HALF: Order = match Order::new(Order::BLOCK.get() - 1) {
    Some(order) => order,
    None => Order::PAGE,
};
/// A managed block of which every frame is allocated, in runs below 2 MiB: its free map is zero.
const ALL_ALLOCATED: BlockState =
    BlockState::split(MigrateType::Movable).with_pages(0, PAGES_PER_BLOCK, PAGES_PER_BLOCK);
/// Half of its frames are free, perhaps in one run: counts cannot tell.
const HALF_FREE: BlockState = ALL_ALLOCATED
    .with_pages(PAGES_PER_BLOCK / 2, PAGES_PER_BLOCK, PAGES_PER_BLOCK)
    .with_free_order(Some(HALF.get()));

impl LockedZone {
    /// Frees the half at frame `start` of a block, if that is in one of the usual two states.
    /// False, and nothing is changed, when it is not, or when the half is free already.
    #[inline]
    pub(super) fn free_half(&mut self, index: u32, start: usize) -> bool {
        if !self.buddy.table.is_ready(index) {
            return false;
        }
        let entry = self.buddy.table.entry(index);
        let state = entry.state();
        if state == ALL_ALLOCATED {
            entry.set_state(HALF_FREE);
            self.buddy.table.free_map(index).set_half(start);
            self.split_pages += HALF.pages();
            self.free_index.insert(MigrateType::Movable, HALF.get(), index);
            return true;
        }
        // One block is kept split when it is all free, which the general way sees to.
        if state != HALF_FREE
            || self.spare == NONE
            || !self.buddy.table.free_map(index).is_half_taken(start)
        {
            return false;
        }
        self.free_index.remove(MigrateType::Movable, HALF.get(), index);
        self.split_pages -= HALF.pages();
        self.buddy.events.block_merges += 1;
        self.buddy.reported.set_zero(index, false);
        self.free_whole(index, MigrateType::Movable);
        true
    }

    /// Frees all frames of the first of `blocks` neighbours within 64 that are in the state
    /// [`ALL_ALLOCATED`]; returns how many those are. Nothing of the others is changed.
    #[inline]
    pub(super) fn free_allocated(&mut self, index: u32, blocks: u32) -> u32 {
        if !self.buddy.table.is_ready(index) {
            return 0;
        }
        let mut freed = 0;
        while freed < blocks && self.buddy.table.state(index + freed) == ALL_ALLOCATED {
            // What is free of a block may have been zero when it was split; all of it is not.
            self.buddy.reported.set_zero(index + freed, false);
            self.buddy.table.set_state(index + freed, MERGE_DEFERRED);
            freed += 1;
        }
        self.buddy.events.block_merges += u64::from(freed);
        if freed != 0 && !self.buddy.defer_merge(index, freed) {
            for block in index..index + freed {
                self.buddy.free(block, Order::BLOCK, MigrateType::Movable, Position::Head);
            }
        }
        freed
    }
}
