//! Measuring a machine before anything is allocated: which zones have memory, how many segments
//! they have, how large their tables are.

use crate::block::table::GROUP;
use crate::block::{BlockEntry, FreeMap, deferred_merge, free_index, reported};
use crate::carve::room;
use crate::firmware::MemoryRun;
use crate::sync::table_atomic::AtomicU64;
use crate::units::{BLOCK_ORDER, PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;
use crate::zone::segment::{BRIDGED_BLOCKS, Segment};
use crate::zone::{ZoneId, ZoneRun, zone_runs};

/// The blocks that a run touches.
pub(crate) fn blocks_of_run(run: &ZoneRun) -> (u32, u32) {
    let end = Pfn(run.range.end.0.next_multiple_of(PAGES_PER_BLOCK));
    (BlockNumber::containing(run.range.start).0, BlockNumber::containing(end).0)
}

/// Calls `sink` for every segment, ascending.
pub(crate) fn for_each_segment(
    memory: impl Iterator<Item = MemoryRun> + Clone,
    mut sink: impl FnMut(ZoneId, BlockNumber, u32),
) {
    let mut open: Option<(ZoneId, u32, u32)> = None;
    for run in zone_runs(memory).filter(|run| !run.stray) {
        let (start, end) = blocks_of_run(&run);
        match &mut open {
            // Only neighbours in address order are bridged, so no block of another zone can lie
            // between.
            Some((zone, _, open_end))
                if *zone == run.zone && start <= open_end.saturating_add(BRIDGED_BLOCKS) =>
            {
                *open_end = end.max(*open_end);
            }
            _ => {
                if let Some((zone, start, end)) = open.replace((run.zone, start, end)) {
                    sink(zone, BlockNumber(start), end - start);
                }
            }
        }
    }
    if let Some((zone, start, end)) = open {
        sink(zone, BlockNumber(start), end - start);
    }
}

/// A set of zones, one bit each.
#[derive(Clone, Copy, Default)]
pub(crate) struct ZoneSet([u64; ZoneId::LIMIT.div_ceil(64)]);

impl ZoneSet {
    pub(crate) fn insert(&mut self, zone: ZoneId) {
        self.0[zone.index() / 64] |= 1 << (zone.index() % 64);
    }

    pub(crate) fn contains(self, zone: ZoneId) -> bool {
        self.0[zone.index() / 64] >> (zone.index() % 64) & 1 != 0
    }

    pub(crate) fn len(self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

/// What a machine needs.
pub(crate) struct Plan {
    /// Zones with at least one present frame, strays included.
    pub(crate) zones: ZoneSet,
    /// Segments of all zones.
    pub(crate) segments: usize,
    /// Present frames.
    pub(crate) present_pages: u64,
}

impl Plan {
    pub(crate) fn measure(memory: impl Iterator<Item = MemoryRun> + Clone) -> Self {
        let mut plan = Self { zones: ZoneSet::default(), segments: 0, present_pages: 0 };
        for run in zone_runs(memory.clone()) {
            plan.zones.insert(run.zone);
            plan.present_pages += run.range.pages();
        }
        for_each_segment(memory, |_, _, _| plan.segments += 1);
        plan
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
}

impl TableSize {
    /// For segments that have their indices.
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
        }
    }

    /// Bytes, rounded up to whole pages.
    pub(crate) fn bytes(self) -> u64 {
        let (entries, groups) = (self.entries as u64, self.groups as u64);
        let bytes = room::<AtomicU64>((self.ready_words + self.free_index_words) as u64)
            + room::<AtomicU64>((self.reported_words + self.deferred_words) as u64)
            + room::<AtomicU64>(self.free_heads_words as u64)
            + room::<BlockEntry>(groups)
            + room::<BlockEntry>(entries)
            + room::<FreeMap>(entries);
        bytes.next_multiple_of(crate::units::PAGE_SIZE)
    }
}

/// The part of a node's span that a zone may have.
pub(crate) fn zone_span(node: PfnRange, zone: ZoneId) -> PfnRange {
    node.intersection(zone.kind.frames())
}

const _: () = assert!(BLOCK_ORDER == 9, "the free map of a block has 512 bits");
