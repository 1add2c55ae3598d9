//! Filling a zone at bring-up, while nobody else sees it.
//!
//! Memory is noted first, then every frame is painted either free or reserved, each ascending. Whole blocks get heads, the largest that fit; blocks
//! that are not uniform become split, with the free frames set in their free map.
//!
//! Next to nothing here is inlined: all of it runs a few times at one boot, so that what it costs is reading code for the first time; and of an emulator, translating it.
//!
//! Every group of the table is ready afterwards or has an order-18 head (invariant 5): each group of a segment holds memory, for only short
//! holes are bridged, and painting anything but an order-18 block makes the group ready.

use super::segment::Segment;
use super::{Zone, ZoneRun};
use crate::block::lists::Position;
use crate::block::loose::Loose;
use crate::block::marks::Marks;
use crate::block::table::{BlockTable, blocks_of};
use crate::block::{BlockState, MigrateType, State, buddy};
use crate::firmware::MemoryKind;
use crate::map_space::BlockNumber;
use crate::page::{Partial, Room, Tier};
use crate::sync::table_atomic::Ordering;
use crate::units::{BLOCK_ORDER, MAX_ORDER, Order, PAGES_PER_BLOCK, Pfn, PfnRange};

/// What painting makes of frames.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Paint {
    Free,
    Head(State),
}

/// A range of frames as the blocks that lie in it and the frames before and after them.
struct Parts {
    head: PfnRange,
    blocks: core::ops::Range<u32>,
    tail: PfnRange,
}

fn parts(range: PfnRange) -> Parts {
    let first = range.start.0.next_multiple_of(PAGES_PER_BLOCK);
    let last = range.end.0 / PAGES_PER_BLOCK * PAGES_PER_BLOCK;
    if first > last {
        // Inside one block, touching neither end of it.
        return Parts { head: range, blocks: 0..0, tail: PfnRange::new(range.end.0, range.end.0) };
    }
    Parts {
        head: PfnRange::new(range.start.0, first),
        blocks: BlockNumber::containing(Pfn(first)).0..BlockNumber::containing(Pfn(last)).0,
        tail: PfnRange::new(last, range.end.0),
    }
}

impl Zone {
    /// Gives the zone its place: span, segments, table, the sets of split and of loose blocks, and the marks of reported ones.
    pub(crate) fn furnish(
        &mut self,
        span: PfnRange,
        segments: &'static [Segment],
        table: BlockTable,
        (room, loose, marks): (Room, Loose, Marks),
    ) {
        let lists = self.changing.lists.get_mut();
        (lists.room, lists.loose, lists.marks) = (room, loose, marks);
        self.span = span;
        self.segments = segments;
        self.table = table;
    }

    /// Counts a run as present. Frames in blocks that the run does not fill are counted in the block; all runs must be noted before
    /// anything is painted.
    pub(crate) fn note_memory(&mut self, run: &ZoneRun) {
        self.present_pages += run.range.pages();
        if run.stray {
            self.stray_pages += run.range.pages();
            return;
        }
        let parts = parts(run.range);
        for part in [parts.head, parts.tail] {
            if let Some((index, _)) = self.partial(part) {
                let state = self.table.state(index);
                let present = state.present_pages() + part.pages();
                self.table.set_state(index, state.with_pages(0, 0, present));
            }
        }
    }

    /// Paints frames of `run` that nobody reserved.
    #[inline(never)]
    pub(crate) fn add_free(&mut self, run: &ZoneRun, range: PfnRange) {
        if run.stray || run.kind == MemoryKind::Unaccepted {
            return self.add_reserved(run, range);
        }
        self.managed_pages += range.pages();
        let parts = parts(range);
        if !parts.head.is_empty() {
            self.set_free(parts.head);
        }
        // Whole blocks of deferred sections are withheld. Blocks that are shared with what is reserved come up at once.
        let border = self.sections.first_block().clamp(parts.blocks.start, parts.blocks.end);
        if parts.blocks.start < border {
            self.paint_blocks(parts.blocks.start..border, Paint::Free);
        }
        if border < parts.blocks.end {
            self.paint_blocks(border..parts.blocks.end, Paint::Head(State::Deferred));
            let withheld_pages = u64::from(parts.blocks.end - border) * PAGES_PER_BLOCK;
            *self.changing.deferred_pages.get_mut() += withheld_pages;
        }
        if !parts.tail.is_empty() {
            self.set_free(parts.tail);
        }
    }

    /// Paints whole blocks of `run` that the manager has for the page array.
    pub(crate) fn add_allocated(&mut self, range: PfnRange) {
        self.managed_pages += range.pages();
        let parts = parts(range);
        debug_assert!(parts.head.is_empty() && parts.tail.is_empty(), "{range:?} is not made of whole blocks");
        self.paint_blocks(parts.blocks, Paint::Head(State::Whole));
    }

    /// Paints frames of `run` that are reserved.
    pub(crate) fn add_reserved(&mut self, run: &ZoneRun, range: PfnRange) {
        self.reserved_pages += range.pages();
        if run.stray {
            return;
        }
        let parts = parts(range);
        let state = if run.kind == MemoryKind::Unaccepted { State::Unaccepted } else { State::Reserved };
        for part in [parts.head, parts.tail] {
            // A block that its neighbours leave without one free frame still has to say what it is.
            let _ = self.partial_of_filled(run, part);
        }
        self.paint_blocks(parts.blocks, Paint::Head(state));
    }

    /// Publishes the free count. The last step.
    pub(crate) fn finish_painting(&mut self) {
        let lists = self.changing.lists.get_mut();
        let (free_pages, map_pages) = (lists.free_pages(), lists.map_pages);
        self.changing.free_pages.store(free_pages, Ordering::Relaxed);
        self.changing.map_pages.store(map_pages, Ordering::Relaxed);
    }

    /// Puts blocks in pieces into the sets of those with room, and writes down which frames of blocks that are not managed whole are, while all of those are free;
    /// returns how many blocks there are, of which as many are noted as there is room.
    pub(crate) fn record_partials(&mut self, room: &mut [Partial]) -> usize {
        let mut noted = 0;
        for segment in self.segments {
            let mut index = segment.index;
            while index < segment.indices().end {
                let Some((head, state)) = self.table.head_of(index) else {
                    index += 1;
                    continue;
                };
                if state.is(State::Split) && state.free_pages() != 0 {
                    let lists = self.changing.lists.get_mut();
                    let largest = self.table.free_map(head).largest_order();
                    Tier { lists, table: &self.table, partials: &[], descriptors: None }.set_room(head, largest);
                }
                if state.is(State::Split)
                    && (1..PAGES_PER_BLOCK).contains(&state.managed_pages())
                    && let Some(partial) = room.get_mut(noted)
                {
                    partial.record(head, self.table.free_map(head));
                    noted += 1;
                }
                index = head + blocks_of(state.order());
            }
        }
        noted
    }

    pub(crate) fn set_partials(&mut self, partials: &'static [Partial]) {
        self.partials = partials;
    }

    #[inline(never)]
    fn segment_of(&self, block: BlockNumber) -> Option<&'static Segment> {
        super::segment::find(self.segments, block)
    }

    /// The split block that holds the frames `part`, made so when it is not: then its map is empty and it has no present frame.
    #[inline(never)]
    fn partial(&self, part: PfnRange) -> Option<(u32, u64)> {
        if part.is_empty() {
            return None;
        }
        let block = BlockNumber::containing(part.start);
        let index = self.segment_of(block)?.index_of(block);
        self.table.make_ready(index, false);
        let state = self.table.state(index);
        if !state.is(State::Split) {
            self.table.free_map(index).clear();
            self.table.set_state(index, BlockState::split(MigrateType::Movable));
            return Some((index, 0));
        }
        Some((index, state.present_pages()))
    }

    /// The same for a block that may be filled by `run`, whose frames were then not counted when memory was noted.
    fn partial_of_filled(&self, run: &ZoneRun, part: PfnRange) -> Option<u32> {
        let (index, present) = self.partial(part)?;
        let block = BlockNumber::containing(part.start);
        let whole = PfnRange::new(block.start().0, block.start().0 + PAGES_PER_BLOCK);
        if present == 0 && run.range.intersection(whole) == whole {
            self.table.set_state(index, self.table.state(index).with_pages(0, 0, PAGES_PER_BLOCK));
        }
        Some(index)
    }

    #[inline(never)]
    fn set_free(&mut self, part: PfnRange) {
        let Some((index, present)) = self.partial(part) else { return };
        // No count yet: the run filled the block, so nothing was noted.
        let present = if present == 0 { PAGES_PER_BLOCK } else { present };
        let offset = |pfn: Pfn| usize::try_from(pfn.0 % PAGES_PER_BLOCK).unwrap_or(0);
        let start = offset(part.start);
        let pages = usize::try_from(part.pages()).unwrap_or(0);
        let changed = self.table.free_map(index).set_range(start, start + pages);
        let state = self.table.state(index);
        let (free, managed) = (state.free_pages() + changed, state.managed_pages() + changed);
        self.table.set_state(index, state.with_pages(free, managed, present));
        let lists = self.changing.lists.get_mut();
        lists.split_pages += changed;
        if free == PAGES_PER_BLOCK {
            // Two runs made it whole between them.
            lists.split_pages -= PAGES_PER_BLOCK;
            let Some(segment) = self.segment_of(BlockNumber::containing(part.start)) else { return };
            self.place(segment, index, Order::BLOCK, Paint::Free);
        }
    }

    /// Paints whole blocks in the largest aligned pieces.
    #[inline(never)]
    fn paint_blocks(&mut self, blocks: core::ops::Range<u32>, paint: Paint) {
        let mut block = blocks.start;
        while block < blocks.end {
            let Some(segment) = self.segment_of(BlockNumber(block)) else { return };
            let end = segment.end().0.min(blocks.end);
            while block < end {
                let level = block.trailing_zeros().min((end - block).ilog2()).min(u32::from(MAX_ORDER - BLOCK_ORDER));
                let order = u8::try_from(level).ok().and_then(|level| Order::new(BLOCK_ORDER + level));
                let order = order.unwrap_or(Order::BLOCK);
                self.place(segment, segment.index_of(BlockNumber(block)), order, paint);
                block += blocks_of(order);
            }
        }
    }

    fn place(&mut self, segment: &Segment, index: u32, order: Order, paint: Paint) {
        if order < Order::MAX {
            self.table.make_ready(index, false);
        }
        match paint {
            Paint::Head(state) => {
                self.table.set_inner(index);
                self.table.set_state(index, BlockState::head(state, order, MigrateType::Movable));
            }
            Paint::Free => {
                let (lists, table) = (self.changing.lists.get_mut(), &self.table);
                // A block of the largest order has no buddy, and its group is perhaps not ready.
                let (buddy, free) =
                    (index ^ blocks_of(order), BlockState::head(State::Free, order, MigrateType::Movable));
                let has_free_buddy =
                    order < Order::MAX && segment.indices().contains(&buddy) && table.state(buddy) == free;
                // Memory from bring-up goes to the tail, so that lists begin in ascending order (SPEC 2.3).
                if has_free_buddy || order > lists.largest {
                    let position = Position::Tail;
                    buddy::free(lists, table, &segment.indices(), index, order, MigrateType::Movable, position);
                } else {
                    lists.append(table, index, order, MigrateType::Movable);
                }
            }
        }
    }
}
