//! Puts every frame of memory into its zone, in one pass over memory.

use crate::firmware::MemoryKind;
use crate::manager::init::frame::Frame;
use crate::manager::init::node_clock::{NodeClock, Work};
use crate::manager::init::plan::ZoneSet;
use crate::manager::state::ZoneSlots;
use crate::memblock::{Memblock, MemoryRuns, Region, RegionFlags};
use crate::page::Partials;
use crate::platform::Platform;
use crate::units::{MAX_NODES, NodeId, Pfn, PfnRange};
use crate::vmemmap::{ArrayMemory, BootPages};
use crate::vmemmap_space::BlockNumber;
use crate::zone::initialise::{BlockOfZone, InitialUse, edges};
use crate::zone::{Segment, Zone, ZoneId, ZoneKind, ZoneRun, ZoneRuns, segment, zone_runs};

/// The value of `free_end` before any free memory was seen.
const NOTHING: (ZoneId, Pfn) = (ZoneId { node: NodeId::ZERO, kind: ZoneKind::Dma }, Pfn(0));

/// Walks memory and free memory side by side, both ascending.
struct Initialiser<'a> {
    zones: &'a mut [Zone],
    places: Places<'a>,
    runs: ZoneRuns<MemoryRuns<'a>>,
    run: Option<ZoneRun>,
    /// The first frame of `run` that was not walked yet.
    position: u64,
    /// The zone of the last free frame, and the frame after it.
    free_end: (ZoneId, Pfn),
    /// The blocks in which free memory or memory in use begins or ends, and their number.
    edges: &'a mut [BlockOfZone],
    edge_count: usize,
    array: &'a ArrayMemory,
    boot_pages: &'a BootPages,
    /// The reservations from the first that was not walked yet; empty unless memory in use by those
    /// who free it is adopted at once.
    reserved: &'a [Region],
}

/// Finds the part of a zone that has a frame.
struct Places<'a> {
    slots: &'a [ZoneSlots],
    directory: &'a [Segment],
    /// The segment of the last frames; the next ones are often in it, too.
    last: Segment,
}

impl<'a> Places<'a> {
    const fn new(slots: &'a [ZoneSlots], directory: &'a [Segment]) -> Self {
        Self { slots, directory, last: Segment::EMPTY }
    }

    /// Cuts off the part of `rest`, which is memory, that lies in the segment of its first frame.
    /// Returns that segment and the part.
    #[inline(never)]
    fn next(&mut self, rest: &mut PfnRange) -> Option<(Segment, PfnRange)> {
        let block = BlockNumber::containing(rest.start);
        if block.0.wrapping_sub(self.last.start.0) >= self.last.blocks {
            // Every frame of a run is in some segment.
            self.last = *segment::find(self.directory, block)?;
        }
        let end = rest.end.min(self.last.end().start());
        let part = PfnRange { start: rest.start, end };
        rest.start = end;
        Some((self.last, part))
    }
}

impl Initialiser<'_> {
    #[inline(never)]
    fn initialise(&mut self, run: &ZoneRun, range: PfnRange, initial_use: InitialUse) {
        if MAX_NODES != 1 && run.stray {
            let part = usize::from(self.places.slots[run.zone.index()].first);
            return self.zones[part].initialise_strays(range);
        }
        let has_edges = !matches!(initial_use, InitialUse::Reserved | InitialUse::Allocated);
        let mut rest = range;
        while !rest.is_empty() {
            let Some((segment, range)) = self.places.next(&mut rest) else { return };
            let part = usize::from(segment.zone);
            let edges = self.zones[part].initialise(&segment, run, range, initial_use);
            if has_edges {
                for edge in edges {
                    if !edge.is_empty() {
                        self.note_edge(BlockOfZone::new(part, BlockNumber::containing(edge.start)));
                    }
                }
            }
        }
    }

    /// Notes a block once; calls for the same block come one after the other.
    fn note_edge(&mut self, block: BlockOfZone) {
        let known = self.edge_count.checked_sub(1).and_then(|last| self.edges.get(last));
        if known != Some(&block) {
            let place = self.edges.get_mut(self.edge_count);
            debug_assert!(place.is_some(), "places were counted");
            if let Some(place) = place {
                *place = block;
                self.edge_count += 1;
            }
        }
    }

    /// Returns the first part of `rest` that is not merely reserved, and how it is used.
    fn next_ours(&mut self, rest: PfnRange) -> Option<(PfnRange, InitialUse)> {
        let in_use = self.next_in_use(rest).map(|part| (part, InitialUse::InUse));
        if !cfg!(feature = "vmemmap") {
            return in_use;
        }
        // Nodes are few, and so are reservations.
        let ours =
            self.array.frames().chain(self.boot_pages.ranges().iter().map(|range| range.frames));
        let ours = ours.map(|frames| (frames.intersection(rest), InitialUse::Allocated));
        let ours = ours.filter(|(part, _)| !part.is_empty());
        let first = ours.min_by_key(|(part, _)| part.start);
        if !cfg!(feature = "hotplug") {
            return first;
        }
        first.into_iter().chain(in_use).min_by_key(|(part, _)| part.start)
    }

    /// Returns the first part of `rest` that is in use by somebody who will free it.
    fn next_in_use(&mut self, rest: PfnRange) -> Option<PfnRange> {
        if !cfg!(feature = "hotplug") {
            return None;
        }
        while let Some((region, later)) = self.reserved.split_first() {
            let frames = region.range.whole_frames();
            if region.flags.contains(RegionFlags::IN_USE) && rest.start < frames.end {
                return Some(frames.intersection(rest)).filter(|part| !part.is_empty());
            }
            if frames.start >= rest.end {
                return None;
            }
            self.reserved = later;
        }
        None
    }

    #[inline(never)]
    fn reserve_up_to(&mut self, run: &ZoneRun, end: u64) {
        while self.position < end {
            let rest = PfnRange::new(self.position, end);
            let next = self.next_ours(rest).filter(|_| !run.stray);
            let stop = next.map_or(end, |(part, _)| part.start.0);
            if rest.start.0 < stop {
                self.initialise(run, PfnRange::new(rest.start.0, stop), InitialUse::Reserved);
            }
            if let Some((part, initial_use)) = next {
                self.initialise(run, part, initial_use);
            }
            self.position = next.map_or(end, |(part, _)| part.end.0);
        }
    }

    fn advance(&mut self) {
        self.run = self.runs.next();
        self.position = self.run.map_or(u64::MAX, |run| run.range.start.0);
    }

    /// Initialises free frames. All memory between these and the free frames of the previous call
    /// is reserved or in use.
    #[inline(never)]
    fn free(&mut self, free: PfnRange) {
        while let Some(run) = self.run {
            let piece = free.intersection(run.range);
            if !piece.is_empty() {
                self.reserve_up_to(&run, piece.start.0);
                self.position = piece.end.0;
                let is_unaccepted = run.kind == MemoryKind::Unaccepted;
                let initial_use = if cfg!(feature = "accept") && is_unaccepted {
                    InitialUse::Unaccepted
                } else {
                    let touching = self.free_end == (run.zone, piece.start);
                    self.free_end = (run.zone, piece.end);
                    InitialUse::Free { touching }
                };
                self.initialise(&run, piece, initial_use);
            }
            if run.range.end > free.end {
                return;
            }
            self.reserve_up_to(&run, run.range.end.0);
            self.advance();
        }
    }
}

/// Initialises all zones, hands over the memblock allocator's free memory, and records which frames
/// of partially managed blocks each zone has. With `adopts`, memory in use is allocated afterwards,
/// otherwise reserved.
#[inline(never)]
pub(crate) fn initialise_zones<P: Platform>(
    early: &mut Memblock<'_, P>,
    frame: &mut Frame,
    clock: &mut NodeClock<'_, P>,
    array: &ArrayMemory,
    adopts: bool,
) {
    let runs = zone_runs(early.runs());
    let nodes = &mut *frame.nodes;
    let mut has_edges = ZoneSet::EMPTY;
    let mut places = Places::new(frame.slots, frame.directory);
    for run in runs.clone() {
        clock.turn_to(nodes, run.zone.node, Work::Bookkeeping);
        // Strays: memory in a block that belongs to another zone. Nobody manages it.
        if MAX_NODES != 1 && run.stray {
            let part = usize::from(places.slots[run.zone.index()].first);
            frame.zones[part].note_strays(run.range);
            continue;
        }
        let mut rest = run.range;
        while !rest.is_empty() {
            let Some((segment, range)) = places.next(&mut rest) else { break };
            let edges = frame.zones[usize::from(segment.zone)].note_memory(&segment, range);
            if cfg!(feature = "hotplug") && edges {
                has_edges.insert(run.zone);
            }
        }
    }
    // From here on the memblock allocator allocates nothing more, so its own arrays can be handed
    // over with the rest.
    let boot_pages = &frame.pools.boot_pages;
    let mut initialiser = Initialiser {
        zones: &mut *frame.zones,
        places,
        runs: runs.clone(),
        run: None,
        position: 0,
        free_end: NOTHING,
        edges: &mut *frame.edges,
        edge_count: 0,
        array,
        boot_pages,
        reserved: if adopts { early.reserved() } else { &[] },
    };
    initialiser.advance();
    early.for_each_in_the_end(&mut |free, node: NodeId| {
        clock.turn_to(nodes, node, Work::Zones);
        initialiser.free(free);
    });
    initialiser.free(PfnRange::new(u64::MAX, u64::MAX));
    let edge_count = initialiser.edge_count;
    clock.stop(nodes);
    let mut present = core::mem::take(&mut frame.present);
    for zone in frame.zones.iter_mut().filter(|zone| has_edges.contains(zone.id())) {
        let known = zone.record_present(runs.clone(), present);
        let (blocks, others) = present.split_at_mut(known);
        present = others;
        zone.set_present(blocks);
    }
    let mut rest = core::mem::take(&mut frame.partials);
    let mut blocks = &mut frame.edges[..edge_count];
    // Zones of several nodes may alternate, which is rare: nearly always the blocks are sorted
    // already.
    for at in 1..blocks.len() {
        let mut place = at;
        while place > 0 && blocks[place] < blocks[place - 1] {
            blocks.swap(place, place - 1);
            place -= 1;
        }
    }
    for (number, zone) in frame.zones.iter_mut().enumerate() {
        let own = blocks.iter().take_while(|block| block.zone() == number).count();
        let (own, other) = blocks.split_at_mut(own);
        blocks = other;
        clock.turn_to(nodes, zone.id().node, Work::Bookkeeping);
        zone.finish_initialising();
        let noted = zone.record_partials(own, rest);
        let (mine, others) = rest.split_at_mut((noted + Partials::ROOM).min(rest.len()));
        rest = others;
        zone.set_partials(Partials::new(mine, noted));
    }
    if cfg!(feature = "hotplug") && adopts {
        record_in_use(early.reserved(), frame);
    }
    let _ = early.discard();
}

/// Records which frames in use can be freed in blocks that are managed only in part.
fn record_in_use(reserved: &[Region], frame: &mut Frame) {
    for region in reserved.iter().filter(|region| region.flags.contains(RegionFlags::IN_USE)) {
        for part in edges(region.range.whole_frames()) {
            let block = BlockNumber::containing(part.start);
            if !part.is_empty()
                && let Some(segment) = segment::find(frame.directory, block)
            {
                let zone = &mut frame.zones[usize::from(segment.zone)];
                zone.record_in_use(segment.index_of(block), part);
            }
        }
    }
}
