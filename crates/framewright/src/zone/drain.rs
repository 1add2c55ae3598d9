//! Drains a CPU's cache: frees many runs of one order into the zone under one hold of its lock.
//!
//! [`Zone::drain`] frees many runs, as [`Zone::free_order`] frees one. The order decides the path:
//!
//! 1. words of runs (orders 0 to 3): one word of a free map each;
//! 2. halves of a block (order 8): two states and two comparisons (`halves`);
//! 3. other runs (orders 4 to 7): all runs of whole blocks together, those of one block, or one
//!    run;
//! 4. blocks (order 9): their merge is deferred, neighbours together.
//!
//! Each path has its own loop, so that the path is chosen once and not for each entry.

use super::Zone;
use super::halves::HALF;
use super::locked::LockedZone;
use crate::block::deferred_merge::{MERGE_DEFERRED, deferrable_grade};
use crate::block::list::NONE;
use crate::block::lots::WORD_ORDERS;
use crate::block::segment::{self, offset_in_block};
use crate::block::{BlockState, FreeMap, State};
use crate::page::{MOST_RETURNED, Runs};
use crate::platform::Platform;
use crate::units::{Order, PAGES_PER_BLOCK};
use crate::vmemmap_space::BlockNumber;

/// How many entries ahead of the one that is being freed are prefetched.
const AHEAD: usize = 8;

impl Zone {
    /// Frees words of runs of one order below 9, or blocks of order 9. An entry that is not
    /// allocated as a whole is passed to `refused`, unchanged and after the lock was released.
    pub(crate) fn drain<P: Platform>(
        &self,
        platform: &P,
        batch: &[Runs],
        order: Order,
        refused: &mut dyn FnMut(Runs),
    ) {
        for batch in batch.chunks(MOST_RETURNED) {
            // Look up the blocks before taking the lock, for which others may wait.
            let mut indices = [NONE; MOST_RETURNED];
            let indices = &mut indices[..batch.len()];
            self.find_blocks(batch, order, indices);
            let mut done = 0;
            while done < batch.len() {
                let mut locked = self.lock(platform);
                done += locked.drain(order, &batch[done..], &indices[done..]);
                drop(locked);
                if let Some(&entry) = batch.get(done) {
                    refused(entry);
                    done += 1;
                }
            }
        }
    }

    /// Writes the index of each entry's block to `indices` and prefetches what freeing it will
    /// touch. An entry keeps `NONE` if no block has it or, for words, if the block's own entry may
    /// not be read.
    #[inline]
    fn find_blocks(&self, batch: &[Runs], order: Order, indices: &mut [u32]) {
        let Some(mut near) = self.segments.first() else { return };
        let mut last = None;
        for (entry, index) in batch.iter().zip(indices) {
            let block = BlockNumber::containing(entry.base);
            if !(near.start..near.end()).contains(&block) {
                let Some(segment) = segment::find(self.segments, block) else { continue };
                near = segment;
            }
            let found = near.index_of(block);
            // Neighbouring runs of higher orders are freed as one, so readiness is checked once for
            // many of them, under the lock.
            if order.get() >= WORD_ORDERS || self.table.is_ready(found) {
                // Runs of the same block follow one another.
                if last.replace(found) != Some(found) {
                    self.table.prefetch(found, order);
                }
                *index = found;
            }
        }
    }
}

impl LockedZone {
    /// Frees entries, whose blocks are at `indices`, up to the first that cannot be freed. Returns
    /// how many it freed. Not inlined, so that all callers share one copy.
    #[inline(never)]
    fn drain(&mut self, order: Order, batch: &[Runs], indices: &[u32]) -> usize {
        let (before, unused) = (self.free_pages(), self.unused_pages());
        let nothing_ahead = |_: &Self, _| {};
        let done = if order.get() < WORD_ORDERS {
            self.drain_each(batch, indices, nothing_ahead, |locked, index, rest| {
                let offset = offset_in_block(rest[0].base);
                usize::from(locked.free_word(index, offset, rest[0].runs, order))
            })
        } else if order == HALF {
            self.drain_each(batch, indices, nothing_ahead, Self::drain_halves)
        } else if order < Order::BLOCK {
            self.drain_each(batch, indices, nothing_ahead, |locked, index, rest| {
                locked.drain_runs(index, rest, order)
            })
        } else {
            let ahead = |locked: &Self, index| locked.buddy.prefetch_deferred(index);
            self.drain_each(batch, indices, ahead, Self::drain_blocks)
        };
        self.buddy.events.cache_returns += 1;
        self.buddy.events.cache_return_pages += self.free_pages().saturating_sub(before);
        self.note_freed_since(unused);
        done
    }

    /// Calls `free` repeatedly with the index of the first entry that is left and all entries that
    /// are left; `free` returns how many it freed. `ahead` is called with the index of an entry
    /// that is freed soon.
    #[inline]
    fn drain_each(
        &mut self,
        batch: &[Runs],
        indices: &[u32],
        ahead: impl Fn(&Self, u32),
        free: impl Fn(&mut Self, u32, &[Runs]) -> usize,
    ) -> usize {
        let (mut rest, mut left) = (batch, indices);
        left.iter().take(AHEAD).filter(|&&soon| soon != NONE).for_each(|&soon| ahead(self, soon));
        while let Some(&index) = left.first() {
            if let Some(&soon) = left.get(AHEAD).filter(|&&soon| soon != NONE) {
                ahead(self, soon);
            }
            let freed = if index == NONE { 0 } else { free(self, index, rest) };
            if freed == 0 {
                break;
            }
            (rest, left) = (&rest[freed..], &left[freed..]);
        }
        batch.len() - rest.len()
    }

    /// Frees the first half of `rest`, together with the following runs if their addresses are
    /// consecutive.
    #[inline]
    fn drain_halves(&mut self, index: u32, rest: &[Runs]) -> usize {
        let start = rest[0].base;
        let in_order = rest.get(1).is_some_and(|next| next.base == start.add(HALF.pages()));
        if !in_order && self.free_half(index, offset_in_block(start)) {
            return 1;
        }
        self.drain_runs(index, rest, HALF)
    }

    /// Frees the first run of `rest`, together with those that follow it in the same block, or with
    /// all of some neighbouring blocks. Returns how many entries that were.
    fn drain_runs(&mut self, index: u32, rest: &[Runs], order: Order) -> usize {
        let start = rest[0].base;
        let offset = offset_in_block(start);
        let runs_of_block = FreeMap::<8>::PAGES >> order.get();
        if offset == 0 && rest.len() >= runs_of_block {
            let is_all = |block: u32, runs: &[Runs]| {
                let start = start.add(u64::from(block) * PAGES_PER_BLOCK);
                runs.iter()
                    .zip(0_u64..)
                    .all(|(runs, number)| runs.base == start.add(number * order.pages()))
            };
            let whole = (0..self.most_neighbours(index))
                .zip(rest.chunks_exact(runs_of_block))
                .take_while(|&(block, runs)| is_all(block, runs));
            let most = u32::try_from(whole.count()).unwrap_or(0);
            let blocks = self.free_allocated(index, most);
            if blocks != 0 {
                return blocks as usize * runs_of_block;
            }
        }
        let follows = rest.iter().zip(0_u64..).skip(1).take_while(|(next, number)| {
            next.base == start.add(number * order.pages()) && !next.base.is_aligned(Order::BLOCK)
        });
        let runs = 1 + follows.count();
        if runs > 1 && self.free_range(index, offset..offset + (runs << order.get())) {
            return runs;
        }
        usize::from(self.free_run(index, offset, order))
    }

    /// Frees the first block of `rest` together with the neighbours that follow it.
    #[inline]
    fn drain_blocks(&mut self, index: u32, rest: &[Runs]) -> usize {
        if !self.buddy.table.is_ready(index) {
            return 0;
        }
        let state = self.buddy.table.state(index);
        if state == MERGE_DEFERRED {
            let follows =
                rest.get(1).is_some_and(|next| next.base == rest[0].base.add(PAGES_PER_BLOCK));
            let blocks = if follows { self.neighbours_of(index, rest, state) } else { 1 };
            if blocks > 1 && self.buddy.defer_merge(index, blocks) {
                return blocks as usize;
            }
            // `free_block` below would do this, too. Doing it here saves a sixth of the time that a
            // free in random order takes.
            if self.buddy.defer_merge_of_one(index) {
                return 1;
            }
        }
        if cfg!(feature = "moving")
            && state.is_graded()
            && let Some(grade) = deferrable_grade(state)
        {
            let blocks = self.neighbours_of(index, rest, state);
            if self.buddy.defer_graded_merge(index, blocks, grade) {
                return blocks as usize;
            }
        }
        let plain = state == BlockState::head(State::Whole, Order::BLOCK, state.migrate_type());
        usize::from(plain && self.free_block(index, state))
    }

    /// How many blocks of `rest`, from the first on, are neighbours in the same word of 64 and have
    /// the same state word as the first.
    #[inline]
    fn neighbours_of(&self, index: u32, rest: &[Runs], state: BlockState) -> u32 {
        let base = rest[0].base;
        let follow =
            (1..self.most_neighbours(index)).zip(&rest[1..]).take_while(|&(block, entry)| {
                entry.base == base.add(u64::from(block) * PAGES_PER_BLOCK)
                    && self.buddy.table.state(index + block) == state
            });
        follow.last().map_or(1, |(block, _)| block + 1)
    }

    /// How many blocks from `index` on share its word of a bit set and its segment.
    #[inline]
    fn most_neighbours(&self, index: u32) -> u32 {
        (64 - index % 64).min(self.buddy.segment_of(index).end - index)
    }
}
