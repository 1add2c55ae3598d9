//! The memory map, divided among the nodes.

use super::{MemoryKind, MemoryMap, Topology};
use crate::units::{NodeId, PAGE_SIZE, PfnRange, PhysRange};

/// A run of present frames with one kind on one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeRange {
    /// The frames.
    pub range: PfnRange,
    /// The kind, which always is a present one.
    pub kind: MemoryKind,
    /// The node that they belong to.
    pub node: NodeId,
    /// False if firmware named no node for them and one was chosen.
    pub claimed: bool,
}

/// A [`NodeRange`], or memory that firmware did not name: a run of present frames with one kind on
/// one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRun {
    /// The frames.
    pub range: PfnRange,
    /// The node that they belong to.
    pub node: NodeId,
    /// The kind, which is a present one.
    pub kind: MemoryKind,
    /// Whether these frames of unaccepted memory are accepted by now
    /// ([`RegionFlags::AHEAD`](crate::memblock::RegionFlags::AHEAD)).
    pub is_ahead: bool,
    /// Whether the machine mirrors the memory, or keeps it equally safe
    /// ([`RegionFlags::MIRRORED`](crate::memblock::RegionFlags::MIRRORED)).
    pub is_mirrored: bool,
}

impl From<NodeRange> for MemoryRun {
    fn from(NodeRange { range, kind, node, .. }: NodeRange) -> Self {
        Self { range, node, kind, is_ahead: false, is_mirrored: false }
    }
}

/// Iterator over [`NodeRange`]s, ascending. See [`node_ranges`].
#[derive(Clone, Debug)]
pub struct NodeRanges<'a> {
    map: MemoryMap<'a>,
    topology: &'a Topology<'a>,
    index: usize,
    position: u64,
}

/// Returns all present memory, ascending, cut where the kind or the node changes. A frame that two
/// nodes share (because a claim ends inside it) belongs to the node of its first byte.
#[must_use]
pub fn node_ranges<'a>(map: MemoryMap<'a>, topology: &'a Topology<'a>) -> NodeRanges<'a> {
    NodeRanges { map, topology, index: 0, position: 0 }
}

impl NodeRanges<'_> {
    /// Returns the next run within one range of the map and one claim.
    fn piece(&mut self) -> Option<NodeRange> {
        loop {
            let entry = self.map.ranges().get(self.index)?;
            let start = self.position.max(entry.range.start);
            if !entry.kind.is_present() || start >= entry.range.end {
                self.index += 1;
                continue;
            }
            let owner = self.topology.owner(start);
            let end = owner.end.div_ceil(PAGE_SIZE).saturating_mul(PAGE_SIZE).min(entry.range.end);
            self.position = end;
            return Some(NodeRange {
                range: PhysRange::new(start, end).whole_frames(),
                kind: kind_on(entry.kind, owner.hot_pluggable),
                node: owner.node,
                claimed: owner.claimed,
            });
        }
    }
}

impl Iterator for NodeRanges<'_> {
    type Item = NodeRange;

    fn next(&mut self) -> Option<NodeRange> {
        let mut run = self.piece()?;
        loop {
            // Adjacent pieces that agree are one run, across claims and across ranges of the map: a
            // claim may turn two kinds into one.
            let mut ahead = self.clone();
            match ahead.piece() {
                Some(next)
                    if next.range.start == run.range.end
                        && (next.kind, next.node, next.claimed)
                            == (run.kind, run.node, run.claimed) =>
                {
                    run.range.end = next.range.end;
                    *self = ahead;
                }
                _ => return Some(run),
            }
        }
    }
}

fn kind_on(kind: MemoryKind, hot_pluggable: bool) -> MemoryKind {
    if hot_pluggable { kind.max(MemoryKind::HotPluggable) } else { kind }
}
