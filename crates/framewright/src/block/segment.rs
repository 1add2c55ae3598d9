//! Segments: runs of blocks of one zone, and the directory that finds the segment of a block.

use crate::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;
use core::ops::Range;

/// Holes of up to this many blocks (128 MiB) do not end a segment. Bridging a hole costs at most 5
/// KiB of table; another segment in the directory slows down every lookup.
pub(crate) const BRIDGED_BLOCKS: u32 = 64;

/// A run of blocks of one zone that is described by consecutive entries of the zone's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The first block.
    pub start: BlockNumber,
    /// The number of blocks.
    pub blocks: u32,
    /// The index of the first block's entry.
    pub(crate) index: u32,
    /// The number of the zone in the manager.
    pub(crate) zone: u16,
}

impl Segment {
    pub(crate) const EMPTY: Self = Self { start: BlockNumber(0), blocks: 0, index: 0, zone: 0 };

    /// Returns one past the last block.
    #[must_use]
    pub const fn end(&self) -> BlockNumber {
        BlockNumber(self.start.0 + self.blocks)
    }

    /// Returns the indices of the segment's entries.
    pub(crate) const fn indices(&self) -> Range<u32> {
        self.index..self.index + self.blocks
    }

    /// Returns the index of a block, which must lie in the segment.
    pub(crate) const fn index_of(&self, block: BlockNumber) -> u32 {
        self.index + (block.0 - self.start.0)
    }

    /// Returns the block of an index, which must lie in the segment.
    pub(crate) const fn block_of(&self, index: u32) -> BlockNumber {
        BlockNumber(self.start.0 + (index - self.index))
    }

    /// Returns the first index at or after `next` at which this segment may begin. It keeps indices
    /// aligned as blocks are, so that buddies can be computed on indices for every order that the
    /// segment can hold.
    pub(crate) const fn base_from(&self, next: u32) -> u32 {
        let level = if self.blocks == 0 { 0 } else { self.blocks.ilog2() };
        let align = 1 << if level > 9 { 9 } else { level };
        next + (self.start.0.wrapping_sub(next) & (align - 1))
    }
}

/// Returns the segment that holds `block`, among segments in ascending order.
pub(crate) fn find(segments: &[Segment], block: BlockNumber) -> Option<&Segment> {
    let after = segments.partition_point(|segment| segment.start <= block);
    segments[..after].last().filter(|segment| block < segment.end())
}

/// Returns the segment that holds `index`, among the segments of one zone, whose indices ascend.
pub(crate) fn find_index(segments: &[Segment], index: u32) -> Option<&Segment> {
    let after = segments.partition_point(|segment| segment.index <= index);
    segments[..after].last().filter(|segment| segment.indices().contains(&index))
}

/// Returns the offset of a frame in its block.
pub(crate) fn offset_in_block(pfn: Pfn) -> usize {
    usize::try_from(pfn.0 % PAGES_PER_BLOCK).unwrap_or(0)
}

/// Returns the frame `offset` frames into the block at `index`, among the segments of one zone.
pub(crate) fn frame(segments: &[Segment], index: u32, offset: usize) -> Option<Pfn> {
    // Nearly always there is one segment.
    let segment = match segments {
        [only] if only.indices().contains(&index) => only,
        segments => find_index(segments, index)?,
    };
    Some(segment.block_of(index).start().add(offset as u64))
}

/// Returns the run of 2^`order` frames that begins `offset` frames into the block at `index`.
pub(crate) fn run(
    segments: &[Segment],
    index: u32,
    offset: usize,
    order: Order,
) -> Option<PfnRange> {
    let start = frame(segments, index, offset)?;
    Some(PfnRange::of_order(start, order))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bases_keep_buddies() {
        for (start, blocks) in
            [(0, 1), (8, 120), (2048, 1024), (2056, 5000), (3, 2), (700, 511), (700, 512)]
        {
            let segment = Segment { start: BlockNumber(start), blocks, ..Segment::EMPTY };
            for next in [0, 1, 5, 511, 512, 1000] {
                let base = segment.base_from(next);
                let align = 1 << blocks.ilog2().min(9);
                assert!(base >= next && base < next + align);
                assert_eq!(base % align, start % align);
            }
        }
    }

    #[test]
    fn the_directory_finds_blocks_and_holes() {
        let segment =
            |start, blocks, index| Segment { start: BlockNumber(start), blocks, index, zone: 0 };
        let all = [segment(0, 8, 0), segment(100, 50, 12), segment(150, 1, 70)];
        for (block, found) in [
            (0, Some(0)),
            (7, Some(0)),
            (8, None),
            (99, None),
            (149, Some(1)),
            (150, Some(2)),
            (151, None),
        ] {
            assert_eq!(
                find(&all, BlockNumber(block)),
                found.map(|index: usize| &all[index]),
                "{block}"
            );
        }
        assert_eq!(find_index(&all, 11), None);
        assert_eq!(
            find_index(&all, 12).map(|segment| segment.block_of(13)),
            Some(BlockNumber(101))
        );
        assert_eq!(find(&[], BlockNumber(1)), None);
    }
}
