//! Pages out of split blocks, under the zone lock.
//!
//! The set that a split block is in names an order that no free run of it exceeds: the logarithm of
//! how many frames are free, so that the fullest blocks are asked first and a free looks at one
//! word of the map. A search that finds less there moves the block to the set of what is left, where it
//! stays until the next free into it.

use super::inside::{Descriptors, MAP_FRAMES, MapFrames};
use super::partial::{Partial, first_unmanaged};
use crate::block::deferred_merge::MERGE_DEFERRED;
use crate::block::lists::{FreeLists, NONE, Position};
use crate::block::table::BlockTable;
use crate::block::{BlockState, FreeMap, MapForm, MigrateType, State, buddy};
use crate::units::{BLOCK_ORDER, Order, PAGES_PER_BLOCK};
use core::ops::Range;

/// The largest order that a run among `free` frames can have.
#[inline]
fn most_order(free: u64) -> Option<u8> {
    free.checked_ilog2().and_then(|order| u8::try_from(order).ok())
}

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

/// A run in a split block: small enough to come back in registers, as through memory it costs 5 ns.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) index: u32,
    pub(super) start: u16,
}

/// How many blocks ahead of the one in use memory is asked for.
const AHEAD: u32 = 4;

/// Runs of one order in one word of a block's free map: the word's first frame in the block, and a
/// bit for the first frame of each.
#[derive(Clone, Copy)]
pub(crate) struct WordRuns {
    pub(crate) index: u32,
    pub(crate) first: usize,
    pub(crate) runs: u64,
}

/// A zone's free memory, locked.
pub(crate) struct Tier<'a> {
    pub(crate) lists: &'a mut FreeLists,
    pub(crate) table: &'a BlockTable,
    pub(crate) partials: &'a [Partial],
    pub(crate) descriptors: Option<&'a Descriptors>,
}

impl Tier<'_> {
    /// Takes an aligned run of 2^`order` frames, order below 9. Returns the block's index and the
    /// run's first frame in it.
    ///
    /// Split blocks of the own type come first, fullest first and lowest first among equals; then a
    /// whole block is split, of the own type or of one that it may take from; last, a split block
    /// of another type gives up a run, and with it its type if half of it is free.
    pub(crate) fn take(&mut self, order: Order, migrate_type: MigrateType) -> Option<(u32, usize)> {
        let (index, start) = self.find(order.get(), migrate_type)?;
        self.table.free_map(index).take_run(start, order.get());
        self.taken(index, order.pages());
        Some((index, start))
    }

    /// The same for many at once: every run of `order` (at most 5), but at most `limit`, in one
    /// word of a block's free map, one bit for the first frame of each.
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

    /// The same for up to `most` words, of as many blocks as it takes, each of which is given to
    /// `give` at once. Blocks are taken 64 at a time out of their set, which then changes once for
    /// all that are used up. Reported memory is taken for the first word only, and where there is
    /// another way (`spares`) not even then: nobody waits for the rest.
    pub(crate) fn take_words(
        &mut self,
        order: Order,
        migrate_type: MigrateType,
        limit: u32,
        spares: bool,
        most: usize,
        mut give: impl FnMut(WordRuns),
    ) {
        let (mut filled, mut limit) = (0, limit);
        while filled < most && limit != 0 {
            let found = self.lists.free_index.smallest(migrate_type, order.get());
            if found.is_none()
                && (spares || filled != 0)
                && self.lists.is_next_reported(migrate_type, Order::BLOCK)
            {
                break;
            }
            let near = found.filter(|_| !self.lists.placement.is_random());
            let near = near.and_then(|found| {
                Some((found, self.lists.free_index.lowest_members(migrate_type, found)?))
            });
            let Some((found, (base, mut members))) = near else {
                let Some((index, first, runs)) = self.take_word(order, migrate_type, limit) else {
                    break;
                };
                give(WordRuns { index, first, runs });
                limit -= runs.count_ones();
                filled += 1;
                continue;
            };
            let mut used_up = 0;
            while members != 0 && filled < most && limit != 0 {
                let index = base + members.trailing_zeros();
                let soon = (0..AHEAD).fold(members, |members, _| members & members.wrapping_sub(1));
                if soon != 0 {
                    self.table.prefetch(base + soon.trailing_zeros(), order);
                }
                // Found and counted once: that is a good part of the work.
                let (entry, map) = (self.table.entry(index), self.table.free_map(index));
                let state = entry.state();
                let Some((first, runs)) = map.take_first_word(order.get(), limit) else {
                    self.change(index, state, state.with_free_order(map.largest_order()));
                    members &= members - 1;
                    continue;
                };
                let count = runs.count_ones();
                give(WordRuns { index, first, runs });
                filled += 1;
                limit -= count;
                let pages = u64::from(count) << order.get();
                if state.free_pages() == pages {
                    self.lists.split_pages -= pages;
                    if self.lists.spare == index {
                        self.lists.spare = NONE;
                    }
                    entry.set_state(state.with_free_pages(0).with_free_order(None));
                    used_up |= 1 << (index - base);
                    members &= members - 1;
                } else {
                    self.taken(index, pages);
                    if self.table.state(index).free_order() != state.free_order() {
                        members &= members - 1;
                    }
                }
            }
            self.lists.free_index.remove_members(migrate_type, found, (base, used_up));
        }
    }

    /// The same for runs of any order below 9: up to `out.len()` runs out of one block, whose first
    /// frames in it are written to `out`. Returns the block and how many there are.
    pub(crate) fn take_runs(
        &mut self,
        order: Order,
        migrate_type: MigrateType,
        out: &mut [usize],
    ) -> Option<(u32, usize)> {
        let all = !self.descriptors.is_some_and(Descriptors::are_wanted)
            && out.len() >= FRAMES >> order.get()
            && self.lists.free_index.smallest(migrate_type, order.get()).is_none();
        if all && let Some(index) = buddy::take(self.lists, self.table, Order::BLOCK, migrate_type)
        {
            // All of a block that was whole: nothing of it is ever free.
            self.split_allocated(index, BlockState::head(State::Whole, Order::BLOCK, migrate_type));
            let starts = (0..FRAMES).step_by(1 << order.get());
            let taken = out.iter_mut().zip(starts).map(|(out, start)| *out = start).count();
            return Some((index, taken));
        }
        let (index, start) = self.find(order.get(), migrate_type)?;
        let taken = self.table.free_map(index).take_runs(start, order.get(), out);
        self.taken(index, (taken as u64) << order.get());
        Some((index, taken))
    }

    /// A split block with a free run of `order`, and its lowest run.
    #[inline]
    fn find(&mut self, order: u8, migrate_type: MigrateType) -> Option<(u32, usize)> {
        let found = self
            .find_split(order, migrate_type)
            .or_else(|| self.find_elsewhere(order, migrate_type))?;
        Some((found.index, usize::from(found.start)))
    }

    #[cold]
    fn find_elsewhere(&mut self, order: u8, migrate_type: MigrateType) -> Option<Found> {
        if let Some(index) = buddy::take(self.lists, self.table, Order::BLOCK, migrate_type) {
            self.split_free(index, migrate_type, 0..1 << order);
            return Some(Found { index, start: 0 });
        }
        for &foreign in migrate_type.fallbacks() {
            if let Some(found) = self.find_split(order, foreign) {
                let index = found.index;
                let state = self.table.state(index);
                if state.free_pages() >= PAGES_PER_BLOCK / 2 {
                    self.change(index, state, state.with_migrate_type(migrate_type));
                    self.lists.events.fallback_claims += 1;
                } else {
                    self.lists.events.fallback_steals += 1;
                }
                return Some(found);
            }
        }
        None
    }

    /// A split block of `migrate_type` that really has a run of `order`. Each block that turns out
    /// to have less moves to a lower set, where only a free brings it up again, so that every
    /// correction after the first was paid for by a free.
    fn find_split(&mut self, order: u8, migrate_type: MigrateType) -> Option<Found> {
        if self.lists.placement.is_random() {
            return self.find_anywhere(order, migrate_type);
        }
        loop {
            let found = self.lists.free_index.smallest(migrate_type, order)?;
            let index = self.lists.free_index.first(migrate_type, found)?;
            let map = self.table.free_map(index);
            if let Some(start) = map.find(order).and_then(|start| u16::try_from(start).ok()) {
                return Some(Found { index, start });
            }
            let state = self.table.state(index);
            self.change(index, state, state.with_free_order(map.largest_order()));
        }
    }

    /// Takes exactly the run of `order` at frame `start` of a block, if it is free.
    pub(crate) fn take_at(&mut self, index: u32, start: usize, order: Order) -> bool {
        let Some((head, mut state)) = self.table.head_of(index) else { return false };
        if state.is(State::Free) {
            buddy::take_from(
                self.lists,
                self.table,
                head,
                index,
                Order::BLOCK,
                state.migrate_type(),
            );
            self.split_free(index, state.migrate_type(), start..start + (1 << order.get()));
            state = self.table.state(index);
        }
        // The head's word from here on: the block's own entry may be one that was never cleared
        // (invariant 5).
        let map = self.table.free_map(index);
        if !state.is(State::Split) || state.is_unavailable() || !map.is_run_free(start, order.get())
        {
            return false;
        }
        map.take_run(start, order.get());
        self.taken(index, order.pages());
        true
    }

    /// Makes an allocated block of order 9 a split one with all its frames free, but for those that
    /// hold descriptors, if they are inside: the last eight, or the first where the last are
    /// `wanted`.
    fn split_free(&mut self, index: u32, migrate_type: MigrateType, wanted: Range<usize>) {
        self.lists.events.block_splits += 1;
        let map = self.table.free_map(index);
        map.clear();
        map.set_range(0, FRAMES);
        self.table.set_inner(index);
        let mut state = BlockState::split(migrate_type).with_pages(
            PAGES_PER_BLOCK,
            PAGES_PER_BLOCK,
            PAGES_PER_BLOCK,
        );
        if self.lists.last_taken.reported {
            // Until the first free all that is free in it was reported, and is zero if the block
            // was.
            state = state.with(BlockState::SWEPT);
            self.lists.reported.set_zero(index, self.lists.last_taken.zero);
        }
        self.table.set_state(index, state);
        self.lists.split_pages += PAGES_PER_BLOCK;
        match self.form(index) {
            MapForm::None => {}
            MapForm::Array => self.table.set_state(index, state.with_array()),
            MapForm::Inside => {
                let last = FRAMES - MAP_FRAMES;
                self.describe(index, MapFrames::run(if wanted.end > last { 0 } else { last }));
            }
        }
        self.set_free_order(index, Some(WHOLE));
    }

    /// Makes an allocated block of order 9 a split one, all of it still allocated.
    fn split_allocated(&mut self, index: u32, whole: BlockState) {
        self.lists.events.block_splits += 1;
        self.table.free_map(index).clear();
        self.table.set_inner(index);
        let mut state =
            BlockState::split(whole.migrate_type()).with_pages(0, PAGES_PER_BLOCK, PAGES_PER_BLOCK);
        if whole.has(BlockState::ISOLATED) {
            state = state.with(BlockState::ISOLATED);
        }
        state = match self.form(index) {
            MapForm::None => state,
            MapForm::Array => state.with_array(),
            MapForm::Inside => state.with(BlockState::UNDESCRIBED),
        };
        self.table.set_state(index, state);
    }

    fn form(&self, index: u32) -> MapForm {
        self.descriptors.map_or(MapForm::None, |descriptors| descriptors.form(index))
    }

    /// Counts frames that were cleared in the map.
    #[inline]
    fn taken(&mut self, index: u32, pages: u64) {
        let state = self.table.state(index);
        let free = state.free_pages() - pages;
        self.lists.split_pages -= pages;
        if self.lists.spare == index {
            self.lists.spare = NONE;
        }
        let new = state.with_free_pages(free);
        let most = most_order(free);
        // Not at once: the next free may raise it again.
        let lower = free == 0 || state.free_order() > most.map(|most| most + 1);
        self.change(index, state, if lower { new.with_free_order(most) } else { new });
    }

    /// Writes a split block's word and moves the block to the set that it names.
    #[inline]
    pub(super) fn change(&mut self, index: u32, old: BlockState, new: BlockState) {
        if (old.free_order(), old.migrate_type()) != (new.free_order(), new.migrate_type()) {
            self.change_set(index, old, new);
        }
        self.table.set_state(index, new);
    }

    #[inline(never)]
    fn change_set(&mut self, index: u32, old: BlockState, new: BlockState) {
        if let Some(order) = old.free_order() {
            self.lists.free_index.remove(old.migrate_type(), order, index);
        }
        if let Some(order) = new.free_order() {
            self.lists.free_index.insert(new.migrate_type(), order, index);
        }
    }

    /// Moves a split block to the set of another order.
    pub(crate) fn set_free_order(&mut self, index: u32, room: Option<u8>) {
        let state = self.table.state(index);
        self.change(index, state, state.with_free_order(room));
    }

    /// Whether the frames `range` of a block are allocated, as far as the tables can tell.
    pub(crate) fn check(&self, index: u32, range: &Range<usize>) -> Result<(), Refused> {
        let Some((_, state)) = self.table.head_of(index) else { return Err(Refused::State(None)) };
        match state.state() {
            Some(State::Whole) if state.has(BlockState::KEPT) => {
                Err(Refused::Unmanaged(range.start))
            }
            Some(State::Whole) if state.has(BlockState::POISONED) => {
                Err(Refused::State(Some(State::Offline)))
            }
            Some(State::Whole) if self.lists.deferred.contains(index) => {
                Err(Refused::Free(range.start))
            }
            Some(State::Whole) => Ok(()),
            Some(State::Split) => match self
                .table
                .free_map(index)
                .first_free(range.start, range.end)
                .or_else(|| self.first_in_flight(index, state, range))
            {
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
        let too_many =
            state.free_pages() + state.map_pages() + (end - start) as u64 > state.managed_pages();
        first_unmanaged(self.partials, index, start, end).or(too_many.then_some(start))
    }

    /// The first frame of `range` of a split block that is with the hypervisor, which its free map
    /// does not tell from allocated ones.
    #[inline]
    fn first_in_flight(
        &self,
        index: u32,
        state: BlockState,
        range: &Range<usize>,
    ) -> Option<usize> {
        if state.has(BlockState::REPORTING) {
            self.lists.in_flight.first_in(index, range)
        } else {
            None
        }
    }

    /// Takes the next free run of a split block for the hypervisor: the lowest at or after frame
    /// `from`, of an order from `least` to `most`, both below 9. Returns its first frame and order.
    pub(crate) fn lend_run(
        &mut self,
        index: u32,
        from: usize,
        least: Order,
        most: Order,
    ) -> Option<(usize, Order)> {
        let map = self.table.free_map(index);
        let start = (from.next_multiple_of(1 << least.get())..FRAMES)
            .step_by(1 << least.get())
            .find(|&start| map.is_run_free(start, least.get()))?;
        let larger = (least.get()..=most.get())
            .take_while(|&order| start.is_multiple_of(1 << order) && map.is_run_free(start, order));
        let order = larger.last().and_then(Order::new).unwrap_or(least);
        if !self.lists.in_flight.add(index, start, order.get()) {
            return None;
        }
        map.take_run(start, order.get());
        self.taken(index, order.pages());
        self.lists.reporting_pages += order.pages();
        self.table.set_state(index, self.table.state(index).with(BlockState::REPORTING));
        Some((start, order))
    }

    /// Takes a lent run back. The block stays swept if it was and the hypervisor has acknowledged
    /// the run.
    pub(crate) fn return_run(
        &mut self,
        segment: &Range<u32>,
        index: u32,
        (start, order): (usize, Order),
        acknowledged: bool,
    ) {
        let (was_out, more) = self.lists.in_flight.remove(index, start);
        debug_assert!(was_out, "only what was lent comes back");
        let state = self.table.state(index);
        if !more {
            self.table.set_state(index, state.without(BlockState::REPORTING));
        }
        self.lists.reporting_pages -= order.pages();
        let freed = self.free_run(segment, index, start, order);
        debug_assert!(freed, "what is lent stays allocated");
        let now = self.table.state(index);
        if acknowledged && state.has(BlockState::SWEPT) && now.is(State::Split) {
            self.table.set_state(index, now.with(BlockState::SWEPT));
        }
    }

    /// Frees frames of a block that [`check`](Self::check) found allocated; whole blocks that lose
    /// only a part become split.
    pub(crate) fn free(&mut self, segment: &Range<u32>, index: u32, range: Range<usize>) {
        let Some((head, state)) = self.table.head_of(index) else { return };
        if state.is(State::Whole) {
            self.end_count(head);
            if buddy::divide_whole(self.table, index, index + 1).is_none() {
                return;
            }
            self.split_allocated(index, state);
        }
        let mut start = range.start;
        while start < range.end {
            let level =
                start.trailing_zeros().min((range.end - start).ilog2()).min(u32::from(WHOLE) - 1);
            let Some(order) = u8::try_from(level).ok().and_then(Order::new) else { return };
            if !self.free_run(segment, index, start, order) {
                return;
            }
            start += 1 << level;
        }
    }

    /// Frees the aligned run of `order`, below 9, at frame `start` of a block, if that is split and
    /// the run allocated as far as can be told.
    #[inline]
    pub(crate) fn free_run(
        &mut self,
        segment: &Range<u32>,
        index: u32,
        start: usize,
        order: Order,
    ) -> bool {
        if !self.table.is_ready(index) {
            return false;
        }
        let state = self.table.state(index);
        let free = state.free_pages() + order.pages();
        let run = start..start + (1 << order.get());
        if !state.is(State::Split)
            || self.unmanaged(index, state, run.start, run.end).is_some()
            || self.first_in_flight(index, state, &run).is_some()
            || self.in_map(index, state, &run).is_some()
        {
            return false;
        }
        if !self.table.free_map(index).give_run(start, order.get()) {
            return false;
        }
        self.freed(segment, index, state, free);
        true
    }

    /// Frees frames of a block that is split and managed whole, if none of them is free.
    #[inline]
    pub(crate) fn free_range(
        &mut self,
        segment: &Range<u32>,
        index: u32,
        range: Range<usize>,
    ) -> bool {
        if !self.table.is_ready(index) {
            return false;
        }
        let (state, map) = (self.table.state(index), self.table.free_map(index));
        let allocated = state.is(State::Split)
            && state.managed_pages() == PAGES_PER_BLOCK
            && !state.has(BlockState::REPORTING)
            && self.in_map(index, state, &range).is_none()
            && map.first_free(range.start, range.end).is_none();
        if allocated {
            let free = state.free_pages() + map.set_range(range.start, range.end);
            self.freed(segment, index, state, free);
        }
        allocated
    }

    /// Frees the runs of `order` (at most 5) that begin at the set bits of `runs`, counted from
    /// frame `start`, which begins a word of the free map of a block whose entry may be read. All
    /// or none.
    #[inline]
    pub(crate) fn free_word(
        &mut self,
        segment: &Range<u32>,
        index: u32,
        start: usize,
        runs: u64,
        order: Order,
    ) -> bool {
        // Found once: that is a good part of the work.
        let entry = self.table.entry(index);
        let state = entry.state();
        if !state.is_plain() {
            return self.free_special_word(segment, index, start, runs, order);
        }
        let pages = u64::from(runs.count_ones()) << order.get();
        if !self.table.free_map(index).give_word(start, runs, order.get()) {
            return false;
        }
        let free = state.free_pages() + pages;
        if free != PAGES_PER_BLOCK && state.free_order() >= most_order(free) {
            self.lists.split_pages += pages;
            entry.set_state(state.freed_to(free));
        } else if state.free_pages() == 0 {
            self.first_freed(index, state, pages);
        } else {
            self.freed(segment, index, state, free);
        }
        true
    }

    /// Counts the first frames that come back to a block with nothing special about it, less than
    /// all of it.
    #[inline(never)]
    fn first_freed(&mut self, index: u32, state: BlockState, pages: u64) {
        let Some(most) = most_order(pages) else { return };
        self.lists.split_pages += pages;
        self.table.set_state(index, state.freed_to(pages).with_free_order(Some(most)));
        self.lists.free_index.insert(state.migrate_type(), most, index);
    }

    /// The same for a block with something special about it.
    #[cold]
    #[inline(never)]
    fn free_special_word(
        &mut self,
        segment: &Range<u32>,
        index: u32,
        start: usize,
        runs: u64,
        order: Order,
    ) -> bool {
        if runs & runs.wrapping_sub(1) == 0 {
            return self.free_run(segment, index, start + runs.trailing_zeros() as usize, order);
        }
        let state = self.table.state(index);
        let free = state.free_pages() + (u64::from(runs.count_ones()) << order.get());
        // What a word's runs cover is looked at one by one in the few blocks that are not managed
        // whole.
        if !state.is(State::Split)
            || state.managed_pages() != PAGES_PER_BLOCK
            || state.has(BlockState::REPORTING)
        {
            return false;
        }
        if state.map_form() == MapForm::Inside && self.any_in_map(index, start, runs, order) {
            return false;
        }
        if !self.table.free_map(index).give_word(start, runs, order.get()) {
            return false;
        }
        self.freed(segment, index, state, free);
        true
    }

    /// Counts frames that were set in the map: `free` are free now.
    fn freed(&mut self, segment: &Range<u32>, index: u32, before: BlockState, free: u64) {
        let new = before.freed_to(free);
        if before.is_unavailable() {
            self.table.set_state(index, new);
            return self.freed_unavailable(segment, index, free - before.free_pages());
        }
        self.lists.split_pages += free - before.free_pages();
        if free + before.map_pages() == PAGES_PER_BLOCK {
            self.table.set_state(index, new);
            return self.complete(segment, index);
        }
        let most = most_order(free);
        if before.free_order() >= most {
            return self.table.set_state(index, new);
        }
        self.change(index, before, new.with_free_order(most));
    }

    /// A split block all of whose frames are free: one is kept split, because the next request
    /// often splits again; others become whole.
    pub(super) fn complete(&mut self, segment: &Range<u32>, index: u32) {
        if self.lists.spare == NONE && !self.lists.placement.coin() {
            self.lists.spare = index;
            return self.set_free_order(index, Some(WHOLE));
        }
        let migrate_type = self.join(index);
        self.free_whole(segment, index, migrate_type);
    }

    /// Frees a block that is not split any more, whatever its entry says.
    #[inline]
    pub(super) fn free_whole(
        &mut self,
        segment: &Range<u32>,
        index: u32,
        migrate_type: MigrateType,
    ) {
        if migrate_type == MigrateType::Movable {
            self.table.set_state(index, MERGE_DEFERRED);
            if self.lists.defer_merge_of_one(self.table, segment, index) {
                return;
            }
        }
        buddy::free(
            self.lists,
            self.table,
            segment,
            index,
            Order::BLOCK,
            migrate_type,
            Position::Head,
        );
    }

    /// Ends all that makes a split block a split one, but its state; returns its type.
    fn join(&mut self, index: u32) -> MigrateType {
        self.lists.events.block_merges += 1;
        self.set_free_order(index, None);
        let state = self.table.state(index);
        let migrate_type = state.migrate_type();
        self.lists.split_pages -= state.free_pages();
        self.lists.reported.set_zero(index, false);
        self.take_map(index);
        migrate_type
    }

    /// Makes the block that was kept split whole.
    pub(crate) fn release_spare(&mut self, segment_of: impl FnOnce(u32) -> Option<Range<u32>>) {
        let index = core::mem::replace(&mut self.lists.spare, NONE);
        if index == NONE {
            return;
        }
        if let Some(segment) = segment_of(index) {
            let migrate_type = self.join(index);
            buddy::free(
                self.lists,
                self.table,
                &segment,
                index,
                Order::BLOCK,
                migrate_type,
                Position::Head,
            );
        }
    }
}
