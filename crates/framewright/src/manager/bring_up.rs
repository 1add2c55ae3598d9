//! Bring-up: from firmware's word to memory that can be handed out.
//!
//! Allocation comes first and is all that can fail; what it obtained is given back on failure. Then the directory is filled, zones are painted
//! in one pass over free memory (`paint`), and marks are set. Nothing is logged here, so that a slow console does not count as bring-up.

mod check;
mod paint;

pub use check::PlatformFault;

use super::aided::Debug;
use super::isolate::Isolations;
use super::memory_map::{self, MapPolicy, MapState};
use super::node_clock::{NodeClock, Work};
use super::plan::{Plan, TableSize, ZoneSet, for_each_segment, zone_span};
use super::pools::Pools;
use super::pools::boot::choose_boot_pages;
use super::pressure::Pressure;
use super::settings::{Settings, Tunables};
use super::{BringUpTimes, Manager, NO_ZONE, Node};
use crate::block::BlockEntry;
use crate::block::loose::Loose;
use crate::block::marks::Marks;
use crate::block::table::BlockTable;
use crate::carve::{Carver, room};
use crate::debug::Aids;
use crate::early::{EarlyAllocator, EarlyError, EarlyRequest, NodeChoice};
use crate::firmware::{MemoryMap, Topology, node_ranges};
use crate::map_space::MAP_PAGES_PER_BLOCK;
use crate::memory_map::{ArrayMemory, MapFallback, Part};
use crate::page::{CpuCache, Descriptors, Partial, Room};
use crate::parameters::{Parameters, Policy};
use crate::platform::Platform;
use crate::reporting::Reporting;
use crate::sync::table_atomic::AtomicU64;
use crate::sync::{Readers, SpinLock};
use crate::units::{MAX_NODES, NodeId, Order, PAGE_SIZE, PAGES_PER_BLOCK, PfnRange, PhysRange};
use crate::zone::fallback::fallback_order;
use crate::zone::{Segment, Zone, ZoneId, ZoneKind};
use core::fmt;

/// What bring-up works on.
#[derive(Clone, Copy, Debug)]
pub struct BringUp<'a> {
    /// The memory.
    pub map: MemoryMap<'a>,
    /// The nodes.
    pub topology: &'a Topology<'a>,
    /// The command line.
    pub parameters: &'a Parameters,
    /// `Platform::now_ns` when the adopter began with the intake; bring-up counts its times from there.
    pub started_ns: Option<u64>,
}

/// Why bring-up failed. The early allocator has all its memory back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BringUpError {
    /// There is not enough free memory for the manager's own tables.
    NoRoomForTables {
        /// What did not fit.
        what: &'static str,
        /// Its size.
        size_bytes: u64,
        /// Where it was wanted.
        node: NodeId,
        /// What the early allocator said.
        cause: EarlyError,
    },
    /// Nothing was left to hand out once the tables were placed.
    NothingToManage,
    /// The platform is not as it has to be.
    Platform(PlatformFault),
}

impl fmt::Display for BringUpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoomForTables { what, size_bytes, node, cause } => {
                write!(f, "too little memory: no room for {what} ({size_bytes} bytes, near node {node}): {cause}")
            }
            Self::NothingToManage => f.write_str("too little memory: the tables left no free frame"),
            Self::Platform(fault) => write!(f, "the platform breaks its contract: {fault}"),
        }
    }
}

impl core::error::Error for BringUpError {}

/// Memory for the manager's tables, given back unless bring-up succeeds.
pub(super) struct Obtained<'a, P: Platform> {
    early: &'a mut EarlyAllocator<P>,
    bytes: u64,
}

impl<P: Platform> Obtained<'_, P> {
    fn take(&mut self, what: &'static str, size_bytes: u64, node: NodeId) -> Result<PhysRange, BringUpError> {
        self.take_filled(what, size_bytes, node, false)
    }

    /// The same with zeros in it.
    pub(super) fn take_zeroed(
        &mut self,
        what: &'static str,
        size_bytes: u64,
        node: NodeId,
    ) -> Result<PhysRange, BringUpError> {
        self.take_filled(what, size_bytes, node, true)
    }

    fn take_filled(
        &mut self,
        what: &'static str,
        size_bytes: u64,
        node: NodeId,
        zeroed: bool,
    ) -> Result<PhysRange, BringUpError> {
        let request = EarlyRequest {
            node: NodeChoice::Preferred(node),
            zeroed,
            ..EarlyRequest::new(size_bytes.next_multiple_of(PAGE_SIZE), PAGE_SIZE)
        };
        let range = self.early.allocate(&request).map_err(|cause| BringUpError::NoRoomForTables {
            what,
            size_bytes,
            node,
            cause,
        })?;
        self.bytes += range.size();
        Ok(range)
    }

    fn give_back(&mut self, range: PhysRange) {
        // It was allocated just now, so that this cannot fail; if it did, the range would stay reserved.
        let _ = self.early.free(range);
    }
}

/// Everything that is allocated before zones have tables.
struct Frame {
    range: PhysRange,
    zones: &'static mut [Zone],
    slots: &'static mut [u16],
    nodes: &'static mut [Node],
    directory: &'static mut [Segment],
    by_zone: &'static mut [Segment],
    fallback: &'static mut [NodeId],
    /// A row for each node.
    distances: &'static mut [u8],
    caches: &'static mut [CpuCache],
    partials: &'static mut [Partial],
    readers: &'static mut [Readers],
    parts: &'static mut [Part],
    pools: Pools,
}

impl<P: Platform> Manager<P> {
    /// Brings all memory of a machine up, and discards the early allocator.
    ///
    /// Several CPUs: calls [`Platform::cpu_barrier`] once, where [`Platform::can_wait`] allows it.
    ///
    /// Pages that the command line puts into pools without a map are kept back until [`fill_pools`](Self::fill_pools), which then has to be called.
    ///
    /// # Errors
    /// See [`BringUpError`]. Everything obtained was given back and the early allocator goes on.
    pub fn bring_up(early: &mut EarlyAllocator<P>, input: &BringUp<'_>) -> Result<Self, BringUpError> {
        let platform = early.platform();
        check::check(platform, early)?;
        let started_ns = input.started_ns.or_else(|| platform.now_ns());
        let since = || Some(platform.now_ns()?.saturating_sub(started_ns?));
        let plan = Plan::measure(input.map, input.topology);
        let mut memory = Obtained { early, bytes: 0 };
        let mut frame = Frame::allocate(platform, &mut memory, &plan, input)?;
        frame.fill(input, &plan);
        if let Err(error) = allocate_tables(platform, &mut memory, &mut frame) {
            memory.give_back(frame.range);
            return Err(error);
        }
        let aids = Aids::of(input.parameters);
        let (debug, debug_range) = match Debug::allocate(platform, &mut memory, frame.directory, aids) {
            Ok(done) => done,
            Err(error) => {
                give_tables_back(&mut memory, &frame);
                memory.give_back(frame.range);
                return Err(error);
            }
        };
        let map_state = if MapState::is_wanted(platform, input.parameters) {
            MapState::allocate(&mut memory, frame.zones).map(Some)
        } else {
            Ok(None)
        };
        let map_state = match map_state {
            Ok(state) => state,
            Err(error) => {
                if !debug_range.is_empty() {
                    memory.give_back(debug_range);
                }
                give_tables_back(&mut memory, &frame);
                memory.give_back(frame.range);
                return Err(error);
            }
        };
        let space = platform.map_space();
        let are_wanted = input.parameters.pages.are_wanted(space.is_some());
        if !any_free(memory.early, are_wanted) {
            if let Some(state) = &map_state {
                memory.give_back(state.range());
            }
            if !debug_range.is_empty() {
                memory.give_back(debug_range);
            }
            give_tables_back(&mut memory, &frame);
            memory.give_back(frame.range);
            return Err(BringUpError::NothingToManage);
        }
        let (policy, array) = make_map(&mut memory, input, &mut frame, platform, map_state);
        let map_bytes = array.bytes();
        let metadata_bytes = memory.bytes + map_bytes + size_of::<Self>() as u64;
        let tables_ns = since();

        if input.parameters.shuffle {
            begin_shuffling(frame.zones, input, platform);
        }
        let mut clock = NodeClock::new(platform);
        paint::paint(memory.early, input, &mut frame, &mut clock, &array);
        let readers: &'static mut [Readers] = core::mem::take(&mut frame.readers);
        let readers: &'static [Readers] = readers;
        for zone in frame.zones.iter_mut() {
            clock.turn_to(frame.nodes, zone.id().node, Work::Bookkeeping);
            zone.note_withheld();
            let (segments, array) = (zone.segments(), zone.array());
            let poison = aids.page_poison;
            let descriptors = Descriptors::new(platform, readers, segments, are_wanted, array, poison);
            zone.furnish_descriptors(descriptors, &frame.pools.boot_pages);
        }
        clock.stop(frame.nodes);
        let tunables = Tunables::of(input.parameters, frame.zones);
        tunables.apply(frame.zones);
        if let Some(seed) = aids.placement_seed {
            (0..)
                .zip(frame.zones.iter_mut())
                .for_each(|(number, zone)| zone.randomise_placement(seed.wrapping_add(number)));
        }
        for zone in frame.zones.iter() {
            zone.shuffle(platform);
        }
        give_caches_homes(&mut frame, platform);
        let Frame { zones, slots, nodes, directory, caches, pools, .. } = frame;
        let without_map = pools.boot_pages.blocks();
        let same = caches.first().map(|cache| cache.zone).filter(|&zone| caches.iter().all(|cache| cache.zone == zone));
        let zones: &'static [Zone] = zones;
        let mut manager = Self {
            platform,
            zones,
            slots,
            nodes,
            directory,
            caches,
            sole: same.and_then(|zone| zones.get(zone)),
            pressure: Pressure::new(aids.watch()),
            debug,
            isolations: SpinLock::new(Isolations::NONE),
            pools,
            tunables: SpinLock::new(tunables),
            settings: Settings::of(input.parameters),
            reporting: Reporting::new(&input.parameters.reporting),
            memory_map: MapPolicy::new(policy, (map_bytes, without_map), input.parameters, started_ns),
            section_locks: super::map_reclaim::SectionLocks::new(),
            metadata_bytes,
            times: BringUpTimes { tables_ns, ..BringUpTimes::default() },
        };
        if manager.prove_first_allocation() {
            manager.times.first_alloc_ns = since();
        }
        manager.times.bring_up_ns = since();
        if manager.zones.iter().all(|zone| !zone.sections().are_left()) {
            manager.times.all_memory_ns = manager.times.bring_up_ns;
        }
        Ok(manager)
    }

    /// Allocates a block and frees it, so that the time to the first allocation is one of an allocation. A machine with less than one
    /// free block has none.
    #[inline(never)]
    fn prove_first_allocation(&self) -> bool {
        self.zones.iter().rev().any(|zone| {
            let taken = zone.allocate(
                self.platform,
                Order::BLOCK,
                crate::block::MigrateType::Movable,
                crate::units::Pfn(u64::MAX),
            );
            taken.is_some_and(|(range, _)| self.free_bare(range).is_ok())
        })
    }
}

impl Frame {
    #[inline(never)]
    fn allocate<P: Platform>(
        platform: &'static P,
        memory: &mut Obtained<'_, P>,
        plan: &Plan,
        input: &BringUp<'_>,
    ) -> Result<Self, BringUpError> {
        let (nodes, parameters) = (input.topology.node_count(), input.parameters);
        let slots = nodes * ZoneKind::COUNT;
        // A run of free memory begins and ends in a block that may be in pieces; each table that is placed now may cut one more run in two.
        let mut free_runs = 0;
        memory.early.for_each_free(&mut |_, _| free_runs += 1);
        let partials = 2 * (free_runs + plan.zones.len() + nodes + 3);
        // Enough that CPUs seldom meet.
        let readers = platform.cpus() as usize * 4;
        let bytes = room::<Zone>(plan.zones.len() as u64)
            + room::<u16>(slots as u64)
            + room::<Node>(nodes as u64)
            + 2 * room::<Segment>(plan.segments as u64)
            + room::<NodeId>((nodes * nodes) as u64)
            + room::<u8>((nodes * nodes) as u64)
            + room::<CpuCache>(u64::from(platform.cpus()))
            + room::<Partial>(partials as u64)
            + room::<Readers>(readers as u64)
            + room::<Part>(nodes as u64)
            + Pools::room(plan.zones.len(), nodes, parameters);
        let range = memory.take("zones and directory", bytes, NodeId::ZERO)?;
        // SAFETY: the range was just reserved for this manager, below the direct limit, in one range of the map (invariants 1, 3 and 15).
        let mut carver = unsafe { Carver::new(platform, range) };
        let unset = ZoneId { node: NodeId::ZERO, kind: ZoneKind::Dma };
        let node = |index| Node {
            id: NodeId::new(index).unwrap_or_default(),
            cpus: 0,
            span: PfnRange::new(0, 0),
            fallback: &[],
            distances: &[],
            init_ns: None,
            bookkeeping_ns: None,
            map_fallback: None,
        };
        Ok(Self {
            range,
            zones: carver.values(plan.zones.len(), |_| Zone::new(unset)),
            slots: carver.values(slots, |_| NO_ZONE),
            nodes: carver.values(nodes, node),
            directory: carver.values(plan.segments, |_| Segment::EMPTY),
            by_zone: carver.values(plan.segments, |_| Segment::EMPTY),
            fallback: carver.values(nodes * nodes, |_| NodeId::ZERO),
            distances: carver.values(nodes * nodes, |_| 0),
            partials: carver.values(partials, |_| Partial::empty()),
            readers: carver.values(readers, |_| Readers::new()),
            parts: carver.values(nodes, |_| Part::None),
            pools: Pools::carve(&mut carver, plan.zones.len(), nodes, parameters),
            caches: carver.values(platform.cpus() as usize, |_| CpuCache::new(usize::MAX, PfnRange::new(0, 0), 0)),
        })
    }

    /// Numbers the zones, fills both arrays of segments and the nodes.
    #[inline(never)]
    fn fill(&mut self, input: &BringUp<'_>, plan: &Plan) {
        let mut next = 0;
        for node in input.topology.nodes() {
            for kind in ZoneKind::ALL {
                let id = ZoneId { node, kind };
                if plan.zones.contains(id) {
                    self.zones[usize::from(next)] = Zone::new(id);
                    self.slots[id.index()] = next;
                    next += 1;
                }
            }
        }
        let (directory, slots) = (&mut *self.directory, &*self.slots);
        let mut filled = 0;
        for_each_segment(input.map, input.topology, |zone, start, blocks| {
            directory[filled] = Segment { start, blocks, index: 0, zone: slots[zone.index()] };
            filled += 1;
        });
        // By zone, ascending in each: a stable selection, as there are few of both.
        let mut placed = 0;
        for zone in 0..next {
            let mut index = 0;
            for segment in directory.iter_mut().filter(|segment| segment.zone == zone) {
                segment.index = segment.base_from(index);
                index = segment.indices().end;
                self.by_zone[placed] = *segment;
                placed += 1;
            }
        }
        self.fill_nodes(input.map, input.topology);
    }

    fn fill_nodes(&mut self, map: MemoryMap<'_>, topology: &Topology<'_>) {
        for run in node_ranges(map, topology) {
            let span = &mut self.nodes[run.node.index()].span;
            *span = if span.is_empty() {
                run.range
            } else {
                PfnRange { start: span.start.min(run.range.start), end: span.end.max(run.range.end) }
            };
        }
        let mut rest = core::mem::take(&mut self.fallback);
        let mut rows = core::mem::take(&mut self.distances);
        for index in 0..self.nodes.len() {
            let (row, others) = rows.split_at_mut(self.nodes.len());
            rows = others;
            row.iter_mut().zip(topology.nodes()).for_each(|(distance, to)| {
                *distance = topology.distance(self.nodes[index].id, to);
            });
            self.nodes[index].distances = row;
            let mut order = [NodeId::ZERO; MAX_NODES];
            let nodes = &*self.nodes;
            let has_memory = |node: NodeId| !nodes[node.index()].span.is_empty();
            let len = fallback_order(topology, nodes[index].id, &has_memory, &mut order);
            let (mine, others) = rest.split_at_mut(len);
            mine.copy_from_slice(&order[..len]);
            rest = others;
            self.nodes[index].cpus = topology.cpus(self.nodes[index].id);
            self.nodes[index].fallback = mine;
        }
    }
}

/// Gets the array's memory where the policy wants one, and tells the zones what of them it describes and what is withheld. Returns the policy that came of it, and the
/// array. Nodes whose part finds no memory, and all when nothing would be left to hand out, go without.
#[inline(never)]
fn make_map<P: Platform>(
    memory: &mut Obtained<'_, P>,
    input: &BringUp<'_>,
    frame: &mut Frame,
    platform: &'static P,
    state: Option<MapState>,
) -> (Policy, ArrayMemory) {
    let mut array = ArrayMemory::none(core::mem::take(&mut frame.parts));
    let (Some(space), Some(state)) = (platform.map_space(), state) else { return (Policy::OnDemand, array) };
    let (directory, zones) = (&*frame.directory, &*frame.zones);
    let node_of = |segment: &Segment| memory_map::node_of(zones, segment);
    choose_boot_pages(memory.early, input, directory, &node_of, &mut frame.pools.boot_pages);
    array.obtain(memory.early, space, directory, &node_of, &frame.pools.boot_pages);
    if !any_free(memory.early, !array.covers_all()) {
        array.give_back(memory.early, space, directory, &node_of, MapFallback::NothingLeft);
    }
    memory_map::note_absent(frame.nodes, &array);
    let policy = input.parameters.policy;
    let mut have = ZoneSet::default();
    frame.zones.iter().filter(|zone| !zone.segments().is_empty()).for_each(|zone| have.insert(zone.id()));
    let fill = memory_map::first_value(input.parameters, space);
    state.furnish(platform, frame.zones, &array, fill, space, &|zone| match policy {
        Policy::Deferred => memory_map::withheld(input, &|zone| have.contains(zone), zone),
        Policy::Eager | Policy::OnDemand => None,
    });
    (if array.bytes() == 0 { Policy::OnDemand } else { policy }, array)
}

/// Each zone's tables, on its node. All or nothing.
#[inline(never)]
fn allocate_tables<P: Platform>(
    platform: &'static P,
    memory: &mut Obtained<'_, P>,
    frame: &mut Frame,
) -> Result<(), BringUpError> {
    let mut rest = core::mem::take(&mut frame.by_zone);
    for slot in 0..frame.zones.len() {
        let count = rest.iter().take_while(|segment| usize::from(segment.zone) == slot).count();
        let (segments, others) = rest.split_at_mut(count);
        rest = others;
        let segments: &'static [Segment] = segments;
        let id = frame.zones[slot].id();
        let span = zone_span(frame.nodes[id.node.index()].span, id);
        if segments.is_empty() {
            frame.zones[slot].furnish(span, segments, BlockTable::EMPTY, (Room::EMPTY, Loose::EMPTY, Marks::EMPTY));
            continue;
        }
        let size = TableSize::of(segments);
        let range = match memory.take("block tables", size.bytes(), id.node) {
            Ok(range) => range,
            Err(error) => {
                give_tables_back(memory, frame);
                return Err(error);
            }
        };
        // SAFETY: the range was just reserved for this table, below the direct limit, in one range of the map (invariants 1, 3 and 15).
        let mut carver = unsafe { Carver::new(platform, range) };
        // What is touched lies together, before the arrays that an idle machine never reads.
        let ready = carver.values(size.ready_words, |_| AtomicU64::new(0));
        let heads: &'static [BlockEntry] = carver.any(size.groups);
        frame.zones[slot].set_table_memory(range);
        let room = Room::new(carver.any(size.room_words), size.entries);
        let loose = Loose::new(carver.any(size.loose_words), size.entries);
        let marks = Marks::new(carver.any(size.mark_words));
        let entries: &'static [BlockEntry] = carver.any(size.entries);
        let free_maps = carver.any(size.entries);
        frame.zones[slot].furnish(
            span,
            segments,
            BlockTable::new(heads, entries, free_maps, ready),
            (room, loose, marks),
        );
    }
    Ok(())
}

fn give_tables_back<P: Platform>(memory: &mut Obtained<'_, P>, frame: &Frame) {
    for zone in frame.zones.iter() {
        let range = zone.table_memory();
        if !range.is_empty() {
            memory.give_back(range);
        }
    }
}

/// Whether there will be a page to hand out. With descriptors inside blocks that takes a block with more free frames than those need.
fn any_free<P: Platform>(early: &EarlyAllocator<P>, inside: bool) -> bool {
    let least = if inside { MAP_PAGES_PER_BLOCK + 1 } else { 1 };
    let mut found = false;
    early.for_each_free(&mut |range, _| {
        let border = range.start.0.next_multiple_of(PAGES_PER_BLOCK).min(range.end.0);
        found |= (border - range.start.0).max((range.end.0 - border).min(PAGES_PER_BLOCK)) >= least;
    });
    found
}

/// Nothing merges beyond what is shuffled, from the first block on.
fn begin_shuffling<P: Platform>(zones: &mut [Zone], input: &BringUp<'_>, platform: &P) {
    // Without a seed: what no two boots have in common.
    let chance = || platform.now_ns().unwrap_or(0) ^ core::ptr::from_ref(input).addr() as u64;
    let seed = input.parameters.shuffle_seed.unwrap_or_else(chance);
    (0..).zip(zones).for_each(|(number, zone)| zone.begin_shuffling(seed.wrapping_add(number)));
}

/// Each CPU keeps frames of the highest zone of the nearest node with memory, as many as its share of that zone allows.
#[inline(never)]
fn give_caches_homes<P: Platform>(frame: &mut Frame, platform: &P) {
    let (nodes, slots, zones) = (&*frame.nodes, &*frame.slots, &*frame.zones);
    let home = |cpu: u32| {
        let node = nodes.get(platform.cpu_node(cpu).index()).or(nodes.first());
        let near = node
            .into_iter()
            .flat_map(|node| node.fallback)
            .flat_map(|&node| ZoneKind::ALL.into_iter().rev().map(move |kind| slots[ZoneId { node, kind }.index()]));
        near.map(usize::from).find(|&slot| zones.get(slot).is_some_and(|zone| zone.final_managed_pages() != 0))
    };
    // CPUs of a node without memory use another's as well, but seldom all of them: they are not counted.
    let sharers = |node| (0..platform.cpus()).filter(|&cpu| platform.cpu_node(cpu) == node).count().max(1) as u64;
    // Neighbouring CPUs are nearly always on one node.
    let mut last = (usize::MAX, 0);
    for (cpu, cache) in (0..).zip(frame.caches.iter_mut()) {
        let Some(slot) = home(cpu) else { continue };
        if last.0 != slot {
            last = (slot, zones[slot].final_managed_pages() / sharers(zones[slot].id().node));
        }
        *cache = CpuCache::new(slot, zones[slot].span(), last.1);
    }
}
