//! Reserve areas from the command line, which are set aside when the machine comes up.
//!
//! An area with a given place gets the lowest run of blocks in that place that can be vacated. A
//! run is tried as a whole. If that fails, the next run begins after the last block of the failed
//! run that cannot be part of an area, so that no block is looked at more than a few times.

use super::ContiguousRequest;
use crate::block::MigrateType;
use crate::manager::facets::Moving;
use crate::manager::state::Manager;
use crate::manager::state::areas::AreaName;
use crate::memblock::NodeChoice;
use crate::parameters::{CmaArea, Parameters};
use crate::platform::Platform;
use crate::units::{NodeId, NodeMask, Order, PAGE_SHIFT, PAGE_SIZE, PAGES_PER_BLOCK, PhysRange};
use crate::vmemmap_space::{BlockNumber, BlockRange};

/// The name of areas for 1 GiB pages; a node's number follows it (Linux: `mm/hugetlb_cma.c`).
pub(in crate::manager) const HUGETLB: &str = "hugetlb";

/// An area from the command line.
struct Asked<'a> {
    name: &'a str,
    area: CmaArea,
    node: NodeChoice,
    align: Order,
}

impl<P: Platform> Manager<P> {
    /// Sets aside the areas from the command line; returns the number of bytes that could not be.
    /// The areas of 1 GiB pages come first, as they need the largest runs.
    pub(in crate::manager) fn make_areas(&self, parameters: &Parameters) -> u64 {
        if !cfg!(feature = "moving") {
            return 0;
        }
        let mut failed_bytes = 0_u64;
        let mut fail = |bytes: u64| failed_bytes = failed_bytes.saturating_add(bytes);
        let Parameters { areas, huge_pages, .. } = parameters;
        let with_memory = self.hugetlb().nodes_with_memory(NodeMask::ALL);
        let gigantic_bytes = Order::MAX.pages() * PAGE_SIZE;
        let gigantic = huge_pages.cma.shares(with_memory, gigantic_bytes);
        for (node, bytes) in gigantic {
            fail(self.make_numbered(HUGETLB, bytes, node, Order::MAX));
        }
        if let Some(area) = areas.cma {
            let (node, align) = (NodeChoice::Any, Order::BLOCK);
            fail(self.make_area(&Asked { name: "reserved", area, node, align }));
        }
        for node in with_memory.nodes() {
            let on_node = areas.numa_cma.on_node(node).unwrap_or(0);
            for (name, bytes) in [("pernuma", areas.cma_pernuma_bytes), ("numa", on_node)] {
                fail(self.make_numbered(name, bytes, node, Order::BLOCK));
            }
        }
        // Count what was requested on nodes that do not exist.
        for sizes in [&huge_pages.cma, &areas.numa_cma] {
            let absent = sizes.nodes().nodes().filter(|&node| !with_memory.contains(node));
            absent.filter_map(|node| sizes.on_node(node)).for_each(&mut fail);
        }
        failed_bytes
    }

    /// Makes an area of a node; returns the bytes that could not be set aside.
    fn make_numbered(&self, name: &str, bytes: u64, node: NodeId, align: Order) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let Some(name) = AreaName::numbered(name, node.index()) else { return bytes };
        let area = CmaArea { bytes, within: None };
        self.make_area(&Asked { name: name.as_str(), area, node: NodeChoice::Exact(node), align })
    }

    /// Makes an area in its given place or, without one, low in the highest zone that has a run for
    /// it; returns the bytes that could not be set aside.
    fn make_area(&self, asked: &Asked<'_>) -> u64 {
        let bytes = asked.area.bytes;
        if bytes == 0 || self.try_area(asked) { 0 } else { bytes }
    }

    fn try_area(&self, asked: &Asked<'_>) -> bool {
        let &Asked { name, area, node, align } = asked;
        let Some(name) = AreaName::new(name) else { return false };
        let Some(pages) = area
            .bytes
            .div_ceil(PAGE_SIZE)
            .checked_next_multiple_of(align.pages())
            .filter(|&pages| pages <= u64::MAX >> PAGE_SHIFT)
        else {
            return false;
        };
        let Ok(blocks) = u32::try_from(pages / PAGES_PER_BLOCK) else { return false };
        if let Some(within) = area.within {
            return self.moving().create_within(name, within, blocks);
        }
        let migrate_type = MigrateType::Movable;
        let request =
            ContiguousRequest { node, align, migrate_type, ..ContiguousRequest::new(pages) };
        // Memory that another area lends out looks as free as any other, so skip it by the ranges.
        let taken = self.moving().area_ranges();
        let is_taken = |block: BlockNumber| taken.iter().any(|area| area.contains(block.start()));
        let found = self.moving().find_without(&request, Some(&is_taken));
        found.is_ok_and(|found| {
            let run = run_from(BlockNumber::containing(found.start), blocks);
            self.moving().create_area(name, run).is_ok()
        })
    }
}

impl<P: Platform> Moving<'_, P> {
    /// Makes an area of `blocks` blocks in a place; returns whether there was room for it.
    fn create_within(self, name: AreaName, within: PhysRange, blocks: u32) -> bool {
        let block_bytes = PAGES_PER_BLOCK * PAGE_SIZE;
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let first = number(within.start.div_ceil(block_bytes));
        // Rounded up, the area may be larger than its place.
        let Some(last) = (within.end / block_bytes).checked_sub(u64::from(blocks)) else {
            return false;
        };
        let last = number(last);
        // Only search where there is memory, as `within` may be anything.
        self.manager.directory.iter().any(|segment| {
            let mut start = segment.start.0.max(first);
            let end = segment.end().0.min(last.saturating_add(1));
            // All blocks from `start` up to this one are fit.
            let mut looked = start;
            while start < end {
                let run = run_from(BlockNumber(start), blocks);
                if self.create_area(name, run).is_ok() {
                    return true;
                }
                let unfit = (looked.max(start)..run.end.0).rev().map(BlockNumber);
                looked = run.end.0;
                start = unfit.into_iter().find(|&block| !self.is_fit(block)).map_or(
                    // Something other than these blocks is missing, so no place nearby is better.
                    run.end.0,
                    |unfit| unfit.0 + 1,
                );
            }
            false
        })
    }

    /// Returns whether a block can be part of an area.
    #[inline(never)]
    fn is_fit(self, block: BlockNumber) -> bool {
        let one = run_from(block, 1);
        self.area_in(one).is_none()
            && self.manager.isolation().without_grade(one).is_none()
            && self.manager.isolation().isolate(one).is_ok()
            && {
                let is_fit = self.has_all(one).is_ok()
                    && self.manager.isolation().check_regrade(one).is_ok();
                self.put_back(one);
                is_fit
            }
    }
}

/// Returns the range of `blocks` blocks from `start` on.
fn run_from(start: BlockNumber, blocks: u32) -> BlockRange {
    BlockRange { start, end: BlockNumber(start.0.saturating_add(blocks)) }
}
