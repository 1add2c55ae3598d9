//! Bring-up, step by step.

use crate::carve::Carver;
use crate::firmware::{MovableSetting, MovableStarts, movable_starts};
use crate::manager::hotplug::memory_block_bytes;
use crate::manager::hugetlb::boot::choose_boot_pages;
use crate::manager::init::check::check;
use crate::manager::init::error::{BringUpError, BringUpFailed};
use crate::manager::init::frame::{BringUp, Frame, Measured, wants_mirror};
use crate::manager::init::homes::{count_cpus, give_caches_homes};
use crate::manager::init::node_clock::{NodeClock, Work};
use crate::manager::init::obtained::{Obtained, place_tables};
use crate::manager::init::plan::{Plan, TableSize, ZonePlan, ZoneSet, parts_for, zone_span};
use crate::manager::init::seed::begin_shuffling;
use crate::manager::init::tables::Heads;
use crate::manager::init::vmemmap::{
    VmemmapBitmaps, first_value, node_of_segment, note_absent, withheld,
};
use crate::manager::init::zones::initialise_zones;
use crate::manager::reporting::Reporting;
use crate::manager::state::accept::{AcceptEvents, AcceptState};
use crate::manager::state::hotplug::{HotplugInput, HotplugState};
use crate::manager::state::numa::{NumaSettings, PerNode};
use crate::manager::state::pressure::PressureState;
use crate::manager::state::tunables::{Settings, Tunables};
use crate::manager::state::vmemmap::{SectionLocks, VmemmapState};
use crate::manager::state::{BringUpTimes, Manager};
use crate::manager::tier::DRAM_TIER;
use crate::memblock::Memblock;
use crate::page::{Array, CpuCache, Descriptors};
use crate::parameters::{AcceptPolicy, Parameters, Policy};
use crate::platform::Platform;
use crate::sync::SpinLock;
use crate::sync::in_place::write_fields;
use crate::sync::table_atomic::AtomicBool;
use crate::sync::table_atomic::Ordering;
use crate::units::{MAX_NODES, Order, PAGES_PER_BLOCK, Pfn};
use crate::vmemmap::{ArrayMemory, SegmentsOfNodes, VmemmapFallback};
use crate::vmemmap_space::VMEMMAP_PAGES_PER_BLOCK;
use crate::zone::initialise::ZoneTables;
use crate::zone::{Segment, Zone, ZoneKind};
use core::mem::MaybeUninit;
use framewright_jobs::NoHelpers;

/// A kernel could not start its first program with fewer free pages than this (16 MiB) outside the
/// movable memory that `movable_node` makes. In that case no memory becomes movable.
const LEAST_PAGES_OUTSIDE: u64 = 1 << 12;

impl<P: Platform> Manager<P> {
    /// Brings up all memory that `early` knows, and ends `early`.
    ///
    /// With several CPUs, calls [`Platform::cpu_barrier`] once, where [`Platform::can_wait`] allows
    /// it.
    ///
    /// Pages that the command line puts into pools without a vmemmap are kept back until
    /// [`Hugetlb::fill`](crate::manager::Hugetlb::fill), which the adopter then has to call.
    ///
    /// # Errors
    /// See [`BringUpError`]. Everything obtained was given back, and the memblock allocator is
    /// returned with the error.
    #[expect(
        clippy::result_large_err,
        reason = "the manager is larger than what comes back with an error"
    )]
    pub fn bring_up<'a>(
        mut early: Memblock<'a, P>,
        input: &BringUp<'_>,
    ) -> Result<Self, BringUpFailed<'a, P>> {
        let mut place = MaybeUninit::uninit();
        match Self::bring_up_at(&mut place, &mut early, input) {
            // SAFETY: it was just written.
            Ok(_) => Ok(unsafe { place.assume_init() }),
            Err(error) => Err(BringUpFailed { error, early }),
        }
    }

    /// [`bring_up`](Self::bring_up) in place. Unless there is an error, `early` has ended
    /// afterwards.
    pub(crate) fn bring_up_at<'a>(
        place: &'a mut MaybeUninit<Self>,
        early: &mut Memblock<'_, P>,
        input: &BringUp<'_>,
    ) -> Result<&'a mut Self, BringUpError> {
        let frame = prepare(early, input)?;
        Ok(Self::finish(place, early, input, frame))
    }

    /// Does all the steps that cannot fail. Here and below each step is a function of its own, so
    /// that its stack frame is gone when the next step begins.
    #[inline(never)]
    fn finish<'a>(
        place: &'a mut MaybeUninit<Self>,
        early: &mut Memblock<'_, P>,
        input: &BringUp<'_>,
        frame: &'static mut Frame,
    ) -> &'a mut Self {
        let platform = early.platform();
        let started_ns = frame.started_ns;
        let (policy, array) = make_vmemmap(early, input, frame, platform);
        frame.tables_ns = since(platform, started_ns);
        note_movable(early, input, frame);
        let shuffle = begin_shuffling(frame.zones, input.parameters, platform);
        fill_zones(early, input, frame, &array);
        give_caches_homes(frame, platform);
        let accept =
            AcceptState::new(input.parameters.accept, &AcceptEvents::of_early(&early.accepted()));
        let vmemmap = VmemmapState::new(
            policy,
            array.bytes(),
            frame.pools.boot_pages.blocks(&array),
            input.parameters,
            started_ns,
        );
        let manager = Self::write(place, platform, input.parameters, frame, vmemmap, accept);
        manager.shuffle = shuffle;
        manager.moving.unmirrored_bytes = early.unmirrored_bytes();
        manager.begin(input.parameters, started_ns);
        manager
    }

    /// Writes the manager in place from everything that was made so far.
    #[inline(never)]
    fn write<'a>(
        place: &'a mut MaybeUninit<Self>,
        platform: &'static P,
        parameters: &Parameters,
        frame: &'static mut Frame,
        vmemmap: VmemmapState,
        accept: AcceptState,
    ) -> &'a mut Self {
        let end = frame.zones.iter().map(|zone| zone.span().end.address()).max();
        let hotplug = HotplugState::write(
            frame.states.hotplug,
            &parameters.hotplug,
            HotplugInput {
                first_window: frame.zones.len(),
                segments: frame.window_segments.take(),
                own_tables: frame.window_tables.take(),
                movable_node: parameters.movable_node,
                readers: frame.readers,
                descriptors_are_wanted: wants_descriptors(platform, parameters),
                adopts_at_once: adopts_at_once(platform, parameters),
                tables: frame.tables,
                block_bytes: memory_block_bytes(end.unwrap_or(0), platform.is_guest(), None),
            },
        );
        let zones = core::mem::take(&mut frame.zones);
        let tunables = Tunables::of(parameters, zones);
        tunables.apply(zones);
        let is_divided = zones.iter().any(|zone| zone.parts() != 1);
        let mut zone_list = frame.zone_list.take();
        zone_list.begin(zones);
        let debug = &frame.states.debug;
        let metadata_bytes = frame.bytes + vmemmap.bytes + size_of::<Self>() as u64;
        let tables_ns = frame.tables_ns;
        let mut caches = frame.caches.iter().map(CpuCache::zone);
        let sole = caches.next().filter(|&zone| caches.all(|other| other == zone));
        let watch = debug.aids.watch();
        write_fields!(
            Self at place,
            {
                platform: platform,
                sole: sole.and_then(|zone| zone_list.as_slice().get(zone)),
                zones: zone_list,
                slots: &*frame.slots,
                nodes: &*frame.nodes,
                directory: &*frame.directory,
                caches: &*frame.caches,
                is_divided: is_divided,
                hotplug: hotplug,
                changing_cpus: AtomicBool::new(false),
                pressure: PressureState::new(watch, frame.per_node, frame.states.pressure),
                numa: NumaSettings::new(frame.per_node, DRAM_TIER),
                debug: debug.begin(),
                isolations: frame.states.isolations,
                moving: &mut *frame.states.moving,
                pools: &*frame.pools,
                tunables: frame.states.tunables.write(SpinLock::new(tunables)),
                settings: Settings::of(parameters),
                reporting: Reporting::new(&parameters.reporting),
                vmemmap: vmemmap,
                accept: accept,
                section_locks: SectionLocks::new(),
                shuffle: None,
                metadata_bytes: metadata_bytes,
                times: BringUpTimes { tables_ns, ..BringUpTimes::default() },
            },
            {},
        )
    }

    /// Finishes the manager before the adopter gets it.
    #[inline(never)]
    fn begin(&mut self, parameters: &Parameters, started_ns: Option<u64>) {
        let platform = self.platform;
        self.accept_borders();
        if parameters.accept == AcceptPolicy::Eager && platform.cpus() == 1 {
            self.acceptance().accept_all(&NoHelpers);
        }
        // Without a clock there is no time to report, so nothing is allocated for it.
        if started_ns.is_some() && self.prove_first_allocation() {
            self.times.first_alloc_ns = since(platform, started_ns);
        }
        let per_node = self.numa.nodes();
        // Relaxed, here and below: no other CPU has the manager yet.
        let has_movable = |node: &PerNode| node.movable_start.load(Ordering::Relaxed) != 0;
        let has_movable = per_node.iter().any(has_movable);
        if cfg!(feature = "moving") && has_movable {
            self.grade_at_boot();
        }
        let pools = &parameters.huge_pages;
        self.moving.hugetlb_cma_only = pools.cma_only && pools.cma.total_bytes != 0;
        self.moving.failed_area_bytes = self.make_areas(parameters);
        // If memory was graded at boot, watermarks and reserves follow the rest, however little it
        // is. `min_free_kbytes` stays what the command line says.
        let is_graded =
            cfg!(feature = "moving") && (has_movable || self.moving().area_pages() != 0);
        if is_graded {
            if parameters.min_free_kbytes.is_none() {
                drop(self.follow_fixed_memory());
            } else {
                self.follow_grades();
            }
        }
        for zone in self.zones() {
            // Not earlier, because what was graded went back to its list in order.
            zone.shuffle_at_boot(platform);
            if cfg!(feature = "hotplug") {
                zone.count_in_use();
            }
        }
        self.moving.is_up = true;
        self.times.bring_up_ns = since(platform, started_ns);
        if self.zones().iter().all(|zone| !zone.sections().are_left()) {
            self.times.all_memory_ns = self.times.bring_up_ns;
        }
    }

    /// Allocates a block and frees it, so that the time to the first allocation includes a real
    /// allocation. Returns false on a machine without a free block.
    #[inline(never)]
    fn prove_first_allocation(&self) -> bool {
        self.zones().iter().rev().any(|zone| {
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

/// Returns how long bring-up has taken so far, where the platform has a clock.
fn since<P: Platform>(platform: &P, started_ns: Option<u64>) -> Option<u64> {
    Some(platform.now_ns()?.saturating_sub(started_ns?))
}

/// Notes where memory for movable allocations alone begins on each node, as the command line asks.
fn note_movable<P: Platform>(early: &Memblock<'_, P>, input: &BringUp<'_>, frame: &mut Frame) {
    if !cfg!(feature = "moving") {
        return;
    }
    let setting = input.parameters.core.setting(input.parameters.movable_node);
    if setting != MovableSetting::default() {
        find_movable(early, &setting, frame);
    }
}

#[inline(never)]
fn find_movable<P: Platform>(early: &Memblock<'_, P>, setting: &MovableSetting, frame: &mut Frame) {
    let highest = frame.zones.iter().map(|zone| zone.id().kind).max();
    let lowest = highest.map_or(Pfn(0), |kind| kind.frames().start);
    let mut movable = movable_starts(early.runs(), lowest, setting);
    if setting.movable_node {
        // A node that holds tables of ours, because other memory had no room, cannot be removed
        // either.
        let of_zones = frame.zones.iter().map(Zone::table_memory);
        movable = movable.without(early.nodes_of(of_zones.chain(frame.tables)));
        if early.free_pages_outside(&movable) < LEAST_PAGES_OUTSIDE {
            movable = MovableStarts::NONE;
        }
    }
    frame.states.moving.mirror_note = movable.mirror_note();
    frame.states.moving.mirrored = frame.mirrored;
    for (node, kept) in frame.nodes.iter().zip(frame.per_node) {
        // Relaxed: no other CPU has it yet.
        let start = movable.on_node(node.id).map_or(0, |pfn| pfn.0);
        kept.movable_start.store(start, Ordering::Relaxed);
    }
}

/// Puts all memory into its zone, and tells the zones what else they have to know.
#[inline(never)]
fn fill_zones<P: Platform>(
    early: &mut Memblock<'_, P>,
    input: &BringUp<'_>,
    frame: &mut Frame,
    array: &ArrayMemory,
) {
    let platform = early.platform();
    let mut clock = NodeClock::new(platform);
    let are_wanted = wants_descriptors(platform, input.parameters);
    let adopts = adopts_at_once(platform, input.parameters);
    initialise_zones(early, frame, &mut clock, array, adopts);
    attach_descriptors(platform, frame, &mut clock, are_wanted);
    clock.stop(frame.nodes);
    if let Some(seed) = frame.states.debug.aids.placement_seed {
        (0..)
            .zip(frame.zones.iter_mut())
            .for_each(|(number, zone)| zone.randomise_placement(seed.wrapping_add(number)));
    }
}

/// Tells each zone how much of it is withheld and how its descriptors are found.
#[inline(never)]
fn attach_descriptors<P: Platform>(
    platform: &'static P,
    frame: &mut Frame,
    clock: &mut NodeClock<'_, P>,
    are_wanted: bool,
) {
    for zone in frame.zones.iter_mut() {
        clock.turn_to(frame.nodes, zone.id().node, Work::Bookkeeping);
        zone.note_withheld();
        if !cfg!(feature = "vmemmap") {
            zone.attach_no_descriptors();
            continue;
        }
        let descriptors = Descriptors {
            platform,
            readers: frame.readers,
            segments: zone.segments(),
            are_wanted,
            array: zone.array(),
            poison: frame.states.debug.aids.page_poison,
        };
        zone.attach_descriptors(descriptors, &frame.pools.boot_pages);
    }
}

/// Obtains the memory for all tables, or none of it on an error.
#[inline(never)]
fn prepare<P: Platform>(
    early: &mut Memblock<'_, P>,
    input: &BringUp<'_>,
) -> Result<&'static mut Frame, BringUpError> {
    let platform = early.platform();
    check(platform, early)?;
    if input.parameters.movable_node {
        early.set_movable_node(true);
    }
    if wants_mirror(input.parameters) {
        early.set_mirrored_first(true);
    } else {
        early.forget_mirrored();
    }
    early.accept_edges();
    place_tables(early, input.parameters);
    let started_ns = input.started_ns.or_else(|| platform.now_ns());
    let mut memory = Obtained::new(early);
    let mut place = None;
    let is_small = MAX_NODES == FEW_NODES || memory.early.topology().node_count() <= FEW_NODES;
    let measured = if is_small {
        measure_up_to::<P, FEW_NODES>(&mut place, &mut memory, input.parameters)?
    } else {
        measure_up_to::<P, MAX_NODES>(&mut place, &mut memory, input.parameters)?
    };
    let (zones, caches) = (measured.zones(), measured.caches());
    let frame = Frame::carve(measured, zones, caches, memory.early, input.parameters);
    match allocate_all(&mut memory, frame, input) {
        Ok(()) => {
            frame.tables = memory.keep();
            frame.bytes = memory.bytes;
            frame.started_ns = started_ns;
            Ok(frame)
        }
        Err(error) => {
            memory.give_tables_back(frame.zones);
            Err(error)
        }
    }
}

/// Up to this many nodes, measuring takes little stack.
const FEW_NODES: usize = if MAX_NODES < 4 { MAX_NODES } else { 4 };

/// [`measure`] for a machine with at most `NODES` nodes.
#[inline(never)]
fn measure_up_to<'p, P: Platform, const NODES: usize>(
    place: &'p mut Option<Measured<'static, P>>,
    memory: &mut Obtained<'_, '_, P>,
    parameters: &Parameters,
) -> Result<&'p mut Measured<'static, P>, BringUpError> {
    let mut zones = [[ZonePlan::NONE; ZoneKind::COUNT]; NODES];
    measure(place, memory, parameters, zones.as_flattened_mut(), &mut [0; NODES])
}

/// Plans the zones, obtains the memory for what is known of the machine at that point, and fills in
/// the zones' segments. `zones` has a place for each zone, `cpus` one for the CPUs of each node.
fn measure<'p, P: Platform>(
    place: &'p mut Option<Measured<'static, P>>,
    memory: &mut Obtained<'_, '_, P>,
    parameters: &Parameters,
    zones: &mut [ZonePlan],
    cpus: &mut [u32],
) -> Result<&'p mut Measured<'static, P>, BringUpError> {
    let zones = &mut zones[..memory.early.topology().node_count() * ZoneKind::COUNT];
    count_cpus(memory.early.platform(), cpus);
    let wanted = parameters.zone_parts;
    let mut plan = Plan::measure(memory.early.runs(), zones, &|node, gigabytes| {
        wanted.unwrap_or_else(|| parts_for(cpus[node.index()], gigabytes))
    });
    Measured::new(place, memory, &mut plan, parameters)
}

/// Returns whether pages are to have descriptors.
fn wants_descriptors<P: Platform>(platform: &P, parameters: &Parameters) -> bool {
    if !cfg!(feature = "vmemmap") {
        return false;
    }
    parameters.pages.are_wanted(platform.vmemmap_space().is_some())
}

/// Returns whether memory whose users will free it to the manager is marked allocated as soon as it
/// is known. With descriptors it stays reserved until they exist; with grades or areas, until these
/// have been placed, as they may not contain it (`Hotplug::adopt_at_start`).
#[inline(always)]
fn adopts_at_once<P: Platform>(platform: &P, parameters: &Parameters) -> bool {
    cfg!(feature = "hotplug") && !places_memory_first(platform, parameters)
}

/// Returns whether descriptors, grades or reserve areas get their places before memory in use is
/// adopted.
#[inline(never)]
fn places_memory_first<P: Platform>(platform: &P, parameters: &Parameters) -> bool {
    let &Parameters { ref core, movable_node, ref areas, ref huge_pages, .. } = parameters;
    areas.cma.is_some()
        || areas.cma_pernuma_bytes != 0
        || areas.numa_cma.total_bytes != 0
        || huge_pages.cma.total_bytes != 0
        || core.setting(movable_node) != MovableSetting::default()
        || wants_descriptors(platform, parameters)
}

/// Obtains the memory of the vmemmap array if the policy wants one, and tells the zones which of
/// their blocks it describes and which are withheld. Returns the policy that resulted, and the
/// array. A node goes without an array if its part finds no memory; all nodes do if nothing would
/// be left to hand out.
#[inline(never)]
fn make_vmemmap<P: Platform>(
    early: &mut Memblock<'_, P>,
    input: &BringUp<'_>,
    frame: &mut Frame,
    platform: &'static P,
) -> (Policy, ArrayMemory) {
    if !cfg!(feature = "vmemmap") {
        return (Policy::OnDemand, ArrayMemory::none(core::mem::take(&mut frame.parts)));
    }
    let mut array = ArrayMemory::none(core::mem::take(&mut frame.parts));
    let (Some(space), Some(state)) = (platform.vmemmap_space(), frame.vmemmap_bitmaps.take())
    else {
        return (Policy::OnDemand, array);
    };
    let (directory, zones) = (&*frame.directory, &*frame.zones);
    let node_of = |segment: &Segment| node_of_segment(zones, segment);
    choose_boot_pages(early, input.parameters, directory, &node_of, &mut frame.pools.boot_pages);
    let segments = SegmentsOfNodes { directory, node_of: &node_of };
    array.obtain(early, space, segments, &frame.pools.boot_pages);
    if !any_free(early, !array.covers_all()) {
        array.give_back(early, space, segments, VmemmapFallback::NothingLeft);
    }
    note_absent(frame.nodes, &array);
    let policy = input.parameters.policy;
    let mut have = ZoneSet::EMPTY;
    frame
        .zones
        .iter()
        .filter(|zone| !zone.segments().is_empty())
        .for_each(|zone| have.insert(zone.id()));
    let fill = first_value(input.parameters, space);
    let array_of = |described| Array::new(space.base(), described, fill);
    let deferred = |zone| match policy {
        Policy::Deferred => withheld(early.runs(), &|zone| have.contains(zone), zone),
        Policy::Eager | Policy::OnDemand => None,
    };
    // Only zones of nodes whose part of the array found memory.
    let zones = frame.zones.iter_mut().filter(|zone| array.covers(zone.id().node));
    state.attach(platform, zones, &array_of, &deferred);
    (if array.bytes() == 0 { Policy::OnDemand } else { policy }, array)
}

/// Allocates all tables that depend on the zones. After an error the caller gives back the tables
/// that zones already have.
#[inline(never)]
fn allocate_all<P: Platform>(
    memory: &mut Obtained<'_, '_, P>,
    frame: &mut Frame,
    input: &BringUp<'_>,
) -> Result<(), BringUpError> {
    let (platform, parameters) = (memory.early.platform(), input.parameters);
    allocate_tables(platform, memory, frame)?;
    frame.states.debug.allocate(platform, memory, frame.directory)?;
    if VmemmapBitmaps::is_wanted(platform, parameters) {
        frame.vmemmap_bitmaps = Some(VmemmapBitmaps::allocate(memory, frame.zones)?);
    }
    if !any_free(memory.early, wants_descriptors(platform, input.parameters)) {
        return Err(BringUpError::NothingToManage);
    }
    Ok(())
}

/// Allocates each zone's tables on its node.
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
        let mut span = zone_span(frame.nodes[id.node.index()].span, id);
        if frame.zones[slot].part() != 0 {
            span.start = border(segments, span.start);
        }
        if frame.zones[slot].part() + 1 != frame.zones[slot].parts() {
            span.end = border(rest, span.end);
        }
        if segments.is_empty() {
            frame.zones[slot].attach(span, segments, &ZoneTables::EMPTY);
            continue;
        }
        let size = TableSize::of(segments);
        let range = memory.take_table(size.bytes(), &mut frame.zones[slot])?;
        // SAFETY: the range was just reserved for this table, below the direct limit, in one range
        // of the map (invariants 1, 3 and 15).
        let mut carver = unsafe { Carver::new(platform, range) };
        // What is touched lies together, before the arrays that are never read on an idle machine.
        let tables = Heads::carve(&mut carver, &size).with_rest(&mut carver, &size);
        frame.zones[slot].attach(span, segments, &tables);
    }
    Ok(())
}

/// Returns where a part of a zone begins, given its segments; `otherwise` if it has none.
fn border(segments: &[Segment], otherwise: Pfn) -> Pfn {
    let start = |first: &Segment| Pfn(first.start.start().0 & !(Order::MAX.pages() - 1));
    segments.first().map_or(otherwise, start)
}

/// Returns whether there will be a page to hand out. With descriptors inside blocks that takes a
/// block with more free frames than its descriptors need.
fn any_free<P: Platform>(early: &Memblock<'_, P>, inside: bool) -> bool {
    let least = if inside { VMEMMAP_PAGES_PER_BLOCK + 1 } else { 1 };
    early.any_left(&mut |range| {
        let border = range.start.0.next_multiple_of(PAGES_PER_BLOCK).min(range.end.0);
        (border - range.start.0).max((range.end.0 - border).min(PAGES_PER_BLOCK)) >= least
    })
}
