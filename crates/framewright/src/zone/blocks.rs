//! What every block of a zone is used for and who may have it, from the first to the last, to draw
//! a map of memory.

use super::Zone;
use super::grade::Grade;
use crate::block::table::{HeadIn, blocks_of};
use crate::block::{BlockState, Segment, State};
use crate::platform::Platform;
use crate::units::{Order, PAGES_PER_BLOCK};
use crate::vmemmap_space::BlockNumber;
use core::ops::Range;

/// Heads that are looked at before others may have the lock.
const SLICE: usize = 128;
/// Runs that are kept until the lock is free.
const KEPT: usize = 32;

/// What blocks are used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockUse {
    /// No memory of the zone.
    Hole,
    /// Parts of free blocks.
    Free {
        /// Of the free block.
        order: Order,
        /// All of it was reported to the hypervisor.
        is_reported: bool,
    },
    /// Parts of blocks that were allocated whole.
    Allocated {
        /// Of the allocated block.
        order: Order,
    },
    /// Huge pages of a pool, in use or not.
    Pool {
        /// Of the huge page.
        order: Order,
    },
    /// Divided into pages.
    Split {
        /// Frames that are allocated, or hold descriptors, or wait for some.
        used_pages: u64,
        /// Frames that the allocator was given.
        managed_pages: u64,
    },
    /// Memory that the allocator was not given.
    Reserved,
    /// Taken out of use.
    Offline,
    /// Not accepted by the guest yet.
    Unaccepted,
    /// Being taken out: free ones of it are handed to nobody.
    Isolated,
    /// Withheld until its part of the memory map is initialised.
    Deferred,
    /// Free, and with the hypervisor at this moment.
    Reporting,
    /// Its word means nothing, which [`verify`](crate::Manager::verify) calls a fault.
    Unknown,
}

impl BlockUse {
    fn of(state: BlockState) -> Self {
        let order = state.order().max(Order::BLOCK);
        match state.state() {
            Some(State::Inner) => Self::Hole,
            Some(State::Free) => Self::Free { order, is_reported: state.has(BlockState::REPORTED) },
            _ if state.is_isolated() => Self::Isolated,
            Some(State::Whole) => Self::Allocated { order },
            Some(State::Pool) => Self::Pool { order },
            Some(State::Split) if state.managed_pages() == 0 => {
                if state.present_pages() == 0 {
                    Self::Hole
                } else {
                    Self::Reserved
                }
            }
            Some(State::Split) => {
                let managed_pages = state.managed_pages();
                let free_pages = if state.is_unavailable() { 0 } else { state.free_pages() };
                Self::Split { used_pages: managed_pages.saturating_sub(free_pages), managed_pages }
            }
            Some(State::Reserved) => Self::Reserved,
            Some(State::Offline) => Self::Offline,
            Some(State::Unaccepted | State::Accepting) => Self::Unaccepted,
            Some(State::Isolated) => Self::Isolated,
            Some(State::Deferred) => Self::Deferred,
            Some(State::Reporting) => Self::Reporting,
            None => Self::Unknown,
        }
    }
}

/// Neighbouring blocks with the same use and grade.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRun {
    /// The first.
    pub start: BlockNumber,
    /// How many; never zero.
    pub blocks: u32,
    /// What each of them is used for.
    pub what: BlockUse,
    /// Who may have each of them; [`Grade::Any`] of holes.
    pub grade: Grade,
}

impl BlockRun {
    /// Frames in it, holes included.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.blocks as u64 * PAGES_PER_BLOCK
    }
}

impl Zone {
    /// Calls `visit` for all heads of the zone in ascending order, with the lock held for 128 at a
    /// time: exact while nobody changes what it looks at. It must be quick.
    pub(super) fn for_each_head<P: Platform>(
        &self,
        platform: &P,
        visit: &mut dyn FnMut(&Segment, HeadIn),
    ) {
        for segment in self.segments {
            self.for_each_head_in(platform, segment.indices(), &mut |found| visit(segment, found));
        }
    }

    /// [`for_each_head`](Self::for_each_head) of those in a range of indices.
    pub(super) fn for_each_head_in<P: Platform>(
        &self,
        platform: &P,
        Range { start: mut index, end }: Range<u32>,
        visit: &mut dyn FnMut(HeadIn),
    ) {
        while index < end {
            let _locked = self.read(platform);
            let from = index;
            index = end;
            for (number, found) in self.table.heads(from..end).enumerate() {
                if number == SLICE {
                    index = found.index;
                    break;
                }
                visit(found);
            }
        }
    }

    /// Calls `visit` for all blocks of the zone's segments in ascending order, as runs without a
    /// gap or an overlap inside a segment; neighbouring runs may be alike. The lock is held for at
    /// most 128 heads at a time and never while `visit` works, which may be slow.
    ///
    /// Others may allocate and free meanwhile. What is said of blocks that were looked at under one
    /// hold of the lock was true at one moment; between holds time passes, so that memory which
    /// moves from one end of the zone to the other may be seen twice or not at all. When nobody
    /// does anything it is exact. What CPUs have in their caches counts as used, as in all tables.
    pub(crate) fn for_each_block_run<P: Platform>(
        &self,
        platform: &P,
        visit: &mut dyn FnMut(BlockRun),
    ) {
        for segment in self.segments {
            let end = segment.indices().end;
            let mut index = segment.index;
            while index < end {
                let mut runs: [Option<BlockRun>; KEPT] = [None; KEPT];
                let mut len = 0_usize;
                {
                    let _locked = self.read_coalesced(platform);
                    for _ in 0..SLICE {
                        if index >= end {
                            break;
                        }
                        let (next, what, grade) = match self.table.head_of(index) {
                            // A block that grew downwards meanwhile begins before what was seen
                            // already.
                            Some((head, state)) => (
                                (head + blocks_of(state.order().max(Order::BLOCK)))
                                    .clamp(index + 1, end),
                                BlockUse::of(state),
                                Grade::of(state.migrate_type()),
                            ),
                            None => (index + 1, BlockUse::Hole, Grade::Any),
                        };
                        // A head of nothing but a hole has a type, which means nothing.
                        let grade = if what == BlockUse::Hole { Grade::Any } else { grade };
                        let blocks = next - index;
                        match runs.get_mut(len.wrapping_sub(1)) {
                            Some(Some(last)) if last.what == what && last.grade == grade => {
                                last.blocks += blocks;
                            }
                            _ => {
                                let Some(place) = runs.get_mut(len) else { break };
                                let start = segment.block_of(index);
                                *place = Some(BlockRun { start, blocks, what, grade });
                                len += 1;
                            }
                        }
                        index = next;
                    }
                }
                runs.iter().flatten().for_each(|&run| visit(run));
            }
        }
    }
}
