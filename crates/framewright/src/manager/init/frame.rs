//! What bring-up is given, and the tables that it needs before zones have theirs.

use crate::carve::{Carver, room};
use crate::manager::init::error::BringUpError;
use crate::manager::init::obtained::Obtained;
use crate::manager::init::plan::{Plan, for_each_segment};
use crate::manager::state::debug::FoundDamage;
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
use crate::sync::table_atomic::AtomicU16;
use crate::sync::{Growing, Readers, SpinLock};
use crate::units::{MAX_NODES, NodeId, PfnRange};
use crate::vmemmap::Part;
use crate::vmemmap_space::BlockNumber;
use crate::zone::fallback::fallback_order;
use crate::zone::{Segment, Zone, ZoneId, ZoneKind};
use core::mem::MaybeUninit;

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
pub(crate) struct Frame {
    pub(crate) zones: &'static mut [Zone],
    /// Where they are, with room for windows.
    pub(crate) zone_list: Growing<Zone>,
    pub(crate) window_segments: Growing<Segment>,
    pub(crate) window_tables: Growing<u32>,
    pub(crate) slots: &'static mut [ZoneSlots],
    pub(crate) nodes: &'static mut [Node],
    pub(crate) directory: &'static mut [Segment],
    pub(crate) by_zone: &'static mut [Segment],
    /// A list for each node.
    pub(crate) fallback: &'static [AtomicU16],
    /// A row for each node.
    pub(crate) distances: &'static mut [u8],
    pub(crate) caches: &'static mut [CpuCache],
    pub(crate) partials: &'static mut [Partial],
    pub(crate) present: &'static mut [Partial],
    pub(crate) readers: &'static mut [Readers],
    pub(crate) parts: &'static mut [Part],
    pub(crate) per_node: &'static [PerNode],
    pub(crate) pools: &'static mut Pools,
    pub(crate) moving: &'static mut MovingState,
    pub(crate) isolations: &'static SpinLock<Isolations>,
    pub(crate) pressure: &'static PressureLocks,
    pub(crate) damage: &'static FoundDamage,
    /// Places for what is known in the end.
    pub(crate) hotplug: &'static mut MaybeUninit<HotplugState>,
    pub(crate) tunables: &'static mut MaybeUninit<SpinLock<Tunables>>,
}

impl Frame {
    #[inline(never)]
    pub(crate) fn allocate<P: Platform>(
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
        let partials = 2 * (free_runs + plan.parts + nodes + 3) + plan.parts * Partials::ROOM;
        let windows = parameters.hotplug.windows as usize;
        let zones = plan.parts + windows;
        // Each run of memory begins and ends in a block that may be memory in part.
        let present = 2 * memory.early.runs().count();
        // Enough that CPUs seldom meet.
        let readers = platform.cpus() as usize * 4;
        let bytes = room::<Zone>(zones as u64)
            + room::<Segment>(windows as u64)
            + room::<u32>(windows as u64)
            + room::<ZoneSlots>(slots as u64)
            + room::<Node>(nodes as u64)
            + 2 * room::<Segment>(plan.segments as u64)
            + room::<AtomicU16>((nodes * Fallback::places(nodes)) as u64)
            + room::<u8>((nodes * nodes) as u64)
            + room::<CpuCache>(u64::from(platform.cpus()))
            + room::<Partial>((partials + present) as u64)
            + room::<Readers>(readers as u64)
            + room::<Part>(nodes as u64)
            + room::<PerNode>(nodes as u64)
            + Pools::room(zones, nodes, parameters)
            + MovingState::room()
            + room::<SpinLock<Isolations>>(1)
            + room::<PressureLocks>(1)
            + room::<FoundDamage>(1)
            + room::<HotplugState>(1)
            + room::<SpinLock<Tunables>>(1);
        let range = memory.take("zones and directory", bytes, NodeId::ZERO)?;
        // SAFETY: the range was just reserved for this manager, below the direct limit, in one
        // range of the map (invariants 1, 3 and 15).
        let mut carver = unsafe { Carver::new(platform, range) };
        let unset = ZoneId { node: NodeId::ZERO, kind: ZoneKind::Dma };
        let node = |index| Node {
            id: NodeId::new(index).unwrap_or_default(),
            cpus: 0,
            span: PfnRange::new(0, 0),
            fallback: Fallback::NONE,
            distances: &[],
            init_ns: None,
            bookkeeping_ns: None,
            vmemmap_fallback: None,
        };
        let (zone_list, zones) =
            Growing::new(carver.places(zones), plan.parts, |place| Zone::write(place, unset, 0, 1));
        let window_segments = Growing::empty(carver.places(windows));
        let window_tables = Growing::empty(carver.places(windows));
        let all = zones.len() + windows;
        Ok(Self {
            zones,
            zone_list,
            window_segments,
            window_tables,

            slots: carver.values(slots, |_| ZoneSlots::NONE),
            nodes: carver.values(nodes, node),
            directory: carver.values(plan.segments, |_| Segment::EMPTY),
            by_zone: carver.values(plan.segments, |_| Segment::EMPTY),
            fallback: carver.values(nodes * Fallback::places(nodes), |_| AtomicU16::new(0)),
            distances: carver.values(nodes * nodes, |_| 0),
            partials: carver.values(partials, |_| Partial::empty()),
            present: carver.values(present, |_| Partial::empty()),
            readers: carver.values(readers, |_| Readers::new()),
            parts: carver.values(nodes, |_| Part::None),
            per_node: carver.values(nodes, |_| PerNode::new()),
            pools: Pools::carve(&mut carver, all, nodes, parameters),
            moving: MovingState::carve(&mut carver),
            isolations: carver.one(SpinLock::new(Isolations::NONE)),
            pressure: carver.one(PressureLocks::new()),
            damage: carver.one(SpinLock::new((0, None))),
            hotplug: carver.place_for(),
            tunables: carver.place_for(),
            // SAFETY: memory of the machine has some content (invariant 4).
            caches: carver
                .in_place(platform.cpus() as usize, |place| unsafe { CpuCache::write(place) }),
        })
    }

    /// Numbers the parts of zones, fills both arrays of segments and the nodes.
    #[inline(never)]
    pub(crate) fn fill<P: Platform>(&mut self, early: &Memblock<'_, P>, plan: &Plan) {
        let mut next = 0;
        for node in early.topology().nodes() {
            for kind in ZoneKind::ALL {
                let id = ZoneId { node, kind };
                if plan.zones.contains(id) {
                    let parts = plan.divisions.parts(id);
                    self.slots[id.index()] = ZoneSlots { first: next, parts };
                    for part in 0..parts {
                        self.zones[usize::from(next)].name(id, part, parts);
                        next += 1;
                    }
                }
            }
        }
        let (directory, slots) = (&mut *self.directory, &*self.slots);
        let mut filled = 0;
        for_each_segment(early.runs(), &plan.divisions, |run| {
            let zone = slots[run.zone.index()].first + run.part;
            let (start, blocks) = (BlockNumber(run.start), run.end - run.start);
            directory[filled] = Segment { start, blocks, index: 0, zone };
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
        let mut rest = self.fallback;
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
            let (mine, others) = rest.split_at(Fallback::places(self.nodes.len()));
            rest = others;
            self.nodes[index].cpus = topology.cpus(self.nodes[index].id);
            self.nodes[index].fallback = Fallback::new(mine, &order[..len]);
        }
    }
}
