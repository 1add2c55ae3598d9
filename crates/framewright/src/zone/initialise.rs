//! Fills a zone at bring-up, while no other CPU sees it.
//!
//! ```text
//! attach ──> note_memory, all runs ──> initialise, all frames ──> record_partials ──> descriptors
//! ```
//!
//! Memory is noted first, then every frame is initialised, in ascending order. Whole blocks get the
//! largest heads that fit. Blocks that are not uniform become split blocks whose free map has a bit
//! set for each free frame.
//!
//! All frames go through the same few functions, which are not inlined and have few branches. A
//! boot runs them only a few times, so most of their cost is fetching the code for the first time
//! or, in an emulator, translating it.
//!
//! Afterwards every group of the table is ready or has an order-18 head (invariant 5). Each group
//! of a segment holds memory, because only short holes are bridged, and initialising anything but
//! an order-18 block makes its group ready.

use super::segment::{self, Segment};
use super::{Zone, ZoneRun};
use crate::block::table::{BlockEntry, BlockTable, blocks_of, largest_piece};
use crate::block::{BlockState, MigrateType, State};
use crate::firmware::MemoryKind;
use crate::page::{Partial, Partials, in_block};
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::{Order, PAGES_PER_BLOCK, PfnRange};
use crate::vmemmap_space::BlockNumber;
use core::ops::Range;

/// A zone's tables, over memory on its node.
pub(crate) struct ZoneTables {
    pub(crate) table: BlockTable,
    /// Words of any content, as are those of the next two fields.
    pub(crate) free_index: &'static [AtomicU64],
    pub(crate) deferred: &'static [AtomicU64],
    pub(crate) reported: &'static [AtomicU64],
}

impl ZoneTables {
    /// The tables of a zone without memory.
    pub(crate) const EMPTY: Self =
        Self { table: BlockTable::EMPTY, free_index: &[], deferred: &[], reported: &[] };
}

/// How frames are used when they are initialised.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum InitialUse {
    /// Free. Frames *touch* if other free frames precede them without a gap; a block at their start
    /// may then have a free buddy.
    Free { touching: bool },
    /// Whole blocks that the manager keeps, for the vmemmap or for pools.
    Allocated,
    /// In use by somebody who will free them like any allocation.
    InUse,
    /// To be accepted before they are handed out. Frames that do not fill their block should have
    /// been accepted before; they are reserved.
    Unaccepted,
    /// Not managed.
    Reserved,
}

/// A zone's number and a block in one word, so that blocks sort by zone.
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

/// Returns the frames of a range that lie in blocks which it does not fill: those before the first
/// whole block and those after the last.
#[inline(never)]
pub(crate) fn edges(range: PfnRange) -> [PfnRange; 2] {
    let head = range.start.0.next_multiple_of(PAGES_PER_BLOCK).min(range.end.0);
    let tail = (range.end.0 / PAGES_PER_BLOCK * PAGES_PER_BLOCK).max(head);
    [PfnRange::new(range.start.0, head), PfnRange::new(tail, range.end.0)]
}

/// Cuts a run of blocks into the largest aligned pieces of at most order `most`, ascending. Yields
/// the first block and the order of each.
#[inline]
fn pieces(blocks: Range<u32>, most: Order) -> impl Iterator<Item = (u32, Order)> {
    let mut next = blocks.start;
    core::iter::from_fn(move || {
        let block = next;
        (block < blocks.end).then(|| {
            let order = largest_piece(block, blocks.end, most);
            next += blocks_of(order);
            (block, order)
        })
    })
}

/// Returns the order of the largest aligned run within `frames` of a block, which are not empty.
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
        // A window whose tables do not exist yet has no words.
        if !free_index.is_empty() {
            locked.free_index.attach(free_index, table.len() as usize);
        }
        locked.buddy.attach(segments, table, deferred, reported);
        self.span = span;
        self.segments = segments;
        self.table.name(table);
    }

    /// Counts frames of a run as present though nobody manages them.
    pub(crate) fn note_strays(&mut self, range: PfnRange) {
        *self.present_pages.get_mut() += range.pages();
        self.stray_pages += range.pages();
    }

    /// Counts frames of a run, which lie in a segment, as present. Frames in blocks that the range
    /// does not fill are also counted in the block's state; all runs must be noted before anything
    /// is initialised. Returns whether there are such frames.
    pub(crate) fn note_memory(&mut self, segment: &Segment, range: PfnRange) -> bool {
        *self.present_pages.get_mut() += range.pages();
        let mut has_edges = false;
        for part in edges(range) {
            if part.is_empty() {
                continue;
            }
            has_edges = true;
            let index = segment.index_of(BlockNumber::containing(part.start));
            let entry = self.partial(index, 0);
            let state = entry.state();
            let state = state.with_pages(0, 0, state.present_pages() + part.pages());
            entry.set_state_alone(state);
        }
        has_edges
    }

    /// Counts frames of a run that nobody manages as reserved.
    pub(crate) fn initialise_strays(&mut self, range: PfnRange) {
        *self.reserved_pages.get_mut() += range.pages();
    }

    /// Initialises frames of `run`, which lie in a segment. Frames that cannot be managed are
    /// reserved whatever `initial_use` says. Returns those in blocks that the range does not fill.
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
        let is_in_use = cfg!(feature = "hotplug") && initial_use == InitialUse::InUse;
        // Pages in use are counted last (`count_in_use`).
        if !is_in_use {
            let of = if is_managed { &mut self.managed_pages } else { &mut self.reserved_pages };
            *of.get_mut() += range.pages();
        }
        let edges = edges(range);
        for part in edges {
            if !part.is_empty() {
                self.initialise_part(segment, part, is_managed, !is_in_use);
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
            // Nobody may accept unaccepted memory that is reserved.
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
            entry.set_state_in_no_lot(word.with(mark));
            self.note_unaccepted(index, order);
        }
        edges
    }

    /// Counts pages that were in use at bring-up, which are all that are counted as neither managed
    /// nor reserved yet, as managed. Called after everything that bring-up derives from managed
    /// pages, like watermarks: these pages may never be freed, or be no memory.
    pub(crate) fn count_in_use(&self) {
        let counted = self.final_managed_pages() + self.reserved_pages();
        // Relaxed: no other CPU has the manager yet.
        let in_use_pages = self.present_pages().saturating_sub(counted);
        self.managed_pages.fetch_add(in_use_pages, Ordering::Relaxed);
    }

    /// Publishes the counters, none of which changes afterwards.
    pub(crate) fn finish_initialising(&mut self) {
        self.changing.counters.publish(self.changing.locked.get_mut());
    }

    /// Puts the free runs of split blocks into the free index, and records which frames of
    /// partially managed blocks are managed, as far as those frames are free. The blocks are among
    /// `blocks`, which ascend. Records as many as `partials` has room for and returns their number.
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
            // Ranges that touch may together have made the block whole.
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

    /// Records which frames are memory in blocks that are memory only in part. Returns the number
    /// of such blocks.
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

    /// Returns the entry of a split block. If the block is not split yet, makes it so, with no
    /// frame free or managed and `present_pages` frames of memory.
    #[inline(never)]
    fn partial(&mut self, index: u32, present_pages: u64) -> &'static BlockEntry {
        self.table.make_ready(index, false);
        let entry = self.table.cold_entry(index);
        if !entry.state().is(State::Split) {
            self.table.cold_free_map(index).clear();
            self.changing.locked.get_mut().buddy.count_new(1);
            let split = BlockState::split(MigrateType::Movable);
            // Its lots are set by `initialise_part`: all that is noted is initialised later.
            entry.set_state_alone(split.with_pages(0, 0, present_pages));
        }
        entry
    }

    /// Initialises frames of a split block, as managed or not and, if managed, as free or not. The
    /// free index learns of them only once all frames are known.
    #[inline(never)]
    fn initialise_part(&mut self, segment: &Segment, part: PfnRange, managed: bool, free: bool) {
        let index = segment.index_of(BlockNumber::containing(part.start));
        // If nothing was noted for the block, one run fills it.
        let entry = self.partial(index, PAGES_PER_BLOCK);
        let state = entry.state();
        let managed = if managed { part.pages() } else { 0 };
        let freed = if free { managed } else { 0 };
        let (free, managed) = (state.free_pages() + freed, state.managed_pages() + managed);
        let new = state.with_pages(free, managed, state.present_pages());
        self.table.set_state_and_lots(entry, index, new);
        if freed == 0 {
            return;
        }
        let frames = in_block(part);
        let map = self.table.cold_free_map(index);
        map.set_run(frames.clone(), true);
        let locked = self.changing.locked.get_mut();
        if free == PAGES_PER_BLOCK {
            // Ranges that touch made the block whole together.
            locked.split_pages -= state.free_pages();
            return locked.buddy.free_at_bring_up(index, Order::BLOCK);
        }
        locked.split_pages += freed;
        // Only a run that joins one that was free before needs a search for the largest run.
        let order = if map.is_apart(&frames) {
            state.free_order().max(Some(largest_run(frames)))
        } else {
            map.largest_order()
        };
        entry.set_state_alone(new.with_free_order(order));
    }

    /// Initialises whole blocks that are free. Those of deferred sections are withheld. A block
    /// that is only partly free is never withheld: `initialise_part` frees its frames at once.
    #[inline(never)]
    fn initialise_free(&mut self, segment: &Segment, blocks: Range<u32>, touching: bool) {
        let border = self.sections.first_block().clamp(blocks.start, blocks.end);
        let buddy = &mut self.changing.locked.get_mut().buddy;
        // The pieces of one range are never buddies of one another.
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
            let word = BlockState::head(state, order, MigrateType::Movable).with(mark);
            if order == Order::BLOCK {
                self.table.set_state_and_lots(entry, index, word);
            } else {
                entry.set_state_in_no_lot(word);
            }
            if state == State::Free {
                locked.buddy.free_at_bring_up(index, order);
            }
        }
    }

    /// Records that frames of the block at `index` belong to somebody who can free them. The block
    /// was recorded before as far as it is free.
    pub(crate) fn record_in_use(&mut self, index: u32, part: PfnRange) {
        let state = self.table.cold_entry(index).state();
        if state.is(State::Split) && state.managed_pages() != PAGES_PER_BLOCK {
            let noted = self.changing.locked.get_mut().partials.add(index, part);
            debug_assert!(noted, "places were counted");
        }
    }
}
