//! Allocation and free of blocks of one zone, under its lock.

use super::Zone;
use super::segment::{self, Segment};
use crate::block::lists::{FreeLists, Position};
use crate::block::table::blocks_of;
use crate::block::{MigrateType, State, buddy};
use crate::map_space::{BlockNumber, BlockRange};
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::{Order, Pfn, PfnRange};
use core::fmt;

/// Heads that one search looks at before it lets others have the lock.
const SEARCH_SLICE: u32 = 256;

/// Why a range was not freed. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreeError {
    /// The range is empty or does not begin and end on block boundaries.
    NotBlocks(PfnRange),
    /// No zone manages this frame: it is a hole, or lies beyond all memory.
    NotManaged(Pfn),
    /// The range lies in more than one zone; no allocation does.
    SpansZones(PfnRange),
    /// This frame is not part of an allocation; `state` says what it is.
    NotAllocated {
        /// First frame that is not.
        pfn: Pfn,
        /// What its block is.
        state: Option<State>,
    },
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBlocks(range) => write!(f, "cannot free {range:?}: not a run of whole 2 MiB blocks"),
            Self::NotManaged(pfn) => write!(f, "cannot free pfn {pfn}: no zone manages it"),
            Self::SpansZones(range) => write!(f, "cannot free {range:?}: it lies in more than one zone"),
            Self::NotAllocated { pfn, state: Some(State::Free) } => {
                write!(f, "cannot free pfn {pfn}: it is free already (double free)")
            }
            Self::NotAllocated { pfn, state } => {
                write!(f, "cannot free pfn {pfn}: it was not allocated, its block is {state:?}")
            }
        }
    }
}

impl core::error::Error for FreeError {}

impl Zone {
    fn publish(&self, lists: &FreeLists) {
        self.free_pages.store(lists.free_pages(), Ordering::Relaxed);
    }

    fn run(&self, index: u32, order: Order) -> Option<PfnRange> {
        let start = segment::find_index(self.segments, index)?.block_of(index).start();
        Some(PfnRange { start, end: start.add(order.pages()) })
    }

    /// Takes a block of `order` that ends at or below `max`.
    pub(crate) fn allocate<P: Platform>(
        &self,
        platform: &P,
        order: Order,
        migrate_type: MigrateType,
        max: Pfn,
    ) -> Option<PfnRange> {
        if self.span.end <= max {
            let mut lists = self.lists.lock(platform);
            let index = buddy::take(&mut lists, &self.table, order, migrate_type)?;
            self.publish(&lists);
            drop(lists);
            return self.run(index, order);
        }
        if self.span.start >= max {
            return None;
        }
        self.allocate_below(platform, order, migrate_type, max)
    }

    /// The slow way, for limits inside the zone: heads in ascending order, a slice of them at a time.
    fn allocate_below<P: Platform>(
        &self,
        platform: &P,
        order: Order,
        migrate_type: MigrateType,
        max: Pfn,
    ) -> Option<PfnRange> {
        for segment in self.segments {
            let mut index = segment.index;
            while index < segment.indices().end && segment.block_of(index).start() < max {
                let mut lists = self.lists.lock(platform);
                for _ in 0..SEARCH_SLICE {
                    if index >= segment.indices().end {
                        break;
                    }
                    let step = match self.table.head_of(index) {
                        Some((head, state)) => {
                            let usable = state.migrate_type() == migrate_type
                                || migrate_type.fallbacks().contains(&state.migrate_type());
                            let ends = segment.block_of(head).start().add(order.pages());
                            if state.is(State::Free) && state.order() >= order && usable && ends <= max {
                                let taken = buddy::take_from(&mut lists, &self.table, head, head, order, migrate_type);
                                self.publish(&lists);
                                return self.run(taken, order);
                            }
                            head + blocks_of(state.order()) - index
                        }
                        None => 1,
                    };
                    index += step;
                }
            }
        }
        None
    }

    /// Takes the blocks of `order` that begin at `start`, if all of them are free.
    pub(crate) fn allocate_at<P: Platform>(
        &self,
        platform: &P,
        start: BlockNumber,
        order: Order,
        migrate_type: MigrateType,
    ) -> Option<PfnRange> {
        let segment = segment::find(self.segments, start)?;
        let index = segment.index_of(start);
        let mut lists = self.lists.lock(platform);
        let (head, state) = self.table.head_of(index)?;
        // Free neighbours of one type are merged, so an aligned piece is free only if one free block holds it.
        if !state.is(State::Free) || state.order() < order {
            return None;
        }
        let taken = buddy::take_from(&mut lists, &self.table, head, index, order, migrate_type);
        self.publish(&lists);
        self.run(taken, order)
    }

    /// Gives back blocks, all of which must be allocated and lie in `segment`; they need not be what one call allocated. `done` starts
    /// at the first block, and the call returns with it at the end or with an error and nothing changed.
    pub(crate) fn free<P: Platform>(
        &self,
        platform: &P,
        segment: &Segment,
        blocks: BlockRange,
    ) -> Result<(), FreeError> {
        let (start, end) = (segment.index_of(blocks.start), segment.index_of(blocks.end));
        let mut lists = self.lists.lock(platform);
        let mut index = start;
        while index < end {
            let head = self.table.head_of(index);
            let Some((head, state)) = head.filter(|(_, state)| state.is(State::Whole)) else {
                let pfn = segment.block_of(index).start();
                return Err(FreeError::NotAllocated { pfn, state: head.and_then(|(_, state)| state.state()) });
            };
            index = head + blocks_of(state.order());
        }
        index = start;
        while index < end {
            let Some(order) = buddy::divide_whole(&self.table, index, end) else { break };
            let migrate_type = self.table.state(index).migrate_type();
            let indices = segment.indices();
            buddy::free(&mut lists, &self.table, &indices, index, order, migrate_type, Position::Head);
            index += blocks_of(order);
        }
        self.publish(&lists);
        Ok(())
    }

    /// What the block of `block` is, with the order of the block that covers it.
    pub(crate) fn state_of<P: Platform>(&self, platform: &P, block: BlockNumber) -> Option<crate::block::BlockState> {
        let segment = segment::find(self.segments, block)?;
        let lists = self.lists.lock(platform);
        let head = self.table.head_of(segment.index_of(block));
        drop(lists);
        head.map(|(_, state)| state)
    }
}
