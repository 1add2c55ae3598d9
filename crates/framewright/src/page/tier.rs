//! Pages out of split blocks, under the zone lock.
//!
//! The set that a split block is in may name an order that is too large (taking frames does not look for what is left; a search that finds
//! nothing there corrects it), never one that is too small.

use super::inside::{Descriptors, MAP_FRAMES, MapFrames};
use super::partial::{Partial, first_unmanaged};
use crate::block::lists::{FreeLists, NONE, Position};
use crate::block::table::BlockTable;
use crate::block::{BlockState, FreeMap, MapForm, MigrateType, State, buddy};
use crate::units::{BLOCK_ORDER, Order, PAGES_PER_BLOCK};
use core::ops::Range;

/// Order of a block all of whose frames are free.
const WHOLE: u8 = BLOCK_ORDER;
const FRAMES: usize = FreeMap::<8>::PAGES;

/// Why frames of a block cannot be freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// This frame of the block is free already.
    Free(usize),
    /// This frame of the block is a hole or reserved.
    Unmanaged(usize),
    /// The block was not allocated.
    State(Option<State>),
}

/// A zone's free memory, locked.
pub(crate) struct Tier<'a> {
    pub(crate) lists: &'a mut FreeLists,
    pub(crate) table: &'a BlockTable,
    pub(crate) partials: &'a [Partial],
    pub(crate) descriptors: Option<&'a Descriptors>,
}

impl Tier<'_> {
    /// Takes an aligned run of 2^`order` frames, order below 9. Returns the block's index and the run's first frame in it.
    ///
    /// Split blocks of the own type come first, fullest first and lowest first among equals; then a whole block is split, of the own type or
    /// of one that it may take from; last, a split block of another type gives up a run, and with it its type if half of it is free.
    pub(crate) fn take(&mut self, order: Order, migrate_type: MigrateType) -> Option<(u32, usize)> {
        let (index, start) = self.find(order.get(), migrate_type)?;
        self.table.free_map(index).take_run(start, order.get());
        self.taken(index, order.pages());
        Some((index, start))
    }

    /// The same for many at once: every run of `order` (at most 5), but at most `limit`, in one word of a block's free map, one bit for the
    /// first frame of each.
    pub(crate) fn take_word(
        &mut self,
        order: Order,
        migrate_type: MigrateType,
        limit: u32,
    ) -> Option<(u32, usize, u64)> {
        let (index, start) = self.find(order.get(), migrate_type)?;
        let (first, runs) = self.table.free_map(index).take_word(start, order.get(), limit);
        self.taken(index, u64::from(runs.count_ones()) << order.get());
        Some((index, first, runs))
    }

    /// A split block with a free run of `order`, and its lowest run.
    #[inline]
    fn find(&mut self, order: u8, migrate_type: MigrateType) -> Option<(u32, usize)> {
        self.find_split(order, migrate_type).or_else(|| self.find_elsewhere(order, migrate_type))
    }

    #[cold]
    fn find_elsewhere(&mut self, order: u8, migrate_type: MigrateType) -> Option<(u32, usize)> {
        if let Some(index) = buddy::take(self.lists, self.table, Order::BLOCK, migrate_type) {
            self.split_free(index, migrate_type, 0..1 << order);
            return Some((index, 0));
        }
        for &foreign in migrate_type.fallbacks() {
            if let Some((index, start)) = self.find_split(order, foreign) {
                let state = self.table.state(index);
                if state.free_pages() >= PAGES_PER_BLOCK / 2 {
                    self.set_room(index, None);
                    self.table.set_state(index, self.table.state(index).with_migrate_type(migrate_type));
                    self.set_room(index, state.room());
                }
                return Some((index, start));
            }
        }
        None
    }

    /// A split block of `migrate_type` that really has a run of `order`. Each block that turns out to have less moves to a lower set, where only
    /// freeing brings it up again, so that every correction was paid for by an earlier request.
    fn find_split(&mut self, order: u8, migrate_type: MigrateType) -> Option<(u32, usize)> {
        loop {
            let found = self.lists.room.smallest(migrate_type, order)?;
            let index = self.lists.room.first(migrate_type, found)?;
            let map = self.table.free_map(index);
            if let Some(start) = map.find(order) {
                return Some((index, start));
            }
            self.set_room(index, map.largest_order());
        }
    }

    /// Takes exactly the run of `order` at frame `start` of a block, if it is free.
    pub(crate) fn take_at(&mut self, index: u32, start: usize, order: Order) -> bool {
        let Some((head, state)) = self.table.head_of(index) else { return false };
        if state.is(State::Free) {
            buddy::take_from(self.lists, self.table, head, index, Order::BLOCK, state.migrate_type());
            self.split_free(index, state.migrate_type(), start..start + (1 << order.get()));
        }
        let (map, state) = (self.table.free_map(index), self.table.state(index));
        if !state.is(State::Split) || state.is_held_back() || !map.is_run_free(start, order.get()) {
            return false;
        }
        map.take_run(start, order.get());
        self.taken(index, order.pages());
        true
    }

    /// Makes an allocated block of order 9 a split one with all its frames free, but for those that hold descriptors: the last eight, or the first where
    /// the last are `wanted`.
    fn split_free(&mut self, index: u32, migrate_type: MigrateType, wanted: Range<usize>) {
        let map = self.table.free_map(index);
        map.clear();
        map.set_range(0, FRAMES);
        self.table.set_inner(index);
        let state = BlockState::split(migrate_type).with_pages(PAGES_PER_BLOCK, PAGES_PER_BLOCK, PAGES_PER_BLOCK);
        self.table.set_state(index, state);
        self.lists.split_pages += PAGES_PER_BLOCK;
        if self.descriptors.is_some_and(|descriptors| descriptors.wanted(index)) {
            let last = FRAMES - MAP_FRAMES;
            self.describe(index, MapFrames::run(if wanted.end > last { 0 } else { last }));
        }
        self.set_room(index, Some(WHOLE));
    }

    /// Makes an allocated block of order 9 a split one, all of it still allocated.
    fn split_held(&mut self, index: u32, whole: BlockState) {
        self.table.free_map(index).clear();
        self.table.set_inner(index);
        let mut state = BlockState::split(whole.migrate_type()).with_pages(0, PAGES_PER_BLOCK, PAGES_PER_BLOCK);
        if whole.has(BlockState::ISOLATED) {
            state = state.with(BlockState::ISOLATED);
        }
        if self.descriptors.is_some_and(|descriptors| descriptors.wanted(index)) {
            state = state.with(BlockState::UNDESCRIBED);
        }
        self.table.set_state(index, state);
    }

    /// Counts frames that were cleared in the map.
    fn taken(&mut self, index: u32, pages: u64) {
        let state = self.table.state(index);
        let free = state.free_pages() - pages;
        self.table.set_state(index, state.with_free_pages(free));
        self.lists.split_pages -= pages;
        if self.lists.spare == index {
            self.lists.spare = NONE;
        }
        if free == 0 {
            self.set_room(index, None);
        }
    }

    /// Moves a split block to the set of another order.
    pub(crate) fn set_room(&mut self, index: u32, room: Option<u8>) {
        let state = self.table.state(index);
        let old = state.room();
        if old == room {
            return;
        }
        if let Some(order) = old {
            self.lists.room.remove(state.migrate_type(), order, index);
        }
        if let Some(order) = room {
            self.lists.room.insert(state.migrate_type(), order, index);
        }
        self.table.set_state(index, state.with_room(room));
    }

    /// Whether the frames `range` of a block are allocated, as far as the tables can tell.
    pub(crate) fn check(&self, index: u32, range: &Range<usize>) -> Result<(), Refused> {
        let Some((_, state)) = self.table.head_of(index) else { return Err(Refused::State(None)) };
        match state.state() {
            Some(State::Whole) => Ok(()),
            Some(State::Split) => match self.table.free_map(index).first_free(range.start, range.end) {
                Some(frame) => Err(Refused::Free(frame)),
                None => match self
                    .unmanaged(index, state, range.start, range.end)
                    .or_else(|| self.in_map(index, state, range))
                {
                    Some(frame) => Err(Refused::Unmanaged(frame)),
                    None => Ok(()),
                },
            },
            other => Err(Refused::State(other)),
        }
    }

    /// The first frame of `start..end` of a split block that is not managed.
    #[inline]
    fn unmanaged(&self, index: u32, state: BlockState, start: usize, end: usize) -> Option<usize> {
        if state.managed_pages() == PAGES_PER_BLOCK {
            return None;
        }
        // Counts tell, too, where the block could not be noted.
        let too_many = state.free_pages() + state.map_pages() + (end - start) as u64 > state.managed_pages();
        first_unmanaged(self.partials, index, start, end).or(too_many.then_some(start))
    }

    /// Frees frames of a block that [`check`](Self::check) found allocated; whole blocks that lose only a part become split.
    pub(crate) fn free(&mut self, segment: &Range<u32>, index: u32, range: Range<usize>) {
        let Some((head, state)) = self.table.head_of(index) else { return };
        if state.is(State::Whole) {
            self.end_count(head);
            if buddy::divide_whole(self.table, index, index + 1).is_none() {
                return;
            }
            self.split_held(index, state);
        }
        let mut start = range.start;
        while start < range.end {
            let level = start.trailing_zeros().min((range.end - start).ilog2()).min(u32::from(WHOLE) - 1);
            let Some(order) = u8::try_from(level).ok().and_then(Order::new) else { return };
            if !self.free_run(segment, index, start, order) {
                return;
            }
            start += 1 << level;
        }
    }

    /// Frees the aligned run of `order`, below 9, at frame `start` of a block, if that is split and the run allocated as far as can be told.
    #[inline]
    pub(crate) fn free_run(&mut self, segment: &Range<u32>, index: u32, start: usize, order: Order) -> bool {
        if !self.table.is_ready(index) {
            return false;
        }
        let state = self.table.state(index);
        let free = state.free_pages() + order.pages();
        let run = start..start + (1 << order.get());
        if !state.is(State::Split)
            || self.unmanaged(index, state, run.start, run.end).is_some()
            || self.in_map(index, state, &run).is_some()
        {
            return false;
        }
        let Some(reached) = self.table.free_map(index).give_run(start, order.get()) else { return false };
        self.freed(segment, index, state, free, reached);
        true
    }

    /// Frees the runs of `order` (at most 5) that begin at the set bits of `runs`, counted from frame `start`, which begins a word of the free map. All
    /// or none.
    pub(crate) fn free_word(
        &mut self,
        segment: &Range<u32>,
        index: u32,
        start: usize,
        runs: u64,
        order: Order,
    ) -> bool {
        if runs & (runs - 1) == 0 {
            return self.free_run(segment, index, start + runs.trailing_zeros() as usize, order);
        }
        if !self.table.is_ready(index) {
            return false;
        }
        let state = self.table.state(index);
        let free = state.free_pages() + (u64::from(runs.count_ones()) << order.get());
        // What a word's runs cover is looked at one by one in the few blocks that are not managed whole.
        if !state.is(State::Split) || state.managed_pages() != PAGES_PER_BLOCK {
            return false;
        }
        if state.map_form() == MapForm::Inside && self.any_in_map(index, start, runs, order) {
            return false;
        }
        let Some(reached) = self.table.free_map(index).give_word(start, runs, order.get()) else { return false };
        self.freed(segment, index, state, free, reached);
        true
    }

    /// Counts frames that were set in the map: `free` are free now.
    fn freed(&mut self, segment: &Range<u32>, index: u32, before: BlockState, free: u64, reached: u8) {
        self.table.set_state(index, before.with_free_pages(free));
        if before.is_held_back() {
            return self.freed_held_back(segment, index, free - before.free_pages());
        }
        self.lists.split_pages += free - before.free_pages();
        if free + before.map_pages() == PAGES_PER_BLOCK {
            self.complete(segment, index);
        } else if before.room().is_none_or(|room| room < reached) {
            self.set_room(index, Some(reached));
        }
    }

    /// A split block all of whose frames are free: one is kept split, because the next request often splits again; others become whole.
    pub(super) fn complete(&mut self, segment: &Range<u32>, index: u32) {
        if self.lists.spare == NONE {
            self.lists.spare = index;
            return self.set_room(index, Some(WHOLE));
        }
        self.make_whole(segment, index);
    }

    fn make_whole(&mut self, segment: &Range<u32>, index: u32) {
        self.set_room(index, None);
        let state = self.table.state(index);
        let migrate_type = state.migrate_type();
        self.lists.split_pages -= state.free_pages();
        self.take_map(index);
        buddy::free(self.lists, self.table, segment, index, Order::BLOCK, migrate_type, Position::Head);
    }

    /// Makes the block that was kept split whole.
    pub(crate) fn release_spare(&mut self, segment_of: impl FnOnce(u32) -> Option<Range<u32>>) {
        let index = core::mem::replace(&mut self.lists.spare, NONE);
        if index == NONE {
            return;
        }
        if let Some(segment) = segment_of(index) {
            self.make_whole(&segment, index);
        }
    }
}
