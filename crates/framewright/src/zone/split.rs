//! Split blocks: what makes a block one, and what ends that.
//!
//! ```text
//!   free ──split_free──────> split, all free ──take──> split ──free──> complete
//!   allocated whole                                      ^                │
//!        └────split_allocated──> split, none free ──free─┘                │
//!   free <──join───────────────────────── unless it becomes the spare <───┘
//! ```
//!
//! One block all of whose frames are free, the *spare*, is kept split, because the next request
//! often splits a block again. Free frames of a block may be *unavailable*: while the block is
//! isolated, or while it is *undescribed*. It is undescribed if its pages are to have descriptors
//! inside it, but it does not have more than the eight free frames that these take.

use super::locked::LockedZone;
use crate::block::deferred_merge::{GRADED_MERGE_DEFERRED, MERGE_DEFERRED};
use crate::block::list::{NONE, Position};
use crate::block::{BlockState, DescriptorForm, FreeMap, MigrateType, State};
use crate::page::{DESCRIPTOR_FRAMES, DescriptorFrames};
use crate::units::{BLOCK_ORDER, Order, PAGES_PER_BLOCK};
use core::ops::Range;

/// The order that the free index has for a block all of whose frames are free.
const WHOLE: u8 = BLOCK_ORDER;
const FRAMES: usize = FreeMap::<8>::PAGES;

impl LockedZone {
    /// Makes an allocated block of order 9 a split one with all its frames free. If its descriptors
    /// are inside, they take the last eight frames, or the first eight if the last are `wanted`.
    pub(super) fn split_free(
        &mut self,
        index: u32,
        migrate_type: MigrateType,
        wanted: Range<usize>,
    ) {
        self.buddy.events.block_splits += 1;
        let map = self.buddy.table.free_map(index);
        map.clear();
        map.set_range(0, FRAMES);
        self.buddy.table.clear_entry(index);
        let mut state = BlockState::split(migrate_type).with_pages(
            PAGES_PER_BLOCK,
            PAGES_PER_BLOCK,
            PAGES_PER_BLOCK,
        );
        if self.buddy.last_taken.reported {
            // Until the first free into it, all free memory of the block was reported, and is zero
            // if the block was.
            state = state.with(BlockState::SWEPT);
            self.buddy.reported.set_zero(index, self.buddy.last_taken.zero);
        }
        self.buddy.table.set_state(index, state);
        *self.split_counter(state) += PAGES_PER_BLOCK;
        match self.form(index) {
            DescriptorForm::None => {}
            DescriptorForm::Array => self.buddy.table.set_state(index, state.with_array()),
            DescriptorForm::Inside => {
                let last = FRAMES - DESCRIPTOR_FRAMES;
                self.describe(
                    index,
                    DescriptorFrames::run(if wanted.end > last { 0 } else { last }),
                );
            }
        }
        self.set_free_order(index, Some(WHOLE));
    }

    /// Makes an allocated block of order 9 a split one whose frames are all still allocated.
    pub(super) fn split_allocated(&mut self, index: u32, whole: BlockState) {
        self.buddy.events.block_splits += 1;
        self.buddy.table.free_map(index).clear();
        self.buddy.table.clear_entry(index);
        let mut state =
            BlockState::split(whole.migrate_type()).with_pages(0, PAGES_PER_BLOCK, PAGES_PER_BLOCK);
        if whole.has(BlockState::ISOLATED) {
            state = state.with(BlockState::ISOLATED);
        }
        state = match self.form(index) {
            DescriptorForm::None => state,
            DescriptorForm::Array => state.with_array(),
            DescriptorForm::Inside => state.with(BlockState::UNDESCRIBED),
        };
        self.buddy.table.set_state(index, state);
    }

    /// Writes a split block's state word and moves the block to the set that the word names.
    #[inline]
    pub(super) fn change(&mut self, index: u32, old: BlockState, new: BlockState) {
        if (old.free_order(), old.migrate_type()) != (new.free_order(), new.migrate_type()) {
            self.change_set(index, old, new);
        }
        self.buddy.table.set_state(index, new);
    }

    #[inline(never)]
    fn change_set(&mut self, index: u32, old: BlockState, new: BlockState) {
        if let Some(order) = old.free_order() {
            self.free_index.remove(old.migrate_type(), order, index);
        }
        if let Some(order) = new.free_order() {
            self.free_index.insert(new.migrate_type(), order, index);
        }
    }

    /// Moves a split block to the set of another order.
    pub(super) fn set_free_order(&mut self, index: u32, order: Option<u8>) {
        let state = self.buddy.table.state(index);
        self.change(index, state, state.with_free_order(order));
    }

    /// Handles a split block whose frames have all become free: it becomes the spare if there is
    /// none, because the next request often splits a block again. Otherwise it becomes whole.
    pub(super) fn complete(&mut self, index: u32) {
        if self.spare == NONE && !self.buddy.placement.coin() {
            self.spare = index;
            return self.set_free_order(index, Some(WHOLE));
        }
        let migrate_type = self.join(index);
        self.free_whole(index, migrate_type);
    }

    /// Frees a block that is not split any more, whatever state its entry still has.
    #[inline]
    pub(super) fn free_whole(&mut self, index: u32, migrate_type: MigrateType) {
        if migrate_type == MigrateType::Movable {
            self.buddy.table.set_state(index, MERGE_DEFERRED);
            if self.buddy.defer_merge_of_one(index) {
                return;
            }
        } else if let Some(grade) = migrate_type.grade_index() {
            self.buddy.table.set_state(index, GRADED_MERGE_DEFERRED[grade]);
            if self.buddy.defer_graded_merge(index, 1, grade) {
                return;
            }
        }
        self.buddy.free(index, Order::BLOCK, migrate_type, Position::Head);
    }

    /// Undoes all that makes a block a split one, except for its state. Returns its migrate type.
    fn join(&mut self, index: u32) -> MigrateType {
        self.buddy.events.block_merges += 1;
        self.set_free_order(index, None);
        let state = self.buddy.table.state(index);
        let migrate_type = state.migrate_type();
        *self.split_counter(state) -= state.free_pages();
        self.buddy.reported.set_zero(index, false);
        self.take_descriptors(index);
        migrate_type
    }

    /// Makes the spare whole, so that its descriptors take no frames any more. Returns whether
    /// there was one.
    pub(super) fn release_spare(&mut self) -> bool {
        let index = core::mem::replace(&mut self.spare, NONE);
        if index == NONE {
            return false;
        }
        let migrate_type = self.join(index);
        self.buddy.free(index, Order::BLOCK, migrate_type, Position::Head);
        true
    }

    /// The counter of a block's free frames. Those of an undescribed block wait until there are
    /// enough to hold descriptors, and no request gets them until then. They do not count as free,
    /// because otherwise a waiter for free frames would believe that the zone has enough.
    pub(super) fn free_counter(&mut self, state: BlockState) -> &mut u64 {
        if state.has(BlockState::ISOLATED) {
            &mut self.isolated_pages
        } else if cfg!(feature = "vmemmap") && state.has(BlockState::UNDESCRIBED) {
            &mut self.descriptor_pages
        } else {
            self.split_counter(state)
        }
    }

    /// The counter of the available free frames of a split block.
    #[inline]
    pub(super) fn split_counter(&mut self, state: BlockState) -> &mut u64 {
        if !state.is_graded() {
            return &mut self.split_pages;
        }
        let grade = state.migrate_type().grade_index().unwrap_or(0);
        &mut self.graded_split_pages[grade]
    }

    /// Goes on after frames of an isolated or undescribed block became free.
    #[cold]
    pub(super) fn freed_unavailable(&mut self, index: u32, pages: u64) {
        let state = self.buddy.table.state(index);
        *self.free_counter(state) += pages;
        if state.has(BlockState::UNDESCRIBED) {
            self.describe_if_possible(index);
        }
        self.reindex(index);
    }

    /// Isolates a split block: frames of it that are or become free are withheld from requests.
    pub(super) fn isolate(&mut self, index: u32) {
        if self.spare == index {
            self.spare = NONE;
        }
        self.set_free_order(index, None);
        self.set_isolated(index, BlockState::with);
    }

    /// Ends the isolation of a split block.
    pub(super) fn put_back(&mut self, index: u32) {
        self.set_isolated(index, BlockState::without);
    }

    fn set_isolated(&mut self, index: u32, change: fn(BlockState, u64) -> BlockState) {
        let state = self.buddy.table.state(index);
        *self.free_counter(state) -= state.free_pages();
        let state = change(state, BlockState::ISOLATED);
        *self.free_counter(state) += state.free_pages();
        self.buddy.table.set_state(index, state);
        self.reindex(index);
    }

    /// Puts a split block where its state says that it belongs: among the whole blocks, into a set
    /// of the free index, or nowhere.
    pub(super) fn reindex(&mut self, index: u32) {
        let state = self.buddy.table.state(index);
        let complete = state.free_pages() + state.descriptor_pages() == PAGES_PER_BLOCK;
        if state.has(BlockState::ISOLATED) {
            if complete {
                self.isolated_pages += PAGES_PER_BLOCK - state.free_pages();
                self.buddy.reported.set_zero(index, false);
                self.take_descriptors(index);
                self.buddy.table.set_state(
                    index,
                    BlockState::head(State::Isolated, Order::BLOCK, state.migrate_type()),
                );
            }
        } else if complete {
            self.complete(index);
        } else if !state.is_unavailable() {
            let largest = self.buddy.table.free_map(index).largest_order();
            self.set_free_order(index, largest);
        }
    }
}
