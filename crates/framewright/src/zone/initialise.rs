//! Filling a zone at bring-up, while nobody else sees it.
//!
//! ```text
//! attach ──> note_memory, all runs ──> initialise, all frames ──> record_partials ──> descriptors
//! ```
//!
//! Memory is noted first, then every frame is initialised, ascending. Whole blocks get heads, the
//! largest that fit; blocks that are not uniform become split, with the free frames set in their
//! free map.
//!
//! All frames go through the same few functions, which are not inlined and have few branches: a
//! boot runs them a few times, so that what they cost is reading code for the first time; and of an
//! emulator, translating it.
//!
//! Every group of the table is ready afterwards or has an order-18 head (invariant 5): each group
//! of a segment holds memory, for only short holes are bridged, and initialising anything but an
//! order-18 block makes the group ready.

use super::segment::{self, Segment};
use super::{Zone, ZoneRun};
use crate::block::table::{BlockEntry, BlockTable};
use crate::block::{BlockState, MigrateType, State};
use crate::firmware::MemoryKind;
use crate::page::{Partial, Partials, in_block};
use crate::sync::table_atomic::AtomicU64;
use crate::units::{BLOCK_ORDER, Order, PAGES_PER_BLOCK, PfnRange};
use crate::vmemmap_space::BlockNumber;
use core::ops::Range;

/// A zone's tables, over memory on its node.
pub(crate) struct ZoneTables {
    pub(crate) table: BlockTable,
    /// Words of any content.
    pub(crate) free_index: &'static [AtomicU64],
    pub(crate) deferred: &'static [AtomicU64],
    pub(crate) reported: &'static [AtomicU64],
}

impl ZoneTables {
    /// Of a zone without memory.
    pub(crate) const EMPTY: Self =
        Self { table: BlockTable::EMPTY, free_index: &[], deferred: &[], reported: &[] };
}

/// What frames are initialised as.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum InitialUse {
    /// To be handed out. Frames that *touch* were preceded by others of this kind without a gap, so
    /// that blocks that begin with them may have free buddies.
    Free { touching: bool },
    /// Whole blocks that the manager keeps: of the vmemmap, or for pools.
    Allocated,
    /// Somebody's, who frees them like any allocation.
    InUse,
    /// To be accepted, and then handed out. What does not fill its block should have been accepted
    /// before, and is reserved.
    Unaccepted,
    /// Nobody's.
    Reserved,
}

/// A block, after the number of its zone, so that they sort by zone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockOfZone(u64);

impl BlockOfZone {
    pub(crate) const NONE: Self = Self(u64::MAX);

    pub(crate) const fn new(zone: usize, block: BlockNumber) -> Self {
        Self((zone as u64) << 32 | block.0 as u64)
    }

    pub(crate) const fn zone(self) -> usize {
        (self.0 >> 32) as usize
    }

    #[expect(clippy::cast_possible_truncation, reason = "as it was made")]
    const fn block(self) -> BlockNumber {
        BlockNumber(self.0 as u32)
    }
}

/// The frames of a range that lie in blocks which it does not fill: before the first that it fills,
/// and after the last.
#[inline(never)]
pub(crate) fn edges(range: PfnRange) -> [PfnRange; 2] {
    let head = range.start.0.next_multiple_of(PAGES_PER_BLOCK).min(range.end.0);
    let tail = (range.end.0 / PAGES_PER_BLOCK * PAGES_PER_BLOCK).max(head);
    [PfnRange::new(range.start.0, head), PfnRange::new(tail, range.end.0)]
}

/// The largest aligned pieces of a run of blocks up to `most`, ascending: the first block of each.
#[inline]
fn pieces(blocks: Range<u32>, most: Order) -> impl Iterator<Item = (u32, Order)> {
    let (mut next, end) = (blocks.start, blocks.end);
    let most = u32::from(most.get() - BLOCK_ORDER);
    core::iter::from_fn(move || {
        if next >= end {
            return None;
        }
        let block = next;
        let level = block.trailing_zeros().min((end - block).ilog2()).min(most);
        next += 1 << level;
        #[expect(clippy::cast_possible_truncation, reason = "a level of ten")]
        let order = Order::new(BLOCK_ORDER + level as u8);
        Some((block, order.unwrap_or(Order::BLOCK)))
    })
}

/// The order of the largest aligned run within some frames of a block, which are not none.
fn largest_run(frames: Range<usize>) -> u8 {
    let fits = |order: &u8| {
        let run = 1 << order;
        frames.start.next_multiple_of(run) + run <= frames.end
    };
    let most = (frames.end - frames.start).ilog2();
    let most = u8::try_from(most).unwrap_or(0);
    if fits(&most) { most } else { most.saturating_sub(1) }
}

impl Zone {
    /// Gives the zone its span, segments and tables.
    pub(crate) fn attach(
        &mut self,
        span: PfnRange,
        segments: &'static [Segment],
        tables: &ZoneTables,
    ) {
        let &ZoneTables { ref table, free_index, deferred, reported } = tables;
        let locked = self.changing.locked.get_mut();
        // Of a window whose tables are to come there are no words yet.
        if !free_index.is_empty() {
            locked.free_index.attach(free_index, table.len() as usize);
        }
        locked.buddy.attach(segments, table, deferred, reported);
        self.span = span;
        self.segments = segments;
        self.table.name(table);
    }

    /// Counts frames of a run as present that are managed nowhere.
    pub(crate) fn note_strays(&mut self, range: PfnRange) {
        *self.present_pages.get_mut() += range.pages();
        self.stray_pages += range.pages();
    }

    /// Counts frames of a run, which lie in a segment, as present. Those in blocks that they do not
    /// fill are counted in the block; all runs must be noted before anything is initialised. Says
    /// whether there are such.
    pub(crate) fn note_memory(&mut self, segment: &Segment, range: PfnRange) -> bool {
        *self.present_pages.get_mut() += range.pages();
        let mut has_edges = false;
        for part in edges(range) {
            if part.is_empty() {
                continue;
            }
            has_edges = true;
            let entry = self.partial(segment.index_of(BlockNumber::containing(part.start)), 0);
            let state = entry.state();
            entry.set_state(state.with_pages(0, 0, state.present_pages() + part.pages()));
        }
        has_edges
    }

    /// Initialises frames of a run that are managed nowhere.
    pub(crate) fn initialise_strays(&mut self, range: PfnRange) {
        *self.reserved_pages.get_mut() += range.pages();
    }

    /// Initialises frames of `run`, which lie in a segment; those that cannot be managed are
    /// reserved whatever they are to be. Returns those in blocks that they do not fill.
    #[inline(never)]
    pub(crate) fn initialise(
        &mut self,
        segment: &Segment,
        run: &ZoneRun,
        range: PfnRange,
        initial_use: InitialUse,
    ) -> [PfnRange; 2] {
        let is_accepted = run.kind != MemoryKind::Unaccepted;
        let initial_use = match initial_use {
            InitialUse::Unaccepted if cfg!(feature = "accept") => {
                return self.initialise_unaccepted(segment, range, run.is_ahead);
            }
            _ if !is_accepted => InitialUse::Reserved,
            initial_use => initial_use,
        };
        let is_managed = initial_use != InitialUse::Reserved;
        let counter = if is_managed { &mut self.managed_pages } else { &mut self.reserved_pages };
        *counter.get_mut() += range.pages();
        let edges = edges(range);
        for part in edges {
            if !part.is_empty() {
                self.initialise_part(segment, part, is_managed, initial_use != InitialUse::InUse);
            }
        }
        let [head, tail] = edges;
        let blocks = BlockNumber::containing(head.end).0..BlockNumber::containing(tail.start).0;
        if blocks.is_empty() {
            return edges;
        }
        let (state, mark) = match initial_use {
            InitialUse::Free { touching } => {
                self.initialise_free(segment, blocks, touching);
                return edges;
            }
            InitialUse::Allocated => {
                self.changing.locked.get_mut().kept_pages +=
                    u64::from(blocks.end - blocks.start) * PAGES_PER_BLOCK;
                (State::Whole, BlockState::KEPT)
            }
            InitialUse::InUse => (State::Whole, 0),
            InitialUse::Unaccepted | InitialUse::Reserved if is_accepted => (State::Reserved, 0),
            // Unaccepted memory that is reserved is nobody's to accept.
            InitialUse::Unaccepted | InitialUse::Reserved => (State::Unaccepted, BlockState::KEPT),
        };
        self.initialise_heads(segment, blocks, state, mark);
        edges
    }

    #[inline(never)]
    fn initialise_unaccepted(
        &mut self,
        segment: &Segment,
        range: PfnRange,
        is_ahead: bool,
    ) -> [PfnRange; 2] {
        let edges = edges(range);
        for part in edges.into_iter().filter(|part| !part.is_empty()) {
            *self.reserved_pages.get_mut() += part.pages();
            self.initialise_part(segment, part, false, false);
        }
        let [head, tail] = edges;
        let blocks = BlockNumber::containing(head.end).0..BlockNumber::containing(tail.start).0;
        *self.managed_pages.get_mut() += u64::from(blocks.end - blocks.start) * PAGES_PER_BLOCK;
        self.changing.locked.get_mut().buddy.count_new(blocks.end - blocks.start);
        let mark = if is_ahead { BlockState::AHEAD } else { 0 };
        for (block, order) in pieces(blocks, if is_ahead { Order::BLOCK } else { Order::MAX }) {
            let index = segment.index_of(BlockNumber(block));
            if order < Order::MAX {
                self.table.make_ready(index, false);
            }
            let entry = self.table.cold_entry(index);
            entry.clear();
            let word = BlockState::head(State::Unaccepted, order, MigrateType::Movable);
            entry.set_state(word.with(mark));
            self.note_unaccepted(index, order);
        }
        edges
    }

    /// Publishes the counters. The last step.
    pub(crate) fn finish_initialising(&mut self) {
        self.changing.counters.publish(self.changing.locked.get_mut());
    }

    /// Says what of blocks that are managed in part can be had, and writes down which of their
    /// frames are managed, as far as they are free; returns how many such blocks there are, of
    /// which as many are noted as `partials` has room for. They are among `blocks`, which ascend.
    pub(crate) fn record_partials(
        &mut self,
        blocks: &[BlockOfZone],
        partials: &mut [Partial],
    ) -> usize {
        let mut noted = 0;
        for block in blocks {
            let block = block.block();
            let Some(segment) = segment::find(self.segments, block) else { continue };
            let index = segment.index_of(block);
            let state = self.table.cold_entry(index).state();
            // Ranges that touch may have made it whole between them.
            if !state.is(State::Split) {
                continue;
            }
            if let Some(order) = state.free_order() {
                let free_index = &mut self.changing.locked.get_mut().free_index;
                free_index.insert(MigrateType::Movable, order, index);
            }
            if state.managed_pages() != PAGES_PER_BLOCK
                && let Some(partial) = partials.get_mut(noted)
            {
                partial.record(index, self.table.cold_free_map(index));
                noted += 1;
            }
        }
        noted
    }

    /// Writes down which frames of blocks that are memory in part are memory; returns how many
    /// blocks there are.
    pub(crate) fn record_present(
        &self,
        runs: impl Iterator<Item = ZoneRun>,
        blocks: &mut [Partial],
    ) -> usize {
        if !cfg!(feature = "hotplug") {
            return 0;
        }
        let mut noted: usize = 0;
        for run in runs.filter(|run| run.zone == self.id && !run.stray) {
            for part in edges(run.range).into_iter().filter(|part| !part.is_empty()) {
                let block = BlockNumber::containing(part.start);
                let Some(segment) = segment::find(self.segments, block) else { continue };
                let index = segment.index_of(block);
                let last = noted.checked_sub(1).and_then(|last| blocks.get(last));
                if last.is_none_or(|last| last.index() != index) {
                    noted += 1;
                    if let Some(block) = blocks.get_mut(noted - 1) {
                        block.begin(index);
                    }
                }
                if let Some(block) = blocks.get_mut(noted - 1) {
                    block.add(part);
                }
            }
        }
        noted.min(blocks.len())
    }

    pub(crate) fn set_present(&mut self, present: &'static [Partial]) {
        self.changing.locked.get_mut().present = present;
    }

    pub(crate) fn set_partials(&mut self, partials: Partials) {
        self.changing.locked.get_mut().partials = partials;
    }

    /// The entry of a block that is managed in part, made so when it is not: then nothing of it is
    /// free or managed, and `present_pages` are memory.
    #[inline(never)]
    fn partial(&mut self, index: u32, present_pages: u64) -> &'static BlockEntry {
        self.table.make_ready(index, false);
        let entry = self.table.cold_entry(index);
        if !entry.state().is(State::Split) {
            self.table.cold_free_map(index).clear();
            self.changing.locked.get_mut().buddy.count_new(1);
            entry.set_state(BlockState::split(MigrateType::Movable).with_pages(
                0,
                0,
                present_pages,
            ));
        }
        entry
    }

    /// Initialises frames of a block that is managed in part, which are managed or not, and are
    /// free if they are. The free index learns of them when all are there.
    #[inline(never)]
    fn initialise_part(&mut self, segment: &Segment, part: PfnRange, managed: bool, free: bool) {
        let index = segment.index_of(BlockNumber::containing(part.start));
        // Where nothing was noted, one run fills the block.
        let entry = self.partial(index, PAGES_PER_BLOCK);
        let state = entry.state();
        let managed = if managed { part.pages() } else { 0 };
        let freed = if free { managed } else { 0 };
        let (free, managed) = (state.free_pages() + freed, state.managed_pages() + managed);
        let new = state.with_pages(free, managed, state.present_pages());
        entry.set_state(new);
        if freed == 0 {
            return;
        }
        let frames = in_block(part);
        let map = self.table.cold_free_map(index);
        map.set_run(frames.clone(), true);
        let locked = self.changing.locked.get_mut();
        if free == PAGES_PER_BLOCK {
            // Two ranges that touch made it whole between them.
            locked.split_pages -= state.free_pages();
            return locked.buddy.free_at_bring_up(index, Order::BLOCK);
        }
        locked.split_pages += freed;
        // There is no need to look for the largest run where it can be none that was there and
        // became longer.
        let order = if map.is_apart(&frames) {
            state.free_order().max(Some(largest_run(frames)))
        } else {
            map.largest_order()
        };
        entry.set_state(new.with_free_order(order));
    }

    /// Initialises whole blocks that are free. Those of deferred sections are withheld; blocks that
    /// are shared with what is reserved come up at once.
    #[inline(never)]
    fn initialise_free(&mut self, segment: &Segment, blocks: Range<u32>, touching: bool) {
        let border = self.sections.first_block().clamp(blocks.start, blocks.end);
        let buddy = &mut self.changing.locked.get_mut().buddy;
        // Pieces of one range are no buddies of one another.
        if touching || buddy.largest < Order::MAX {
            self.initialise_heads(segment, blocks.start..border, State::Free, 0);
        } else {
            buddy.count_new(border - blocks.start);
            buddy.append_run(blocks.start..border, segment.index.wrapping_sub(segment.start.0));
        }
        if border < blocks.end {
            *self.changing.deferred_pages.get_mut() +=
                u64::from(blocks.end - border) * PAGES_PER_BLOCK;
            self.initialise_heads(segment, border..blocks.end, State::Deferred, 0);
        }
    }

    /// Initialises whole blocks in the largest aligned pieces.
    #[inline(never)]
    fn initialise_heads(&mut self, segment: &Segment, blocks: Range<u32>, state: State, mark: u64) {
        let locked = self.changing.locked.get_mut();
        locked.buddy.count_new(blocks.end - blocks.start);
        for (block, order) in pieces(blocks, Order::MAX) {
            let index = segment.index_of(BlockNumber(block));
            if order < Order::MAX {
                self.table.make_ready(index, false);
            }
            let entry = self.table.cold_entry(index);
            entry.clear();
            entry.set_state(BlockState::head(state, order, MigrateType::Movable).with(mark));
            if state == State::Free {
                locked.buddy.free_at_bring_up(index, order);
            }
        }
    }

    /// Frames of the block at `index`, which was recorded as far as it is free, are somebody's, who
    /// can free them.
    pub(crate) fn record_in_use(&mut self, index: u32, part: PfnRange) {
        let state = self.table.cold_entry(index).state();
        if state.is(State::Split) && state.managed_pages() != PAGES_PER_BLOCK {
            let noted = self.changing.locked.get_mut().partials.add(index, part);
            debug_assert!(noted, "places were counted");
        }
    }
}
