//! The input of bring-up, and the tables that it needs before zones have theirs.

use crate::carve::{Carver, room};
use crate::debug::Aids;
use crate::firmware::KernelCore;
use crate::manager::init::error::BringUpError;
use crate::manager::init::obtained::{MOST_RANGES, Obtained};
use crate::manager::init::plan::Plan;
use crate::manager::init::vmemmap::VmemmapBitmaps;
use crate::manager::state::debug::{DebugState, FoundDamage};
use crate::manager::state::fallback::Fallback;
use crate::manager::state::hotplug::HotplugState;
use crate::manager::state::isolations::Isolations;
use crate::manager::state::moving::MovingState;
use crate::manager::state::numa::PerNode;
use crate::manager::state::pools::Pools;
use crate::manager::state::pressure::PressureLocks;
use crate::manager::state::tunables::Tunables;
use crate::manager::state::{Node, ZoneSlots};
use crate::memblock::Memblock;
use crate::page::{CpuCache, Partial, Partials};
use crate::parameters::Parameters;
use crate::platform::Platform;
use crate::sync::in_place::write_fields;
use crate::sync::table_atomic::AtomicU16;
use crate::sync::{Growing, Readers, SpinLock};
use crate::units::{MAX_NODES, NodeId, PfnRange, PhysRange};
use crate::vmemmap::Part;
use crate::vmemmap_space::BlockNumber;
use crate::zone::fallback::fallback_order;
use crate::zone::initialise::BlockOfZone;
use crate::zone::{Segment, Zone, ZoneId, ZoneKind};
use core::mem::{MaybeUninit, take};

/// The input of bring-up besides the memblock allocator, which knows memory and nodes.
#[derive(Clone, Copy, Debug)]
pub struct BringUp<'a> {
    /// The command line.
    pub parameters: &'a Parameters,
    /// The value of `Platform::now_ns` when the adopter began to read the memory map; bring-up
    /// counts its times from there.
    pub started_ns: Option<u64>,
}

/// Everything that is allocated before zones have tables, and what else bring-up knows by then. It
/// lies with the tables because a booting kernel has a small stack.
pub(crate) struct Frame {
    pub(crate) zones: &'static mut [Zone],
    /// The list of all zones, with room for windows.
    pub(crate) zone_list: Growing<Zone>,
    pub(crate) window_segments: Growing<Segment>,
    pub(crate) window_tables: Growing<u32>,
    pub(crate) slots: &'static mut [ZoneSlots],
    pub(crate) nodes: &'static mut [Node],
    pub(crate) directory: &'static mut [Segment],
    pub(crate) by_zone: &'static mut [Segment],
    /// A fallback list for each node.
    pub(crate) fallback: &'static [AtomicU16],
    /// A row of distances for each node.
    pub(crate) distances: &'static mut [u8],
    pub(crate) caches: &'static mut [CpuCache],
    pub(crate) partials: &'static mut [Partial],
    pub(crate) present: &'static mut [Partial],
    /// Room for the blocks that free memory begins or ends in.
    pub(crate) edges: &'static mut [BlockOfZone],
    pub(crate) readers: &'static [Readers],
    pub(crate) parts: &'static mut [Part],
    /// Mirrored memory, ascending: it is not for movable allocations alone, wherever it lies.
    pub(crate) mirrored: &'static [PfnRange],
    pub(crate) per_node: &'static [PerNode],
    pub(crate) vmemmap_bitmaps: Option<VmemmapBitmaps>,
    pub(crate) pools: &'static mut Pools,
    pub(crate) states: States,
    /// The size of all tables.
    pub(crate) bytes: u64,
    /// Where the tables lie that belong to no zone.
    pub(crate) tables: [PhysRange; MOST_RANGES],
    /// When the adopter began (see [`BringUp::started_ns`]), and how long it took until all tables
    /// had their place.
    pub(crate) started_ns: Option<u64>,
    pub(crate) tables_ns: Option<u64>,
}

/// How many entries each table has.
struct Counts {
    parts: usize,
    windows: usize,
    slots: usize,
    nodes: usize,
    segments: usize,
    edges: usize,
    present: usize,
    mirrored: usize,
    cpus: usize,
    readers: usize,
}

impl Counts {
    fn of<P: Platform>(
        platform: &P,
        early: &Memblock<'_, P>,
        plan: &Plan<'_>,
        windows: usize,
        parameters: &Parameters,
    ) -> Self {
        let nodes = early.topology().node_count();
        // A run of free memory begins and ends in a block that may be split. It ends where memory
        // ends or where a reservation begins. Each table that is placed from now on may cut one
        // more run in two.
        let free_runs = early.memory().len() + early.reserved().len();
        let cpus = platform.cpus() as usize;
        let mut mirrored = 0;
        for_each_mirrored(early, parameters, &mut |_| mirrored += 1);
        Self {
            parts: plan.parts,
            windows,
            slots: nodes * ZoneKind::COUNT,
            nodes,
            segments: plan.segments,
            edges: 2 * (free_runs + plan.parts + nodes + 3),
            // Each run of memory begins and ends in a block that may be memory only in part.
            present: 2 * early.runs().count(),
            mirrored,
            cpus: if cfg!(feature = "smp") { cpus } else { 0 },
            // Enough that CPUs seldom share one.
            readers: cpus * 4,
        }
    }

    fn zones(&self) -> usize {
        self.parts + self.windows
    }

    fn partials(&self) -> usize {
        self.edges + self.parts * Partials::ROOM
    }

    fn bytes(&self, parameters: &Parameters) -> u64 {
        let zones = room::<Zone>(self.zones() as u64)
            + room::<Segment>(self.windows as u64)
            + room::<u32>(self.windows as u64)
            + room::<ZoneSlots>(self.slots as u64)
            + 2 * room::<Segment>(self.segments as u64)
            + room::<Partial>((self.partials() + self.present) as u64)
            + room::<BlockOfZone>(self.edges as u64);
        let nodes = room::<Node>(self.nodes as u64)
            + room::<AtomicU16>((self.nodes * Fallback::places(self.nodes)) as u64)
            + room::<u8>((self.nodes * self.nodes) as u64)
            + room::<Part>(self.nodes as u64)
            + room::<PerNode>(self.nodes as u64)
            + room::<PfnRange>(self.mirrored as u64);
        let cpus = room::<CpuCache>(self.cpus as u64) + room::<Readers>(self.readers as u64);
        let others = room::<Frame>(1)
            + MovingState::room()
            + room::<SpinLock<Isolations>>(1)
            + room::<PressureLocks>(1)
            + room::<FoundDamage>(1)
            + room::<HotplugState>(1)
            + room::<SpinLock<Tunables>>(1);
        zones + nodes + cpus + others + Pools::room(self.zones(), self.nodes, parameters)
    }
}

/// Returns whether the command line wants the kernel's memory mirrored.
pub(crate) fn wants_mirror(parameters: &Parameters) -> bool {
    cfg!(feature = "moving")
        && parameters.core.kernelcore == Some(KernelCore::Mirror)
        && !parameters.movable_node
}

/// Calls `sink` for each mirrored range, if mirroring matters. Placing tables does not change the
/// number of calls.
fn for_each_mirrored<P: Platform>(
    early: &Memblock<'_, P>,
    parameters: &Parameters,
    sink: &mut dyn FnMut(PhysRange),
) {
    if wants_mirror(parameters) {
        early.for_each_mirrored(sink);
    }
}

/// What is known of a machine once it was measured, and memory for the rest of [`Frame`].
pub(crate) struct Measured<'a, P: Platform> {
    carver: Carver<'a, P>,
    counts: Counts,
    slots: &'static mut [ZoneSlots],
    directory: &'static mut [Segment],
    by_zone: &'static mut [Segment],
}

impl<P: Platform> Measured<'static, P> {
    /// Obtains the memory, numbers the parts of zones, and fills both arrays of segments.
    #[inline(never)]
    pub(crate) fn new<'p>(
        place: &'p mut Option<Self>,
        memory: &mut Obtained<'_, '_, P>,
        plan: &mut Plan<'_>,
        parameters: &Parameters,
    ) -> Result<&'p mut Self, BringUpError> {
        let platform = memory.early.platform();
        let windows =
            if cfg!(feature = "hotplug") { parameters.hotplug.windows as usize } else { 0 };
        let counts = Counts::of(platform, memory.early, plan, windows, parameters);
        let bytes = counts.bytes(parameters);
        let range = memory.take("zones and directory", bytes, NodeId::ZERO)?;
        // SAFETY: the range was just reserved for this manager, below the direct limit, in one
        // range of the map (invariants 1, 3 and 15).
        let mut carver = unsafe { Carver::new(platform, range) };
        let mut next = 0;
        let slots = carver.values(counts.slots, |index| {
            let (first, parts) = (next, plan.parts_of(index));
            next += parts;
            if parts == 0 { ZoneSlots::NONE } else { ZoneSlots { first, parts } }
        });
        let directory = carver.values(counts.segments, |_| Segment::EMPTY);
        let by_zone = carver.values(counts.segments, |_| Segment::EMPTY);
        let mut places = directory.iter_mut();
        plan.for_each_segment(memory.early.runs(), &mut |run| {
            let zone = slots[run.zone.index()].first + run.part;
            let (start, blocks) = (BlockNumber(run.start), run.end - run.start);
            if let Some(place) = places.next() {
                *place = Segment { start, blocks, index: 0, zone };
            }
        });
        // Sorts by zone and keeps the order within each. A plain selection will do, as there are
        // few zones and few segments.
        let mut places = by_zone.iter_mut();
        for zone in 0..next {
            let mut index = 0;
            for segment in directory.iter_mut().filter(|segment| segment.zone == zone) {
                segment.index = segment.base_from(index);
                index = segment.indices().end;
                if let Some(place) = places.next() {
                    *place = *segment;
                }
            }
        }
        Ok(place.insert(Self { carver, counts, slots, directory, by_zone }))
    }

    /// Makes the parts of all zones, without memory, and their list with room for windows.
    #[inline(never)]
    pub(crate) fn zones(&mut self) -> (Growing<Zone>, &'static mut [Zone]) {
        let unset = ZoneId { node: NodeId::ZERO, kind: ZoneKind::Dma };
        let places = self.carver.places(self.counts.zones());
        let (list, zones) =
            Growing::new(places, self.counts.parts, |place| Zone::write(place, unset, 0, 1));
        for (slot, id) in self.slots.iter().zip(ZoneId::all()) {
            let own = zones.iter_mut().skip(usize::from(slot.first));
            (0..slot.parts).zip(own).for_each(|(part, zone)| zone.name(id, part, slot.parts));
        }
        (list, zones)
    }

    /// Makes a cache for each CPU.
    #[inline(never)]
    pub(crate) fn caches(&mut self) -> &'static mut [CpuCache] {
        if !cfg!(feature = "smp") {
            return &mut [];
        }
        self.carver.in_place(self.counts.cpus, |place| {
            // SAFETY: memory of the machine has some content (invariant 4).
            unsafe { CpuCache::write(place) }
        })
    }

    #[inline(never)]
    fn states(&mut self, parameters: &Parameters) -> States {
        let carver = &mut self.carver;
        States {
            moving: MovingState::carve(carver),
            isolations: carver.one(SpinLock::new(Isolations::NONE)),
            pressure: carver.one(PressureLocks::new()),
            hotplug: carver.place_for(),
            tunables: carver.place_for(),
            debug: DebugState::new(Aids::of(parameters), carver.one(SpinLock::new((0, None)))),
        }
    }
}

/// Makes places for blocks that are managed or present only in part.
#[inline(never)]
fn places_for<P: Platform>(carver: &mut Carver<'_, P>, count: usize) -> &'static mut [Partial] {
    carver.in_place(count, |place| {
        // SAFETY: memory of the machine has some content (invariant 4).
        unsafe { Partial::write(place) }
    })
}

/// Parts of a manager that lie with its tables, and places for those that are written last.
pub(crate) struct States {
    pub(crate) moving: &'static mut MovingState,
    pub(crate) isolations: &'static SpinLock<Isolations>,
    pub(crate) pressure: &'static PressureLocks,
    pub(crate) hotplug: &'static mut MaybeUninit<HotplugState>,
    pub(crate) tunables: &'static mut MaybeUninit<SpinLock<Tunables>>,
    pub(crate) debug: DebugState,
}

impl Frame {
    /// Carves the whole frame, with the nodes as `early` knows them.
    #[inline(never)]
    pub(crate) fn carve<P: Platform>(
        measured: &mut Measured<'static, P>,
        (zone_list, zones): (Growing<Zone>, &'static mut [Zone]),
        caches: &'static mut [CpuCache],
        early: &Memblock<'_, P>,
        parameters: &Parameters,
    ) -> &'static mut Self {
        let states = measured.states(parameters);
        let Measured { carver, counts, slots, directory, by_zone } = measured;
        let nodes = counts.nodes;
        let pools = Pools::carve(carver, counts.zones(), nodes, parameters);
        let mirrored = carver.values(counts.mirrored, |_| PfnRange::new(0, 0));
        let mut places = mirrored.iter_mut();
        for_each_mirrored(early, parameters, &mut |range| {
            if let Some(place) = places.next() {
                *place = range.whole_frames();
            }
        });
        let place = carver.place_for();
        let frame = write_fields!(
            Frame at place,
            {
                zones: zones,
                zone_list: zone_list,
                window_segments: Growing::empty(carver.places(counts.windows)),
                window_tables: Growing::empty(carver.places(counts.windows)),
                slots: take(slots),
                nodes: carver.values(nodes, Node::without_memory),
                directory: take(directory),
                by_zone: take(by_zone),
                fallback: carver.values(nodes * Fallback::places(nodes), |_| AtomicU16::new(0)),
                distances: carver.values(nodes * nodes, |_| 0),
                partials: places_for(carver, counts.partials()),
                present: places_for(carver, counts.present),
                edges: carver.values(counts.edges, |_| BlockOfZone::NONE),
                readers: carver.values(counts.readers, |_| Readers::new()),
                parts: carver.values(nodes, |_| Part::None),
                mirrored: mirrored,
                per_node: carver.values(nodes, |_| PerNode::new()),
                vmemmap_bitmaps: None,
                pools: pools,
                states: states,
                caches: caches,
                bytes: 0,
                tables: [PhysRange::new(0, 0); MOST_RANGES],
                started_ns: None,
                tables_ns: None,
            },
            {},
        );
        frame.fill_nodes(early);
        frame
    }

    #[inline(never)]
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
        let mut rest = self.fallback;
        let mut rows = take(&mut self.distances);
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
            let (mine, others) = rest.split_at(Fallback::places(self.nodes.len()));
            rest = others;
            self.nodes[index].cpus = topology.cpus(self.nodes[index].id);
            self.nodes[index].fallback = Fallback::new(mine, &order[..len]);
        }
    }
}
