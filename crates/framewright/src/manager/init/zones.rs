//! Brings every frame of memory to its zone, in one pass over memory.

use crate::firmware::MemoryKind;
use crate::manager::init::frame::Frame;
use crate::manager::init::node_clock::{NodeClock, Work};
use crate::manager::init::plan::ZoneSet;
use crate::manager::state::ZoneSlots;
use crate::memblock::{Memblock, MemoryRuns};
use crate::page::Partials;
use crate::platform::Platform;
use crate::units::{NodeId, Pfn, PfnRange};
use crate::vmemmap::{ArrayMemory, BootPages};
use crate::vmemmap_space::BlockNumber;
use crate::zone::initialise::{BlockOfZone, InitialUse, edges};
use crate::zone::{Segment, Zone, ZoneId, ZoneKind, ZoneRun, ZoneRuns, segment, zone_runs};

/// Zone and end of what was free before any memory.
const NOTHING: (ZoneId, Pfn) = (ZoneId { node: NodeId::ZERO, kind: ZoneKind::Dma }, Pfn(0));

/// Walks memory and free memory together, both ascending.
struct Initialiser<'a> {
    zones: &'a mut [Zone],
    places: Places<'a>,
    runs: ZoneRuns<MemoryRuns<'a>>,
    run: Option<ZoneRun>,
    /// First frame of `run` that was not walked over.
    position: u64,
    /// One past the last frame that was free, and its zone.
    free_end: (ZoneId, Pfn),
    /// Blocks that free memory begins or ends in, and how many: some are noted twice.
    edges: &'a mut [BlockOfZone],
    edge_count: usize,
    array: &'a ArrayMemory,
    boot_pages: &'a BootPages,
}

/// Which part of a zone has which frames.
#[derive(Clone, Copy)]
pub(crate) struct Places<'a> {
    pub(crate) slots: &'a [ZoneSlots],
    pub(crate) directory: &'a [Segment],
}

impl Places<'_> {
    /// Calls `each` with the part of a run's zone that has the first frames of `range`, which are
    /// the run's, and with these; then with the next. What is managed nowhere is the first part's.
    #[inline(never)]
    fn for_each(self, run: &ZoneRun, range: PfnRange, each: &mut dyn FnMut(usize, PfnRange)) {
        let zone = self.slots[run.zone.index()];
        if run.stray || zone.parts == 1 {
            return each(usize::from(zone.first), range);
        }
        let mut rest = range;
        while !rest.is_empty() {
            let block = BlockNumber::containing(rest.start);
            // All of a run is in segments.
            let Some(segment) = segment::find(self.directory, block) else { return };
            let end = rest.end.min(segment.end().start());
            each(usize::from(segment.zone), PfnRange { start: rest.start, end });
            rest.start = end;
        }
    }
}

impl Initialiser<'_> {
    #[inline(never)]
    fn initialise(&mut self, run: &ZoneRun, range: PfnRange, initial_use: InitialUse) {
        self.places.for_each(run, range, &mut |part, range| {
            self.zones[part].initialise(run, range, initial_use);
            if run.stray || matches!(initial_use, InitialUse::Reserved | InitialUse::Allocated) {
                return;
            }
            for edge in edges(range).into_iter().filter(|edge| !edge.is_empty()) {
                if let Some(place) = self.edges.get_mut(self.edge_count) {
                    *place = BlockOfZone::new(part, BlockNumber::containing(edge.start));
                    self.edge_count += 1;
                }
            }
        });
    }

    #[inline(never)]
    fn reserve_up_to(&mut self, run: &ZoneRun, end: u64) {
        while self.position < end {
            let rest = PfnRange::new(self.position, end);
            // Nodes are few, and reservations are not many.
            let ours = self
                .array
                .frames()
                .chain(self.boot_pages.ranges().iter().map(|range| range.frames));
            let ours = ours.map(|frames| frames.intersection(rest)).filter(|part| !part.is_empty());
            let next = if cfg!(feature = "vmemmap") {
                ours.min_by_key(|part| part.start).filter(|_| !run.stray)
            } else {
                None
            };
            let stop = next.map_or(end, |part| part.start.0);
            if rest.start.0 < stop {
                self.initialise(run, PfnRange::new(rest.start.0, stop), InitialUse::Reserved);
            }
            if let Some(part) = next {
                self.initialise(run, part, InitialUse::Allocated);
            }
            self.position = next.map_or(end, |part| part.end.0);
        }
    }

    fn advance(&mut self) {
        self.run = self.runs.next();
        self.position = self.run.map_or(u64::MAX, |run| run.range.start.0);
    }

    /// Frames that are free; all between these and those before are not.
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

/// Initialises all zones, hands the memblock allocator's free memory over, and records which frames
/// of partially managed blocks each zone has.
#[inline(never)]
pub(crate) fn initialise_zones<P: Platform>(
    early: &mut Memblock<'_, P>,
    frame: &mut Frame,
    clock: &mut NodeClock<'_, P>,
    array: &ArrayMemory,
) {
    let runs = zone_runs(early.runs());
    let nodes = &mut *frame.nodes;
    let mut has_edges = ZoneSet::EMPTY;
    for run in runs.clone() {
        clock.turn_to(nodes, run.zone.node, Work::Bookkeeping);
        let places = Places { slots: frame.slots, directory: frame.directory };
        places.for_each(&run, run.range, &mut |part, range| {
            frame.zones[part].note_memory(&ZoneRun { range, ..run });
            if edges(range).iter().any(|edge| !edge.is_empty()) {
                has_edges.insert(run.zone);
            }
        });
    }
    // From here on the memblock allocator allocates nothing more, so that its own arrays can be
    // handed over with the rest.
    let boot_pages = &frame.pools.boot_pages;
    let mut initialiser = Initialiser {
        zones: &mut *frame.zones,
        places: Places { slots: frame.slots, directory: frame.directory },
        runs: runs.clone(),
        run: None,
        position: 0,
        free_end: NOTHING,
        edges: &mut *frame.edges,
        edge_count: 0,
        array,
        boot_pages,
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
    let _ = early.discard();
    let mut rest = core::mem::take(&mut frame.partials);
    let mut blocks = &mut frame.edges[..edge_count];
    // Zones of several nodes may alternate, which is rare: nearly always all is in order.
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
}
