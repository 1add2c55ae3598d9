//! Split blocks without a free frame that become whole again, either by a free of all their runs at
//! once or by frees of two halves.
//!
//! ```text
//!   ALL_ALLOCATED ──first half──> HALF_FREE ──second half──> whole
//!         └──────────────── all runs together ─────────────────^
//! ```
//!
//! Each of these two state words settles all that would have to be checked, so each step is one
//! comparison, and the last never touches the free map. All other cases take the general path,
//! [`LockedZone::free_run`]. All of this runs under the zone lock.

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
/// A managed block all of whose frames are allocated in runs below 2 MiB: its free map is zero.
const ALL_ALLOCATED: BlockState =
    BlockState::split(MigrateType::Movable).with_pages(0, PAGES_PER_BLOCK, PAGES_PER_BLOCK);
/// Half of the block's frames are free. Whether these are one run the counts cannot tell.
const HALF_FREE: BlockState = ALL_ALLOCATED
    .with_pages(PAGES_PER_BLOCK / 2, PAGES_PER_BLOCK, PAGES_PER_BLOCK)
    .with_free_order(Some(HALF.get()));

impl LockedZone {
    /// Frees the half at frame `start` of a block that is in one of these two states. Returns false
    /// and changes nothing if it is in another state or the half is free already.
    #[inline]
    pub(super) fn free_half(&mut self, index: u32, start: usize) -> bool {
        if !self.buddy.table.is_ready(index) {
            return false;
        }
        let entry = self.buddy.table.entry(index);
        let state = entry.state();
        if state == ALL_ALLOCATED {
            self.buddy.table.set_free_count(entry, index, ALL_ALLOCATED, HALF_FREE);
            self.buddy.table.free_map(index).set_half(start);
            self.split_pages += HALF.pages();
            self.free_index.insert(MigrateType::Movable, HALF.get(), index);
            return true;
        }
        // If there is no spare yet, the all-free block becomes the spare; the general path does
        // that.
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

    /// Frees all frames of those of `blocks` neighbours in one word of 64 that are in the state
    /// [`ALL_ALLOCATED`], up to the first that is not. Returns how many blocks those are and
    /// changes none of the others.
    #[inline]
    pub(super) fn free_allocated(&mut self, index: u32, blocks: u32) -> u32 {
        if !self.buddy.table.is_ready(index) {
            return 0;
        }
        let mut freed = 0;
        while freed < blocks && self.buddy.table.state(index + freed) == ALL_ALLOCATED {
            // The bit *zero* of a split block is about its free frames. It does not hold for the
            // whole block.
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
