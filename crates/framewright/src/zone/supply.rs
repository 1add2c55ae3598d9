//! Between a zone and the caches of CPUs: much at once under one hold of the lock.

use super::Zone;
use super::segment::{self, Segment};
use super::serve::offset_in_block;
use crate::block::lists::{FreeLists, Position};
use crate::block::table::blocks_of;
use crate::block::{BlockState, FreeMap, MigrateType, State, buddy};
use crate::map_space::BlockNumber;
use crate::page::{CpuCache, MOST_READY, Runs, WordRuns};
use crate::platform::Platform;
use crate::units::{BLOCK_ORDER, Order, PAGES_PER_BLOCK, Pfn};
use core::ops::Range;

/// What a refill of blocks takes at once, and a drain gives back at once, where it can: 8 blocks; 2 in the tiny caches of the model checkers.
const TOGETHER: Order = match Order::new(BLOCK_ORDER + if cfg!(any(loom, shuttle)) { 1 } else { 3 }) {
    Some(order) => order,
    None => Order::BLOCK,
};
/// Orders below this one have words.
const WORDS_BELOW: u8 = 4;
/// Runs of the smallest order that has no words in a block.
const RUNS_OF_A_BLOCK: usize = FreeMap::<8>::PAGES >> WORDS_BELOW;

impl Zone {
    /// Fills a cache whose words or stack for this order are used up and takes one run for the caller, some `most` runs in all and above `keep` free pages.
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
        let first = if order.get() < WORDS_BELOW {
            self.refill_words(&mut lists, cache, (order, migrate_type), batch, limit)
        } else if order < Order::BLOCK {
            self.refill_runs(&mut lists, cache, (order, migrate_type), batch, limit)
        } else {
            self.refill_blocks(&mut lists, cache, migrate_type, batch, limit)
        };
        lists.events.cache_refills += u64::from(first.is_some());
        lists.events.cache_refill_pages += before.saturating_sub(lists.free_pages());
        self.publish(&lists);
        first
    }

    fn refill_words(
        &self,
        lists: &mut FreeLists,
        cache: &CpuCache,
        (order, migrate_type): (Order, MigrateType),
        batch: usize,
        limit: u32,
    ) -> Option<Pfn> {
        let mut words = [WordRuns::NONE; MOST_READY + 1];
        let wanted = (batch + 1).min(words.len());
        let spares = cache.has_freed(order, migrate_type);
        let taken = self.tier(lists).take_words(order, migrate_type, limit, spares, &mut words[..wanted]);
        let mut first = None;
        for word in &words[..taken] {
            let Some(base) = self.frame(word.index, word.first) else { break };
            let mut runs = word.runs;
            if first.is_none() {
                first = Some(base.add(u64::from(runs.trailing_zeros())));
                runs &= runs.wrapping_sub(1);
            }
            cache.take_over(order, migrate_type, Runs { base, runs });
        }
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
        let mut left = batch.min(limit as usize);
        let mut first = None;
        let mut offsets = [0; RUNS_OF_A_BLOCK];
        while left != 0 {
            let room = left.min(RUNS_OF_A_BLOCK);
            if first.is_some()
                && lists.room.smallest(migrate_type, order.get()).is_none()
                && lists.is_next_reported(migrate_type, Order::BLOCK)
            {
                // Nobody waits for more.
                break;
            }
            let (index, taken) = match self.tier(lists).take_runs(order, migrate_type, &mut offsets[..room]) {
                Some(taken) => taken,
                None => break,
            };
            left -= taken;
            for &offset in &offsets[..taken] {
                let Some(start) = self.frame(index, offset) else { continue };
                if first.is_none() {
                    first = Some(start);
                } else {
                    cache.put(start, order);
                }
            }
        }
        first
    }

    /// The same for blocks. Where nothing smaller is free, several come out of one larger block at once.
    fn refill_blocks(
        &self,
        lists: &mut FreeLists,
        cache: &CpuCache,
        migrate_type: MigrateType,
        batch: usize,
        limit: u32,
    ) -> Option<Pfn> {
        let mut left = u32::try_from(batch).unwrap_or(0).min(limit);
        let mut first = None;
        // The lowest on top, so that addresses ascend.
        let keep = |start: Pfn, blocks: Range<u32>| {
            for block in blocks.rev() {
                cache.put(start.add(u64::from(block) * PAGES_PER_BLOCK), Order::BLOCK);
            }
        };
        while left != 0 {
            let reported = lists.is_next_reported(migrate_type, Order::BLOCK);
            if reported && first.is_some() {
                // Nobody waits for more.
                break;
            }
            let large = !reported && buddy::is_large_and_even(lists, migrate_type, TOGETHER);
            let order = if large && left >= blocks_of(TOGETHER) { TOGETHER } else { Order::BLOCK };
            if large && order == Order::BLOCK && first.is_some() {
                // Nothing more is torn for a few blocks.
                break;
            }
            let Some((index, _)) = self.take(lists, order, migrate_type) else { break };
            if order > Order::BLOCK {
                buddy::shatter_whole(&self.table, index, order);
            }
            left -= blocks_of(order);
            let Some(start) = self.frame(index, 0) else { break };
            match first {
                None => first = Some((start, blocks_of(order))),
                Some(_) => keep(start, 0..blocks_of(order)),
            }
        }
        let (start, blocks) = first?;
        keep(start, 1..blocks);
        Some(start)
    }

    /// The largest aligned block, of at most [`TOGETHER`], that entries of `batch` from the first on make together, when they are ascending neighbours, all
    /// allocated blocks of order 9 and of one type; nothing when that is just the first.
    #[inline]
    fn together(&self, batch: &[Runs], index: u32, whole: BlockState) -> Option<Order> {
        let base = batch.first()?.base;
        // An aligned group of blocks lies in one group of the table.
        let most = 1_u32 << (base.0 / PAGES_PER_BLOCK).trailing_zeros().min(blocks_of(TOGETHER).ilog2());
        let next = batch.get(1).is_some_and(|next| next.base == base.add(PAGES_PER_BLOCK));
        if most == 1 || !next {
            return None;
        }
        let neighbours = (0..most).zip(batch).take_while(|&(block, entry)| {
            entry.base == base.add(u64::from(block) * PAGES_PER_BLOCK) && self.table.state(index + block) == whole
        });
        let blocks = u32::try_from(neighbours.count()).ok().and_then(u32::checked_ilog2)?;
        let order = u8::try_from(blocks).ok().and_then(|level| Order::new(Order::BLOCK.get() + level))?;
        (order > Order::BLOCK).then_some(order)
    }

    /// Frees words of runs of one order below 9, or blocks of order 9, under one hold of the lock. Those that are not wholly as they should be go to
    /// `refused`, unchanged and when the lock is open again.
    pub(crate) fn free_batch<P: Platform>(
        &self,
        platform: &P,
        batch: &[Runs],
        order: Order,
        refused: &mut dyn FnMut(Runs),
    ) {
        // Each kind has its own loop: what is decided once here would be decided for each entry there.
        if order.get() < WORDS_BELOW {
            self.free_each(platform, batch, order, refused, |lists, segment, index, rest| {
                let offset = offset_in_block(rest[0].base);
                usize::from(self.tier(lists).free_word(segment, index, offset, rest[0].runs, order))
            });
        } else if order < Order::BLOCK {
            self.free_each(platform, batch, order, refused, |lists, segment, index, rest| {
                self.give_runs(lists, segment, index, rest, order)
            });
        } else {
            self.free_each(platform, batch, Order::BLOCK, refused, |lists, segment, index, rest| {
                self.give_blocks(lists, segment, index, rest)
            });
        }
    }

    /// Calls `give` with the lock, the segment and index of the first entry that is left, and all that are left; it says how many it gave back.
    #[inline]
    fn free_each<P: Platform>(
        &self,
        platform: &P,
        batch: &[Runs],
        order: Order,
        refused: &mut dyn FnMut(Runs),
        give: impl Fn(&mut FreeLists, &Range<u32>, u32, &[Runs]) -> usize,
    ) {
        let mut near = self.segments.first().map_or((BlockNumber(0)..BlockNumber(0), 0..0), Segment::place);
        let mut place = |start: Pfn| {
            let block = BlockNumber::containing(start);
            if !near.0.contains(&block) {
                near = Segment::place(segment::find(self.segments, block)?);
            }
            Some((near.1.clone(), near.1.start + (block.0 - near.0.start.0)))
        };
        for entry in batch {
            if let Some((_, index)) = place(entry.base) {
                self.table.prefetch(index, order);
            }
        }
        let mut rest = batch;
        while !rest.is_empty() {
            let mut lists = self.changing.lists.lock(platform);
            let before = lists.free_pages();
            let mut wrong = None;
            while let Some(&entry) = rest.first() {
                let given = place(entry.base).map_or(0, |(segment, index)| give(&mut lists, &segment, index, rest));
                rest = &rest[given.max(1)..];
                if given == 0 {
                    wrong = Some(entry);
                    break;
                }
            }
            lists.events.cache_returns += 1;
            lists.events.cache_return_pages += lists.free_pages().saturating_sub(before);
            self.publish(&lists);
            drop(lists);
            if let Some(entry) = wrong {
                refused(entry);
            }
        }
    }

    /// Frees the first run of `rest`, and with it those that follow in the same block; returns how many entries that were.
    fn give_runs(&self, lists: &mut FreeLists, segment: &Range<u32>, index: u32, rest: &[Runs], order: Order) -> usize {
        let start = rest[0].base;
        let offset = offset_in_block(start);
        let follows = rest.iter().zip(0_u64..).skip(1).take_while(|(next, number)| {
            next.base == start.add(number * order.pages()) && !next.base.is_aligned(Order::BLOCK)
        });
        let runs = 1 + follows.count();
        if runs > 1 && self.tier(lists).free_range(segment, index, offset..offset + (runs << order.get())) {
            return runs;
        }
        usize::from(self.tier(lists).free_run(segment, index, offset, order))
    }

    /// The same for blocks: the first of `rest`, and with it those that make a larger block with it.
    #[inline]
    fn give_blocks(&self, lists: &mut FreeLists, segment: &Range<u32>, index: u32, rest: &[Runs]) -> usize {
        if !self.table.is_ready(index) {
            return 0;
        }
        let state = self.table.state(index);
        let migrate_type = state.migrate_type();
        if state != BlockState::head(State::Whole, Order::BLOCK, migrate_type) {
            return 0;
        }
        let inside = &rest[..rest.len().min((segment.end - index) as usize)];
        if let Some(larger) = self.together(inside, index, state) {
            buddy::free_shattered(lists, &self.table, segment, index, larger, migrate_type);
            return blocks_of(larger) as usize;
        }
        buddy::free(lists, &self.table, segment, index, Order::BLOCK, migrate_type, Position::Head);
        1
    }
}
