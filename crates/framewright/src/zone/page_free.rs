//! Frees pages into split blocks, under the zone lock.
//!
//! A free sets bits of the block's free map, adds to the count in its state word, and moves the
//! block to a higher set of the free index if the new count calls for that. The frames must be
//! allocated as far as the tables can tell: not free, not unmanaged, not holding descriptors, and
//! not with the hypervisor.

use super::locked::LockedZone;
use super::page_alloc::most_order;
use crate::block::split::divide_whole;
use crate::block::{BlockState, DescriptorForm, State};
use crate::units::{BLOCK_ORDER, Order, PAGES_PER_BLOCK};
use core::ops::Range;

/// Why frames of a block cannot be freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Refused {
    /// This frame of the block is free already.
    Free(usize),
    /// This frame of the block is a hole or reserved.
    Unmanaged(usize),
    /// The block was not allocated.
    State(Option<State>),
}

impl LockedZone {
    /// Checks that the frames `range` of a block are allocated, as far as the tables can tell.
    pub(super) fn check_part(&self, index: u32, range: &Range<usize>) -> Result<(), Refused> {
        let Some((_, state)) = self.buddy.table.head_of(index) else {
            return Err(Refused::State(None));
        };
        match state.state() {
            Some(State::Whole) if state.has(BlockState::KEPT) => {
                Err(Refused::Unmanaged(range.start))
            }
            Some(State::Whole) if state.has(BlockState::POISONED) => {
                Err(Refused::State(Some(State::Offline)))
            }
            Some(State::Whole) if self.buddy.is_deferred(index) => Err(Refused::Free(range.start)),
            Some(State::Whole) => Ok(()),
            Some(State::Split) => match self
                .buddy
                .table
                .free_map(index)
                .first_free(range.start, range.end)
                .or_else(|| self.first_in_flight(index, state, range))
            {
                Some(frame) => Err(Refused::Free(frame)),
                None => match self
                    .unmanaged(index, state, range.start, range.end)
                    .or_else(|| self.in_descriptors(index, state, range))
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
        // The counts tell, too, where there was no room to note which frames of the block are
        // managed.
        let too_many = state.free_pages() + state.descriptor_pages() + (end - start) as u64
            > state.managed_pages();
        self.partials.first_unmanaged(index, start, end).or(too_many.then_some(start))
    }

    /// The first frame of `range` of a split block that the hypervisor has. In the free map such
    /// frames look allocated.
    #[inline]
    fn first_in_flight(
        &self,
        index: u32,
        state: BlockState,
        range: &Range<usize>,
    ) -> Option<usize> {
        if state.has(BlockState::REPORTING) { self.in_flight.first_in(index, range) } else { None }
    }

    /// Frees frames of a block that [`check_part`](Self::check_part) found allocated. A whole block
    /// that loses only a part becomes split.
    pub(super) fn free_part(&mut self, index: u32, range: Range<usize>) {
        let Some((head, state)) = self.buddy.table.head_of(index) else { return };
        if state.is(State::Whole) {
            self.end_count(head);
            if divide_whole(&self.buddy.table, index, index + 1).is_none() {
                debug_assert!(false, "found allocated: {state:?}");
                return;
            }
            self.split_allocated(index, state);
        }
        let mut start = range.start;
        while start < range.end {
            let level = start
                .trailing_zeros()
                .min((range.end - start).ilog2())
                .min(u32::from(BLOCK_ORDER) - 1);
            let Some(order) = u8::try_from(level).ok().and_then(Order::new) else { return };
            if !self.free_run(index, start, order) {
                debug_assert!(false, "found allocated: {start} of {range:?}");
                return;
            }
            start += 1 << level;
        }
    }

    /// Frees the aligned run of `order`, below 9, at frame `start` of a block. Returns false if the
    /// block is not split or if the run is not allocated as far as the tables can tell.
    #[cfg_attr(feature = "smp", inline)]
    #[cfg_attr(not(feature = "smp"), inline(never))]
    pub(super) fn free_run(&mut self, index: u32, start: usize, order: Order) -> bool {
        if !self.buddy.table.is_ready(index) {
            return false;
        }
        let state = self.buddy.table.state(index);
        let free = state.free_pages() + order.pages();
        let run = start..start + (1 << order.get());
        if !state.is(State::Split)
            || self.unmanaged(index, state, run.start, run.end).is_some()
            || self.first_in_flight(index, state, &run).is_some()
            || self.in_descriptors(index, state, &run).is_some()
        {
            return false;
        }
        if !self.buddy.table.free_map(index).give_run(start, order.get()) {
            return false;
        }
        self.freed(index, state, free);
        true
    }

    /// Frees frames of a block that is split and entirely managed. Returns false if any of them is
    /// free.
    #[inline]
    pub(super) fn free_range(&mut self, index: u32, range: Range<usize>) -> bool {
        if !self.buddy.table.is_ready(index) {
            return false;
        }
        let (state, map) = (self.buddy.table.state(index), self.buddy.table.free_map(index));
        let allocated = state.is(State::Split)
            && state.managed_pages() == PAGES_PER_BLOCK
            && !state.has(BlockState::REPORTING)
            && self.in_descriptors(index, state, &range).is_none()
            && map.first_free(range.start, range.end).is_none();
        if allocated {
            let free = state.free_pages() + map.set_range(range.start, range.end);
            self.freed(index, state, free);
        }
        allocated
    }

    /// Frees the runs of `order` (at most 5) that begin at the set bits of `runs`, counted from
    /// frame `start`, which begins a word of the free map of a block whose entry may be read. Frees
    /// either all of them or none.
    #[inline]
    pub(super) fn free_word(&mut self, index: u32, start: usize, runs: u64, order: Order) -> bool {
        // The entry is looked up only once, because the lookup is a good part of the work.
        let entry = self.buddy.table.entry(index);
        let state = entry.state();
        if !state.is_plain() {
            return self.free_special_word(index, start, runs, order);
        }
        let pages = u64::from(runs.count_ones()) << order.get();
        if !self.buddy.table.free_map(index).give_word(start, runs, order.get()) {
            return false;
        }
        let free = state.free_pages() + pages;
        if free != PAGES_PER_BLOCK && state.free_order() >= most_order(free) {
            self.split_pages += pages;
            self.buddy.table.set_free_count(entry, index, state, state.freed_to(free));
        } else if state.free_pages() == 0 {
            self.first_freed(index, state, pages);
        } else {
            self.freed(index, state, free);
        }
        true
    }

    /// Counts the first frames that are freed into a plain block ([`BlockState::is_plain`]) with no
    /// free frame, fewer than all of its frames.
    #[inline(never)]
    fn first_freed(&mut self, index: u32, state: BlockState, pages: u64) {
        let Some(most) = most_order(pages) else { return };
        self.split_pages += pages;
        self.buddy.table.set_state(index, state.freed_to(pages).with_free_order(Some(most)));
        self.free_index.insert(state.migrate_type(), most, index);
    }

    /// [`free_word`](Self::free_word) for a block that is not plain ([`BlockState::is_plain`]).
    #[cold]
    #[inline(never)]
    fn free_special_word(&mut self, index: u32, start: usize, runs: u64, order: Order) -> bool {
        if runs & runs.wrapping_sub(1) == 0 {
            return self.free_run(index, start + runs.trailing_zeros() as usize, order);
        }
        let state = self.buddy.table.state(index);
        let free = state.free_pages() + (u64::from(runs.count_ones()) << order.get());
        // The few blocks that are not entirely managed free the runs of a word one by one.
        if !state.is(State::Split)
            || state.managed_pages() != PAGES_PER_BLOCK
            || state.has(BlockState::REPORTING)
        {
            return false;
        }
        if state.descriptor_form() == DescriptorForm::Inside
            && self.any_in_descriptors(index, start, runs, order)
        {
            return false;
        }
        if !self.buddy.table.free_map(index).give_word(start, runs, order.get()) {
            return false;
        }
        self.freed(index, state, free);
        true
    }

    /// Counts frames as freed whose bits in the free map were set. The block now has `free` free
    /// frames.
    pub(super) fn freed(&mut self, index: u32, before: BlockState, free: u64) {
        let new = before.freed_to(free);
        if before.is_unavailable() {
            self.buddy.table.set_state(index, new);
            return self.freed_unavailable(index, free - before.free_pages());
        }
        *self.split_counter(before) += free - before.free_pages();
        if free + before.descriptor_pages() == PAGES_PER_BLOCK {
            self.buddy.table.set_state(index, new);
            return self.complete(index);
        }
        let most = most_order(free);
        if before.free_order() >= most {
            return self.buddy.table.set_state(index, new);
        }
        self.change(index, before, new.with_free_order(most));
    }
}
