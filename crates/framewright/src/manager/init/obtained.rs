//! Memory for the manager's tables.

use crate::manager::init::error::BringUpError;
use crate::memblock::{Memblock, MemblockRequest, NodeChoice, Tables};
use crate::parameters::Parameters;
use crate::platform::Platform;
use crate::units::{NodeId, PAGE_SIZE, PhysRange, PoolSize};
use crate::zone::Zone;

/// Ranges for the whole machine: zones and directory, debug aids, the state of the vmemmap.
pub(crate) const MOST_RANGES: usize = 3;

/// Memory for the manager's tables. What was obtained for the machine goes back when this is
/// dropped, unless [`keep`](Self::keep) was called; a zone knows its own table, which goes back by
/// [`give_tables_back`](Self::give_tables_back). A list of all of them would be 3 KiB of the stack,
/// of which a kernel has 16 or so when it boots.
pub(crate) struct Obtained<'a, 'b, P: Platform> {
    pub(crate) early: &'a mut Memblock<'b, P>,
    /// All that was obtained, in bytes.
    pub(crate) bytes: u64,
    ranges: [PhysRange; MOST_RANGES],
    count: usize,
}

impl<'a, 'b, P: Platform> Obtained<'a, 'b, P> {
    pub(crate) const fn new(early: &'a mut Memblock<'b, P>) -> Self {
        Self { early, bytes: 0, ranges: [PhysRange::new(0, 0); MOST_RANGES], count: 0 }
    }

    /// The table of a zone, which notes it.
    pub(crate) fn take_table(
        &mut self,
        size_bytes: u64,
        zone: &mut Zone,
    ) -> Result<PhysRange, BringUpError> {
        let range = self.allocate("block tables", size_bytes, zone.id().node, false)?;
        zone.set_table_memory(range);
        Ok(range)
    }

    /// Gives the tables of all zones back that have one.
    pub(crate) fn give_tables_back(&mut self, zones: &[Zone]) {
        for zone in zones.iter().filter(|zone| !zone.table_memory().is_empty()) {
            self.give_back(zone.table_memory());
        }
    }

    fn give_back(&mut self, range: PhysRange) {
        // It was allocated for this, so that this cannot fail; if it did, the range would stay
        // reserved.
        // SAFETY: `range` was obtained for tables of a manager that is not made after all; nobody
        // looks at them again.
        let _ = unsafe { self.early.free(range) };
    }

    /// Nothing can fail any more. Returns where the tables are that are no zone's.
    pub(crate) const fn keep(&mut self) -> [PhysRange; MOST_RANGES] {
        self.count = 0;
        self.ranges
    }

    /// Takes memory for `what` from the memblock allocator.
    pub(crate) fn take(
        &mut self,
        what: &'static str,
        size_bytes: u64,
        node: NodeId,
    ) -> Result<PhysRange, BringUpError> {
        self.take_filled(what, size_bytes, node, false)
    }

    /// [`take`](Self::take), cleared.
    pub(crate) fn take_zeroed(
        &mut self,
        what: &'static str,
        size_bytes: u64,
        node: NodeId,
    ) -> Result<PhysRange, BringUpError> {
        self.take_filled(what, size_bytes, node, true)
    }

    fn take_filled(
        &mut self,
        what: &'static str,
        size_bytes: u64,
        node: NodeId,
        zeroed: bool,
    ) -> Result<PhysRange, BringUpError> {
        let range = self.allocate(what, size_bytes, node, zeroed)?;
        debug_assert!(self.count < MOST_RANGES, "more tables than there can be");
        if let Some(slot) = self.ranges.get_mut(self.count) {
            *slot = range;
            self.count += 1;
        }
        Ok(range)
    }

    fn allocate(
        &mut self,
        what: &'static str,
        size_bytes: u64,
        node: NodeId,
        zeroed: bool,
    ) -> Result<PhysRange, BringUpError> {
        let request = MemblockRequest {
            node: NodeChoice::Preferred(node),
            zeroed,
            ..MemblockRequest::new(size_bytes.next_multiple_of(PAGE_SIZE), PAGE_SIZE)
        };
        let range = self
            .early
            .allocate_table(&request, node)
            .map_err(|cause| BringUpError::NoRoomForTables { what, size_bytes, node, cause })?;
        self.bytes += range.size();
        Ok(range)
    }
}

impl<P: Platform> Drop for Obtained<'_, '_, P> {
    fn drop(&mut self) {
        for number in 0..self.count {
            self.give_back(self.ranges[number]);
        }
    }
}

/// Where tables go: what the pages of 1 GiB on the command line ask for. Without any, tables stay
/// out of low memory, unless all memory is low: then they leave the largest block whole. With some
/// they stay on their nodes, where CPUs are near to them, unless there are so many that each GiB
/// counts.
pub(crate) fn place_tables<P: Platform>(early: &mut Memblock<'_, P>, parameters: &Parameters) {
    if !cfg!(feature = "pools") {
        return;
    }
    let usual = if early.is_all_low() { Tables::Tight } else { Tables::High };
    let words = &parameters.huge_pages;
    let requested = words.requested(PoolSize::OneGib);
    if requested.pages == 0 {
        // Areas for such pages are made of whole GiB of what is left.
        let areas = words.cma.total_bytes != 0;
        return early.set_tables(if areas { Tables::Edges } else { usual });
    }
    let gigabytes = early.gigabytes();
    let named = requested.nodes();
    let are_short = if named.is_empty() {
        // Each node with such pages would lose one.
        let lost = gigabytes.iter().filter(|&&pages| pages != 0).count() as u64;
        requested.pages.saturating_add(lost) > gigabytes.iter().sum()
    } else {
        named.nodes().any(|node| requested.on_node(node) >= Some(gigabytes[node.index()]))
    };
    early.set_tables(if are_short { Tables::EdgesAnywhere } else { Tables::Edges });
}
