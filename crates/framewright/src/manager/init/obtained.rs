//! Memory for the manager's tables.

use crate::manager::init::error::BringUpError;
use crate::memblock::{Memblock, MemblockRequest, NodeChoice, Tables};
use crate::parameters::Parameters;
use crate::platform::Platform;
use crate::units::{NodeId, PAGE_SIZE, PhysRange, PoolSize};
use crate::zone::Zone;

/// The ranges that serve the whole machine: zones and directory, debug aids, the state of the
/// vmemmap.
pub(crate) const MOST_RANGES: usize = 3;

/// Memory for the manager's tables. Ranges that serve the whole machine are given back when this is
/// dropped, unless [`keep`](Self::keep) was called. A zone knows its own table, which
/// [`give_tables_back`](Self::give_tables_back) gives back: a list of all of them would take 3 KiB
/// of the stack, and a booting kernel has some 16 KiB.
pub(crate) struct Obtained<'a, 'b, P: Platform> {
    pub(crate) early: &'a mut Memblock<'b, P>,
    /// The size of everything that was obtained.
    pub(crate) bytes: u64,
    ranges: [PhysRange; MOST_RANGES],
    count: usize,
}

impl<'a, 'b, P: Platform> Obtained<'a, 'b, P> {
    pub(crate) const fn new(early: &'a mut Memblock<'b, P>) -> Self {
        Self { early, bytes: 0, ranges: [PhysRange::new(0, 0); MOST_RANGES], count: 0 }
    }

    /// Takes memory for the tables of a zone, and notes the range in the zone.
    pub(crate) fn take_table(
        &mut self,
        size_bytes: u64,
        zone: &mut Zone,
    ) -> Result<PhysRange, BringUpError> {
        let range = self.allocate("block tables", size_bytes, zone.id().node, false)?;
        zone.set_table_memory(range);
        Ok(range)
    }

    /// Gives back what was taken after the first range: the other ranges and the zones' tables. All
    /// goes back in the order opposite to that in which it was taken: what goes is at the end of
    /// what is left, so that the list of reserved ranges needs no place for a gap.
    pub(crate) fn give_tables_back(&mut self, zones: &[Zone]) {
        while self.count > 1 {
            self.give_last_back();
        }
        for zone in zones.iter().rev().filter(|zone| !zone.table_memory().is_empty()) {
            self.give_back(zone.table_memory());
        }
    }

    fn give_last_back(&mut self) {
        self.count -= 1;
        self.give_back(self.ranges[self.count]);
    }

    fn give_back(&mut self, range: PhysRange) {
        // The range was allocated here, and makes no gap, so this cannot fail; if it did, the range
        // would stay reserved.
        // SAFETY: `range` was obtained for tables of a manager that is not made after all; nobody
        // uses them again.
        let _ = unsafe { self.early.free(range) };
    }

    /// Keeps all ranges, as nothing can fail any more. Returns where the tables lie that belong to
    /// no zone.
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

    /// [`take`](Self::take) of memory that is cleared.
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
        while self.count != 0 {
            self.give_last_back();
        }
    }
}

/// Decides where tables go, depending on the 1 GiB pages that the command line asks for. If it asks
/// for none, tables stay out of low memory; if all memory is low, they leave the largest block
/// whole. If it asks for some, tables go to the edges of memory on their own nodes, near to the
/// CPUs that use them, unless so many pages are wanted that each GiB counts.
pub(crate) fn place_tables<P: Platform>(early: &mut Memblock<'_, P>, parameters: &Parameters) {
    if !cfg!(feature = "pools") {
        return;
    }
    let usual = if early.is_all_low() { Tables::Tight } else { Tables::High };
    let words = &parameters.huge_pages;
    let requested = words.requested(PoolSize::OneGib);
    if requested.pages == 0 {
        // Areas for such pages are made of whole GiB of the remaining memory.
        let areas = words.cma.total_bytes != 0;
        return early.set_tables(if areas { Tables::Edges } else { usual });
    }
    let gigabytes = early.gigabytes();
    let named = requested.nodes();
    let are_short = if named.is_empty() {
        // Each node that has whole free GiB would lose one of them.
        let lost = gigabytes.iter().filter(|&&pages| pages != 0).count() as u64;
        requested.pages.saturating_add(lost) > gigabytes.iter().sum()
    } else {
        named.nodes().any(|node| requested.on_node(node) >= Some(gigabytes[node.index()]))
    };
    early.set_tables(if are_short { Tables::EdgesAnywhere } else { Tables::Edges });
}
