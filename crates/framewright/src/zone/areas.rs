//! Free memory by order and migrate type.
//!
//! Whole blocks are counted as the lists keep them. Split blocks with free pages are looked at only
//! when a caller asks, through the free index and at about 64 free maps under one hold of the lock:
//! counting at each change of a free map would slow down the fast paths. While blocks are isolated,
//! and for counts below a limit, all heads are looked at instead.

use super::Zone;
use crate::block::list::ListId;
use crate::block::table::blocks_of;
use crate::block::{FreeMap, MigrateType, State};
use crate::platform::Platform;
use crate::units::{BLOCK_ORDER, MAX_ORDER, Order, PAGES_PER_BLOCK, Pfn};

/// The number of orders that free memory has: 0..=18.
pub const ORDERS: usize = MAX_ORDER as usize + 1;
/// How many heads or free maps are looked at before other CPUs may have the lock.
const SLICE: u32 = 64;
/// How many words of the free index are looked at under one hold of the lock.
const WORDS: u32 = 8;

/// The free memory of a zone as a buddy allocator would keep it: each frame counts in the largest
/// aligned free run around it. Blocks of 2 MiB and more are those of the free lists; smaller runs
/// are counted from the free maps of split blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeAreas {
    /// Free runs by migrate type, then by order. Free memory of isolated blocks is in the row of
    /// [`MigrateType::Isolate`].
    pub runs: [[u64; ORDERS]; MigrateType::COUNT],
    /// Blocks of 2 MiB by migrate type, whatever their use. Blocks without any memory do not count.
    pub blocks: [u64; MigrateType::COUNT],
}

impl FreeAreas {
    /// No free memory and no blocks.
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
    /// Counts free memory by order and type. The lock is held for a few blocks at a time: if many
    /// split blocks have free pages this takes long, but only for the caller. Exact if nobody
    /// allocates or frees meanwhile.
    pub(crate) fn free_areas<P: Platform>(&self, platform: &P) -> FreeAreas {
        let mut areas = FreeAreas::EMPTY;
        {
            let locked = self.read_coalesced(platform);
            if locked.isolated_blocks.iter().any(|&blocks| blocks != 0) {
                drop(locked);
                return self.free_areas_below(platform, Pfn(u64::MAX));
            }
            areas.blocks = locked.buddy.blocks_of_type().map(u64::from);
            for order in (BLOCK_ORDER..=MAX_ORDER).filter_map(Order::new) {
                for list in ListId::of_order(order) {
                    areas.runs[list.migrate_type as usize][usize::from(order.get())] +=
                        u64::from(locked.buddy.blocks(list));
                }
            }
        }
        let mut next = Some(0);
        while let Some(from) = next {
            next = self.count_split(platform, from, &mut areas);
        }
        areas
    }

    /// Counts the free runs of some split blocks, from index `from` on. Returns where to go on.
    fn count_split<P: Platform>(
        &self,
        platform: &P,
        from: u32,
        areas: &mut FreeAreas,
    ) -> Option<u32> {
        let locked = self.read(platform);
        let (mut from, mut looked_at) = (from, 0);
        for _ in 0..WORDS {
            let base = locked.free_index.next_near(from)?;
            for kind in MigrateType::ALL {
                let mut members = locked.free_index.members_near(kind, base);
                looked_at += members.count_ones();
                while members != 0 {
                    let free = self.table.cold_free_map(base + members.trailing_zeros());
                    members &= members - 1;
                    let runs = areas.runs[kind as usize].iter_mut().zip(free.largest_runs());
                    runs.for_each(|(sum, runs)| *sum += u64::from(runs));
                }
            }
            from = base + 64;
            if looked_at >= SLICE {
                break;
            }
        }
        Some(from)
    }

    /// [`free_areas`](Self::free_areas) of the memory below `limit` alone. A run across the limit
    /// counts as the part below it. Blocks that begin above the limit do not count.
    pub(crate) fn free_areas_below<P: Platform>(&self, platform: &P, limit: Pfn) -> FreeAreas {
        let mut areas = FreeAreas::EMPTY;
        for segment in self.segments {
            let mut index = segment.index;
            let below = |index: u32| {
                index < segment.indices().end && segment.block_of(index).start() < limit
            };
            while below(index) {
                let _locked = self.read_coalesced(platform);
                for _ in 0..SLICE {
                    if !below(index) {
                        break;
                    }
                    let inside = limit.0.saturating_sub(segment.block_of(index).start().0);
                    index = self.count_head(index, inside, &mut areas);
                }
            }
        }
        areas
    }

    /// Counts the head that covers `index`, but at most the `inside` frames from the block at
    /// `index` on. The lock is held. Returns where the next head begins.
    fn count_head(&self, index: u32, inside: u64, areas: &mut FreeAreas) -> u32 {
        let Some((head, state)) = self.table.head_of(index) else { return index + 1 };
        let isolated = state.is_isolated();
        let kind = if isolated { MigrateType::Isolate } else { state.migrate_type() } as usize;
        let order = state.order().max(Order::BLOCK);
        let end = (head + blocks_of(order)).max(index + 1);
        if cfg!(feature = "hotplug") && state.is(State::Offline) {
            return end;
        }
        areas.blocks[kind] += u64::from(end - index).min(inside.div_ceil(PAGES_PER_BLOCK));
        // If a free block grew downwards meanwhile, its beginning was counted as it was before.
        if head == index {
            let runs = &mut areas.runs[kind];
            match state.state() {
                Some(State::Free | State::Isolated) if inside >= order.pages() => {
                    runs[usize::from(order.get())] += 1
                }
                Some(State::Free | State::Isolated) => {
                    // A block is aligned, so each set bit of the number of its frames inside is one
                    // run.
                    for (order, sum) in runs.iter_mut().enumerate() {
                        *sum += inside >> order & 1;
                    }
                }
                // Frames that wait for descriptors are not free.
                Some(State::Split) if isolated || !state.is_unavailable() => {
                    let free = self.table.cold_free_map(index);
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

    /// Frames in free whole blocks, isolated ones excluded. Unlike [`free_areas`](Self::free_areas)
    /// this only reads counters, and a split block whose pages are all free does not count.
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
