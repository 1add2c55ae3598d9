//! Between a zone and the caches of CPUs: much at once under one hold of the lock.

use super::Zone;
use super::segment;
use super::serve::offset_in_block;
use crate::block::lists::FreeLists;
use crate::block::table::blocks_of;
use crate::block::{BlockState, MigrateType, State, buddy};
use crate::map_space::BlockNumber;
use crate::page::{CpuCache, Runs};
use crate::platform::Platform;
use crate::units::{Order, PAGES_PER_BLOCK, Pfn};

/// Runs that a refill goes for, when one word does not have so many.
const REFILL_RUNS: u32 = 32;
/// Blocks that a refill goes for.
const REFILL_BLOCKS: u32 = 8;

impl Zone {
    /// Fills an empty cache and takes one run for the caller: runs of one word, and if those are few, of further ones.
    pub(crate) fn refill<P: Platform>(
        &self,
        platform: &P,
        cache: &CpuCache,
        order: Order,
        migrate_type: MigrateType,
        keep: u64,
    ) -> Option<Pfn> {
        let mut lists = self.lists.lock(platform);
        let limit = |lists: &FreeLists| {
            let runs = lists.free_pages().saturating_sub(keep) / order.pages();
            u32::try_from(runs).unwrap_or(u32::MAX)
        };
        let mut first = None;
        if order >= Order::BLOCK {
            let limit = limit(&lists);
            first = self.refill_blocks(&mut lists, cache, migrate_type, limit);
        } else {
            let mut runs_kept = 0;
            while runs_kept < REFILL_RUNS && !cache.stack(order).is_full() {
                let limit = limit(&lists);
                let taken = if limit == 0 { None } else { self.tier(&mut lists).take_word(order, migrate_type, limit) };
                let Some((index, offset, mut runs)) = taken else { break };
                let Some(block) = self.run(index, 0, Order::PAGE) else { break };
                let base = block.start.add(offset as u64);
                runs_kept += runs.count_ones();
                if first.is_none() {
                    first = Some(base.add(u64::from(runs.trailing_zeros())));
                    runs &= runs - 1;
                    cache.set_word(order, migrate_type, Runs { base, runs });
                } else {
                    cache.stack(order).push_word(Runs { base, runs });
                }
                if migrate_type != MigrateType::Movable {
                    break;
                }
            }
        }
        self.publish(&lists);
        first
    }

    /// The same for blocks. What one CPU keeps others lack, and it does not merge, so that it is half a stack at a time. Where nothing smaller is free, all
    /// come out of one larger block at once.
    fn refill_blocks(
        &self,
        lists: &mut FreeLists,
        cache: &CpuCache,
        migrate_type: MigrateType,
        limit: u32,
    ) -> Option<Pfn> {
        let several = Order::BLOCK.get() + u8::try_from(REFILL_BLOCKS.ilog2()).unwrap_or(0);
        let order = Order::new(several).unwrap_or(Order::BLOCK);
        let large = lists.smallest(migrate_type, Order::BLOCK).is_some_and(|smallest| smallest >= order);
        if large
            && limit >= REFILL_BLOCKS
            && migrate_type == MigrateType::Movable
            && cache.stack(Order::BLOCK).len() == 0
        {
            let index = buddy::take(lists, &self.table, order, migrate_type)?;
            buddy::shatter_whole(&self.table, index, order);
            let start = self.run(index, 0, order)?.start;
            // The last is handed out first, so that addresses ascend.
            for block in (1..REFILL_BLOCKS).rev() {
                let base = start.add(u64::from(block) * PAGES_PER_BLOCK);
                cache.stack(Order::BLOCK).push_word(Runs { base, runs: 1 });
            }
            return Some(start);
        }
        let (index, _) = (limit != 0).then(|| self.take(lists, Order::BLOCK, migrate_type)).flatten()?;
        Some(self.run(index, 0, Order::BLOCK)?.start)
    }

    /// The largest aligned block that entries of `batch` from the first on make together, when they are ascending neighbours, all allocated blocks of
    /// order 9 and of one type; nothing when that is just the first.
    fn together(&self, batch: &[Runs], index: u32) -> Option<(Order, MigrateType)> {
        if !self.table.is_ready(index) {
            return None;
        }
        let (base, first) = (batch.first()?.base, self.table.state(index));
        let whole = BlockState::head(State::Whole, Order::BLOCK, first.migrate_type());
        // An aligned group of blocks lies in one group of the table.
        let most = 1_u32 << (base.0 / PAGES_PER_BLOCK).trailing_zeros().min(REFILL_BLOCKS.ilog2());
        let neighbours = (0..most).zip(batch).take_while(|&(block, entry)| {
            entry.base == base.add(u64::from(block) * PAGES_PER_BLOCK) && self.table.state(index + block) == whole
        });
        let blocks = u32::try_from(neighbours.count()).ok().and_then(u32::checked_ilog2)?;
        let order = u8::try_from(blocks).ok().and_then(|level| Order::new(Order::BLOCK.get() + level))?;
        (order > Order::BLOCK).then(|| (order, first.migrate_type()))
    }

    /// Frees words of runs of one order under one hold of the lock. Those that are not wholly as they should be go to `refused`, unchanged and when the
    /// lock is open again.
    pub(crate) fn free_batch<P: Platform>(
        &self,
        platform: &P,
        batch: &[Runs],
        order: Order,
        refused: &mut dyn FnMut(Runs),
    ) {
        let mut near = self.segments.first();
        let mut place = |start: Pfn| {
            let block = BlockNumber::containing(start);
            if !near.is_some_and(|segment| segment.start <= block && block < segment.end()) {
                near = segment::find(self.segments, block);
            }
            near.map(|segment| (segment, segment.index_of(block)))
        };
        for entry in batch {
            if let Some((_, index)) = place(entry.base) {
                self.table.prefetch(index);
            }
        }
        let mut next = 0;
        while next < batch.len() {
            let mut lists = self.lists.lock(platform);
            let mut wrong = None;
            while let Some(&entry) = batch.get(next) {
                next += 1;
                let done = place(entry.base).is_some_and(|(segment, index)| {
                    if order >= Order::BLOCK {
                        let indices = segment.indices();
                        let rest = &batch[next - 1..];
                        let rest = &rest[..rest.len().min((indices.end - index) as usize)];
                        if let Some((larger, migrate_type)) = self.together(rest, index) {
                            buddy::free_shattered(&mut lists, &self.table, &indices, index, larger, migrate_type);
                            next += blocks_of(larger) as usize - 1;
                            return true;
                        }
                        return self.give_exactly(&mut lists, segment, index, entry.base, order);
                    }
                    let offset = offset_in_block(entry.base);
                    self.tier(&mut lists).free_word(&segment.indices(), index, offset, entry.runs, order)
                });
                if !done {
                    wrong = Some(entry);
                    break;
                }
            }
            self.publish(&lists);
            drop(lists);
            if let Some(entry) = wrong {
                refused(entry);
            }
        }
    }
}
