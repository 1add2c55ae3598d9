//! Measures a machine before anything is allocated: which zones have memory, how many segments they
//! have, and how large their tables are.

use crate::block::table::GROUP;
use crate::block::{BlockEntry, FreeMap, deferred_merge, free_index, lots, reported};
use crate::carve::room;
use crate::firmware::MemoryRun;
use crate::sync::table_atomic::AtomicU64;
use crate::units::{BLOCK_ORDER, NodeId, PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;
use crate::zone::segment::{BRIDGED_BLOCKS, Segment};
use crate::zone::{ZoneId, ZoneKind, ZoneRun, zone_runs};
use core::ops::Range;

/// Returns the blocks that a run touches.
fn blocks_of_run(run: &ZoneRun) -> Range<u32> {
    let end = Pfn(run.range.end.0.next_multiple_of(PAGES_PER_BLOCK));
    BlockNumber::containing(run.range.start).0..BlockNumber::containing(end).0
}

/// The most parts that a zone can have.
const MOST_PARTS: u32 = 256;
/// The most parts that all zones together may have beyond one each. Parts, and the windows of
/// hotplug among them, have 16-bit numbers.
const MOST_MORE: u32 = 48 * 1024;
const _: () = assert!(MOST_MORE as usize + ZoneId::LIMIT < u16::MAX as usize);
/// Up to this many CPUs share an undivided zone (docs/log/decisions.md, *Zones in parts*).
const FEW_CPUS: u32 = 2;
/// Where memory is scarce, this many CPUs share a part.
const CPUS_OF_A_PART: u32 = 4;
/// The size in GiB that parts must have before each CPU gets its own, so that few parts run empty.
const LEAST_GIB: u32 = 4;

/// Returns how many parts a zone of this size should have on a node with this many CPUs.
pub(crate) const fn parts_for(cpus: u32, gigabytes: u32) -> u32 {
    if !cfg!(feature = "smp") {
        return 1;
    }
    let shared = cpus.div_ceil(CPUS_OF_A_PART).next_power_of_two();
    let own = if cpus < gigabytes / LEAST_GIB { cpus } else { gigabytes / LEAST_GIB };
    if cpus > FEW_CPUS && own > shared { own } else { shared }
}

/// How a zone is divided: into runs of GiBs, as equal as possible. GiBs without memory do not
/// count.
#[derive(Clone, Copy, Default)]
struct Division {
    gigabytes: u32,
    parts: u16,
}

impl Division {
    /// Returns the part that has the GiB with this number.
    fn part_of(self, gigabyte: u32) -> u16 {
        if !cfg!(feature = "smp") {
            return 0;
        }
        let part = u64::from(gigabyte) * u64::from(self.parts) / u64::from(self.gigabytes.max(1));
        u16::try_from(part).unwrap_or(0)
    }

    /// Returns the number of a part's first GiB.
    fn first_of(self, part: u16) -> u32 {
        if !cfg!(feature = "smp") {
            return u32::MAX;
        }
        let first = u64::from(part) * u64::from(self.gigabytes);
        u32::try_from(first.div_ceil(u64::from(self.parts.max(1)))).unwrap_or(u32::MAX)
    }
}

/// The plan of a zone.
#[derive(Clone, Copy)]
pub(crate) struct ZonePlan {
    division: Division,
    /// The number of GiBs with memory seen so far in the ascending walk over all memory, and the
    /// last of them.
    met: u32,
    last: u32,
}

impl ZonePlan {
    pub(crate) const NONE: Self =
        Self { division: Division { gigabytes: 0, parts: 0 }, met: 0, last: 0 };

    /// Notes that the zone has memory in these blocks. Returns the number of the first block's GiB.
    fn number(&mut self, blocks: Range<u32>) -> u32 {
        let (first, last) = (blocks.start / GROUP, blocks.end.saturating_sub(1) / GROUP);
        let number = self.met - u32::from(self.met != 0 && self.last == first);
        (self.met, self.last) = (number + (last - first + 1), last);
        number
    }
}

/// A run of blocks of one part of a zone.
#[derive(Clone, Copy)]
pub(crate) struct PartRun {
    pub(crate) zone: ZoneId,
    pub(crate) part: u16,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl PartRun {
    const NONE: Self = Self {
        zone: ZoneId { node: NodeId::ZERO, kind: ZoneKind::Dma },
        part: 0,
        start: 0,
        end: 0,
    };
}

/// Calls `sink` for every segment, ascending. With `counts` it also counts the GiBs of all zones,
/// which are not divided yet.
#[inline(never)]
fn for_each_segment(
    memory: impl Iterator<Item = MemoryRun> + Clone,
    zones: &mut [ZonePlan],
    counts: bool,
    sink: &mut dyn FnMut(PartRun),
) {
    zones.iter_mut().for_each(|zone| zone.met = 0);
    let mut open: Option<PartRun> = None;
    for run in zone_runs(memory) {
        let Range { mut start, end } = blocks_of_run(&run);
        let Some(zone) = zones.get_mut(run.zone.index()) else { continue };
        if counts {
            // A zone that has only strays has memory, too.
            zone.division.parts = 1;
        }
        if run.stray {
            continue;
        }
        let division = zone.division;
        let is_whole = division.parts == 1;
        let mut number = if counts || !is_whole { zone.number(start..end) } else { 0 };
        while start < end {
            let part = if is_whole { 0 } else { division.part_of(number) };
            let more =
                if is_whole { 0 } else { division.first_of(part + 1).saturating_sub(number) };
            let border = (start / GROUP).saturating_add(more).saturating_mul(GROUP);
            let stop = if more == 0 { end } else { end.min(border) };
            match &mut open {
                // Only runs next to each other in address order are bridged, so no block of another
                // zone can lie between them.
                Some(open)
                    if (open.zone, open.part) == (run.zone, part)
                        && start <= open.end.saturating_add(BRIDGED_BLOCKS) =>
                {
                    open.end = stop.max(open.end);
                }
                _ => {
                    let next = PartRun { zone: run.zone, part, start, end: stop };
                    if let Some(done) = open.replace(next) {
                        sink(done);
                    }
                }
            }
            number += more;
            start = stop;
        }
    }
    if let Some(done) = open {
        sink(done);
    }
}

/// A set of zones, one bit each.
#[derive(Clone, Copy)]
pub(crate) struct ZoneSet([u64; ZoneId::LIMIT.div_ceil(64)]);

impl ZoneSet {
    pub(crate) const EMPTY: Self = Self([0; ZoneId::LIMIT.div_ceil(64)]);

    pub(crate) fn insert(&mut self, zone: ZoneId) {
        self.0[zone.index() / 64] |= 1 << (zone.index() % 64);
    }

    pub(crate) fn contains(&self, zone: ZoneId) -> bool {
        self.0[zone.index() / 64] >> (zone.index() % 64) & 1 != 0
    }
}

/// What a machine's memory needs: parts, segments and their sizes.
pub(crate) struct Plan<'a> {
    /// The plans of all zones of the nodes that exist.
    zones: &'a mut [ZonePlan],
    /// The number of parts of all zones.
    pub(crate) parts: usize,
    /// The number of segments of all zones.
    pub(crate) segments: usize,
    /// The first segments, which often are all.
    first: [PartRun; FEW_SEGMENTS],
}

/// The number of segments that are remembered, so that they need not be searched for twice.
const FEW_SEGMENTS: usize = 4;

impl<'a> Plan<'a> {
    /// Measures `memory`. `zones` has a place for each zone of the nodes that exist. `wanted`
    /// returns into how many parts a zone of a node with a number of GiBs should be divided.
    pub(crate) fn measure(
        memory: impl Iterator<Item = MemoryRun> + Clone,
        zones: &'a mut [ZonePlan],
        wanted: &dyn Fn(NodeId, u32) -> u32,
    ) -> Self {
        let mut plan = Self { zones, parts: 0, segments: 0, first: [PartRun::NONE; FEW_SEGMENTS] };
        plan.count(memory.clone(), true);
        // Most machines divide no zone, and then these already are the segments.
        if plan.divide(wanted) {
            plan.count(memory, false);
        }
        plan
    }

    #[inline(never)]
    fn count(&mut self, memory: impl Iterator<Item = MemoryRun> + Clone, counts: bool) {
        let (segments, first) = (&mut self.segments, &mut self.first);
        *segments = 0;
        for_each_segment(memory, self.zones, counts, &mut |run| {
            if let Some(place) = first.get_mut(*segments) {
                *place = run;
            }
            *segments += 1;
        });
    }

    /// Divides all zones, whose GiBs were counted. Returns whether any zone has more than one part.
    fn divide(&mut self, wanted: &dyn Fn(NodeId, u32) -> u32) -> bool {
        let mut more = MOST_MORE;
        let nodes = self.zones.chunks_mut(ZoneKind::COUNT);
        for (node, kinds) in (0..).map_while(NodeId::new).zip(nodes) {
            for zone in kinds.iter_mut().filter(|zone| zone.division.parts != 0) {
                let gigabytes = zone.met;
                let most = if cfg!(feature = "smp") { MOST_PARTS } else { 1 };
                let most = gigabytes.clamp(1, most).min(more + 1);
                let parts = u16::try_from(wanted(node, gigabytes).clamp(1, most)).unwrap_or(1);
                zone.division = Division { gigabytes, parts };
                self.parts += usize::from(parts);
                more -= u32::from(parts) - 1;
            }
        }
        more != MOST_MORE
    }

    /// Returns how many parts the zone with this number has: none if it has no memory, not even
    /// strays.
    pub(crate) fn parts_of(&self, zone: usize) -> u16 {
        self.zones.get(zone).map_or(0, |zone| zone.division.parts)
    }

    /// Calls `sink` for every segment, ascending.
    pub(crate) fn for_each_segment(
        &mut self,
        memory: impl Iterator<Item = MemoryRun> + Clone,
        sink: &mut dyn FnMut(PartRun),
    ) {
        match self.first.get(..self.segments) {
            Some(all) => all.iter().for_each(|&run| sink(run)),
            None => for_each_segment(memory, self.zones, false, sink),
        }
    }
}

/// Sizes of one zone's tables.
#[derive(Clone, Copy)]
pub(crate) struct TableSize {
    pub(crate) entries: usize,
    pub(crate) groups: usize,
    pub(crate) ready_words: usize,
    pub(crate) free_heads_words: usize,
    pub(crate) free_index_words: usize,
    pub(crate) reported_words: usize,
    pub(crate) deferred_words: usize,
    pub(crate) lots_words: usize,
}

impl TableSize {
    /// Returns the sizes for segments whose indices are set.
    pub(crate) fn of(segments: &[Segment]) -> Self {
        let entries = segments.last().map_or(0, |last| last.indices().end);
        let groups = entries.div_ceil(GROUP);
        Self {
            entries: entries as usize,
            groups: groups as usize,
            ready_words: groups.div_ceil(64) as usize,
            free_heads_words: groups as usize,
            free_index_words: free_index::words_for(entries as usize),
            reported_words: reported::words_for(entries as usize),
            deferred_words: deferred_merge::words_for(entries as usize),
            lots_words: lots::words_for(entries as usize),
        }
    }

    /// Returns the size of all tables in bytes, rounded up to whole pages.
    pub(crate) fn bytes(self) -> u64 {
        let (entries, groups) = (self.entries as u64, self.groups as u64);
        let bytes = room::<AtomicU64>((self.ready_words + self.free_index_words) as u64)
            + room::<AtomicU64>((self.reported_words + self.deferred_words) as u64)
            + room::<AtomicU64>((self.free_heads_words + self.lots_words) as u64)
            + room::<BlockEntry>(groups)
            + room::<BlockEntry>(entries)
            + room::<FreeMap>(entries);
        bytes.next_multiple_of(crate::units::PAGE_SIZE)
    }
}

/// Returns the part of a node's span in which a zone can lie.
pub(crate) fn zone_span(node: PfnRange, zone: ZoneId) -> PfnRange {
    node.intersection(zone.kind.frames())
}

const _: () = assert!(BLOCK_ORDER == 9, "the free map of a block has 512 bits");
