//! Makes windows: parts of a zone for memory that bring-up did not know.
//!
//! Orders of memory: Relaxed: counts that are only reported.

use super::{Hotplug, HotplugError, Piece, bytes_of};
use crate::block::MigrateType;
use crate::carve::{Carver, room};
use crate::manager::init::plan::TableSize;
use crate::manager::init::tables::Heads;
use crate::manager::request::Request;
use crate::manager::state::hotplug::Group;
use crate::memblock::NodeChoice;
use crate::page::Descriptors;
use crate::platform::Platform;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::{
    NodeId, Order, PAGE_SIZE, PAGES_PER_BLOCK, PHYSICAL_ADDRESS_END, Pfn, PfnRange, PhysRange,
};
use crate::vmemmap_space::{BlockNumber, BlockRange};
use crate::zone::hotplug::Window;
use crate::zone::remembered::Remembered;
use crate::zone::{Segment, Zone, ZoneId, ZoneKind};

/// The number of blocks of 1 GiB.
const GIB: u32 = 1 << (Order::MAX.get() - Order::BLOCK.get());
/// Tables of up to this many bytes are placed in existing memory.
const SMALL_TABLES_BYTES: u64 = 768 << 10;
const BLOCK_BYTES: u64 = PAGES_PER_BLOCK * PAGE_SIZE;

fn has_small_tables(size: TableSize) -> bool {
    size.bytes() <= SMALL_TABLES_BYTES
}

/// A window that has everything it needs but does not exist yet.
#[derive(Clone, Copy)]
pub(super) struct Planned {
    id: ZoneId,
    /// All of its blocks.
    pub(super) blocks: BlockRange,
    size: TableSize,
    segment: Segment,
    /// The tables in existing memory.
    outside: PhysRange,
    /// How many blocks at the window's start hold the rest of its tables.
    pub(super) inside_blocks: u32,
    /// How many of these blocks are accepted.
    pub(super) accepted_blocks: u32,
}

impl<P: Platform> Hotplug<'_, P> {
    /// Returns the end of the run from `start` on, at most `end`, that has no place yet and lies in
    /// one kind of zone.
    pub(super) fn unknown_until(self, start: BlockNumber, end: BlockNumber) -> BlockNumber {
        let kind = ZoneKind::of(start.start());
        let border = BlockNumber::containing(kind.frames().end);
        let next = self.manager.next_segment(start).unwrap_or(end);
        end.min(border).min(next)
    }

    /// Returns where the first window for blocks without a place ends: at the first GiB boundary
    /// after their start or, if they start at one, at their last GiB boundary. `None` if that would
    /// not divide them.
    pub(super) fn whole_part(blocks: BlockRange) -> Option<BlockNumber> {
        let whole = BlockNumber(blocks.start.0.next_multiple_of(GIB));
        let end = if whole == blocks.start { blocks.end.0 / GIB * GIB } else { whole.0 };
        (blocks.start.0 < end && end < blocks.end.0).then_some(BlockNumber(end))
    }

    /// Returns whether the tables of a window of these blocks are placed in existing memory.
    pub(super) fn is_small(blocks: BlockRange) -> bool {
        let segment = Segment { start: blocks.start, blocks: blocks.blocks(), ..Segment::EMPTY };
        has_small_tables(TableSize::of(&[segment]))
    }

    /// Plans a window for blocks that have no place. With its tables in existing memory, the window
    /// is widened to whole GiBs or, if there are several nodes and no device is known, to whole
    /// memory blocks, as far as nothing is in the way. With its tables in itself, it has whole GiBs
    /// already. `number` is how many windows were planned before.
    pub(super) fn plan(
        self,
        wanted: BlockRange,
        node: NodeId,
        number: usize,
    ) -> Result<Planned, HotplugError> {
        let manager = self.manager;
        if self.windows_left() <= number {
            return Err(HotplugError::NoWindow(bytes_of(wanted)));
        }
        let kind = ZoneKind::of(wanted.start.start());
        let zone = u16::try_from(manager.zones().len() + number);
        let zone = zone.map_err(|_| HotplugError::NoWindow(bytes_of(wanted)))?;
        let segment = |blocks: BlockRange| {
            let segment = Segment { start: blocks.start, blocks: blocks.blocks(), index: 0, zone };
            Segment { index: segment.base_from(0), ..segment }
        };
        let own = segment(wanted);
        let own_size = TableSize::of(&[own]);
        let in_itself = self.settings().memmap_on_memory;
        if has_small_tables(own_size) || !in_itself {
            let gibs = |end: BlockNumber| BlockRange { end, ..wanted };
            // A device that adds a little at a time must not need a window for each of its GiBs.
            for end in [self.device_until(wanted, node), wanted.end] {
                let blocks = self.widened(gibs(end), node, kind);
                let segment = segment(blocks);
                let size = TableSize::of(&[segment]);
                let id = ZoneId { node, kind };
                if let Ok(outside) = self.memory_for_tables(size.bytes(), node) {
                    return Ok(Planned {
                        id,
                        blocks,
                        size,
                        segment,
                        outside,
                        inside_blocks: 0,
                        accepted_blocks: 0,
                    });
                }
            }
        }
        if !in_itself {
            return Err(HotplugError::NoRoomForTables { bytes: own_size.bytes() });
        }
        // The tables lie in the memory itself. Only whole GiBs may do so: then nobody looks into
        // the tables when the memory is gone (invariant 49).
        if !wanted.start.0.is_multiple_of(GIB) || !wanted.end.0.is_multiple_of(GIB) {
            return Err(HotplugError::NoRoomForTables { bytes: own_size.bytes() });
        }
        let heads_bytes = Heads::bytes(&own_size) + room::<AtomicU64>(self.remembered(&own) as u64);
        let heads_bytes = heads_bytes.next_multiple_of(PAGE_SIZE);
        let outside = self.memory_for_tables(heads_bytes, node)?;
        let rest = own_size.bytes().div_ceil(BLOCK_BYTES);
        let inside_blocks = u32::try_from(rest).unwrap_or(u32::MAX);
        let planned = Planned {
            id: ZoneId { node, kind },
            blocks: wanted,
            size: own_size,
            segment: own,
            outside,
            inside_blocks,
            accepted_blocks: 0,
        };
        if inside_blocks >= wanted.blocks() {
            self.forget(&planned);
            return Err(HotplugError::NoRoomForTables { bytes: own_size.bytes() });
        }
        if bytes_of(planned.inside()).end > manager.platform.direct_limit() {
            self.forget(&planned);
            return Err(HotplugError::NotReached(bytes_of(planned.inside())));
        }
        Ok(planned)
    }

    /// Gives back what a plan obtained.
    pub(super) fn forget(self, planned: &Planned) {
        // This cannot fail: the frames were just allocated for the plan.
        let _ = self.manager.free_bare(planned.outside.whole_frames());
    }

    fn memory_for_tables(self, bytes: u64, node: NodeId) -> Result<PhysRange, HotplugError> {
        let manager = self.manager;
        let limit = manager.platform.direct_limit();
        // Prefer memory that bring-up found: memory that was added later should be removable again.
        let boot_end = manager.directory.last().map_or(0, |last| last.end().start().address());
        let taken = [limit.min(boot_end), limit].into_iter().find_map(|max_address| {
            let request = Request {
                node: NodeChoice::Preferred(node),
                max_address,
                migrate_type: MigrateType::Unmovable,
                fail_fast: true,
                ..Request::pages(bytes.div_ceil(PAGE_SIZE))
            };
            manager.allocate_bare(&request).ok()
        });
        taken.map(PfnRange::to_phys).ok_or(HotplugError::NoRoomForTables { bytes })
    }

    /// Returns up to where to give memory a place together with `wanted`: to the end of its device
    /// or module ([`register_group`](Self::register_group)), as far as tables stay small.
    fn device_until(self, wanted: BlockRange, node: NodeId) -> BlockNumber {
        let bytes = bytes_of(wanted);
        let groups = self.manager.hotplug.groups.lock(self.manager.platform);
        let is_own = |group: &&Group| {
            group.node == node
                && group.region.start <= bytes.start
                && bytes.end <= group.region.end.min(PHYSICAL_ADDRESS_END)
        };
        let Some(group) = groups.iter().flatten().find(is_own) else { return wanted.end };
        let end = group.region.end.min(PHYSICAL_ADDRESS_END);
        let end = self.unknown_until(wanted.start, BlockNumber::containing(Pfn::containing(end)));
        let start = BlockNumber(wanted.start.0 / GIB * GIB);
        let mut more = end.0.saturating_sub(wanted.end.0);
        loop {
            let end = BlockNumber(wanted.end.0 + more);
            let whole = BlockNumber(end.0.next_multiple_of(GIB));
            if more == 0 || Self::is_small(BlockRange { start, end: whole }) {
                return end;
            }
            more /= 2;
        }
    }

    /// Widens `wanted` to whole GiBs of one kind that have no place yet. If there are several nodes
    /// and no device is known, widens it only to whole memory blocks, because the memory next to it
    /// may be another node's. Never includes the device of another node.
    fn widened(self, wanted: BlockRange, node: NodeId, kind: ZoneKind) -> BlockRange {
        let frames = kind.frames();
        let (low, high) =
            (BlockNumber::containing(frames.start), BlockNumber::containing(frames.end));
        let grain = self.grain_of(wanted, node);
        let start = BlockNumber(wanted.start.0 / grain * grain).max(low);
        let end = BlockNumber(wanted.end.0.next_multiple_of(grain)).min(high);
        let mut widened = BlockRange { start, end };
        let groups = self.manager.hotplug.groups.lock(self.manager.platform);
        // Nothing is in the way beyond the last address, and block numbers end there.
        let all = PhysRange::new(0, PHYSICAL_ADDRESS_END);
        let others = groups.iter().flatten().filter(|group| group.node != node);
        for region in others.map(|group| group.region.intersection(all)) {
            if region.is_empty() {
                continue;
            }
            let frames = region.touched_frames();
            let end = Pfn(frames.end.0.next_multiple_of(PAGES_PER_BLOCK));
            if end <= wanted.start.start() {
                widened.start = widened.start.max(BlockNumber::containing(end));
            } else if frames.start >= wanted.end.start() {
                widened.end = widened.end.min(BlockNumber::containing(frames.start));
            }
        }
        drop(groups);
        for piece in self.known(widened) {
            if piece.blocks.end <= wanted.start {
                widened.start = widened.start.max(piece.blocks.end);
            } else {
                widened.end = widened.end.min(piece.blocks.start);
            }
        }
        widened
    }

    /// Returns the unit, in blocks, in which a window around `wanted` begins and ends.
    fn grain_of(self, wanted: BlockRange, node: NodeId) -> u32 {
        let device = self.group_at(bytes_of(wanted));
        if self.manager.nodes.len() == 1 || device.is_some_and(|device| device.node == node) {
            return GIB;
        }
        let memory_block = self.settings().block_bytes / BLOCK_BYTES;
        u32::try_from(memory_block).unwrap_or(GIB).clamp(1, GIB)
    }

    /// Returns how many words are needed to remember the blocks of a window with tables in itself.
    /// They are needed even if the host forgets acceptance, as it may refuse to take the memory.
    fn remembered(self, window: &Segment) -> usize {
        let blocks = if self.forgets().is_some() { window.blocks } else { 0 };
        Remembered::words_for(blocks as usize)
    }

    /// Makes a planned window without any memory yet. Cannot fail, because the places were counted.
    /// Tables inside the window are placed later ([`place_tables`](Self::place_tables)).
    ///
    /// # Safety
    /// The caller owns the blocks that are to hold the window's tables, within one run below the
    /// direct limit.
    #[inline(never)]
    pub(super) unsafe fn make(self, planned: &Planned) -> Option<&'static Zone> {
        let manager = self.manager;
        let size = &planned.size;
        // SAFETY: the memory was obtained for these tables when the window was planned, and is kept
        // for as long as the manager exists (invariants 1, 3 and 15).
        let mut outside = unsafe { Carver::new(manager.platform, planned.outside) };
        let heads = Heads::carve(&mut outside, size);
        let (tables, remembered) = if planned.inside_blocks == 0 {
            (heads.with_rest(&mut outside, size), 0)
        } else {
            // SAFETY: guaranteed by the caller. Nobody looks into the tables before they are placed
            // (invariant 49).
            let mut inside = unsafe { Carver::new(manager.platform, bytes_of(planned.inside())) };
            (heads.with_rest_to_come(&mut inside, size), self.remembered(&planned.segment))
        };
        let remembered = Remembered::new(outside.values(remembered, |_| AtomicU64::new(0)));
        // Windows that were planned before this one may have been given up.
        let zone = u16::try_from(manager.zones().len()).ok()?;
        let segment = Segment { zone, ..planned.segment };
        let segments = manager.hotplug.segments.push(segment).ok()?;
        let _ = manager.hotplug.own_tables.push(planned.inside_blocks);
        let segments = core::slice::from_ref(segments);
        let parts = manager.parts(planned.id);
        let part = u16::try_from(parts.len()).unwrap_or(u16::MAX);
        let descriptors = Descriptors {
            platform: manager.platform,
            readers: manager.hotplug.readers,
            segments,
            are_wanted: manager.hotplug.descriptors_are_wanted,
            array: None,
            poison: manager.debug.aids.page_poison,
        };
        let id = planned.id;
        let window = Zone::window(Window {
            id,
            part,
            segments,
            tables,
            table_memory: planned.outside,
            has_own_tables: planned.inside_blocks != 0,
            remembered,
            descriptors,
            shuffle_seed: manager.shuffle.map(|(seed, _)| seed.wrapping_add(u64::from(zone))),
        });
        let zone = manager.zones.push(window).ok()?;
        let all = zone.part() + 1;
        manager.parts(id).iter().for_each(|part| part.set_parts(all));
        manager.hotplug.table_bytes.fetch_add(planned.outside.size(), Ordering::Relaxed);
        Some(zone)
    }
}

impl<P: Platform> Hotplug<'_, P> {
    /// Returns how many blocks at the start of a window are for its tables.
    fn own_tables(self, window: &Segment) -> u32 {
        let number = usize::from(window.zone).checked_sub(self.manager.hotplug.first_window);
        let own = number.and_then(|number| self.manager.hotplug.own_tables.as_slice().get(number));
        own.copied().unwrap_or(0)
    }

    /// Returns the blocks at the start of a window that are for its tables; none in other segments.
    #[inline(never)]
    pub(super) fn tables_of(self, window: &Segment) -> BlockRange {
        let start = window.start;
        BlockRange { start, end: BlockNumber(start.0 + self.own_tables(window)) }
    }

    /// Places the tables of a piece's window in the window, if they belong there and are not there
    /// yet; returns their size in bytes.
    ///
    /// # Safety
    /// The blocks of the tables are memory that nobody else uses, reached through the direct map,
    /// until the whole window is removed.
    pub(super) unsafe fn place_tables(self, piece: Piece) -> u64 {
        let tables = self.tables_of(piece.segment);
        if !piece.zone.is_gone() {
            return 0;
        }
        let platform = self.manager.platform;
        let size = TableSize::of(core::slice::from_ref(piece.segment));
        // SAFETY: guaranteed by the caller. All of the window is no memory, so no group is ready
        // and nobody reads the tables that were there (invariants 5 and 49).
        let mut inside = unsafe { Carver::new(platform, bytes_of(tables)) };
        let made = Heads::of(piece.zone.table()).with_rest(&mut inside, &size);
        piece.zone.renew(platform, made);
        let start = piece.segment.index_of(tables.start);
        piece.zone.bring_tables_online(platform, start..start + tables.blocks());
        let bytes = bytes_of(tables).size();
        self.manager.hotplug.table_bytes.fetch_add(bytes, Ordering::Relaxed);
        bytes
    }
}

impl Planned {
    /// Returns the window's blocks that hold its tables.
    pub(super) fn inside(&self) -> BlockRange {
        let start = self.blocks.start;
        BlockRange { start, end: BlockNumber(start.0 + self.inside_blocks) }
    }
}
