//! Refills a CPU's cache: takes many runs under one hold of the zone lock.
//!
//! The order decides the path: words of runs (0 to 3), a stack of runs out of one block after the
//! other (4 to 8), a stack of blocks (9). Only for the one run that the caller waits for does a
//! refill take reported memory and, where an entry is one run, split a block or fall back to
//! another migrate type.

use super::Zone;
use super::locked::LockedZone;
use super::page_alloc::WordsWanted;
use crate::block::bit_sets::Neighbours;
use crate::block::lots::WORD_ORDERS;
use crate::block::{FreeMap, Lot, MigrateType, segment};
use crate::page::{CpuCache, MOST_RUNS, Put, Runs};
use crate::platform::Platform;
use crate::units::{Order, PAGES_PER_BLOCK, Pfn};

/// The most groups of neighbours that a refill of blocks takes.
const MOST_GROUPS: usize = 16;
/// How many runs of the smallest order without words a block has.
const RUNS_OF_A_BLOCK: usize = FreeMap::<8>::PAGES >> WORD_ORDERS;
/// A refill takes at most one in this many of the zone's free whole blocks. When few are left, one
/// CPU would otherwise take all of them, and the next CPU that wants one would empty every CPU's
/// cache.
const SHARE_OF_BLOCKS: u32 = 8;

/// What a cache has run out of.
pub(crate) struct Refill {
    pub(crate) order: Order,
    pub(crate) migrate_type: MigrateType,
    /// The most runs to take, the caller's included.
    pub(crate) most: u32,
    /// Free pages to leave in the zone.
    pub(crate) keep_pages: u64,
}

/// Blocks of 2 MiB that were taken for a cache.
struct BlockGroups {
    groups: [Neighbours; MOST_GROUPS],
    len: usize,
}

impl BlockGroups {
    const EMPTY: Self = Self { groups: [Neighbours { base: 0, bits: 0 }; MOST_GROUPS], len: 0 };

    fn push(&mut self, some: Neighbours) {
        if let Some(group) = self.groups.get_mut(self.len) {
            *group = some;
            self.len += 1;
        }
    }
}

impl Zone {
    /// Returns the lot of a run of `order` in block `index`. A guess for callers that do not
    /// own the run.
    #[inline]
    pub(crate) fn lot_unlocked(&self, index: u32, order: Order) -> Option<Lot> {
        self.table.ready_lots().get(index, order)
    }

    /// Fills a cache whose words or stack for this order are used up, and takes one run for the
    /// caller.
    pub(crate) fn refill<P: Platform>(
        &self,
        platform: &P,
        cache: &CpuCache,
        wanted: &Refill,
    ) -> Option<Pfn> {
        let order = wanted.order;
        // Read without the lock, so that a full zone is refused at once.
        self.free_pages().checked_sub(wanted.keep_pages + order.pages())?;
        self.preferred(wanted.migrate_type)
            .and_then(|grade| self.refill_from(platform, cache, wanted, grade))
            .or_else(|| self.refill_from(platform, cache, wanted, wanted.migrate_type))
    }

    /// [`refill`](Self::refill) from blocks of one type and those that it falls back to.
    // Not inlined at both calls: it is long, and one call fetches many pages.
    #[inline(never)]
    fn refill_from<P: Platform>(
        &self,
        platform: &P,
        cache: &CpuCache,
        wanted: &Refill,
        from: MigrateType,
    ) -> Option<Pfn> {
        let order = wanted.order;
        let batch = cache.batch(order, wanted.migrate_type);
        let mut blocks = None;
        let first = self.search(platform, |locked| {
            let before = locked.free_pages();
            let spare = before.saturating_sub(wanted.keep_pages) / order.pages();
            let limit = u32::try_from(spare).unwrap_or(u32::MAX).min(wanted.most);
            let first = if order.get() < WORD_ORDERS {
                let words = WordsWanted {
                    order,
                    migrate_type: from,
                    most: batch + 1,
                    limit,
                    spares: cache.has_freed(order, wanted.migrate_type),
                };
                locked.refill_words(cache, &words, wanted.migrate_type)
            } else if order < Order::BLOCK {
                let most = batch.max(1).min(limit as usize).min(MOST_RUNS);
                locked.refill_runs(cache, wanted, from, most)
            } else {
                #[expect(clippy::cast_possible_truncation, reason = "blocks of a zone")]
                let share = (locked.buddy.free_pages() / PAGES_PER_BLOCK) as u32 / SHARE_OF_BLOCKS;
                let batch = u32::try_from(batch).unwrap_or(0).min(share).max(1);
                blocks = locked.take_blocks(from, batch.min(limit));
                None
            };
            let events = &mut locked.buddy.events;
            events.cache_refills += u64::from(first.is_some() || blocks.is_some());
            let taken = before.saturating_sub(locked.free_pages());
            locked.buddy.events.cache_refill_pages += taken;
            first
        });
        // Put blocks into the cache after releasing the lock.
        first.or_else(|| self.stack_blocks(cache, wanted.migrate_type, blocks.as_ref()?))
    }

    /// Puts blocks into the cache, except the lowest of those taken first, which is returned.
    fn stack_blocks(
        &self,
        cache: &CpuCache,
        migrate_type: MigrateType,
        taken: &BlockGroups,
    ) -> Option<Pfn> {
        let lot = Lot::of_type(migrate_type)?;
        let mut first = None;
        // Put the lowest on top of the stack, so that addresses ascend.
        for &Neighbours { base, bits } in taken.groups[..taken.len].iter().rev() {
            let mut rest = bits;
            while rest != 0 {
                let bit = rest.ilog2();
                rest &= !(1 << bit);
                if let Some(start) = segment::frame(self.segments, base + bit, 0)
                    && let Some(start) = first.replace(start)
                {
                    let put = cache.put(start, Order::BLOCK, lot);
                    debug_assert!(put == Put::Cached, "no more is taken than there is room for");
                }
            }
        }
        first
    }
}

impl LockedZone {
    fn refill_words(
        &mut self,
        cache: &CpuCache,
        wanted: &WordsWanted,
        migrate_type: MigrateType,
    ) -> Option<Pfn> {
        let mut first: Option<Runs> = None;
        let segments = self.buddy.segments;
        let take_over = |runs| {
            let kept = cache.take_over(wanted.order, migrate_type, runs);
            debug_assert!(kept, "no more is taken than there is room for");
        };
        self.take_words(wanted, |word| {
            let Some(base) = segment::frame(segments, word.index, word.first) else { return };
            let more = Runs { base, runs: word.runs };
            if first.is_none() {
                first = Some(more);
            } else {
                take_over(more);
            }
        });
        // Put the first word on top, so that a page that is freed next is taken again next.
        let Runs { base, runs } = first?;
        take_over(Runs { base, runs: runs & runs.wrapping_sub(1) });
        Some(base.add(u64::from(runs.trailing_zeros())))
    }

    fn refill_runs(
        &mut self,
        cache: &CpuCache,
        wanted: &Refill,
        migrate_type: MigrateType,
        most: usize,
    ) -> Option<Pfn> {
        let order = wanted.order;
        let lot = Lot::of_type(wanted.migrate_type)?;
        let mut starts = [Pfn(0); MOST_RUNS];
        let mut filled = 0;
        let mut offsets = [0; RUNS_OF_A_BLOCK];
        while filled < most {
            let room = (most - filled).min(RUNS_OF_A_BLOCK);
            if filled != 0
                && self.free_index.smallest(migrate_type, order.get()).is_none()
                && (room < FreeMap::<8>::PAGES >> order.get()
                    || self.buddy.is_next_reported(migrate_type, Order::BLOCK))
            {
                // No caller waits for more, so no block is split for just a part of it.
                break;
            }
            let Some((index, taken)) = self.take_runs(order, migrate_type, &mut offsets[..room])
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
        // Put the lowest on top of the stack, so that addresses ascend.
        for &start in others.iter().rev() {
            let put = cache.put(start, order, lot);
            debug_assert!(put == Put::Cached, "no more is taken than there is room for");
        }
        Some(first)
    }

    /// Takes up to `most` blocks: first those whose merge is deferred, then free blocks, undivided
    /// where possible and the smallest first. Returns nothing if there is none.
    fn take_blocks(&mut self, migrate_type: MigrateType, most: u32) -> Option<BlockGroups> {
        let mut taken = BlockGroups::EMPTY;
        let mut left = most;
        while left != 0 && taken.len < MOST_GROUPS {
            let Some(some) = self.buddy.take_some(left, migrate_type, taken.len == 0) else {
                break;
            };
            left -= some.count();
            taken.push(some);
        }
        if taken.len == 0 && most != 0 {
            // For one block all means are tried, such as merging the spare and falling back to
            // other types.
            let (index, _) = self.take(Order::BLOCK, migrate_type)?;
            taken.push(Neighbours::new(index, 1));
        }
        (taken.len != 0).then_some(taken)
    }
}
