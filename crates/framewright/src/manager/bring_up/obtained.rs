//! Memory for the manager's tables.

use super::BringUpError;
use crate::early::{EarlyAllocator, EarlyRequest, NodeChoice};
use crate::platform::Platform;
use crate::units::{NodeId, PAGE_SIZE, PhysRange};

/// Memory for the manager's tables, given back unless bring-up succeeds.
pub(in crate::manager) struct Obtained<'a, 'b, P: Platform> {
    pub(super) early: &'a mut EarlyAllocator<'b, P>,
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
        let request = EarlyRequest {
            node: NodeChoice::Preferred(node),
            zeroed,
            ..EarlyRequest::new(size_bytes.next_multiple_of(PAGE_SIZE), PAGE_SIZE)
        };
        let range = self.early.allocate(&request).map_err(|cause| BringUpError::NoRoomForTables {
            what,
            size_bytes,
            node,
            cause,
        })?;
        self.bytes += range.size();
        Ok(range)
    }

    pub(super) fn give_back(&mut self, range: PhysRange) {
        // It was allocated just now, so that this cannot fail; if it did, the range would stay reserved.
        // SAFETY: `range` was obtained for tables of a manager that is not made after all; nobody looks at them again.
        let _ = unsafe { self.early.free(range) };
    }
}
