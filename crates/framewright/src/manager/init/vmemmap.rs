//! The vmemmap during bring-up: its bitmaps, and what it leaves to later.

use crate::carve::{Carver, room};
use crate::firmware::MemoryRun;
use crate::manager::init::error::BringUpError;
use crate::manager::init::obtained::Obtained;
use crate::manager::state::Node;
use crate::page::{Array, Fill};
use crate::parameters::{Parameters, Policy};
use crate::platform::Platform;
use crate::sync::table_atomic::AtomicU64;
use crate::units::{NodeId, PhysRange};
use crate::vmemmap::{ArrayMemory, Sections, deferred_sections};
use crate::vmemmap_space::{BLOCKS_PER_CALL, VmemmapSpace};
use crate::zone::{Segment, Zone, ZoneId, ZoneKind, zone_runs};
use core::ops::Range;

/// Bitmaps, for all zones, of the blocks that the array describes and of the sections that are
/// withheld.
pub(crate) struct VmemmapBitmaps {
    range: PhysRange,
}

impl VmemmapBitmaps {
    /// Returns whether pages are to have descriptors in an array.
    pub(crate) fn is_wanted<P: Platform>(platform: &P, parameters: &Parameters) -> bool {
        if !cfg!(feature = "vmemmap") {
            return false;
        }
        platform.vmemmap_space().is_some()
            && parameters.pages.are_wanted(true)
            && parameters.policy != Policy::OnDemand
    }

    fn words(zone: &Zone) -> usize {
        let sections = sections_of(zone);
        Array::words(zone.table_entries()) + 2 * Sections::words(sections.end - sections.start)
    }

    pub(crate) fn allocate<P: Platform>(
        memory: &mut Obtained<'_, '_, P>,
        zones: &[Zone],
    ) -> Result<Self, BringUpError> {
        let words: usize = zones.iter().map(Self::words).sum();
        let range = memory.take_zeroed(
            "the state of the memory map",
            room::<AtomicU64>(words as u64),
            NodeId::ZERO,
        )?;
        Ok(Self { range })
    }

    /// Gives each of `zones`, which the array describes, an array handle over a bitmap of its own,
    /// and tells it which of its sections are withheld.
    pub(crate) fn attach<'z, P: Platform>(
        self,
        platform: &'static P,
        zones: impl Iterator<Item = &'z mut Zone>,
        array_of: &dyn Fn(&'static [AtomicU64]) -> Array,
        deferred: &dyn Fn(ZoneId) -> Option<Range<u32>>,
    ) {
        // SAFETY: the range was just reserved for this, below the direct limit, in one range of the
        // map (invariants 1, 3 and 15).
        let mut carver = unsafe { Carver::new(platform, self.range) };
        // The parts of a zone are adjacent in the list.
        let mut last = None;
        for zone in zones {
            let described: &'static [AtomicU64] = carver.any(Array::words(zone.table_entries()));
            zone.set_array(array_of(described));
            let of_zone = match last {
                Some((id, ref sections)) if id == zone.id() => Option::clone(sections),
                _ => deferred(zone.id()),
            };
            last = Some((zone.id(), of_zone.clone()));
            let own = sections_of(zone);
            let own = of_zone.map(|all| all.start.max(own.start)..all.end.min(own.end));
            if let Some(sections) = own.filter(|own| !own.is_empty()) {
                let words = Sections::words(sections.end - sections.start);
                zone.defer(Sections::new(sections, carver.any(words), carver.any(words)));
            }
        }
    }
}

/// Returns the sections from a zone's first block to its last.
fn sections_of(zone: &Zone) -> Range<u32> {
    match (zone.segments().first(), zone.segments().last()) {
        (Some(first), Some(last)) => {
            first.start.0 / BLOCKS_PER_CALL..last.end().0.div_ceil(BLOCKS_PER_CALL)
        }
        _ => 0..0,
    }
}

/// Returns the sections of a zone that are withheld: none unless it is its node's last zone with
/// memory (Linux: `mm/mm_init.c`, `defer_init`).
pub(crate) fn withheld(
    memory: impl Iterator<Item = MemoryRun> + Clone,
    has_segments: &dyn Fn(ZoneId) -> bool,
    zone: ZoneId,
) -> Option<Range<u32>> {
    let last = ZoneKind::ALL
        .into_iter()
        .rev()
        .find(|&kind| has_segments(ZoneId { node: zone.node, kind }));
    if last != Some(zone.kind) {
        return None;
    }
    let runs = zone_runs(memory).filter(|run| run.zone == zone && !run.stray);
    deferred_sections(runs.map(|run| run.range))
}

/// Returns the value with which descriptors in the array begin.
pub(crate) fn first_value(parameters: &Parameters, space: &dyn VmemmapSpace) -> Fill {
    match parameters.page_template {
        None if space.is_zeroed() => Fill::KNOWN_ZERO,
        words => Fill::new(words.unwrap_or_default(), |line| space.store(line)),
    }
}

/// Marks the nodes whose part of the array found no memory, with the cause.
pub(crate) fn note_absent(nodes: &mut [Node], array: &ArrayMemory) {
    for (node, cause) in array.absent() {
        if let Some(node) = nodes.get_mut(node.index()) {
            node.vmemmap_fallback = Some(cause);
        }
    }
}

/// Returns the node of a segment.
pub(crate) fn node_of_segment(zones: &[Zone], segment: &Segment) -> NodeId {
    zones.get(usize::from(segment.zone)).map_or(NodeId::ZERO, |zone| zone.id().node)
}
