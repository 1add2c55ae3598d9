//! Tells code that moves contents which frames of a block are in use, takes frames at a place that
//! was made free, and frees many frames of one block.
//!
//! Nothing here decides whether contents can be moved: that is up to their owners
//! (`manager::moving`). [`Held`] says what the tables know by themselves.

use super::Zone;
use super::locked::LockedZone;
use crate::block::segment::Segment;
use crate::block::table::{BlockTable, blocks_of};
use crate::block::{BlockState, FreeMap, MigrateType, State};
use crate::platform::Platform;
use crate::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use core::ops::Range;

/// A bit for each frame of a block.
pub(crate) type FrameBits = [u64; FreeMap::<8>::PAGES / 64];

/// Memory that no owner of contents can move away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Held {
    /// No memory, or memory that the manager was not given.
    Reserved,
    /// Memory that the manager keeps for itself.
    Manager,
    /// A page of a pool.
    Pool,
    /// It has a memory error.
    Poisoned,
    /// The hypervisor has it at this moment.
    Reporting,
}

/// The frames of a split block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UsedFrames {
    /// Frames that are allocated or in a CPU's cache.
    pub(crate) in_use: FrameBits,
    /// Frames that hold descriptors of others of the block.
    pub(crate) descriptors: FrameBits,
    /// Frames that are holes or reserved.
    pub(crate) reserved: FrameBits,
    /// Frames that the hypervisor has.
    pub(crate) reporting: FrameBits,
}

/// What there is to move in a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is no heap to put it into")]
pub(crate) enum Occupied {
    /// All of it is free.
    Nothing,
    /// A split block.
    Frames(UsedFrames),
    /// It is a part of one allocation, which has these frames.
    Whole(PfnRange),
    /// Nobody can move it.
    Held(Held),
}

/// Sets the bits of frames, ignoring frames beyond the block.
pub(crate) fn set_frames(bits: &mut FrameBits, frames: Range<usize>) {
    for frame in frames {
        if let Some(word) = bits.get_mut(frame / 64) {
            *word |= 1 << (frame % 64);
        }
    }
}

/// How full a split block is.
#[derive(Clone, Copy)]
pub(crate) struct Fullness {
    pub(crate) index: u32,
    /// Frames that are allocated or in a CPU's cache.
    pub(crate) in_use: u64,
    pub(crate) free: u64,
}

/// What [`Zone::take_in_block`] is to take.
pub(crate) struct InBlock<'a> {
    pub(crate) segment: &'a Segment,
    pub(crate) index: u32,
    /// The migrate type of the block.
    pub(crate) migrate_type: MigrateType,
    /// The order of the runs, below 9.
    pub(crate) order: Order,
}

impl Fullness {
    /// The fullness of a block of `migrate_type` whose contents can be moved out and which others
    /// can be moved into; nothing for any other block.
    fn of(index: u32, state: BlockState, migrate_type: MigrateType) -> Option<Self> {
        let plain = state.is(State::Split)
            && state.migrate_type() == migrate_type
            && state.managed_pages() == PAGES_PER_BLOCK
            && !state.is_unavailable()
            && !state.has(BlockState::REPORTING);
        plain.then(|| {
            let free = state.free_pages();
            Self { index, in_use: PAGES_PER_BLOCK - free - state.descriptor_pages(), free }
        })
    }
}

impl Zone {
    /// What there is to move in the block at `index`, which lies in `segment`.
    pub(crate) fn occupied<P: Platform>(
        &self,
        platform: &P,
        segment: &Segment,
        index: u32,
    ) -> Occupied {
        let locked = self.read(platform);
        let Some((head, state)) = locked.buddy.table.head_of(index) else {
            return Occupied::Held(Held::Reserved);
        };
        match state.state() {
            Some(State::Free | State::Isolated) => Occupied::Nothing,
            Some(State::Whole) if state.has(BlockState::KEPT) => Occupied::Held(Held::Manager),
            Some(State::Whole) if state.has(BlockState::POISONED) => Occupied::Held(Held::Poisoned),
            Some(State::Whole) if locked.buddy.is_deferred(index) => Occupied::Nothing,
            Some(State::Whole) => {
                let start = segment.block_of(head).start();
                Occupied::Whole(PfnRange { start, end: start.add(state.order().pages()) })
            }
            Some(State::Split) => Occupied::Frames(locked.frames_of(index, state)),
            Some(State::Pool) => Occupied::Held(Held::Pool),
            Some(State::Reporting) => Occupied::Held(Held::Reporting),
            _ => Occupied::Held(Held::Reserved),
        }
    }

    /// Takes frames of a block that is split and isolated. Returns false unless all of them are
    /// free and no descriptors are missing for them.
    pub(crate) fn take_isolated<P: Platform>(
        &self,
        platform: &P,
        index: u32,
        frames: Range<usize>,
    ) -> bool {
        let mut locked = self.lock(platform);
        let table = locked.buddy.table;
        if !table.is_ready(index) {
            return false;
        }
        let (state, map) = (table.state(index), table.cold_free_map(index));
        if !state.is(State::Split)
            || !state.has(BlockState::ISOLATED)
            || state.has(BlockState::UNDESCRIBED)
            || frames.is_empty()
            || map.first_taken(frames.start, frames.end).is_some()
        {
            return false;
        }
        let pages = (frames.end - frames.start) as u64;
        map.set_run(frames, false);
        *locked.free_counter(state) -= pages;
        table.set_state(index, state.with_free_pages(state.free_pages() - pages));
        true
    }

    /// Takes runs out of one split block, as many as `out` has room for and one hold of the lock
    /// allows. Returns how many; 0 if no frames may be handed out from the block.
    pub(crate) fn take_in_block<P: Platform>(
        &self,
        platform: &P,
        wanted: &InBlock<'_>,
        out: &mut [Pfn],
    ) -> usize {
        let &InBlock { segment, index, migrate_type, order } = wanted;
        let mut locked = self.lock(platform);
        let table = locked.buddy.table;
        if !table.is_ready(index)
            || Fullness::of(index, table.state(index), migrate_type).is_none()
            || order >= Order::BLOCK
        {
            return 0;
        }
        let map = table.cold_free_map(index);
        let Some(first) = map.find(order.get()) else { return 0 };
        let mut starts = [0; RUNS_AT_ONCE];
        let most = out.len().min(RUNS_AT_ONCE);
        let taken = map.take_runs(first, order.get(), &mut starts[..most]);
        locked.taken(index, (taken as u64) << order.get());
        let start = segment.block_of(index).start();
        for (out, &offset) in out.iter_mut().zip(&starts[..taken]) {
            *out = start.add(offset as u64);
        }
        taken
    }

    /// Frees frames of one split block that is entirely managed. Frees either all of them or none.
    pub(crate) fn free_frames<P: Platform>(
        &self,
        platform: &P,
        index: u32,
        frames: &FrameBits,
    ) -> bool {
        let mut locked = self.lock(platform);
        let table = locked.buddy.table;
        if !table.is_ready(index) {
            return false;
        }
        let (state, map) = (table.state(index), table.cold_free_map(index));
        let words = map.words();
        let pages = frames.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        let descriptors = locked.frames_of(index, state).descriptors;
        let allocated = state.is(State::Split)
            && state.managed_pages() == PAGES_PER_BLOCK
            && !state.has(BlockState::REPORTING)
            && words.iter().zip(frames).all(|(free, frames)| free & frames == 0)
            && descriptors.iter().zip(frames).all(|(held, frames)| held & frames == 0);
        if !allocated || pages == 0 {
            return false;
        }
        map.add_words(frames);
        locked.freed(index, state, state.free_pages() + pages);
        locked.freed_pages += pages;
        true
    }

    /// Calls `visit` for split blocks of a type among `indices` that contents may be moved out of
    /// or into. Works without the lock: what it passes was true at some moment. Returns false if
    /// `visit` did.
    pub(crate) fn for_each_split<P: Platform>(
        &self,
        platform: &P,
        indices: Range<u32>,
        migrate_type: MigrateType,
        visit: &mut dyn FnMut(Fullness) -> bool,
    ) -> bool {
        let mut index = indices.start;
        while index < indices.end {
            let state = self.look_at_table(platform, |table| table.state_if_ready(index));
            let Some(state) = state else {
                index = self.table.next_ready(index);
                continue;
            };
            if let Some(fullness) = Fullness::of(index, state, migrate_type)
                && !visit(fullness)
            {
                return false;
            }
            index += 1;
        }
        true
    }

    /// [`Fullness`] of one block of a type, without the lock.
    pub(crate) fn fullness<P: Platform>(
        &self,
        platform: &P,
        index: u32,
        migrate_type: MigrateType,
    ) -> Option<Fullness> {
        let state = self.look_at_table(platform, |table| table.state_if_ready(index))?;
        Fullness::of(index, state, migrate_type)
    }

    /// Writes to `costs` what has to be moved to get each of the blocks from `index` on. Blocks
    /// with a grade are out of reach unless `has_graded`. Works without the lock.
    pub(crate) fn to_move<P: Platform>(
        &self,
        platform: &P,
        index: u32,
        has_graded: bool,
        costs: &mut [Cost],
    ) {
        self.look_at_table(platform, |table| {
            // The cost of each block of the current head, and where that head ends.
            let (mut each, mut end) = (Cost::NEVER, index);
            for (next, place) in (index..).zip(costs) {
                if next >= end {
                    (end, each) = match table.state_if_ready(next) {
                        // Most blocks are split, and a search asks for thousands of blocks.
                        Some(state) if state.is(State::Split) => {
                            (next + 1, Cost::to_have(state, has_graded))
                        }
                        _ => to_move_of_head(table, next, has_graded),
                    };
                }
                *place = each;
            }
        });
    }
}

/// How many frames are in use in a block that is to be freed, if it can be freed at all.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cost(u16);

impl Cost {
    pub(crate) const NEVER: Self = Self(u16::MAX);

    #[expect(clippy::cast_possible_truncation, reason = "of a block: 512 at most")]
    const fn of(pages: u64) -> Self {
        Self(pages as u16)
    }

    /// The cost of each block of a head.
    #[inline(never)]
    fn to_have(state: BlockState, has_graded: bool) -> Self {
        let movable = matches!(state.migrate_type(), MigrateType::Movable)
            || !state.migrate_type().is_mergeable();
        match state.state() {
            _ if state.is_isolated() || state.is_graded() && !has_graded => Self::NEVER,
            // Withheld memory comes up when it is isolated.
            Some(State::Free | State::Deferred) => Self::of(0),
            // Costs 1, so that memory that is accepted already, as good otherwise, is preferred.
            Some(State::Accepting) => Self::of(1),
            Some(State::Unaccepted) if !state.has(BlockState::KEPT) => Self::of(1),
            Some(State::Whole) if movable && !state.is_nobodys() => Self::of(PAGES_PER_BLOCK),
            Some(State::Split) if movable && state.managed_pages() == PAGES_PER_BLOCK => {
                Self::of(PAGES_PER_BLOCK - state.free_pages() - state.descriptor_pages())
            }
            _ => Self::NEVER,
        }
    }

    #[inline]
    pub(crate) fn pages(self) -> Option<u64> {
        if self == Self::NEVER { None } else { Some(u64::from(self.0)) }
    }
}

/// Where the head that covers `index` ends, and what each of its blocks costs.
#[inline(never)]
fn to_move_of_head(table: &BlockTable, index: u32, has_graded: bool) -> (u32, Cost) {
    let Some((head, state)) = table.head_unlocked(index) else { return (index + 1, Cost::NEVER) };
    let end = blocks_of(state.order().max(Order::BLOCK)) + head;
    (end.max(index + 1), Cost::to_have(state, has_graded))
}

/// How many runs are taken under one hold of the lock.
const RUNS_AT_ONCE: usize = 64;

impl LockedZone {
    fn frames_of(&self, index: u32, state: BlockState) -> UsedFrames {
        let free = self.buddy.table.cold_free_map(index).words();
        let mut frames =
            UsedFrames { in_use: [0; 8], descriptors: [0; 8], reserved: [0; 8], reporting: [0; 8] };
        if state.managed_pages() != PAGES_PER_BLOCK {
            // If there was no room to note which frames of the block are managed, a frame that is
            // not free may be anything.
            let managed = self.partials.managed_frames(index);
            frames.reserved =
                managed.map_or(free, |managed| managed.words()).map(|managed| !managed);
        }
        if let Some(held) = self.descriptor_frames_of(index) {
            held.iter().for_each(|frame| set_frames(&mut frames.descriptors, frame..frame + 1));
        }
        if state.has(BlockState::REPORTING) {
            let is_out =
                |&frame: &usize| self.in_flight.first_in(index, &(frame..frame + 1)).is_some();
            (0..FreeMap::<8>::PAGES)
                .filter(is_out)
                .for_each(|frame| set_frames(&mut frames.reporting, frame..frame + 1));
        }
        frames.in_use = core::array::from_fn(|word| {
            !(free[word]
                | frames.reserved[word]
                | frames.descriptors[word]
                | frames.reporting[word])
        });
        frames
    }
}
