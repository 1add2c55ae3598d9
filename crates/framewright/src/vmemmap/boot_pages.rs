//! Huge pages from the command line whose memory map is never built (Linux: `mm/hugetlb_vmemmap.c`,
//! `hugetlb_vmemmap_init_early`).
//!
//! They are taken from the memblock allocator before the array gets its memory: whole sections
//! where possible, and any remainder smaller than a section in one piece inside one section. Their
//! part of the array is then never allocated, mapped or written. They are initialised as allocated
//! blocks that the array does not describe, and pools adopt them.

use super::ArrayMemory;
use super::sections::SECTION_PAGES;
use crate::memblock::{Memblock, MemblockRequest, NodeChoice};
use crate::platform::Platform;
use crate::units::{NodeId, Order, PAGE_SIZE, PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap_space::{BLOCKS_PER_CALL, BlockNumber, VMEMMAP_PAGES_PER_BLOCK};

const _: () = assert!(BLOCKS_PER_CALL == u64::BITS, "a section's blocks are the bits of a word");

/// Adjacent pages of one order on one node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BootRange {
    pub(crate) frames: PfnRange,
    pub(crate) order: Order,
    pub(crate) node: NodeId,
}

impl BootRange {
    pub(crate) const EMPTY: Self =
        Self { frames: PfnRange::new(0, 0), order: Order::BLOCK, node: NodeId::ZERO };
}

/// See the module documentation.
pub(crate) struct BootPages {
    ranges: &'static mut [BootRange],
    used: usize,
}

impl BootPages {
    /// The number of ranges that a node can have. If its pages are in more pieces, it gets the rest
    /// of them later, with a map.
    pub(crate) const RANGES_OF_A_NODE: usize = 32;

    pub(crate) fn new(ranges: &'static mut [BootRange]) -> Self {
        Self { ranges, used: 0 }
    }

    pub(crate) fn ranges(&self) -> &[BootRange] {
        self.ranges.get(..self.used).unwrap_or(&[])
    }

    /// Returns the number of blocks in the ranges of nodes that an array describes.
    pub(crate) fn blocks(&self, array: &ArrayMemory) -> u64 {
        let described = self.ranges().iter().filter(|range| array.covers(range.node));
        described.map(|range| range.frames.pages() / PAGES_PER_BLOCK).sum()
    }

    /// Returns whether a frame is in one of the pages.
    pub(crate) fn contains(&self, pfn: Pfn) -> bool {
        self.ranges().iter().any(|range| range.frames.start <= pfn && pfn < range.frames.end)
    }

    /// Returns the blocks of a section that are in such pages, as bits.
    pub(crate) fn blocks_of(&self, section: u32) -> u64 {
        let first = u64::from(section) * SECTION_PAGES;
        let section = PfnRange::new(first, first + SECTION_PAGES);
        self.ranges()
            .iter()
            .map(|range| range.frames.intersection(section))
            .filter(|part| !part.is_empty())
            .fold(0, |bits, part| {
                let start = BlockNumber::containing(part.start).0 % BLOCKS_PER_CALL;
                let blocks = part.pages() / PAGES_PER_BLOCK;
                bits | (u64::MAX >> (u64::from(u64::BITS) - blocks)) << start
            })
    }

    /// Takes up to `pages` pages of `order` on a node, in pieces as large as possible. Pages not
    /// found here are allocated later. Returns how many it took.
    pub(crate) fn choose<P: Platform>(
        &mut self,
        early: &mut Memblock<'_, P>,
        node: NodeId,
        order: Order,
        pages: u64,
    ) -> u64 {
        let limit = (self.used + Self::RANGES_OF_A_NODE / 2).min(self.ranges.len());
        let unit = order.pages().max(SECTION_PAGES);
        let mut left = pages.saturating_mul(order.pages());
        let mut piece = left / unit * unit;
        while piece != 0 && self.used < limit {
            let range = BootRange { frames: PfnRange::new(0, piece), order, node };
            if self.take(early, range, unit) {
                left -= piece;
                piece = piece.min(left / unit * unit);
            } else {
                piece = piece / 2 / unit * unit;
            }
        }
        if left != 0 && left < unit && order == Order::BLOCK && self.used < limit {
            // Aligned to the next power of two, the piece lies in one section.
            let range = BootRange { frames: PfnRange::new(0, left), order, node };
            if self.take(early, range, left.next_power_of_two()) {
                left = 0;
            }
        }
        pages - left / order.pages()
    }

    /// Allocates as many frames as `wanted` has.
    fn take<P: Platform>(
        &mut self,
        early: &mut Memblock<'_, P>,
        wanted: BootRange,
        align_pages: u64,
    ) -> bool {
        let request = MemblockRequest {
            node: NodeChoice::Exact(wanted.node),
            zeroed: false,
            no_init: true,
            ..MemblockRequest::new(wanted.frames.pages() * PAGE_SIZE, align_pages * PAGE_SIZE)
        };
        let Some(slot) = self.ranges.get_mut(self.used) else { return false };
        let Ok(found) = early.allocate(&request) else { return false };
        *slot = BootRange {
            frames: PfnRange::new(found.start / PAGE_SIZE, found.end / PAGE_SIZE),
            ..wanted
        };
        self.used += 1;
        true
    }
}

/// Returns the most frames for such pages on a node with `free_pages` free pages and an array of
/// `sections` sections. The remainder suffices for the rest of the array, which shrinks with each
/// such page, and for the boot.
pub(crate) fn most_frames(free_pages: u64, sections: u64) -> u64 {
    /// 64 MiB.
    const START_PAGES: u64 = 64 << 8;
    let keep = free_pages / 512 + START_PAGES + sections * PAGES_PER_BLOCK;
    free_pages.saturating_sub(keep) / (PAGES_PER_BLOCK - VMEMMAP_PAGES_PER_BLOCK) * PAGES_PER_BLOCK
}
