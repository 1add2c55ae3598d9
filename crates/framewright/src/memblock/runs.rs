//! What the memblock allocator tells bring-up: all memory that it knows, and the nodes.

use super::Memblock;
use super::region::{Region, RegionFlags};
use crate::firmware::{MemoryKind, MemoryRun, Topology};
use crate::platform::Platform;
use crate::units::NodeId;
use core::slice;

impl<'a, P: Platform> Memblock<'a, P> {
    /// Returns the topology, with the nodes whose memory the allocator knows.
    #[must_use]
    pub const fn topology(&self) -> &'a Topology<'a> {
        self.topology
    }

    /// Returns all memory, ascending, reserved or not.
    pub(crate) fn runs(&self) -> MemoryRuns<'_> {
        MemoryRuns(self.memory().iter())
    }
}

/// Iterator over the regions of memory, in the form that zones need.
#[derive(Clone)]
pub(crate) struct MemoryRuns<'a>(slice::Iter<'a, Region>);

impl Iterator for MemoryRuns<'_> {
    type Item = MemoryRun;

    fn next(&mut self) -> Option<MemoryRun> {
        let region = self.0.next()?;
        let kind = if region.flags.contains(RegionFlags::UNACCEPTED) {
            MemoryKind::Unaccepted
        } else if region.flags.contains(RegionFlags::HOT_PLUGGABLE) {
            MemoryKind::HotPluggable
        } else {
            MemoryKind::Conventional
        };
        Some(MemoryRun {
            range: region.range.whole_frames(),
            node: region.node.unwrap_or(NodeId::ZERO),
            kind,
            is_ahead: region.flags.contains(RegionFlags::AHEAD),
            is_mirrored: region.flags.contains(RegionFlags::MIRRORED),
        })
    }
}
