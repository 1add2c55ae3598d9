//! The memory for the array, and where deferral begins.
//!
//! Bring-up populates the array's address range as a whole, as Linux does: that takes one early
//! allocation per node and a page-table entry for each 128 MiB. Only the writing of descriptors is
//! deferred. A node without memory for its part does without an array: its descriptors are made on
//! demand, inside blocks.

use super::BootPages;
use super::sections::SECTION_PAGES;
use crate::block::Segment;
use crate::memblock::{Memblock, MemblockError, MemblockRequest, NodeChoice};
use crate::platform::Platform;
use crate::units::{NodeId, Order, PAGE_SIZE, PAGES_PER_BLOCK, Pfn, PfnRange, PhysRange};
use crate::vmemmap_space::{
    BLOCKS_PER_CALL, BlockRange, FrameSource, OutOfFrames, Unflushed, VMEMMAP_PAGES_PER_BLOCK,
    VmemmapSpace,
};
use core::fmt;
use core::ops::Range;

/// The size, in bytes, of a section's part of the array, and its alignment.
const PART_BYTES: u64 = SECTION_PAGES * 64;
const _: () = assert!(PART_BYTES == PAGES_PER_BLOCK * PAGE_SIZE);

/// Why the array does not describe a node that it should describe. The node's descriptors are made
/// on demand, inside blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VmemmapFallback {
    /// The node has no memory for its part in one piece.
    NoMemory(MemblockError),
    /// The map space found no frame for a page table.
    NoPageTable(OutOfFrames),
    /// The array would have left no page to hand out.
    NothingLeft,
}

impl fmt::Display for VmemmapFallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMemory(error) => error.fmt(f),
            Self::NoPageTable(error) => error.fmt(f),
            Self::NothingLeft => f.write_str("nothing would be left to hand out"),
        }
    }
}

/// The result for a node's part of the array.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// It is not wanted, or the node has no memory.
    None,
    /// It is present and made of frames of `memory`, which is empty if the map space takes no
    /// frames.
    Present { memory: PhysRange, handed_pages: u64, sections: u64 },
    /// There was no memory for it.
    Absent(VmemmapFallback),
}

/// The array's memory, by node. The table is not on the stack, because stacks are small in kernels.
pub(crate) struct ArrayMemory {
    parts: &'static mut [Part],
}

impl ArrayMemory {
    /// Begins without an array. `parts` has an entry for each node.
    pub(crate) fn none(parts: &'static mut [Part]) -> Self {
        parts.fill(Part::None);
        Self { parts }
    }

    /// Allocates the array's memory for all nodes, except for the pages in `without`.
    pub(crate) fn obtain<P: Platform>(
        &mut self,
        early: &mut Memblock<'_, P>,
        space: &dyn VmemmapSpace,
        segments: SegmentsOfNodes<'_>,
        without: &BootPages,
    ) {
        for index in 0..self.parts.len() {
            let (before, rest) = self.parts.split_at_mut(index);
            let (Some(node), Some(part)) = (NodeId::new(index), rest.first_mut()) else { return };
            if segments.sections(node).next().is_some() {
                let own = Own { segments, node, before, without: Some(without) };
                *part = obtain_part(early, space, &own, without);
            }
        }
    }

    /// Returns whether the array describes the node.
    pub(crate) fn covers(&self, node: NodeId) -> bool {
        matches!(self.parts.get(node.index()), Some(Part::Present { .. }))
    }

    /// Returns whether the array describes all nodes with memory.
    pub(crate) fn covers_all(&self) -> bool {
        !self.parts.iter().any(|part| matches!(part, Part::Absent(_)))
    }

    /// Returns the nodes that should have a part of the array but have none, and why.
    pub(crate) fn absent(&self) -> impl Iterator<Item = (NodeId, VmemmapFallback)> + '_ {
        self.parts.iter().enumerate().filter_map(|(index, part)| match part {
            Part::Absent(cause) => Some((NodeId::new(index)?, *cause)),
            _ => None,
        })
    }

    /// Returns the bytes of the array and of its page tables.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = |part: &Part| match part {
            Part::Present { memory, sections, .. } => memory.size().max(sections * PART_BYTES),
            Part::None | Part::Absent(_) => 0,
        };
        self.parts.iter().map(bytes).sum()
    }

    /// Returns the frames of each node's part of the array, in whole blocks, without page tables
    /// and without what describes only part of a section. They are managed memory that the manager
    /// has allocated to itself, so that they can be freed piece by piece.
    pub(crate) fn frames(&self) -> impl Iterator<Item = PfnRange> + '_ {
        self.parts.iter().filter_map(|part| match part {
            Part::Present { memory, sections, .. } if !memory.is_empty() => {
                let start = memory.start / PAGE_SIZE;
                Some(PfnRange::new(start, start + sections * PAGES_PER_BLOCK))
            }
            _ => None,
        })
    }

    /// Gives everything back before it is used. All nodes are then without an array, for `cause`.
    pub(crate) fn give_back<P: Platform>(
        &mut self,
        early: &mut Memblock<'_, P>,
        space: &dyn VmemmapSpace,
        segments: SegmentsOfNodes<'_>,
        cause: VmemmapFallback,
    ) {
        // In reverse order, because the nodes before a node decide which sections are its own.
        for index in (0..self.parts.len()).rev() {
            let (before, rest) = self.parts.split_at_mut(index);
            if let (Some(part), Some(node)) = (rest.first_mut(), NodeId::new(index))
                && let Part::Present { memory, handed_pages, .. } = *part
            {
                let own = Own { segments, node, before, without: None };
                give_part_back(early, space, &own, u32::MAX, memory, handed_pages);
                *part = Part::Absent(cause);
            }
        }
    }
}

/// Returns the sections that a segment touches.
fn sections_of(segment: &Segment) -> Range<u32> {
    segment.start.0 / BLOCKS_PER_CALL..segment.end().0.div_ceil(BLOCKS_PER_CALL)
}

/// All segments, ascending, and the node of each.
#[derive(Clone, Copy)]
pub(crate) struct SegmentsOfNodes<'a> {
    pub(crate) directory: &'a [Segment],
    pub(crate) node_of: &'a dyn Fn(&Segment) -> NodeId,
}

impl<'a> SegmentsOfNodes<'a> {
    /// Returns the sections with memory of a node, ascending, each once.
    pub(crate) fn sections(self, node: NodeId) -> impl Iterator<Item = u32> + 'a {
        let Self { directory, node_of } = self;
        let mut next = 0;
        directory.iter().filter(move |segment| node_of(segment) == node).flat_map(move |segment| {
            let sections = sections_of(segment);
            let start = sections.start.max(next);
            next = sections.end.max(next);
            start..sections.end
        })
    }
}

/// The sections of a node that no earlier node populated; `before` has those nodes' parts. If the
/// border of two nodes lies inside a section, the first node has the section for both.
struct Own<'a> {
    segments: SegmentsOfNodes<'a>,
    node: NodeId,
    before: &'a [Part],
    /// Pages that need no array.
    without: Option<&'a BootPages>,
}

impl Own<'_> {
    fn sections(&self) -> impl Iterator<Item = u32> {
        self.segments.sections(self.node).filter(|&section| self.is_own(section))
    }

    #[inline(never)]
    fn is_own(&self, section: u32) -> bool {
        if self.without.is_some_and(|without| without.blocks_of(section) == u64::MAX) {
            return false;
        }
        let SegmentsOfNodes { directory, node_of } = self.segments;
        let blocks = blocks_of(section);
        let first = directory.partition_point(|segment| segment.end() <= blocks.start);
        let mut touching = directory[first..].iter().take_while(|it| it.start < blocks.end);
        !touching.any(|segment| {
            matches!(self.before.get(node_of(segment).index()), Some(Part::Present { .. }))
        })
    }
}

/// Returns the blocks of a section that are not in `without`, in runs.
fn runs_of(section: u32, without: u64) -> impl Iterator<Item = BlockRange> {
    let first = section * BLOCKS_PER_CALL;
    let mut next = 0;
    core::iter::from_fn(move || {
        let start = next + without.checked_shr(next)?.trailing_ones();
        let blocks = without.checked_shr(start)?.trailing_zeros().min(BLOCKS_PER_CALL - start);
        next = start + blocks;
        Some(BlockRange::new(first + start, first + next))
    })
}

/// Returns the number of frames for the parts of sections that are described only in part, and for
/// their own tables.
fn small_pages(sections: impl Iterator<Item = u32>, without: &BootPages) -> u64 {
    let partly = sections
        .map(|section| without.blocks_of(section))
        .filter(|&bits| bits != 0 && bits != u64::MAX);
    let pages = |bits: u64| (u64::from(bits.count_zeros()) + 1) * VMEMMAP_PAGES_PER_BLOCK;
    partly.map(pages).sum::<u64>()
}

const fn blocks_of(section: u32) -> BlockRange {
    BlockRange::new(section * BLOCKS_PER_CALL, (section + 1) * BLOCKS_PER_CALL)
}

// Not inlined, here and below, because each function has 4 KiB of unflushed frames on the stack.
#[inline(never)]
fn obtain_part<P: Platform>(
    early: &mut Memblock<'_, P>,
    space: &dyn VmemmapSpace,
    own: &Own<'_>,
    without: &BootPages,
) -> Part {
    let sections = || own.sections();
    let count = sections().filter(|&section| without.blocks_of(section) == 0).count() as u64;
    let mut memory = PhysRange::new(0, 0);
    if space.takes_frames() {
        let tables = tables_for(sections()) + small_pages(sections(), without);
        let size_bytes = count * PART_BYTES + tables * PAGE_SIZE;
        let request = MemblockRequest {
            node: NodeChoice::Exact(own.node),
            zeroed: false,
            ..MemblockRequest::new(size_bytes, PART_BYTES)
        };
        memory = match early.allocate_table(&request, own.node) {
            Ok(memory) => memory,
            Err(error) => return Part::Absent(VmemmapFallback::NoMemory(error)),
        };
    }
    let mut frames = Frames::new(memory);
    let mut unflushed = Unflushed::new();
    for section in sections() {
        let mut runs = runs_of(section, without.blocks_of(section));
        // SAFETY: this is bring-up: nobody else has the space, and no descriptor is in use yet
        // (invariants 28 and 42).
        let mut populate = |blocks| unsafe { space.populate(blocks, &mut frames, &mut unflushed) };
        let populated = runs.try_for_each(&mut populate);
        if unflushed.room() == 0 || populated.is_err() {
            // What left the tables came from this memory and is not used again.
            // SAFETY: filled above by this space (invariant 12).
            let _ = unsafe { space.flush(core::mem::take(&mut unflushed)) };
        }
        if let Err(error) = populated {
            give_part_back(early, space, own, section, memory, frames.handed_pages);
            return Part::Absent(VmemmapFallback::NoPageTable(error));
        }
    }
    // One flush suffices for all sections, because nobody has read the array yet.
    // SAFETY: filled above by this space (invariant 12).
    let _ = unsafe { space.flush(unflushed) };
    Part::Present { memory, handed_pages: frames.handed_pages, sections: count }
}

/// Makes the sections up to `last` absent. Their memory is freed if all of it came out of the
/// tables. Otherwise it stays reserved, because nobody may write into a table.
#[inline(never)]
fn give_part_back<P: Platform>(
    early: &mut Memblock<'_, P>,
    space: &dyn VmemmapSpace,
    own: &Own<'_>,
    last: u32,
    memory: PhysRange,
    handed_pages: u64,
) {
    let mut returned_pages = 0;
    for section in own.sections().take_while(|&section| section <= last) {
        let mut unflushed = Unflushed::new();
        // A whole section that is one mapping needs no preparation; what cannot be made absent
        // shows in the sum.
        // SAFETY: this is bring-up: nobody else has the space, and no descriptor is in use yet
        // (invariants 28 and 42).
        let _ = unsafe { space.evict(blocks_of(section), &mut unflushed) };
        // SAFETY: filled just now by this space (invariant 12).
        returned_pages += unsafe { space.flush(unflushed) }.pages();
    }
    if !memory.is_empty() && returned_pages == handed_pages {
        // The memory was allocated just now, so this cannot fail; if it did, the memory would stay
        // reserved.
        // SAFETY: the memory was allocated for this part of the array, and all of it came out of
        // the tables again.
        let _ = unsafe { early.free(memory) };
    }
}

/// Returns the number of frames for the page tables of these sections: each table maps 512 of what
/// the level below it maps.
fn tables_for(sections: impl Iterator<Item = u32>) -> u64 {
    const SHARED: u64 = 2;
    let (mut tables, mut last) = (SHARED, [u32::MAX; 2]);
    for section in sections {
        // Each section has 2 MiB of array: one table for 512 of them, and one for 512 of those.
        for (last, shift) in last.iter_mut().zip([9, 18]) {
            if core::mem::replace(last, section >> shift) != section >> shift {
                // The array need not begin where a table does.
                tables += 2;
            }
        }
    }
    tables
}

/// The frames of one early allocation: parts of the array from the bottom, page tables from the
/// top.
struct Frames {
    below: u64,
    above: u64,
    handed_pages: u64,
}

impl Frames {
    const fn new(memory: PhysRange) -> Self {
        Self { below: memory.start / PAGE_SIZE, above: memory.end / PAGE_SIZE, handed_pages: 0 }
    }
}

// SAFETY: the frames were reserved for this and nothing else, and each is given once unless it was
// put back (invariant 3).
unsafe impl FrameSource for Frames {
    fn take(&mut self, order: Order) -> Option<Pfn> {
        let pages = order.pages();
        let start = if order >= Order::BLOCK {
            let start = self.below.next_multiple_of(pages);
            let end = start.checked_add(pages).filter(|&end| end <= self.above)?;
            self.below = end;
            start
        } else {
            let start = self.above.checked_sub(pages)? / pages * pages;
            if start < self.below {
                return None;
            }
            self.above = start;
            start
        };
        self.handed_pages += pages;
        Some(Pfn(start))
    }

    unsafe fn put_back(&mut self, start: Pfn, order: Order) {
        // Frames that were not given last are lost until all of the memory is given back.
        if start.0 + order.pages() == self.below && order >= Order::BLOCK {
            self.below = start.0;
        } else if start.0 == self.above {
            self.above = start.0 + order.pages();
        }
        self.handed_pages -= order.pages();
    }
}

/// Returns the range of a zone's sections that are deferred (Linux: `mm/mm_init.c`, `defer_init`).
/// It begins at the first frame, aligned to a section, up to and including which more frames than a
/// section has were counted. `runs` is the zone's memory, ascending. None if no section is
/// deferred.
#[must_use]
pub fn deferred_sections(runs: impl Iterator<Item = PfnRange>) -> Option<Range<u32>> {
    let (mut counted, mut first, mut end) = (0, None, 0);
    for run in runs {
        let enough = run.start.0 + SECTION_PAGES.saturating_sub(counted);
        let candidate = enough.next_multiple_of(SECTION_PAGES);
        if first.is_none() && candidate < run.end.0 {
            first = Some(candidate / SECTION_PAGES);
        }
        counted += run.pages();
        end = run.end.0;
    }
    let first = u32::try_from(first?).ok()?;
    Some(first..u32::try_from(end.div_ceil(SECTION_PAGES)).ok()?)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    const S: u64 = SECTION_PAGES;

    #[test]
    fn deferral_begins_after_a_section_was_counted() {
        let sections = |runs: &[(u64, u64)]| {
            deferred_sections(runs.iter().map(|&(start, end)| PfnRange::new(start, end)))
        };
        // A zone on a section boundary without holes defers from its second section.
        assert_eq!(sections(&[(2 * S, 10 * S)]), Some(3..10));
        // A zone that begins inside a section counts a whole section first.
        assert_eq!(sections(&[(S + 1, 10 * S)]), Some(3..10));
        assert_eq!(sections(&[(2 * S - 1, 10 * S)]), Some(3..10));
        // Holes are not counted.
        assert_eq!(sections(&[(0, S / 2), (5 * S, 10 * S)]), Some(6..10));
        assert_eq!(sections(&[(0, S / 2), (S / 2 + 5, 10 * S)]), Some(2..10));
        // A zone that ends before that defers nothing.
        assert_eq!(sections(&[(0, S)]), None);
        assert_eq!(sections(&[(0, S + 1)]), Some(1..2));
        assert_eq!(sections(&[]), None);
    }

    #[test]
    fn by_counting_frames_one_by_one() {
        let slow = |runs: &[PfnRange]| {
            let mut counted = 0;
            for run in runs {
                for pfn in run.start.0..run.end.0 {
                    counted += 1;
                    if pfn.is_multiple_of(S) && counted > S {
                        return Some(pfn / S);
                    }
                }
            }
            None
        };
        let mut seed = 7_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..50 {
            let (mut runs, mut at) = (Vec::new(), random(2 * S));
            for _ in 0..4 {
                let end = at + 1 + random(S);
                runs.push(PfnRange::new(at, end));
                at = end + 1 + random(S / 2);
            }
            let fast =
                deferred_sections(runs.iter().copied()).map(|sections| u64::from(sections.start));
            assert_eq!(fast, slow(&runs), "{runs:?}");
        }
    }

    #[test]
    fn runs_are_all_that_is_not_left_out() {
        let mut seed = 1_u64;
        for round in 0..200 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let without = [0, u64::MAX, seed, seed | seed >> 17, 1 << 63, 1][round % 6];
            let mut bits = 0;
            for run in runs_of(3, without) {
                for block in run.start.0..run.end.0 {
                    bits |= 1 << (block - 3 * BLOCKS_PER_CALL);
                }
            }
            assert_eq!(bits, !without, "{without:#x}");
        }
    }

    #[test]
    fn frames_come_from_both_ends() {
        let mut frames = Frames::new(PhysRange::new(2 << 20, 6 << 20));
        let page = frames.take(Order::PAGE);
        assert_eq!(page, Some(Pfn(1535)));
        assert_eq!(frames.take(Order::BLOCK), Some(Pfn(512)));
        assert_eq!(frames.take(Order::BLOCK), None, "a page of it is gone");
        // SAFETY: taken above, and nobody uses it.
        unsafe { frames.put_back(Pfn(1535), Order::PAGE) };
        assert_eq!(frames.take(Order::BLOCK), Some(Pfn(1024)));
        assert_eq!(frames.handed_pages, 1024);
        assert_eq!(frames.take(Order::PAGE), None);
    }
}
