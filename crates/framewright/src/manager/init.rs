//! Bring-up: from firmware's word to memory that can be handed out.
//!
//! Allocation comes first and is all that can fail; what it obtained is given back on failure. Then
//! the directory is filled, zones are painted in one pass over free memory (`paint`), and marks are
//! set. Nothing is logged here, so that a slow console does not count as bring-up.

mod chance;
mod check;
mod error;
mod obtained;
mod paint;

pub use chance::ShuffleSeed;
pub use check::PlatformFault;
pub use error::{BringUpError, BringUpFailed};
pub(super) use obtained::Obtained;
use obtained::place_tables;

use super::Reporting;
use super::aided::Debug;
use super::hugetlb::Pools;
use super::hugetlb::boot::choose_boot_pages;
use super::isolate::Isolations;
use super::node_clock::{NodeClock, Work};
use super::plan::{Plan, TableSize, ZoneSet, for_each_segment, zone_span};
use super::pressure::PressureState;
use super::settings::{Settings, Tunables};
use super::vmemmap::{self, MapPolicy, MapState};
use super::{BringUpTimes, Manager, NO_ZONE, Node};
use crate::block::BlockEntry;
use crate::block::deferred_merge::DeferredMerges;
use crate::block::free_index::FreeIndex;
use crate::block::reported::ReportedBitmap;
use crate::block::table::BlockTable;
use crate::carve::{Carver, room};
use crate::debug::Aids;
use crate::memblock::Memblock;
use crate::page::{CpuCache, Descriptors, Partial};
use crate::parameters::{Parameters, Policy};
use crate::platform::Platform;
use crate::sync::table_atomic::AtomicU64;
use crate::sync::{Readers, SpinLock};
use crate::units::{MAX_NODES, NodeId, Order, PAGES_PER_BLOCK, PfnRange, PhysRange};
use crate::vmemmap::{ArrayMemory, MapFallback, Part};
use crate::vmemmap_space::MAP_PAGES_PER_BLOCK;
use crate::zone::fallback::fallback_order;
use crate::zone::initialise::ZoneTables;
use crate::zone::{Segment, Zone, ZoneId, ZoneKind};

/// What bring-up works on beside the memblock allocator, which knows memory and nodes.
#[derive(Clone, Copy, Debug)]
pub struct BringUp<'a> {
    /// The command line.
    pub parameters: &'a Parameters,
    /// `Platform::now_ns` when the adopter began with the intake; bring-up counts its times from
    /// there.
    pub started_ns: Option<u64>,
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
    /// Brings all memory up that `early` knows, and ends it.
    ///
    /// Several CPUs: calls [`Platform::cpu_barrier`] once, where [`Platform::can_wait`] allows it.
    ///
    /// Pages that the command line puts into pools without a map are kept back until
    /// [`Hugetlb::fill`](super::Hugetlb::fill), which then has to be called.
    ///
    /// # Errors
    /// See [`BringUpError`]. Everything obtained was given back, and the memblock allocator comes
    /// back with the error.
    #[expect(
        clippy::result_large_err,
        reason = "the manager is larger than what comes back with an error"
    )]
    pub fn bring_up<'a>(
        mut early: Memblock<'a, P>,
        input: &BringUp<'_>,
    ) -> Result<Self, BringUpFailed<'a, P>> {
        match Self::bring_up_all(&mut early, input) {
            Ok(manager) => Ok(manager),
            Err(error) => Err(BringUpFailed { error, early }),
        }
    }

    fn bring_up_all(
        early: &mut Memblock<'_, P>,
        input: &BringUp<'_>,
    ) -> Result<Self, BringUpError> {
        let platform = early.platform();
        check::check(platform, early)?;
        if input.parameters.movable_node {
            early.set_movable_node(true);
        }
        place_tables(early, input.parameters);
        let started_ns = input.started_ns.or_else(|| platform.now_ns());
        let since = || Some(platform.now_ns()?.saturating_sub(started_ns?));
        let plan = Plan::measure(early.runs());
        let mut memory = Obtained { early, bytes: 0 };
        let mut frame = Frame::allocate(platform, &mut memory, &plan, input)?;
        frame.fill(memory.early, &plan);
        if let Err(error) = allocate_tables(platform, &mut memory, &mut frame) {
            memory.give_back(frame.range);
            return Err(error);
        }
        let aids = Aids::of(input.parameters);
        let (debug, debug_range) =
            match Debug::allocate(platform, &mut memory, frame.directory, aids) {
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
        let space = platform.vmemmap_space();
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

        let shuffle_seed = chance::begin_shuffling(frame.zones, input.parameters, platform);
        let mut clock = NodeClock::new(platform);
        paint::paint(memory.early, &mut frame, &mut clock, &array);
        let readers: &'static mut [Readers] = core::mem::take(&mut frame.readers);
        let readers: &'static [Readers] = readers;
        for zone in frame.zones.iter_mut() {
            clock.turn_to(frame.nodes, zone.id().node, Work::Bookkeeping);
            zone.note_withheld();
            let (segments, array) = (zone.segments(), zone.array());
            let poison = aids.page_poison;
            let descriptors =
                Descriptors::new(platform, readers, segments, are_wanted, array, poison);
            zone.attach_descriptors(descriptors, &frame.pools.boot_pages);
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
        let same = caches
            .first()
            .map(|cache| cache.zone)
            .filter(|&zone| caches.iter().all(|cache| cache.zone == zone));
        let zones: &'static [Zone] = zones;
        let mut manager = Self {
            platform,
            zones,
            slots,
            nodes,
            directory,
            caches,
            sole: same.and_then(|zone| zones.get(zone)),
            pressure: PressureState::new(aids.watch()),
            debug,
            isolations: SpinLock::new(Isolations::NONE),
            pools,
            tunables: SpinLock::new(tunables),
            settings: Settings::of(input.parameters),
            reporting: Reporting::new(&input.parameters.reporting),
            vmemmap: MapPolicy::new(policy, (map_bytes, without_map), input.parameters, started_ns),
            section_locks: super::hvo::SectionLocks::new(),
            shuffle_seed,
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

    /// Allocates a block and frees it, so that the time to the first allocation is one of an
    /// allocation. A machine with less than one free block has none.
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
        memory: &mut Obtained<'_, '_, P>,
        plan: &Plan,
        input: &BringUp<'_>,
    ) -> Result<Self, BringUpError> {
        let (nodes, parameters) = (memory.early.topology().node_count(), input.parameters);
        let slots = nodes * ZoneKind::COUNT;
        // A run of free memory begins and ends in a block that may be in pieces; each table that is
        // placed now may cut one more run in two.
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
        // SAFETY: the range was just reserved for this manager, below the direct limit, in one
        // range of the map (invariants 1, 3 and 15).
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
            caches: carver.values(platform.cpus() as usize, |_| {
                CpuCache::new(usize::MAX, PfnRange::new(0, 0), 0)
            }),
        })
    }

    /// Numbers the zones, fills both arrays of segments and the nodes.
    #[inline(never)]
    fn fill<P: Platform>(&mut self, early: &Memblock<'_, P>, plan: &Plan) {
        let mut next = 0;
        for node in early.topology().nodes() {
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
        for_each_segment(early.runs(), |zone, start, blocks| {
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
        self.fill_nodes(early);
    }

    fn fill_nodes<P: Platform>(&mut self, early: &Memblock<'_, P>) {
        let topology = early.topology();
        for run in early.runs() {
            let span = &mut self.nodes[run.node.index()].span;
            *span = if span.is_empty() {
                run.range
            } else {
                PfnRange {
                    start: span.start.min(run.range.start),
                    end: span.end.max(run.range.end),
                }
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

/// Gets the array's memory where the policy wants one, and tells the zones what of them it
/// describes and what is withheld. Returns the policy that came of it, and the array. Nodes whose
/// part finds no memory, and all when nothing would be left to hand out, go without.
#[inline(never)]
fn make_map<P: Platform>(
    memory: &mut Obtained<'_, '_, P>,
    input: &BringUp<'_>,
    frame: &mut Frame,
    platform: &'static P,
    state: Option<MapState>,
) -> (Policy, ArrayMemory) {
    let mut array = ArrayMemory::none(core::mem::take(&mut frame.parts));
    let (Some(space), Some(state)) = (platform.vmemmap_space(), state) else {
        return (Policy::OnDemand, array);
    };
    let (directory, zones) = (&*frame.directory, &*frame.zones);
    let node_of = |segment: &Segment| vmemmap::node_of(zones, segment);
    choose_boot_pages(
        memory.early,
        input.parameters,
        directory,
        &node_of,
        &mut frame.pools.boot_pages,
    );
    array.obtain(memory.early, space, directory, &node_of, &frame.pools.boot_pages);
    if !any_free(memory.early, !array.covers_all()) {
        array.give_back(memory.early, space, directory, &node_of, MapFallback::NothingLeft);
    }
    vmemmap::note_absent(frame.nodes, &array);
    let policy = input.parameters.policy;
    let mut have = ZoneSet::default();
    frame
        .zones
        .iter()
        .filter(|zone| !zone.segments().is_empty())
        .for_each(|zone| have.insert(zone.id()));
    let fill = vmemmap::first_value(input.parameters, space);
    state.furnish(platform, frame.zones, &array, fill, space, &|zone| match policy {
        Policy::Deferred => {
            vmemmap::withheld(memory.early.runs(), &|zone| have.contains(zone), zone)
        }
        Policy::Eager | Policy::OnDemand => None,
    });
    (if array.bytes() == 0 { Policy::OnDemand } else { policy }, array)
}

/// Each zone's tables, on its node. All or nothing.
#[inline(never)]
fn allocate_tables<P: Platform>(
    platform: &'static P,
    memory: &mut Obtained<'_, '_, P>,
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
            frame.zones[slot].attach(span, segments, ZoneTables::EMPTY);
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
        // SAFETY: the range was just reserved for this table, below the direct limit, in one range
        // of the map (invariants 1, 3 and 15).
        let mut carver = unsafe { Carver::new(platform, range) };
        // What is touched lies together, before the arrays that an idle machine never reads.
        let ready = carver.values(size.ready_words, |_| AtomicU64::new(0));
        let heads: &'static [BlockEntry] = carver.any(size.groups);
        frame.zones[slot].set_table_memory(range);
        let free_index = FreeIndex::new(carver.any(size.free_index_words), size.entries);
        let deferred = DeferredMerges::new(carver.any(size.deferred_words), size.entries);
        let reported = ReportedBitmap::new(carver.any(size.reported_words));
        let entries: &'static [BlockEntry] = carver.any(size.entries);
        let free_maps = carver.any(size.entries);
        let table = BlockTable::new(heads, entries, free_maps, ready);
        let tables = ZoneTables { table, free_index, deferred, reported };
        frame.zones[slot].attach(span, segments, tables);
    }
    Ok(())
}

fn give_tables_back<P: Platform>(memory: &mut Obtained<'_, '_, P>, frame: &Frame) {
    for zone in frame.zones.iter() {
        let range = zone.table_memory();
        if !range.is_empty() {
            memory.give_back(range);
        }
    }
}

/// Whether there will be a page to hand out. With descriptors inside blocks that takes a block with
/// more free frames than those need.
fn any_free<P: Platform>(early: &Memblock<'_, P>, inside: bool) -> bool {
    let least = if inside { MAP_PAGES_PER_BLOCK + 1 } else { 1 };
    let mut found = false;
    early.for_each_free(&mut |range, _| {
        let border = range.start.0.next_multiple_of(PAGES_PER_BLOCK).min(range.end.0);
        found |= (border - range.start.0).max((range.end.0 - border).min(PAGES_PER_BLOCK)) >= least;
    });
    found
}

/// Each CPU keeps frames of the highest zone of the nearest node with memory, as many as its share
/// of that zone allows.
#[inline(never)]
fn give_caches_homes<P: Platform>(frame: &mut Frame, platform: &P) {
    let (nodes, slots, zones) = (&*frame.nodes, &*frame.slots, &*frame.zones);
    let home = |node: NodeId| {
        let node = nodes.get(node.index()).or(nodes.first());
        let near = node.into_iter().flat_map(|node| node.fallback).flat_map(|&node| {
            ZoneKind::ALL.into_iter().rev().map(move |kind| slots[ZoneId { node, kind }.index()])
        });
        near.map(usize::from)
            .find(|&slot| zones.get(slot).is_some_and(|zone| zone.final_managed_pages() != 0))
    };
    // CPUs of a node without memory use another's as well, but seldom all of them: they are not
    // counted.
    let mut sharers = [0_u32; MAX_NODES];
    (0..platform.cpus()).for_each(|cpu| sharers[platform.cpu_node(cpu).index()] += 1);
    // Neighbouring CPUs are nearly always on one node; where they are not, finding its zone again
    // is short.
    let mut last: Option<(NodeId, usize)> = None;
    for (cpu, cache) in (0..).zip(frame.caches.iter_mut()) {
        let node = platform.cpu_node(cpu);
        let slot = match last {
            Some((of, slot)) if of == node => slot,
            _ => {
                let Some(slot) = home(node) else { continue };
                last = Some((node, slot));
                slot
            }
        };
        let zone = &zones[slot];
        let share = zone.final_managed_pages() / u64::from(sharers[zone.id().node.index()].max(1));
        *cache = CpuCache::new(slot, zone.pfn_range(), share);
    }
}
