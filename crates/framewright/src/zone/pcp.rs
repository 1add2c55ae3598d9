//! Between a zone and the caches of CPUs: much at once under one hold of the lock.

use super::Zone;
use super::flow::unused_pages;
use super::segment::{self, Segment};
use super::serve::offset_in_block;
use crate::block::bit_sets::neighbours;
use crate::block::deferred_merge::MERGE_DEFERRED;
use crate::block::lists::{FreeLists, NONE};
use crate::block::{BlockState, FreeMap, MigrateType, State, buddy};
use crate::page::{CpuCache, HALF, MOST_RETURNED, MOST_RUNS, Runs};
use crate::platform::Platform;
use crate::units::{Order, PAGES_PER_BLOCK, Pfn};
use crate::vmemmap_space::BlockNumber;
use core::ops::Range;

/// Pieces that a refill of blocks takes at most.
const MOST_TAKEN: usize = 16;

/// Allocated blocks of 2 MiB: for some groups of 64 neighbours the index of the first and a bit for
/// each that was taken.
struct Taken {
    pieces: [(u32, u64); MOST_TAKEN],
    len: usize,
}

impl Taken {
    const NOTHING: Self = Self { pieces: [(0, 0); MOST_TAKEN], len: 0 };

    fn push(&mut self, some: (u32, u64)) {
        if let Some(piece) = self.pieces.get_mut(self.len) {
            *piece = some;
            self.len += 1;
        }
    }

    const fn is_empty(&self) -> bool {
        self.len == 0
    }

    const fn is_full(&self) -> bool {
        self.len == MOST_TAKEN
    }

    fn pieces(&self) -> &[(u32, u64)] {
        &self.pieces[..self.len]
    }
}

/// How many blocks from `index` on share its word of a set and its segment.
fn most_neighbours(segment: &Range<u32>, index: u32) -> u32 {
    (64 - index % 64).min(segment.end - index)
}

/// How many entries ahead of the one that is freed memory is asked for.
const AHEAD: usize = 8;
/// Orders below this one have words.
const WORDS_BELOW: u8 = 4;
/// Runs of the smallest order that has no words in a block.
const RUNS_OF_A_BLOCK: usize = FreeMap::<8>::PAGES >> WORDS_BELOW;

impl Zone {
    /// Fills a cache whose words or stack for this order are used up and takes one run for the
    /// caller, some `most` runs in all and above `keep` free pages.
    pub(crate) fn refill<P: Platform>(
        &self,
        platform: &P,
        cache: &CpuCache,
        (order, migrate_type): (Order, MigrateType),
        most: u32,
        keep: u64,
    ) -> Option<Pfn> {
        // Without the lock: a zone that is full says so at once.
        self.free_pages().checked_sub(keep + order.pages())?;
        let batch = cache.batch(order, migrate_type);
        let mut lists = self.changing.lists.lock(platform);
        let before = lists.free_pages();
        let spare = before.saturating_sub(keep) / order.pages();
        let limit = u32::try_from(spare).unwrap_or(u32::MAX).min(most);
        let mut blocks = None;
        let first = if order.get() < WORDS_BELOW {
            self.refill_words(&mut lists, cache, (order, migrate_type), batch, limit)
        } else if order < Order::BLOCK {
            self.refill_runs(&mut lists, cache, (order, migrate_type), batch, limit)
        } else {
            let batch = u32::try_from(batch).unwrap_or(0).max(1);
            blocks = self.take_blocks(&mut lists, migrate_type, batch.min(limit));
            None
        };
        lists.events.cache_refills += u64::from(first.is_some() || blocks.is_some());
        lists.events.cache_refill_pages += before.saturating_sub(lists.free_pages());
        self.publish(&lists);
        // Blocks are put into the cache when others may have the lock.
        drop(lists);
        first.or_else(|| self.stack_blocks(cache, blocks.as_ref()?))
    }

    fn refill_words(
        &self,
        lists: &mut FreeLists,
        cache: &CpuCache,
        (order, migrate_type): (Order, MigrateType),
        batch: usize,
        limit: u32,
    ) -> Option<Pfn> {
        let spares = cache.has_freed(order, migrate_type);
        let mut first = None;
        self.tier(lists).take_words(order, migrate_type, limit, spares, batch + 1, |word| {
            let Some(base) = self.frame(word.index, word.first) else { return };
            let mut runs = word.runs;
            if first.is_none() {
                first = Some(base.add(u64::from(runs.trailing_zeros())));
                runs &= runs.wrapping_sub(1);
            }
            cache.take_over(order, migrate_type, Runs { base, runs });
        });
        first
    }

    fn refill_runs(
        &self,
        lists: &mut FreeLists,
        cache: &CpuCache,
        (order, migrate_type): (Order, MigrateType),
        batch: usize,
        limit: u32,
    ) -> Option<Pfn> {
        let mut starts = [Pfn(0); MOST_RUNS];
        let wanted = batch.min(limit as usize).min(MOST_RUNS);
        let mut filled = 0;
        let mut offsets = [0; RUNS_OF_A_BLOCK];
        while filled < wanted {
            let room = (wanted - filled).min(RUNS_OF_A_BLOCK);
            if filled != 0
                && lists.free_index.smallest(migrate_type, order.get()).is_none()
                && (room < FreeMap::<8>::PAGES >> order.get()
                    || lists.is_next_reported(migrate_type, Order::BLOCK))
            {
                // Nobody waits for more, so no block is divided for a part of it.
                break;
            }
            let Some((index, taken)) =
                self.tier(lists).take_runs(order, migrate_type, &mut offsets[..room])
            else {
                break;
            };
            let Some(block) = self.frame(index, 0) else { break };
            for (start, &offset) in starts[filled..].iter_mut().zip(&offsets[..taken]) {
                *start = block.add(offset as u64);
            }
            filled += taken;
        }
        let (&first, others) = starts[..filled].split_first()?;
        // The lowest on top, so that addresses ascend.
        for &start in others.iter().rev() {
            cache.put(start, order);
        }
        Some(first)
    }

    /// Takes up to `most` blocks: those that are loose, else free blocks as whole as they are, the
    /// smallest first. Nothing when there is none.
    fn take_blocks(
        &self,
        lists: &mut FreeLists,
        migrate_type: MigrateType,
        most: u32,
    ) -> Option<Taken> {
        let mut taken = Taken::NOTHING;
        let mut left = most;
        while left != 0 && !taken.is_full() {
            let some = buddy::take_some(lists, &self.table, left, migrate_type, taken.is_empty());
            let Some(some) = some else { break };
            left -= some.1.count_ones();
            taken.push(some);
        }
        if taken.is_empty() && most != 0 {
            // By all means that there are for one.
            let (index, _) = self.take(lists, Order::BLOCK, migrate_type)?;
            taken.push(neighbours(index, 1));
        }
        (!taken.is_empty()).then_some(taken)
    }

    /// Puts blocks into the cache, but for the lowest of those taken first, which is returned.
    fn stack_blocks(&self, cache: &CpuCache, taken: &Taken) -> Option<Pfn> {
        let mut first = None;
        // The lowest on top, so that addresses ascend.
        for &(base, bits) in taken.pieces().iter().rev() {
            let mut rest = bits;
            while rest != 0 {
                let bit = rest.ilog2();
                rest &= !(1 << bit);
                if let Some(start) = self.frame(base + bit, 0)
                    && let Some(start) = first.replace(start)
                {
                    cache.put(start, Order::BLOCK);
                }
            }
        }
        first
    }

    /// Frees words of runs of one order below 9, or blocks of order 9, under one hold of the lock.
    /// Those that are not wholly as they should be go to `refused`, unchanged and when the lock is
    /// open again.
    pub(crate) fn free_batch<P: Platform>(
        &self,
        platform: &P,
        batch: &[Runs],
        order: Order,
        refused: &mut dyn FnMut(Runs),
    ) {
        // Each kind has its own loop: what is decided once here would be decided for each entry
        // there.
        let prefetched = |_: &FreeLists, _| {};
        if order.get() < WORDS_BELOW {
            self.free_each(
                platform,
                batch,
                order,
                refused,
                prefetched,
                |lists, segment, index, rest| {
                    let offset = offset_in_block(rest[0].base);
                    usize::from(self.tier(lists).free_word(
                        segment,
                        index,
                        offset,
                        rest[0].runs,
                        order,
                    ))
                },
            );
        } else if order == HALF {
            self.free_each(
                platform,
                batch,
                HALF,
                refused,
                prefetched,
                |lists, segment, index, rest| self.give_halves(lists, segment, index, rest),
            );
        } else if order < Order::BLOCK {
            self.free_each(
                platform,
                batch,
                order,
                refused,
                prefetched,
                |lists, segment, index, rest| self.give_runs(lists, segment, index, rest, order),
            );
        } else {
            let ahead = |lists: &FreeLists, index| lists.deferred.prefetch(index);
            self.free_each(
                platform,
                batch,
                Order::BLOCK,
                refused,
                ahead,
                |lists, segment, index, rest| self.give_blocks(lists, segment, index, rest),
            );
        }
    }

    /// Calls `give` with the lock, the segment and index of the first entry that is left, and all
    /// that are left; it says how many it gave back. `ahead` is called with the index of one that
    /// is given soon.
    #[inline]
    fn free_each<P: Platform>(
        &self,
        platform: &P,
        batch: &[Runs],
        order: Order,
        refused: &mut dyn FnMut(Runs),
        ahead: impl Fn(&FreeLists, u32),
        give: impl Fn(&mut FreeLists, &Range<u32>, u32, &[Runs]) -> usize,
    ) {
        for batch in batch.chunks(MOST_RETURNED) {
            // What can be done before is not done under the lock, where others wait for it.
            let mut indices = [NONE; MOST_RETURNED];
            let indices = &mut indices[..batch.len()];
            self.find_blocks(batch, order, indices);
            let (mut rest, mut left) = (batch, &*indices);
            while !rest.is_empty() {
                let mut lists = self.changing.lists.lock(platform);
                let (before, unused) = (lists.free_pages(), unused_pages(&lists));
                let mut segment = 0..0;
                let mut wrong = None;
                left.iter()
                    .take(AHEAD)
                    .filter(|&&soon| soon != NONE)
                    .for_each(|&soon| ahead(&lists, soon));
                while let (Some(&entry), Some(&index)) = (rest.first(), left.first()) {
                    if !segment.contains(&index) {
                        segment = segment::find_index(self.segments, index)
                            .map_or(0..0, Segment::indices);
                    }
                    if let Some(&soon) = left.get(AHEAD).filter(|&&soon| soon != NONE) {
                        ahead(&lists, soon);
                    }
                    let given =
                        if index == NONE { 0 } else { give(&mut lists, &segment, index, rest) };
                    (rest, left) = (&rest[given.max(1)..], &left[given.max(1)..]);
                    if given == 0 {
                        wrong = Some(entry);
                        break;
                    }
                }
                lists.events.cache_returns += 1;
                lists.events.cache_return_pages += lists.free_pages().saturating_sub(before);
                self.note_freed_since(&lists, unused);
                self.publish(&lists);
                drop(lists);
                if let Some(entry) = wrong {
                    refused(entry);
                }
            }
        }
    }

    /// Writes the index of each entry's block to `indices`, where it has one and for words one that
    /// may be read, and asks for what freeing it will touch.
    #[inline]
    fn find_blocks(&self, batch: &[Runs], order: Order, indices: &mut [u32]) {
        let mut near =
            self.segments.first().map_or((BlockNumber(0)..BlockNumber(0), 0..0), Segment::place);
        let mut last = None;
        for (entry, index) in batch.iter().zip(indices) {
            let block = BlockNumber::containing(entry.base);
            if !near.0.contains(&block) {
                let Some(segment) = segment::find(self.segments, block) else { continue };
                near = segment.place();
            }
            let found = near.1.start + (block.0 - near.0.start.0);
            // Of larger runs neighbours go back as one, so that it is asked once for many under the
            // lock.
            if order.get() >= WORDS_BELOW || self.table.is_ready(found) {
                // Runs of one block follow one another.
                if last.replace(found) != Some(found) {
                    self.table.prefetch(found, order);
                }
                *index = found;
            }
        }
    }

    /// Frees the first half of `rest`, and with it others where they come in order.
    #[inline]
    fn give_halves(
        &self,
        lists: &mut FreeLists,
        segment: &Range<u32>,
        index: u32,
        rest: &[Runs],
    ) -> usize {
        let start = rest[0].base;
        let in_order = rest.get(1).is_some_and(|next| next.base == start.add(HALF.pages()));
        if !in_order && self.tier(lists).free_half(segment, index, offset_in_block(start)) {
            return 1;
        }
        self.give_runs(lists, segment, index, rest, HALF)
    }

    /// Frees the first run of `rest`, and with it those that follow in the same block, or all of
    /// some neighbouring blocks; returns how many entries that were.
    fn give_runs(
        &self,
        lists: &mut FreeLists,
        segment: &Range<u32>,
        index: u32,
        rest: &[Runs],
        order: Order,
    ) -> usize {
        let start = rest[0].base;
        let offset = offset_in_block(start);
        let runs_of_block = FreeMap::<8>::PAGES >> order.get();
        if offset == 0 && rest.len() >= runs_of_block {
            let most = most_neighbours(segment, index);
            let is_all = |block: u32, runs: &[Runs]| {
                let start = start.add(u64::from(block) * PAGES_PER_BLOCK);
                runs.iter()
                    .zip(0_u64..)
                    .all(|(runs, number)| runs.base == start.add(number * order.pages()))
            };
            let whole = (0..most)
                .zip(rest.chunks_exact(runs_of_block))
                .take_while(|&(block, runs)| is_all(block, runs));
            let blocks = self.tier(lists).free_allocated(
                segment,
                index,
                u32::try_from(whole.count()).unwrap_or(0),
            );
            if blocks != 0 {
                return blocks as usize * runs_of_block;
            }
        }
        let follows = rest.iter().zip(0_u64..).skip(1).take_while(|(next, number)| {
            next.base == start.add(number * order.pages()) && !next.base.is_aligned(Order::BLOCK)
        });
        let runs = 1 + follows.count();
        if runs > 1
            && self.tier(lists).free_range(segment, index, offset..offset + (runs << order.get()))
        {
            return runs;
        }
        usize::from(self.tier(lists).free_run(segment, index, offset, order))
    }

    /// How many blocks of `rest` from the first on are neighbours within 64 whose entries say
    /// [`MERGE_DEFERRED`], as the first's does.
    #[inline]
    fn neighbours_of(&self, segment: &Range<u32>, index: u32, rest: &[Runs]) -> u32 {
        let most = most_neighbours(segment, index);
        let base = rest[0].base;
        let follow = (1..most).zip(&rest[1..]).take_while(|&(block, entry)| {
            entry.base == base.add(u64::from(block) * PAGES_PER_BLOCK)
                && self.table.state(index + block) == MERGE_DEFERRED
        });
        follow.last().map_or(1, |(block, _)| block + 1)
    }

    /// The same for blocks: the first of `rest`, and with it those that get loose with it.
    #[inline]
    fn give_blocks(
        &self,
        lists: &mut FreeLists,
        segment: &Range<u32>,
        index: u32,
        rest: &[Runs],
    ) -> usize {
        if !self.table.is_ready(index) {
            return 0;
        }
        let state = self.table.state(index);
        if state == MERGE_DEFERRED {
            let follows =
                rest.get(1).is_some_and(|next| next.base == rest[0].base.add(PAGES_PER_BLOCK));
            let blocks = if follows { self.neighbours_of(segment, index, rest) } else { 1 };
            if blocks > 1 && lists.defer_merge(&self.table, segment, index, blocks) {
                return blocks as usize;
            }
            // Here and not below only: a sixth of what a free in random order takes.
            if lists.defer_merge_of_one(&self.table, segment, index) {
                return 1;
            }
        }
        let plain = state == BlockState::head(State::Whole, Order::BLOCK, state.migrate_type());
        usize::from(plain && self.give_whole_or_defer_merge(lists, segment, index, state))
    }
}
