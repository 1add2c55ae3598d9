//! Allocates pages out of split blocks, under the zone lock.
//!
//! The free index keeps split blocks in one set for each order. A block's set names an order that
//! no free run of the block exceeds: the logarithm of the number of its free frames. So a search
//! tries the fullest blocks first, and a free has to look at only one word of the free map. A
//! search that finds no run of that order moves the block to the set of its largest run, where it
//! stays until the next free into it.
//!
//! ```text
//!            few free <-- the sets that a block moves through --> all free
//!   order        0     1     2     ...     8     9 (the spare)
//!                      ^ a request for 2^1 pages asks this set first
//! ```

use super::locked::LockedZone;
use crate::block::bit_sets::Neighbours;
use crate::block::free_index::ORDERS;
use crate::block::list::NONE;
use crate::block::{FreeMap, MigrateType, State};
use crate::page::Descriptors;
use crate::units::{Order, PAGES_PER_BLOCK};

const FRAMES: usize = FreeMap::<8>::PAGES;

/// From this many free frames on, a quarter of a block, a request claims a block of another migrate
/// type instead of stealing pages from it. Linux claims a block if at least half of it is free or
/// of a compatible type. That rule cannot be followed here, because the allocated pages of a block
/// are not known by type. It also spoils more blocks (docs/log/measurements.md).
const CLAIM_PAGES: u64 = PAGES_PER_BLOCK / 4;

/// How many blocks ahead of the one in use are prefetched.
const AHEAD: u32 = 4;

/// The largest order that a run among `free` frames can have.
#[inline]
pub(super) fn most_order(free: u64) -> Option<u8> {
    free.checked_ilog2().and_then(|order| u8::try_from(order).ok())
}

/// A run in a split block. It is small enough to be returned in registers; through memory it would
/// cost 5 ns.
#[derive(Clone, Copy)]
pub(super) struct Found {
    pub(super) index: u32,
    pub(super) start: u16,
}

/// Runs of one order in one word of a block's free map: the frame in the block at which the word
/// begins, and a set bit at the first frame of each run.
#[derive(Clone, Copy)]
pub(super) struct WordRuns {
    pub(super) index: u32,
    pub(super) first: usize,
    pub(super) runs: u64,
}

/// What [`LockedZone::take_words`] is to take.
pub(super) struct WordsWanted {
    pub(super) order: Order,
    pub(super) migrate_type: MigrateType,
    /// The most words to take.
    pub(super) most: usize,
    /// The most runs to take in all these words.
    pub(super) limit: u32,
    /// Whether the caller can do without reported memory. If so, not even the first word is taken
    /// from it.
    pub(super) spares: bool,
}

impl LockedZone {
    /// Takes an aligned run of 2^`order` frames, order below 9. Returns the block's index and the
    /// run's first frame in it.
    ///
    /// Split blocks of the request's own migrate type come first: the fullest first, and among
    /// equals the lowest. Next, a whole block is split, of the own type or of one that it may fall
    /// back to. Last, a split block of another type gives up a run. An unmovable or reclaimable
    /// request takes the freest such block, and with the run it claims the block for its own type
    /// if a quarter of the block is free (Linux's rule, `try_to_claim_block` in `mm/page_alloc.c`,
    /// also counts pages of compatible types). A movable request takes from the fullest.
    pub(super) fn take_pages(
        &mut self,
        order: Order,
        migrate_type: MigrateType,
    ) -> Option<(u32, usize)> {
        let (index, start) = self.find(order.get(), migrate_type)?;
        self.buddy.table.free_map(index).take_run(start, order.get());
        self.taken(index, order.pages());
        Some((index, start))
    }

    /// Takes all runs of `order` (at most 5) in one word of a block's free map, but no more than
    /// `limit`.
    pub(super) fn take_word(
        &mut self,
        order: Order,
        migrate_type: MigrateType,
        limit: u32,
    ) -> Option<WordRuns> {
        let (index, start) = self.find(order.get(), migrate_type)?;
        let (first, runs) = self.buddy.table.free_map(index).take_word(start, order.get(), limit);
        self.taken(index, u64::from(runs.count_ones()) << order.get());
        Some(WordRuns { index, first, runs })
    }

    /// Takes the runs of many words, from as many blocks as needed, and passes each word to `give`
    /// at once. Up to 64 blocks at a time come out of one set, which is updated once for all of
    /// them that are used up. Reported memory is taken for the first word only: no caller waits for
    /// the rest.
    pub(super) fn take_words(&mut self, wanted: &WordsWanted, mut give: impl FnMut(WordRuns)) {
        let WordsWanted { order, migrate_type, most, mut limit, spares } = *wanted;
        // A copy in registers: a table reached through `self` would be loaded again after each
        // store.
        let table = self.buddy.table;
        let mut filled = 0;
        while filled < most && limit != 0 {
            if self.is_cut_short() {
                break;
            }
            let found = self.free_index.smallest(migrate_type, order.get());
            if found.is_none()
                && (spares || filled != 0)
                && self.buddy.is_next_reported(migrate_type, Order::BLOCK)
            {
                break;
            }
            let near = found.filter(|_| !self.buddy.placement.is_random());
            let near = near.and_then(|found| {
                Some((found, self.free_index.lowest_members(migrate_type, found)?))
            });
            let Some((found, Neighbours { base, bits: mut members })) = near else {
                let Some(word) = self.take_word(order, migrate_type, limit) else { break };
                give(word);
                limit -= word.runs.count_ones();
                filled += 1;
                continue;
            };
            let mut used_up = 0;
            while members != 0 && filled < most && limit != 0 && !self.is_cut_short() {
                let index = base + members.trailing_zeros();
                let soon = (0..AHEAD).fold(members, |members, _| members & members.wrapping_sub(1));
                if soon != 0 {
                    table.prefetch(base + soon.trailing_zeros(), order);
                }
                // Entry and map are looked up only once, because the lookup is a good part of the
                // work.
                let (entry, map) = (table.entry(index), table.free_map(index));
                let state = entry.state();
                let Some((first, runs)) = map.take_first_word(order.get(), limit) else {
                    self.looked_in_vain(index);
                    members &= members - 1;
                    continue;
                };
                let count = runs.count_ones();
                give(WordRuns { index, first, runs });
                filled += 1;
                limit -= count;
                let pages = u64::from(count) << order.get();
                if state.free_pages() == pages {
                    *self.split_counter(state) -= pages;
                    if self.spare == index {
                        self.spare = NONE;
                    }
                    let empty = state.with_free_pages(0).with_free_order(None);
                    table.set_free_count(entry, index, state, empty);
                    used_up |= 1 << (index - base);
                    members &= members - 1;
                } else {
                    self.taken(index, pages);
                    if table.state(index).free_order() != state.free_order() {
                        members &= members - 1;
                    }
                }
            }
            let used_up = Neighbours { base, bits: used_up };
            self.free_index.remove_members(migrate_type, found, used_up);
        }
    }

    /// Takes up to `out.len()` runs of any order below 9 out of one block, and writes the first
    /// frame of each to `out`, counted from the block's start. Returns the block's index and the
    /// number of runs.
    pub(super) fn take_runs(
        &mut self,
        order: Order,
        migrate_type: MigrateType,
        out: &mut [usize],
    ) -> Option<(u32, usize)> {
        let all = !self.descriptors.as_ref().is_some_and(Descriptors::are_wanted)
            && out.len() >= FRAMES >> order.get()
            && self.free_index.smallest(migrate_type, order.get()).is_none();
        if all && let Some(index) = self.buddy.take(Order::BLOCK, migrate_type) {
            // The caller gets all of a block that was whole, so none of it ever has to be marked
            // free.
            self.split_allocated(index, self.buddy.table.state(index));
            let starts = (0..FRAMES).step_by(1 << order.get());
            let taken = out.iter_mut().zip(starts).map(|(out, start)| *out = start).count();
            return Some((index, taken));
        }
        let (index, start) = self.find(order.get(), migrate_type)?;
        let taken = self.buddy.table.free_map(index).take_runs(start, order.get(), out);
        self.taken(index, (taken as u64) << order.get());
        Some((index, taken))
    }

    /// Finds a split block with a free run of `order`, and the lowest such run in it.
    #[inline]
    fn find(&mut self, order: u8, migrate_type: MigrateType) -> Option<(u32, usize)> {
        let found = self
            .find_split(order, migrate_type)
            .or_else(|| self.find_elsewhere(order, migrate_type))?;
        Some((found.index, usize::from(found.start)))
    }

    #[cold]
    fn find_elsewhere(&mut self, order: u8, migrate_type: MigrateType) -> Option<Found> {
        if let Some(index) = self.buddy.take(Order::BLOCK, migrate_type) {
            // A block with a grade keeps that grade.
            let migrate_type = self.buddy.table.state(index).migrate_type();
            self.split_free(index, migrate_type, 0..1 << order);
            return Some(Found { index, start: 0 });
        }
        if self.is_cut_short() {
            // All memory of the own type has to be looked at before that of another type is
            // touched.
            return None;
        }
        // A block's type tells whether all of it can be made free. So a movable request never
        // claims a block that may have pages that cannot be moved.
        let claims = migrate_type != MigrateType::Movable;
        if claims && let Some(found) = self.claim_freest(order, migrate_type) {
            return Some(found);
        }
        for &foreign in migrate_type.fallbacks() {
            if let Some(found) = self.find_split(order, foreign) {
                if foreign.is_grade() {
                    return Some(found);
                }
                if claims && self.buddy.table.state(found.index).free_pages() >= CLAIM_PAGES {
                    self.claim(found.index, migrate_type);
                } else {
                    self.buddy.events.fallback_steals += 1;
                }
                return Some(found);
            }
        }
        None
    }

    /// Finds a run in the block of another migrate type that has the most free frames, as far as
    /// the index tells, and makes the block one of this type. The next requests of this type find
    /// room there, too, so that pages that cannot be moved spoil few blocks.
    fn claim_freest(&mut self, order: u8, migrate_type: MigrateType) -> Option<Found> {
        if self.buddy.placement.is_random() {
            return None;
        }
        let least = most_order(CLAIM_PAGES).unwrap_or(0).max(order);
        for named in (least..u8::try_from(ORDERS).unwrap_or(0)).rev() {
            for &foreign in migrate_type.fallbacks() {
                while !self.is_cut_short()
                    && let Some(index) = self.free_index.first(foreign, named)
                {
                    let table = self.buddy.table;
                    if table.state(index).free_pages() < CLAIM_PAGES {
                        break;
                    }
                    let start = table.free_map(index).find(order);
                    if let Some(start) = start.and_then(|start| u16::try_from(start).ok()) {
                        self.claim(index, migrate_type);
                        return Some(Found { index, start });
                    }
                    self.looked_in_vain(index);
                }
            }
        }
        None
    }

    /// Changes the migrate type of a split block of another type to this one.
    fn claim(&mut self, index: u32, migrate_type: MigrateType) {
        let state = self.buddy.table.state(index);
        self.change(index, state, state.with_migrate_type(migrate_type));
        self.buddy.retype(state.migrate_type(), migrate_type, 1);
        self.buddy.events.fallback_claims += 1;
    }

    /// Finds a split block of `migrate_type` that really has a run of `order`. A block that turns
    /// out to have less moves to a lower set, and only a free moves it up again. So each such
    /// correction of a block, except its first, was paid for by a free. When one hold of the lock
    /// has made [`MOST_VAIN_LOOKS`](super::locked::MOST_VAIN_LOOKS) of them, a whole block is used
    /// if there is one; otherwise the caller searches again
    /// ([`Zone::search`](super::Zone::search)).
    fn find_split(&mut self, order: u8, migrate_type: MigrateType) -> Option<Found> {
        if self.buddy.placement.is_random() {
            return self.find_anywhere(order, migrate_type);
        }
        while !self.is_cut_short() {
            let found = self.free_index.smallest(migrate_type, order)?;
            let index = self.free_index.first(migrate_type, found)?;
            let map = self.buddy.table.free_map(index);
            if let Some(start) = map.find(order).and_then(|start| u16::try_from(start).ok()) {
                return Some(Found { index, start });
            }
            self.looked_in_vain(index);
        }
        None
    }

    /// Moves a block that has no run of the order its set named to the set of its largest run.
    pub(super) fn looked_in_vain(&mut self, index: u32) {
        let (state, map) = (self.buddy.table.state(index), self.buddy.table.free_map(index));
        self.change(index, state, state.with_free_order(map.largest_order()));
        self.vain_looks += 1;
    }

    /// Takes exactly the run of `order` at frame `start` of a block, if that is free. A block that
    /// was free as a whole takes on the migrate type, unless it has a grade.
    pub(super) fn take_at(
        &mut self,
        index: u32,
        start: usize,
        order: Order,
        migrate_type: MigrateType,
    ) -> bool {
        let Some((head, mut state)) = self.buddy.table.head_of(index) else { return false };
        if state.is(State::Free) {
            self.buddy.take_from(head, index, Order::BLOCK, migrate_type);
            let now = state.migrate_type().taken_for(migrate_type);
            self.split_free(index, now, start..start + (1 << order.get()));
            state = self.buddy.table.state(index);
        }
        // From here on use the head's state word: the block's own entry may never have been cleared
        // (invariant 5).
        let map = self.buddy.table.free_map(index);
        if !state.is(State::Split) || state.is_unavailable() || !map.is_run_free(start, order.get())
        {
            return false;
        }
        map.take_run(start, order.get());
        self.taken(index, order.pages());
        true
    }

    /// Counts frames as taken whose bits in the free map were cleared.
    #[inline]
    pub(super) fn taken(&mut self, index: u32, pages: u64) {
        let state = self.buddy.table.state(index);
        let free = state.free_pages() - pages;
        *self.split_counter(state) -= pages;
        if self.spare == index {
            self.spare = NONE;
        }
        let new = state.with_free_pages(free);
        let most = most_order(free);
        // Do not lower the order at once: the next free may raise it again.
        let lower = free == 0 || state.free_order() > most.map(|most| most + 1);
        self.change(index, state, if lower { new.with_free_order(most) } else { new });
    }
}
