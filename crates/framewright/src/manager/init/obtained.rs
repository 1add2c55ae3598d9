//! Memory for the manager's tables.

use super::BringUpError;
use crate::memblock::{Memblock, MemblockRequest, NodeChoice, Tables};
use crate::parameters::Parameters;
use crate::platform::Platform;
use crate::units::PoolSize;
use crate::units::{NodeId, PAGE_SIZE, PhysRange};

/// Memory for the manager's tables, given back unless bring-up succeeds.
pub(in crate::manager) struct Obtained<'a, 'b, P: Platform> {
    pub(super) early: &'a mut Memblock<'b, P>,
    pub(super) bytes: u64,
}

impl<P: Platform> Obtained<'_, '_, P> {
    pub(super) fn take(
        &mut self,
        what: &'static str,
        size_bytes: u64,
        node: NodeId,
    ) -> Result<PhysRange, BringUpError> {
        self.take_filled(what, size_bytes, node, false)
    }

    /// The same with zeros in it.
    pub(in crate::manager) fn take_zeroed(
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

    pub(super) fn give_back(&mut self, range: PhysRange) {
        // It was allocated just now, so that this cannot fail; if it did, the range would stay
        // reserved.
        // SAFETY: `range` was obtained for tables of a manager that is not made after all; nobody
        // looks at them again.
        let _ = unsafe { self.early.free(range) };
    }
}

/// Where tables go: what the pages of 1 GiB on the command line ask for. Without any, tables stay
/// out of low memory. With some they stay on their nodes, where CPUs are near to them, unless there
/// are so many that each GiB counts.
pub(super) fn place_tables<P: Platform>(early: &mut Memblock<'_, P>, parameters: &Parameters) {
    let words = &parameters.huge_pages;
    let requested = words.requested(PoolSize::OneGib);
    if requested.pages == 0 {
        return early.set_tables(Tables::High);
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
