//! Segments: runs of blocks of one zone, and the directory that finds the one of a block.

use crate::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;
use core::ops::Range;

/// Holes of up to this many blocks (128 MiB) do not end a segment: bridging one costs 5 KiB of
/// table at most, a segment more in the directory costs every lookup.
pub(crate) const BRIDGED_BLOCKS: u32 = 64;

/// A run of blocks of one zone that is described by consecutive entries of the zone's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// First block.
    pub start: BlockNumber,
    /// Number of blocks.
    pub blocks: u32,
    /// Index of the first block's entry.
    pub(crate) index: u32,
    /// Which of the manager's zones.
    pub(crate) zone: u16,
}

impl Segment {
    pub(crate) const EMPTY: Self = Self { start: BlockNumber(0), blocks: 0, index: 0, zone: 0 };

    /// One past the last block.
    #[must_use]
    pub const fn end(&self) -> BlockNumber {
        BlockNumber(self.start.0 + self.blocks)
    }

    /// The indices of its entries.
    pub(crate) const fn indices(&self) -> Range<u32> {
        self.index..self.index + self.blocks
    }

    /// The index of a block, which must lie in the segment.
    pub(crate) const fn index_of(&self, block: BlockNumber) -> u32 {
        self.index + (block.0 - self.start.0)
    }

    /// The block of an index, which must lie in the segment.
    pub(crate) const fn block_of(&self, index: u32) -> BlockNumber {
        BlockNumber(self.start.0 + (index - self.index))
    }

    /// The first index at or after `next` at which this segment may begin, so that the buddy of an
    /// index is the index of the buddy for every order that the segment can hold.
    pub(crate) const fn base_from(&self, next: u32) -> u32 {
        let level = if self.blocks == 0 { 0 } else { self.blocks.ilog2() };
        let align = 1 << if level > 9 { 9 } else { level };
        next + (self.start.0.wrapping_sub(next) & (align - 1))
    }
}

/// The segment that holds `block`, among segments in ascending order.
pub(crate) fn find(segments: &[Segment], block: BlockNumber) -> Option<&Segment> {
    let after = segments.partition_point(|segment| segment.start <= block);
    segments[..after].last().filter(|segment| block < segment.end())
}

/// The segment that holds `index`, among the segments of one zone, whose indices ascend.
pub(crate) fn find_index(segments: &[Segment], index: u32) -> Option<&Segment> {
    let after = segments.partition_point(|segment| segment.index <= index);
    segments[..after].last().filter(|segment| segment.indices().contains(&index))
}

/// Which frame of its block a frame is.
pub(crate) fn offset_in_block(pfn: Pfn) -> usize {
    usize::try_from(pfn.0 % PAGES_PER_BLOCK).unwrap_or(0)
}

/// The frame `offset` frames into the block at `index`, among the segments of one zone.
pub(crate) fn frame(segments: &[Segment], index: u32, offset: usize) -> Option<Pfn> {
    // Nearly always there is one segment.
    let segment = match segments {
        [only] if only.indices().contains(&index) => only,
        segments => find_index(segments, index)?,
    };
    Some(segment.block_of(index).start().add(offset as u64))
}

/// The 2^`order` frames that begin `offset` frames into the block at `index`.
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
