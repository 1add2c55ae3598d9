//! What the page tier does with descriptors and with frames that are held back.
//!
//! A block whose pages are to have descriptors gets them when it is split, where it was free. Where
//! it was allocated whole and a part comes back, they need eight free frames first: until there are
//! more than that the block is *undescribed* and what is free in it waits, so that every page that
//! is handed out has its descriptor and no free can fail. An *isolated* block's free frames wait
//! until the isolation ends.

use super::inside::{MAP_FRAMES, MapFrames};
use super::tier::Tier;
use crate::block::lists::NONE;
use crate::block::{BlockState, MapForm, State};
use crate::units::{Order, PAGES_PER_BLOCK};
use crate::vmemmap_space::MAP_PAGES_PER_BLOCK;
use core::ops::Range;

impl Tier<'_> {
    /// Puts the descriptors of a split block into `frames`, all free, so that it is in the inside
    /// form.
    pub(super) fn describe(&mut self, index: u32, frames: MapFrames) {
        let Some(descriptors) = self.descriptors else { return };
        let map = self.table.free_map(index);
        frames.take_from(map);
        let state = self.table.state(index);
        let state = state.with_free_pages(state.free_pages() - MAP_PAGES_PER_BLOCK);
        let described = descriptors.write(self.lists, index, frames, state);
        // The word is stored once all of them are zero.
        self.table.set_state(index, described);
        *self.free_counter(state) -= MAP_PAGES_PER_BLOCK;
        self.lists.map_pages += MAP_PAGES_PER_BLOCK;
    }

    /// The same for a block that is undescribed, if it has more free frames than that takes.
    pub(crate) fn describe_if_possible(&mut self, index: u32) {
        if self.table.state(index).free_pages() > MAP_PAGES_PER_BLOCK
            && let Some(frames) = MapFrames::choose(self.table.free_map(index))
        {
            self.describe(index, frames);
        }
    }

    /// Takes the descriptors of a split block, all of whose other frames are free, away: the frames
    /// belong to the block again.
    pub(super) fn take_map(&mut self, index: u32) {
        let state = self.table.state(index);
        if let (MapForm::Inside, Some(descriptors)) = (state.map_form(), self.descriptors) {
            let frames = self.map_frames(index);
            self.table.set_state(index, state.without_map());
            descriptors.wait(index);
            if let Some(frames) = frames {
                descriptors.wipe(index, frames);
            }
            self.lists.map_pages -= MAP_PAGES_PER_BLOCK;
        }
    }

    /// Ends the count of a block that is allocated whole, before its links become something else.
    pub(crate) fn end_count(&mut self, head: u32) {
        let state = self.table.state(head);
        if state.is(State::Whole)
            && state.has(BlockState::COUNTED)
            && let Some(descriptors) = self.descriptors
        {
            self.table.set_state(head, state.without(BlockState::COUNTED));
            descriptors.wait(head);
        }
    }

    /// The first frame of `range` that holds descriptors.
    #[inline]
    pub(super) fn in_map(
        &self,
        index: u32,
        state: BlockState,
        range: &Range<usize>,
    ) -> Option<usize> {
        if state.map_form() != MapForm::Inside {
            return None;
        }
        if state.has(BlockState::SCATTERED) {
            return self.map_frames(index)?.first_in(range);
        }
        let first = state.map_first();
        (first < range.end && range.start < first + MAP_FRAMES).then_some(first.max(range.start))
    }

    /// Whether any of the runs of `order` that begin at the set bits of `runs`, counted from
    /// `start`, holds descriptors.
    pub(super) fn any_in_map(&self, index: u32, start: usize, runs: u64, order: Order) -> bool {
        let Some(frames) = self.map_frames(index) else { return false };
        let pages = (0..order.get()).fold(runs, |pages, step| pages | pages << (1 << step));
        frames
            .iter()
            .any(|frame| frame >= start && frame < start + 64 && pages >> (frame - start) & 1 != 0)
    }

    fn map_frames(&self, index: u32) -> Option<MapFrames> {
        self.descriptors?.locked(self.lists, self.table, index)?.frames()
    }

    /// Where a block's free frames are counted.
    fn free_counter(&mut self, state: BlockState) -> &mut u64 {
        let isolated = state.has(BlockState::ISOLATED);
        if isolated { &mut self.lists.isolated_pages } else { &mut self.lists.split_pages }
    }

    /// Goes on where frames of a block became free that is isolated or undescribed.
    #[cold]
    pub(super) fn freed_unavailable(&mut self, segment: &Range<u32>, index: u32, pages: u64) {
        let state = self.table.state(index);
        *self.free_counter(state) += pages;
        if state.has(BlockState::UNDESCRIBED) {
            self.describe_if_possible(index);
        }
        self.reindex(segment, index);
    }

    /// Isolates a split block: what is free and what becomes free waits.
    pub(crate) fn isolate(&mut self, segment: &Range<u32>, index: u32) {
        if self.lists.spare == index {
            self.lists.spare = NONE;
        }
        self.set_free_order(index, None);
        self.hold(segment, index, BlockState::with);
    }

    /// Puts an isolated split block back.
    pub(crate) fn put_back(&mut self, segment: &Range<u32>, index: u32) {
        self.hold(segment, index, BlockState::without);
    }

    fn hold(
        &mut self,
        segment: &Range<u32>,
        index: u32,
        change: fn(BlockState, u64) -> BlockState,
    ) {
        let state = self.table.state(index);
        *self.free_counter(state) -= state.free_pages();
        let state = change(state, BlockState::ISOLATED);
        *self.free_counter(state) += state.free_pages();
        self.table.set_state(index, state);
        self.reindex(segment, index);
    }

    /// Puts a split block where its state says that it belongs: among the whole ones, into a set of
    /// those with room, or nowhere.
    pub(crate) fn reindex(&mut self, segment: &Range<u32>, index: u32) {
        let state = self.table.state(index);
        let complete = state.free_pages() + state.map_pages() == PAGES_PER_BLOCK;
        if state.has(BlockState::ISOLATED) {
            if complete {
                self.lists.isolated_pages += PAGES_PER_BLOCK - state.free_pages();
                self.lists.reported.set_zero(index, false);
                self.take_map(index);
                self.table.set_state(
                    index,
                    BlockState::head(State::Isolated, Order::BLOCK, state.migrate_type()),
                );
            }
        } else if complete {
            self.complete(segment, index);
        } else if !state.is_unavailable() {
            let largest = self.table.free_map(index).largest_order();
            self.set_free_order(index, largest);
        }
    }
}
