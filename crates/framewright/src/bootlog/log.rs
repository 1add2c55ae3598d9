//! Writes the boot log. Its lines say what Linux's lines say, in the words that users of Linux
//! know.

use crate::debug::Aids;
use crate::firmware::{MapRange, MemoryKind, MemoryMap, Topology, node_ranges};
use crate::manager::{MOST_AREAS, Manager, ShuffleSeed};
use crate::parameters::{Parameters, Problem};
use crate::platform::Platform;
use crate::units::{NodeId, PAGE_SIZE, PAGES_PER_BLOCK, PfnRange};
use crate::zone::{ZoneId, ZoneKind};
use core::fmt;

/// The destination of log lines. The implementer adds time stamps and line ends.
pub trait BootLog {
    /// Writes one line, given without its line end.
    fn line(&mut self, line: fmt::Arguments<'_>);
}

impl dyn BootLog + '_ {
    /// Calls [`line`](BootLog::line). This is not inlined, so that a program that links a single
    /// kind of log has one copy of it, and not one at each call.
    #[inline(never)]
    pub(super) fn tell(&mut self, line: fmt::Arguments<'_>) {
        self.line(line);
    }
}

const KIB_PER_PAGE: u64 = PAGE_SIZE / 1024;

/// Logs the memory map that firmware reported, before it is processed.
pub fn firmware_map(log: &mut dyn BootLog, ranges: &[MapRange]) {
    log.tell(format_args!("BIOS-provided physical RAM map:"));
    for entry in ranges {
        log.tell(format_args!("BIOS-e820: {} {}", entry.range, entry.kind));
    }
}

/// Logs the nodes: the memory that each claims, its CPUs, and its distances if there are several
/// nodes.
pub fn topology(log: &mut dyn BootLog, topology: &Topology<'_>) {
    for claim in topology.memory() {
        let plug = if claim.hot_pluggable { " hotplug" } else { "" };
        let domain = topology.domain(claim.node);
        log.tell(format_args!(
            "ACPI: SRAT: Node {} PXM {domain} {}{plug}",
            claim.node, claim.range
        ));
    }
    if topology.memory().is_empty() {
        log.tell(format_args!("No NUMA configuration found"));
    }
    for node in topology.nodes() {
        let cpus = topology.cpus(node);
        log.tell(format_args!("NUMA: Node {node}: {cpus} CPU{}", if cpus == 1 { "" } else { "s" }));
    }
    if topology.node_count() > 1 {
        for node in topology.nodes() {
            log.tell(format_args!("NUMA: Node {node} distances:{}", Distances { topology, node }));
        }
    }
}

struct Distances<'a, 'b> {
    topology: &'a Topology<'b>,
    node: NodeId,
}

impl fmt::Display for Distances<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.topology
            .nodes()
            .try_for_each(|to| write!(f, " {:3}", self.topology.distance(self.node, to)))
    }
}

/// Logs how much of the memory that firmware reported is mirrored, in bytes; nothing when none is
/// (Linux: `drivers/firmware/efi`, `efi_find_mirror`).
pub fn mirrored(log: &mut dyn BootLog, mirrored_bytes: u64, all_bytes: u64) {
    if mirrored_bytes != 0 {
        log.tell(format_args!(
            "efi: Memory: {}M/{}M mirrored memory",
            mirrored_bytes >> 20,
            all_bytes >> 20
        ));
    }
}

/// Logs one ignored parameter.
pub fn parameter_problem(log: &mut dyn BootLog, problem: Problem<'_>) {
    log.tell(format_args!("{problem}"));
}

struct NodeList(crate::manager::Fallback);

impl fmt::Display for NodeList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|node| write!(f, " {node}"))
    }
}

/// What firmware and the command line said, for logging the result.
#[derive(Clone, Copy, Debug)]
pub struct Intake<'a> {
    /// The memory map.
    pub map: MemoryMap<'a>,
    /// The nodes.
    pub topology: &'a Topology<'a>,
    /// The command line.
    pub parameters: &'a Parameters,
}

/// Logs zone ranges, early node ranges, unavailable pages, fallback order and the memory summary.
/// Memory that firmware did not report
/// ([`Memblock::add_memory`](crate::memblock::Memblock::add_memory)) is in all lines but the early
/// ranges.
pub fn bring_up<P: Platform>(log: &mut dyn BootLog, input: &Intake<'_>, manager: &Manager<P>) {
    mirror(log, manager);
    zone_ranges(log, manager);
    memblock_node_ranges(log, input, manager);
    unavailable_pages(log, input, manager);
    for node in manager.nodes() {
        log.tell(format_args!("Fallback order for Node {}:{}", node.id, NodeList(node.fallback)));
    }
    let totals = manager.totals();
    log.tell(format_args!(
        "Built {} zonelists.  Total pages: {}",
        manager.nodes().len(),
        totals.managed_pages + totals.unaccepted_pages
    ));
    debug_aids(log, input.parameters, manager.debug().aids());
    shuffle(log, manager.shuffle_seed());
    log.tell(format_args!(
        "Memory: {}K/{}K available ({}K reserved, {}K of it tables)",
        (totals.free_pages + totals.unaccepted_pages) * KIB_PER_PAGE,
        totals.present_pages * KIB_PER_PAGE,
        totals.reserved_pages * KIB_PER_PAGE,
        (manager.metadata_bytes() - manager.vmemmap().bytes() - size_of::<Manager<P>>() as u64)
            / 1024,
    ));
    memory_map(log, input.parameters, manager);
    areas(log, manager);
    unaccepted(log, manager);
}

/// Logs Linux's lines about `kernelcore=mirror`.
fn mirror<P: Platform>(log: &mut dyn BootLog, manager: &Manager<P>) {
    let moving = manager.moving();
    let unmirrored_bytes = moving.unmirrored_bytes();
    if unmirrored_bytes != 0 {
        log.tell(format_args!("Could not allocate {unmirrored_bytes} bytes of mirrored memory"));
    }
    if let Some(note) = moving.mirror_note() {
        log.tell(format_args!("{note}"));
    }
}

/// Logs, in Linux's words (`mm/cma.c`), which areas were set aside for contiguous requests, and how
/// much could not be.
fn areas<P: Platform>(log: &mut dyn BootLog, manager: &Manager<P>) {
    let moving = manager.moving();
    for (name, pages, _) in (0..MOST_AREAS).filter_map(|number| moving.area(number)) {
        log.tell(format_args!(
            "cma: Reserved {} MiB at {:#018x}, area {}",
            pages.pages() * KIB_PER_PAGE / 1024,
            pages.start.address(),
            name.as_str()
        ));
    }
    let failed = moving.failed_area_bytes();
    if failed != 0 {
        log.tell(format_args!("cma: Failed to reserve {} MiB", failed.div_ceil(1 << 20)));
    }
}

/// Logs how `memmap_init=` was carried out.
fn memory_map<P: Platform>(log: &mut dyn BootLog, parameters: &Parameters, manager: &Manager<P>) {
    let deferred_pages: u64 = manager.vmemmap().deferred_nodes().map(|node| node.pages).sum();
    for node in manager.nodes() {
        if let Some(cause) = node.vmemmap_fallback {
            log.tell(format_args!(
                "Node {}: no memory for its memory map: descriptors are made on demand ({cause})",
                node.id
            ));
        }
    }
    if manager.vmemmap().bytes() != 0 {
        log.tell(format_args!(
            "Memory map: {}K in an array at {:p}, {}K deferred",
            manager.vmemmap().bytes() / 1024,
            manager
                .platform()
                .vmemmap_space()
                .map_or(core::ptr::null(), |space| space.base().as_ptr().cast_const()),
            deferred_pages * 64 / 1024,
        ));
    }
    if manager.vmemmap().policy() == crate::parameters::Policy::OnDemand {
        for node in manager.nodes() {
            let (Some(ns), Some(pages)) = (node.init_ns, managed_pages(manager, node.id)) else {
                continue;
            };
            log.tell(format_args!(
                "node {} memory made available on demand in {} ({pages} pages); counts, reserved \
                 memory and split blocks took {}",
                node.id,
                Microseconds(ns),
                Microseconds(node.bookkeeping_ns.unwrap_or(0)),
            ));
        }
    }
    let times = manager.times();
    let Some(first) = times.first_alloc_ns else { return };
    let policy = manager.vmemmap().policy().name();
    let wanted = if manager.vmemmap().policy() == parameters.policy
        || parameters.pages == crate::parameters::Pages::None
    {
        ""
    } else {
        ", as there is no array"
    };
    if let Some(all) = times.all_memory_ns.filter(|_| deferred_pages == 0) {
        log.tell(format_args!(
            "Framewright: first allocation after {}, all memory after {} ({policy}{wanted}, 1 \
             thread)",
            Microseconds(first),
            Microseconds(all),
        ));
    } else {
        log.tell(format_args!(
            "Framewright: first allocation after {} ({policy}{wanted})",
            Microseconds(first)
        ));
    }
}

/// The pages that a node has to hand out; `None` when it has none.
fn managed_pages<P: Platform>(manager: &Manager<P>, node: NodeId) -> Option<u64> {
    let zones = manager.views().filter(|zone| zone.id().node == node);
    Some(zones.map(|zone| zone.managed_pages() + zone.unaccepted_pages()).sum())
        .filter(|&pages| pages != 0)
}

/// Logs how withheld memory was initialised: a line for each node, and when all memory was there.
/// Logs nothing when none was withheld.
pub fn deferred<P: Platform>(log: &mut dyn BootLog, manager: &Manager<P>) {
    let mut slowest = None;
    for node in manager.vmemmap().deferred_nodes() {
        let Some(ns) = node.elapsed_ns else { continue };
        let plural = if node.threads == 1 { "" } else { "s" };
        log.tell(format_args!(
            "node {} deferred pages initialised in {}ms ({} pages in {}, {} thread{plural})",
            node.node,
            ns / 1_000_000,
            node.pages,
            Microseconds(ns),
            node.threads,
        ));
        if node.grown_pages != 0 {
            log.tell(format_args!(
                "node {}: {} of these pages came up on request",
                node.node, node.grown_pages
            ));
        }
        slowest = slowest.max(Some((ns, node.node)));
    }
    if let (Some((ns, node)), Some(all)) = (slowest, manager.times().all_memory_ns) {
        log.tell(format_args!(
            "Framewright: all memory after {}, of which node {node}, the slowest, took {} \
             (deferred)",
            Microseconds(all),
            Microseconds(ns),
        ));
    }
}

/// Logs how much memory still has to be accepted, how much was accepted, and what could not be.
/// Logs nothing when there is no such memory.
fn unaccepted<P: Platform>(log: &mut dyn BootLog, manager: &Manager<P>) {
    let acceptance = manager.acceptance();
    let (events, left) = (acceptance.events(), acceptance.unaccepted_pages());
    if events.calls == 0 && left == 0 {
        return;
    }
    log.tell(format_args!(
        "Framewright: accept_memory={}, {} KiB accepted in {} calls, {} KiB unaccepted",
        acceptance.policy().name(),
        events.accepted_pages * KIB_PER_PAGE,
        events.calls,
        left * KIB_PER_PAGE,
    ));
    if let Some(pfn) = events.last_failed {
        log.tell(format_args!(
            "Framewright: {} pages are lost, memory could not be accepted {} times, at last at \
             {:#x}",
            acceptance.lost_pages(),
            events.failures,
            pfn.address(),
        ));
    }
}

/// Prints nanoseconds as microseconds with three decimals.
struct Microseconds(u64);

impl fmt::Display for Microseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03} us", self.0 / 1000, self.0 % 1000)
    }
}

/// Logs which debug aids check or clear memory, in Linux's words where Linux has them.
fn debug_aids(log: &mut dyn BootLog, parameters: &Parameters, aids: Aids) {
    let on = |on| if on { "on" } else { "off" };
    if aids.page_poison && (parameters.init_on_alloc || parameters.init_on_free) {
        log.tell(format_args!(
            "mem auto-init: page_poison is on, will take precedence over init_on_alloc and \
             init_on_free"
        ));
    }
    log.tell(format_args!(
        "mem auto-init: stack:off, heap alloc:{}, heap free:{}",
        on(aids.init_on_alloc),
        on(aids.init_on_free)
    ));
    if aids.page_owner {
        log.tell(format_args!("page_owner is enabled"));
    }
    if aids.page_poison {
        let sparsely =
            if aids.poison_sparsely { ", in runs above 2 MiB one page in 512" } else { "" };
        log.tell(format_args!(
            "page_poison is enabled, pattern {:#04x}{sparsely}",
            crate::debug::POISON
        ));
    }
    if let Some(seed) = aids.placement_seed {
        log.tell(format_args!("Framewright: careful mode, random placement (seed {seed})"));
    }
}

/// Logs when the shuffle's order is predictable although nobody asked for that.
fn shuffle(log: &mut dyn BootLog, seed: Option<ShuffleSeed>) {
    match seed {
        None | Some(ShuffleSeed::Given | ShuffleSeed::Entropy) => {}
        Some(ShuffleSeed::Clock) => log.tell(format_args!(
            "page_alloc.shuffle: the platform has no entropy, so the clock is the seed and the \
             order can be guessed"
        )),
        Some(ShuffleSeed::Address) => log.tell(format_args!(
            "page_alloc.shuffle: the platform has neither entropy nor a clock, so the order may be \
             the same at every boot"
        )),
    }
}

fn zone_ranges<P: Platform>(log: &mut dyn BootLog, manager: &Manager<P>) {
    log.tell(format_args!("Zone ranges:"));
    for kind in ZoneKind::ALL {
        let spans = manager.views().filter(|zone| zone.id().kind == kind).map(|zone| zone.span());
        let whole =
            spans.reduce(|a, b| PfnRange { start: a.start.min(b.start), end: a.end.max(b.end) });
        match whole {
            Some(span) => log.tell(format_args!("  {kind:<8} {}", span.to_phys())),
            None => log.tell(format_args!("  {kind:<8} empty")),
        }
    }
}

fn memblock_node_ranges<P: Platform>(
    log: &mut dyn BootLog,
    input: &Intake<'_>,
    manager: &Manager<P>,
) {
    log.tell(format_args!("Movable zone start for each node"));
    for node in manager.nodes() {
        if let Some(start) = manager.moving().start_on_node(node.id) {
            log.tell(format_args!("  Node {}: {:#018x}", node.id, start.address()));
        }
    }
    log.tell(format_args!("Early memory node ranges"));
    for run in node_ranges(input.map, input.topology) {
        let kind = if run.kind == MemoryKind::Conventional { "" } else { run.kind.name() };
        let space = if kind.is_empty() { "" } else { " " };
        let unclaimed =
            if run.claimed { "" } else { " (claimed by no node, assigned to the nearest)" };
        log.tell(format_args!(
            "  node {:3}: {}{space}{kind}{unclaimed}",
            run.node,
            run.range.to_phys()
        ));
    }
    for node in manager.nodes() {
        if node.span.is_empty() {
            log.tell(format_args!("Initmem setup node {} as memoryless", node.id));
        } else {
            log.tell(format_args!("Initmem setup node {} {}", node.id, node.span.to_phys()));
        }
    }
}

/// Logs the holes that the tables cover: of all blocks that have an entry, also those between two
/// pieces of memory of a zone, the frames that are not memory, by the zone of the block's owner.
/// Also logs present frames that a shared block took from their zone.
fn unavailable_pages<P: Platform>(log: &mut dyn BootLog, input: &Intake<'_>, manager: &Manager<P>) {
    for zone in manager.views() {
        let blocks: u64 = zone.segments().map(|segment| u64::from(segment.blocks)).sum();
        let covered = blocks * PAGES_PER_BLOCK;
        let own = zone.present_pages() - zone.stray_pages();
        let unavailable = covered.saturating_sub(own);
        let ZoneId { node, kind } = zone.id();
        if unavailable > 0 {
            log.tell(format_args!(
                "On node {node}, zone {kind}: {unavailable} pages in unavailable ranges"
            ));
        }
    }
    for run in node_ranges(input.map, input.topology) {
        let (start, end) = (run.range.start.0, run.range.end.0);
        // Zones share only the blocks at the ends of runs.
        let head = (start + 1).next_multiple_of(PAGES_PER_BLOCK).min(end);
        let tail = head.max(end.saturating_sub(1) / PAGES_PER_BLOCK * PAGES_PER_BLOCK);
        for range in [PfnRange::new(start, head), PfnRange::new(tail, end)] {
            if let Some(ZoneId { node, kind }) = manager.numa().zone_of(range.start)
                && node != run.node
                && !range.is_empty()
            {
                log.tell(format_args!(
                    "On node {}, zone {kind}: {} pages at {} reserved, their block belongs to \
                     another zone",
                    run.node,
                    range.pages(),
                    range.to_phys(),
                ));
            }
        }
    }
}
