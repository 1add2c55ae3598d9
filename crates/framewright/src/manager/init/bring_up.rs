//! Bring-up, step by step.

use crate::carve::Carver;
use crate::debug::Aids;
use crate::firmware::{MovableSetting, MovableStarts, movable_starts};
use crate::manager::hugetlb::boot::choose_boot_pages;
use crate::manager::init::check::check;
use crate::manager::init::error::{BringUpError, BringUpFailed};
use crate::manager::init::frame::{BringUp, Frame};
use crate::manager::init::homes::{cpus_by_node, give_caches_homes};
use crate::manager::init::node_clock::{NodeClock, Work};
use crate::manager::init::obtained::{MOST_RANGES, Obtained, place_tables};
use crate::manager::init::plan::{Plan, TableSize, ZoneSet, parts_for, zone_span};
use crate::manager::init::seed::begin_shuffling;
use crate::manager::init::tables::Heads;
use crate::manager::init::vmemmap::{
    VmemmapBitmaps, first_value, node_of_segment, note_absent, withheld,
};
use crate::manager::init::zones::initialise_zones;
use crate::manager::reporting::Reporting;
use crate::manager::state::accept::{AcceptEvents, AcceptState};
use crate::manager::state::debug::DebugState;
use crate::manager::state::hotplug::{HotplugSettings, HotplugState, MOST_GROUPS};
use crate::manager::state::numa::NumaSettings;
use crate::manager::state::pressure::PressureState;
use crate::manager::state::tunables::{Settings, Tunables};
use crate::manager::state::vmemmap::{SectionLocks, VmemmapState};
use crate::manager::state::{BringUpTimes, Manager};
use crate::manager::tier::DRAM_TIER;
use crate::memblock::Memblock;
use crate::page::Descriptors;
use crate::parameters::{AcceptPolicy, Policy};
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::sync::table_atomic::{AtomicBool, AtomicU64};
use crate::sync::{Readers, SpinLock};
use crate::units::{Order, PAGES_PER_BLOCK, Pfn, PhysRange};
use crate::vmemmap::{ArrayMemory, VmemmapFallback};
use crate::vmemmap_space::VMEMMAP_PAGES_PER_BLOCK;
use crate::zone::initialise::ZoneTables;
use crate::zone::{Segment, Zone};
use framewright_jobs::NoHelpers;

impl<P: Platform> Manager<P> {
    /// Brings all memory up that `early` knows, and ends it.
    ///
    /// Several CPUs: calls [`Platform::cpu_barrier`] once, where [`Platform::can_wait`] allows it.
    ///
    /// Pages that the command line puts into pools without a map are kept back until
    /// [`Hugetlb::fill`](crate::manager::Hugetlb::fill), which then has to be called.
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
        let prepared = match prepare(&mut early, input) {
            Ok(prepared) => prepared,
            Err(error) => return Err(BringUpFailed { error, early }),
        };
        Ok(Self::finish(&mut early, input, prepared))
    }

    /// All that cannot fail. A function of its own because a manager is 12 KB, which are moved once
    /// less on a stack that may be small.
    #[inline(never)]
    fn finish(early: &mut Memblock<'_, P>, input: &BringUp<'_>, prepared: Prepared) -> Self {
        let platform = early.platform();
        let Prepared { mut frame, debug, vmemmap_bitmaps, bytes, tables, started_ns } = prepared;
        let aids = debug.aids;
        let are_wanted = wants_descriptors(platform, input);
        let since = || Some(platform.now_ns()?.saturating_sub(started_ns?));
        let (policy, array) = make_vmemmap(early, input, &mut frame, platform, vmemmap_bitmaps);
        let vmemmap_bytes = array.bytes();
        let metadata_bytes = bytes + vmemmap_bytes + size_of::<Self>() as u64;
        let tables_ns = since();
        let movable = where_movable(early, input, frame.zones);

        let shuffle_seed = begin_shuffling(frame.zones, input.parameters, platform);
        let mut clock = NodeClock::new(platform);
        initialise_zones(early, &mut frame, &mut clock, &array);
        let readers: &'static mut [Readers] = core::mem::take(&mut frame.readers);
        let readers: &'static [Readers] = readers;
        for zone in frame.zones.iter_mut() {
            clock.turn_to(frame.nodes, zone.id().node, Work::Bookkeeping);
            zone.note_withheld();
            let descriptors = Descriptors {
                platform,
                readers,
                segments: zone.segments(),
                are_wanted,
                array: zone.array(),
                poison: aids.page_poison,
            };
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
            zone.shuffle_at_boot(platform);
        }
        give_caches_homes(&mut frame, platform);
        let early_accepted = AcceptEvents::of_early(&early.accepted());
        let Frame { slots, nodes, per_node, directory, caches, pools, .. } = frame;
        let Frame { zones, mut zone_list, window_segments, window_tables, .. } = frame;
        let Frame { moving, isolations, pressure, hotplug, tunables: place, .. } = frame;
        let without_vmemmap = pools.boot_pages.blocks();
        let same = caches
            .first()
            .map(|cache| cache.zone())
            .filter(|&zone| caches.iter().all(|cache| cache.zone() == zone));
        let is_divided = zones.iter().any(|zone| zone.parts() != 1);
        let first_window = zones.len();
        zone_list.begin(zones);
        let mut manager = Self {
            platform,
            zones: zone_list,
            slots,
            nodes,
            directory,
            caches,
            sole: None,
            is_divided,
            hotplug: hotplug.write(HotplugState {
                first_window,
                segments: window_segments,
                own_tables: window_tables,
                is_changing: AtomicBool::new(false),
                notifier: SpinLock::new(None),
                settings: SpinLock::new(HotplugSettings::of(&input.parameters.hotplug)),
                groups: SpinLock::new([None; MOST_GROUPS]),
                nodes: per_node,
                movable_node: input.parameters.movable_node,
                readers,
                descriptors_are_wanted: are_wanted,
                tables,
                table_bytes: AtomicU64::new(0),
                released_pages: AtomicU64::new(0),
            }),
            changing_cpus: AtomicBool::new(false),
            pressure: PressureState::new(aids.watch(), per_node, pressure),
            numa: NumaSettings::new(per_node, DRAM_TIER),
            debug,
            isolations,
            moving,
            pools,
            tunables: place.write(SpinLock::new(tunables)),
            settings: Settings::of(input.parameters),
            reporting: Reporting::new(&input.parameters.reporting),
            vmemmap: VmemmapState::new(
                policy,
                vmemmap_bytes,
                without_vmemmap,
                input.parameters,
                started_ns,
            ),
            accept: AcceptState::new(input.parameters.accept, &early_accepted),
            section_locks: SectionLocks::new(),
            shuffle_seed,
            metadata_bytes,
            times: BringUpTimes { tables_ns, ..BringUpTimes::default() },
        };
        manager.sole = same.and_then(|zone| manager.zones().get(zone));
        manager.accept_borders();
        if input.parameters.accept == AcceptPolicy::Eager && platform.cpus() == 1 {
            manager.acceptance().accept_all(&NoHelpers);
        }
        if manager.prove_first_allocation() {
            manager.times.first_alloc_ns = since();
        }
        for (node, kept) in manager.nodes.iter().zip(per_node) {
            // Relaxed: nobody else has the manager yet.
            let start = movable.on_node(node.id).map_or(0, |pfn| pfn.0);
            kept.movable_start.store(start, Ordering::Relaxed);
        }
        if !movable.is_empty() {
            manager.grade_at_boot(&movable);
        }
        manager.moving.hugetlb_cma_only = input.parameters.huge_pages.cma_only;
        manager.moving.failed_area_bytes = manager.make_areas(input.parameters);
        for zone in manager.zones() {
            let pages = zone.present_pages().saturating_sub(zone.most_graded_pages(platform));
            // Relaxed: nobody else has the manager yet.
            per_node[zone.id().node.index()].boot_kernel_pages.fetch_add(pages, Ordering::Relaxed);
        }
        manager.moving.is_up = true;
        manager.times.bring_up_ns = since();
        if manager.zones().iter().all(|zone| !zone.sections().are_left()) {
            manager.times.all_memory_ns = manager.times.bring_up_ns;
        }
        manager
    }

    /// Allocates a block and frees it, so that the time to the first allocation is one of an
    /// allocation. A machine with less than one free block has none.
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

/// Where memory for what can be moved alone begins, as the command line has it.
fn where_movable<P: Platform>(
    early: &Memblock<'_, P>,
    input: &BringUp<'_>,
    zones: &[Zone],
) -> MovableStarts {
    let setting = input.parameters.core.setting(input.parameters.movable_node);
    if setting == MovableSetting::default() {
        return MovableStarts::NONE;
    }
    let highest = zones.iter().map(|zone| zone.id().kind).max();
    let lowest = highest.map_or(Pfn(0), |kind| kind.frames().start);
    movable_starts(early.runs(), lowest, &setting)
}

/// What bring-up obtains before it can go on to the end.
struct Prepared {
    frame: Frame,
    debug: DebugState,
    vmemmap_bitmaps: Option<VmemmapBitmaps>,
    /// Of all tables.
    bytes: u64,
    /// Where those are that are no zone's.
    tables: [PhysRange; MOST_RANGES],
    /// When the intake began.
    started_ns: Option<u64>,
}

/// Obtains the memory for all tables: all or nothing.
#[inline(never)]
fn prepare<P: Platform>(
    early: &mut Memblock<'_, P>,
    input: &BringUp<'_>,
) -> Result<Prepared, BringUpError> {
    let platform = early.platform();
    check(platform, early)?;
    if input.parameters.movable_node {
        early.set_movable_node(true);
    }
    early.accept_edges();
    place_tables(early, input.parameters);
    let started_ns = input.started_ns.or_else(|| platform.now_ns());
    let cpus = cpus_by_node(platform);
    let wanted = input.parameters.zone_parts;
    let plan = Plan::measure(early.runs(), &|node, gigabytes| {
        wanted.unwrap_or_else(|| parts_for(cpus[node.index()], gigabytes))
    });
    let mut memory = Obtained::new(early);
    let mut frame = Frame::allocate(platform, &mut memory, &plan, input)?;
    frame.fill(memory.early, &plan);
    match allocate_all(&mut memory, &mut frame, input) {
        Ok((debug, vmemmap_bitmaps)) => {
            let tables = memory.keep();
            let bytes = memory.bytes;
            Ok(Prepared { frame, debug, vmemmap_bitmaps, bytes, tables, started_ns })
        }
        Err(error) => {
            memory.give_tables_back(frame.zones);
            Err(error)
        }
    }
}

/// Whether pages are to have descriptors.
fn wants_descriptors<P: Platform>(platform: &P, input: &BringUp<'_>) -> bool {
    input.parameters.pages.are_wanted(platform.vmemmap_space().is_some())
}

/// Gets the array's memory where the policy wants one, and tells the zones what of them it
/// describes and what is withheld. Returns the policy that came of it, and the array. Nodes whose
/// part finds no memory, and all when nothing would be left to hand out, go without.
#[inline(never)]
fn make_vmemmap<P: Platform>(
    early: &mut Memblock<'_, P>,
    input: &BringUp<'_>,
    frame: &mut Frame,
    platform: &'static P,
    state: Option<VmemmapBitmaps>,
) -> (Policy, ArrayMemory) {
    let mut array = ArrayMemory::none(core::mem::take(&mut frame.parts));
    let (Some(space), Some(state)) = (platform.vmemmap_space(), state) else {
        return (Policy::OnDemand, array);
    };
    let (directory, zones) = (&*frame.directory, &*frame.zones);
    let node_of = |segment: &Segment| node_of_segment(zones, segment);
    choose_boot_pages(early, input.parameters, directory, &node_of, &mut frame.pools.boot_pages);
    array.obtain(early, space, directory, &node_of, &frame.pools.boot_pages);
    if !any_free(early, !array.covers_all()) {
        array.give_back(early, space, directory, &node_of, VmemmapFallback::NothingLeft);
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
    state.attach(platform, frame.zones, &array, fill, space, &|zone| match policy {
        Policy::Deferred => withheld(early.runs(), &|zone| have.contains(zone), zone),
        Policy::Eager | Policy::OnDemand => None,
    });
    (if array.bytes() == 0 { Policy::OnDemand } else { policy }, array)
}

/// All tables that zones are needed for. What an error leaves of the zones' own is to be given
/// back.
#[inline(never)]
fn allocate_all<P: Platform>(
    memory: &mut Obtained<'_, '_, P>,
    frame: &mut Frame,
    input: &BringUp<'_>,
) -> Result<(DebugState, Option<VmemmapBitmaps>), BringUpError> {
    let (platform, parameters) = (memory.early.platform(), input.parameters);
    allocate_tables(platform, memory, frame)?;
    let debug = DebugState::allocate(
        platform,
        memory,
        frame.directory,
        Aids::of(parameters),
        frame.damage,
    )?;
    let vmemmap_bitmaps = if VmemmapBitmaps::is_wanted(platform, parameters) {
        Some(VmemmapBitmaps::allocate(memory, frame.zones)?)
    } else {
        None
    };
    if !any_free(memory.early, wants_descriptors(platform, input)) {
        return Err(BringUpError::NothingToManage);
    }
    Ok((debug, vmemmap_bitmaps))
}

/// Each zone's tables, on its node.
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
            frame.zones[slot].attach(span, segments, ZoneTables::EMPTY);
            continue;
        }
        let size = TableSize::of(segments);
        let range = memory.take_table(size.bytes(), &mut frame.zones[slot])?;
        // SAFETY: the range was just reserved for this table, below the direct limit, in one range
        // of the map (invariants 1, 3 and 15).
        let mut carver = unsafe { Carver::new(platform, range) };
        // What is touched lies together, before the arrays that an idle machine never reads.
        let tables = Heads::carve(&mut carver, &size).with_rest(&mut carver, &size);
        frame.zones[slot].attach(span, segments, tables);
    }
    Ok(())
}

/// Where the part begins whose first segment is the first of these.
fn border(segments: &[Segment], otherwise: Pfn) -> Pfn {
    let start = |first: &Segment| Pfn(first.start.start().0 & !(Order::MAX.pages() - 1));
    segments.first().map_or(otherwise, start)
}

/// Whether there will be a page to hand out. With descriptors inside blocks that takes a block with
/// more free frames than those need.
fn any_free<P: Platform>(early: &Memblock<'_, P>, inside: bool) -> bool {
    let least = if inside { VMEMMAP_PAGES_PER_BLOCK + 1 } else { 1 };
    let mut found = false;
    early.for_each_left(&mut |range, _| {
        let border = range.start.0.next_multiple_of(PAGES_PER_BLOCK).min(range.end.0);
        found |= (border - range.start.0).max((range.end.0 - border).min(PAGES_PER_BLOCK)) >= least;
    });
    found
}
