//! Free memory by order and migrate type, counted from the tables when somebody asks.

use super::Zone;
use crate::block::table::blocks_of;
use crate::block::{FreeMap, MigrateType, State};
use crate::platform::Platform;
use crate::units::{BLOCK_ORDER, MAX_ORDER, Order, PAGES_PER_BLOCK, Pfn};

/// Orders that free memory has: 0..=18.
pub const ORDERS: usize = MAX_ORDER as usize + 1;
/// Heads that are looked at before others may have the lock.
const SLICE: u32 = 128;

/// What is free in a zone as a buddy allocator would keep it: each frame in the largest aligned run
/// that is free around it. Blocks of 2 MiB and more are those of the free lists; smaller runs are
/// counted from the free maps of split blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeAreas {
    /// Free runs by migrate type, then by order. What is isolated and free is in the row of
    /// [`MigrateType::Isolate`].
    pub runs: [[u64; ORDERS]; MigrateType::COUNT],
    /// Blocks of 2 MiB by migrate type, whatever is in them; blocks without any memory are not
    /// counted.
    pub blocks: [u64; MigrateType::COUNT],
}

impl FreeAreas {
    /// Nothing.
    pub const EMPTY: Self =
        Self { runs: [[0; ORDERS]; MigrateType::COUNT], blocks: [0; MigrateType::COUNT] };

    /// Free runs by order, over all types.
    #[must_use]
    pub fn by_order(&self) -> [u64; ORDERS] {
        core::array::from_fn(|order| self.runs.iter().map(|runs| runs[order]).sum())
    }

    /// Free frames, isolated ones included.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.by_order().iter().enumerate().map(|(order, runs)| runs << order).sum()
    }
}

impl core::ops::AddAssign for FreeAreas {
    fn add_assign(&mut self, other: Self) {
        let runs = self.runs.as_flattened_mut().iter_mut().zip(other.runs.as_flattened());
        runs.for_each(|(sum, more)| *sum += more);
        self.blocks.iter_mut().zip(other.blocks).for_each(|(sum, more)| *sum += more);
    }
}

impl Zone {
    /// Free memory by order and type. The lock is held for a few blocks at a time, so that it takes
    /// long only for whoever asks; exact when nobody allocates meanwhile.
    pub(crate) fn free_areas<P: Platform>(&self, platform: &P) -> FreeAreas {
        self.free_areas_below(platform, Pfn(u64::MAX))
    }

    /// [`free_areas`](Self::free_areas) of what lies below `limit` alone; a run across it counts as
    /// what it has below.
    pub(crate) fn free_areas_below<P: Platform>(&self, platform: &P, limit: Pfn) -> FreeAreas {
        let mut areas = FreeAreas::EMPTY;
        for segment in self.segments {
            let mut index = segment.index;
            while index < segment.indices().end {
                let _locked = self.read_coalesced(platform);
                for _ in 0..SLICE {
                    if index >= segment.indices().end {
                        break;
                    }
                    let inside = limit.0.saturating_sub(segment.block_of(index).start().0);
                    index = self.count_head(index, inside, &mut areas);
                }
            }
        }
        areas
    }

    /// Counts what covers `index` in the `inside` frames from there on, with the lock held; says
    /// where the next begins.
    fn count_head(&self, index: u32, inside: u64, areas: &mut FreeAreas) -> u32 {
        let Some((head, state)) = self.table.head_of(index) else { return index + 1 };
        let isolated = state.is_isolated();
        let kind = if isolated { MigrateType::Isolate } else { state.migrate_type() } as usize;
        let order = state.order().max(Order::BLOCK);
        let end = (head + blocks_of(order)).max(index + 1);
        areas.blocks[kind] += u64::from(end - index);
        // Where a block grew downwards meanwhile, its beginning was counted as it was before.
        if head == index && inside != 0 {
            let runs = &mut areas.runs[kind];
            match state.state() {
                Some(State::Free | State::Isolated) if inside >= order.pages() => {
                    runs[usize::from(order.get())] += 1
                }
                Some(State::Free | State::Isolated) => {
                    // A block is aligned: each binary digit of what it has inside is a run.
                    for (order, sum) in runs.iter_mut().enumerate() {
                        *sum += inside >> order & 1;
                    }
                }
                // What waits for descriptors is not free.
                Some(State::Split) if isolated || !state.is_unavailable() => {
                    let free = self.table.free_map(index);
                    if inside < PAGES_PER_BLOCK {
                        count_cut(free, usize::try_from(inside).unwrap_or(0), runs);
                        return end;
                    }
                    for (sum, runs) in runs.iter_mut().zip(free.largest_runs()) {
                        *sum += u64::from(runs);
                    }
                }
                _ => {}
            }
        }
        end
    }

    /// Frames in free blocks that are whole, without those that are isolated. Unlike
    /// [`free_areas`](Self::free_areas) this is one look at a counter, and a split block all of
    /// whose pages are free does not count.
    pub(crate) fn free_block_pages<P: Platform>(&self, platform: &P) -> u64 {
        let blocks = self.free_blocks(platform);
        blocks.iter().zip(BLOCK_ORDER..).map(|(&blocks, order)| u64::from(blocks) << order).sum()
    }
}

/// Counts the largest aligned free runs in the first `frames` of a split block.
fn count_cut(free: &FreeMap, frames: usize, runs: &mut [u64]) {
    let mut start = 0;
    while start < frames {
        let fits = |order: &u8| {
            let run = 1 << order;
            start % run == 0 && start + run <= frames && free.is_run_free(start, *order)
        };
        match (0..BLOCK_ORDER).rev().find(fits) {
            Some(order) => {
                runs[usize::from(order)] += 1;
                start += 1 << order;
            }
            None => start += 1,
        }
    }
}
