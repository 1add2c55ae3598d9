//! Hot-pluggable memory, which may be taken out later: where it is a last resort, and which nodes
//! only claim to have some (Linux: `mm/memblock.c`, `should_skip_region`, and `mm/numa_memblks.c`,
//! `numa_clear_kernel_node_hotplug`).

use super::Memblock;
use super::region::{Region, RegionFlags};
use crate::firmware::MovableStarts;
use crate::platform::Platform;
use crate::units::{MAX_NODES, NodeId, NodeMask, PAGE_SIZE, PhysRange};

impl<P: Platform> Memblock<'_, P> {
    /// Sets whether to keep hot-pluggable memory free of allocations that cannot be moved, as long
    /// as there is other memory (the parameter `movable_node`). Otherwise it is memory like any
    /// other, as in Linux, because some machines have no other.
    ///
    /// A node in which anything is reserved cannot be removed: its memory is no longer
    /// hot-pluggable from then on. What counts are the reservations at this call, or at the end of
    /// [`start`](Self::start) if that comes later.
    pub fn set_movable_node(&mut self, movable_node: bool) {
        if movable_node && !self.movable_node {
            self.keep_nodes_in_use();
        }
        self.movable_node = movable_node;
    }

    /// Returns, for each successive search, whether hot-pluggable memory will do.
    pub(super) fn hot_pluggable(&self, is_wanted: bool) -> &'static [bool] {
        if self.movable_node && !is_wanted { &[false, true] } else { &[true] }
    }

    /// Clears the hot-pluggable mark of all memory on nodes that cannot be removed.
    #[inline(never)]
    pub(super) fn keep_nodes_in_use(&mut self) {
        if MAX_NODES == 1 {
            // The only node holds all memory and cannot be removed.
            return;
        }
        // The allocator's own arrays are freed when it ends.
        let stays = |region: &&Region| !region.flags.contains(RegionFlags::KERNEL);
        let reserved = self.reserved().iter().filter(stays);
        let in_use = self.nodes_of(reserved.map(|region| region.range));
        let is_wrong = |region: &&Region| {
            region.flags.contains(RegionFlags::HOT_PLUGGABLE) && in_use.contains(node_of(region))
        };
        while let Some(&marked) = self.memory.regions().iter().find(is_wrong) {
            // This adds no region: the changed one joins its neighbours or stays one.
            self.memory.uncover(marked.range);
            let flags = marked.flags.without(RegionFlags::HOT_PLUGGABLE);
            self.memory.cover(&Region { flags, ..marked });
        }
    }

    /// Returns the nodes that have memory in any of `ranges`.
    pub(crate) fn nodes_of(&self, ranges: impl Iterator<Item = PhysRange>) -> NodeMask {
        let found = ranges.flat_map(|range| regions_in(self.memory(), range));
        found.fold(NodeMask::EMPTY, |nodes, region| nodes.with(node_of(region)))
    }

    /// Returns the number of free pages below the start of movable memory on their nodes.
    pub(crate) fn free_pages_outside(&self, movable: &MovableStarts) -> u64 {
        let free_bytes = |region: &Region| {
            let start = movable.on_node(node_of(region)).map_or(u64::MAX, |start| start.address());
            let range = PhysRange::new(region.range.start, region.range.end.min(start));
            let reserved = regions_in(self.reserved(), range);
            let taken: u64 = reserved.map(|found| found.range.intersection(range).size()).sum();
            range.size().saturating_sub(taken)
        };
        self.memory().iter().map(free_bytes).sum::<u64>() / PAGE_SIZE
    }
}

/// Returns the regions of a set that overlap `range`.
fn regions_in(set: &[Region], range: PhysRange) -> impl Iterator<Item = &Region> {
    let first = set.partition_point(|region| region.range.end <= range.start);
    let end = if range.is_empty() { 0 } else { range.end };
    set[first..].iter().take_while(move |region| region.range.start < end)
}

fn node_of(region: &Region) -> NodeId {
    region.node.unwrap_or(NodeId::ZERO)
}
