//! The use and the grade of every block of a zone, from the first to the last, to draw a map of
//! memory.

use super::Zone;
use super::grade::Grade;
use crate::block::heads::HeadIn;
use crate::block::table::blocks_of;
use crate::block::{BlockState, Segment, State};
use crate::platform::Platform;
use crate::units::{Order, PAGES_PER_BLOCK};
use crate::vmemmap_space::BlockNumber;
use core::ops::Range;

/// How many heads are looked at before other CPUs may have the lock.
const SLICE: usize = 128;
/// How many runs are kept until the lock is released.
const KEPT: usize = 32;

/// What blocks are used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockUse {
    /// No memory of this zone.
    Hole,
    /// Parts of free blocks.
    Free {
        /// The order of the free block.
        order: Order,
        /// Whether all of it was reported to the hypervisor.
        is_reported: bool,
    },
    /// Parts of blocks that were allocated whole.
    Allocated {
        /// The order of the allocated block.
        order: Order,
    },
    /// Huge pages of a pool, in use or not.
    Pool {
        /// The order of the huge page.
        order: Order,
    },
    /// Divided into pages.
    Split {
        /// Frames that are allocated, hold descriptors, or wait to hold some.
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
    /// Being taken out of use: no free page of it is handed out.
    Isolated,
    /// Withheld until its part of the memory map is initialised.
    Deferred,
    /// Free, but the hypervisor has it at this moment.
    Reporting,
    /// Its state word is invalid, which [`verify`](crate::Manager::verify) reports as a fault.
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
    /// How many blocks; never zero.
    pub blocks: u32,
    /// What each of them is used for.
    pub what: BlockUse,
    /// The grade of each of them; [`Grade::Any`] for holes.
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
    /// Calls `visit` for all heads of the zone in ascending order, holding the lock for 128 heads
    /// at a time. Exact while nobody changes what is visited. `visit` must be quick.
    pub(super) fn for_each_head<P: Platform>(
        &self,
        platform: &P,
        visit: &mut dyn FnMut(&Segment, HeadIn),
    ) {
        for segment in self.segments {
            self.for_each_head_in(platform, segment.indices(), &mut |found| visit(segment, found));
        }
    }

    /// [`for_each_head`](Self::for_each_head) for a range of indices.
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

    /// Calls `visit` for all blocks of a segment in ascending order, as runs without a gap or an
    /// overlap. Neighbouring runs may be alike. The lock is held for at most 128 heads at a time
    /// and never during `visit`, which may be slow.
    ///
    /// Others may allocate and free meanwhile. What is said of blocks visited under one hold of the
    /// lock was true at one moment. Time passes between holds, so memory that moves from one end of
    /// the zone to the other may be seen twice or not at all. If nobody changes anything the result
    /// is exact. Pages in CPU caches count as used, as they do in all tables.
    pub(crate) fn for_each_block_run<P: Platform>(
        &self,
        platform: &P,
        segment: &Segment,
        visit: &mut dyn FnMut(BlockRun),
    ) {
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
                        // A free block that grew downwards meanwhile begins before what was
                        // visited already.
                        Some((head, state)) => (
                            (head + blocks_of(state.order().max(Order::BLOCK)))
                                .clamp(index + 1, end),
                            BlockUse::of(state),
                            Grade::of(state.migrate_type()),
                        ),
                        None => (index + 1, BlockUse::Hole, Grade::Any),
                    };
                    // A head that covers only a hole has a migrate type, which means nothing.
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
