//! Shuffles the free blocks of a zone, and allocates large pieces while shuffling is on.

use super::Zone;
use super::locked::LockedZone;
use crate::block::MigrateType;
use crate::block::list::ListId;
use crate::block::random::Random;
use crate::block::shuffle::{InTheWay, SHUFFLE_ORDER};
use crate::block::table::blocks_of;
use crate::platform::Platform;
use crate::units::{Order, Pfn, PfnRange};

/// How many heads one search looks at before other CPUs may have the lock.
const SEARCH_SLICE: u32 = 256;
/// How many blocks are exchanged with another under one hold of the lock, at some cache misses
/// each.
const SHUFFLED_AT_ONCE: u32 = 16;
/// How many pairs of successive list entries the statistic looks at.
const LOOKED_AT: u32 = 1024;

/// How well the free blocks of 4 MiB of a zone are shuffled: how many of the first 1024 pairs of
/// successive list entries are neighbours in memory, in either direction. Without the shuffle
/// nearly all of them are, with it nearly none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shuffled {
    /// Pairs that were looked at.
    pub pairs: u32,
    /// Those that are neighbours.
    pub neighbours: u32,
}

impl Zone {
    /// Turns shuffling on, before anything is initialised. It stays on.
    pub(crate) fn begin_shuffling(&mut self, seed: u64) {
        if !cfg!(feature = "debug") {
            return;
        }
        self.shuffles = true;
        let buddy = &mut self.changing.locked.get_mut().buddy;
        buddy.largest = SHUFFLE_ORDER;
        buddy.random = Random::new(seed);
    }

    /// Puts the free blocks of 4 MiB into a random order, if shuffling is on. It holds the lock for
    /// up to 50 ms a TiB, so it is only for boot.
    pub(crate) fn shuffle_at_boot<P: Platform>(&self, platform: &P) {
        if !cfg!(feature = "debug") || !self.shuffles {
            return;
        }
        // This changes the order of the lists, but no count.
        let mut locked = self.lock(platform);
        let scratch = locked.free_index.scratch();
        for list in ListId::of_order(SHUFFLE_ORDER) {
            locked.buddy.shuffle_list(list, scratch);
        }
        locked.free_index.end_scratch(scratch);
    }

    /// Shuffles the free blocks of 4 MiB again, a few under each hold of the lock. Returns false if
    /// shuffling is off.
    pub(crate) fn shuffle<P: Platform>(&self, platform: &P) -> bool {
        if !self.shuffles {
            return false;
        }
        let step = blocks_of(SHUFFLE_ORDER);
        for segment in self.segments {
            let mut index = segment.index.next_multiple_of(step);
            while index < segment.indices().end {
                // This changes the order of the lists, but no count.
                let mut locked = self.lock(platform);
                for _ in 0..SHUFFLED_AT_ONCE {
                    if index < segment.indices().end {
                        locked.buddy.shuffle_one(index);
                        index += step;
                    }
                }
            }
        }
        true
    }

    /// How well the zone's free blocks are shuffled.
    pub(crate) fn shuffled<P: Platform>(&self, platform: &P) -> Shuffled {
        let locked = self.read(platform);
        let mut shuffled = Shuffled::default();
        for list in ListId::of_order(SHUFFLE_ORDER) {
            let mut index = locked.buddy.first(list);
            let most = LOOKED_AT.saturating_sub(shuffled.pairs);
            for _ in 1..locked.buddy.blocks(list).min(most) {
                let next = self.table.links(index).1;
                shuffled.pairs += 1;
                shuffled.neighbours += u32::from(index.abs_diff(next) == blocks_of(SHUFFLE_ORDER));
                index = next;
            }
        }
        shuffled
    }

    /// Whether pieces of `order` have to be gathered from several free blocks.
    #[inline]
    pub(crate) const fn gathers(&self, order: Order) -> bool {
        if !cfg!(feature = "debug") {
            return false;
        }
        self.shuffles && order.get() > SHUFFLE_ORDER.get()
    }

    /// Takes 2^`order` pages, where `order` is above the shuffled one, that end at or below `max`.
    /// Takes the lowest that are free.
    #[cold]
    pub(super) fn allocate_gathered<P: Platform>(
        &self,
        platform: &P,
        order: Order,
        migrate_type: MigrateType,
        max: Pfn,
    ) -> Option<PfnRange> {
        self.gathered(platform, order, max, &mut |locked, index| {
            locked.buddy.gather(index, order, migrate_type)
        })
    }

    /// Whether [`allocate_gathered`](Self::allocate_gathered) finds pages.
    #[cold]
    pub(crate) fn can_gather<P: Platform>(
        &self,
        platform: &P,
        order: Order,
        migrate_type: MigrateType,
        max: Pfn,
    ) -> bool {
        let look = &mut |locked: &mut LockedZone, index| {
            locked.buddy.can_gather(index, order, migrate_type)
        };
        self.gathered(platform, order, max, look).is_some()
    }

    /// Returns the lowest piece of `order` that ends at or below `max` and for whose index `gather`
    /// finds nothing in the way. The lock is released after some heads, and each head is looked at
    /// once.
    pub(super) fn gathered<P: Platform>(
        &self,
        platform: &P,
        order: Order,
        max: Pfn,
        gather: &mut dyn FnMut(&mut LockedZone, u32) -> Result<(), InTheWay>,
    ) -> Option<PfnRange> {
        let blocks = blocks_of(order);
        let mut released = false;
        for segment in self.segments {
            let indices = segment.indices();
            let mut index = indices.start.next_multiple_of(blocks);
            while index < indices.end && indices.end - index >= blocks {
                let mut locked = self.lock(platform);
                if !core::mem::replace(&mut released, true) {
                    locked.release_spare();
                }
                let mut looked_at = 0;
                while looked_at < SEARCH_SLICE {
                    let start = segment.block_of(index).start();
                    if start.add(order.pages()) > max {
                        return None;
                    }
                    match gather(&mut locked, index) {
                        Ok(()) => return Some(PfnRange::of_order(start, order)),
                        Err(in_the_way) => {
                            looked_at += in_the_way.heads.max(1);
                            index = in_the_way.after.next_multiple_of(blocks).max(index + blocks);
                        }
                    }
                    if index >= indices.end || indices.end - index < blocks {
                        break;
                    }
                }
            }
        }
        None
    }
}
