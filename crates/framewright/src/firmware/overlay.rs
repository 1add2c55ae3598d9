//! The memory map laid over the nodes.

use super::{MemoryKind, MemoryMap, Topology};
use crate::units::{NodeId, PAGE_SIZE, PfnRange, PhysRange};

/// A run of present frames with one kind on one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeRange {
    /// The frames.
    pub range: PfnRange,
    /// Always a kind that is present.
    pub kind: MemoryKind,
    /// Whose they are.
    pub node: NodeId,
    /// False where firmware named no node for them and one was chosen.
    pub claimed: bool,
}

/// A [`NodeRange`], or memory that firmware did not name: a run of present frames with one kind on
/// one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryRun {
    /// The frames.
    pub range: PfnRange,
    /// Whose they are.
    pub node: NodeId,
    /// A kind that is present.
    pub kind: MemoryKind,
    /// Unaccepted frames that are accepted by now
    /// ([`RegionFlags::AHEAD`](crate::memblock::RegionFlags::AHEAD)).
    pub is_ahead: bool,
    /// The machine keeps it twice, or as safe
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

/// All present memory, ascending, cut where the kind or the node changes. A frame that two nodes
/// share (a claim that ends inside a frame) belongs to the node of its first byte.
#[must_use]
pub fn node_ranges<'a>(map: MemoryMap<'a>, topology: &'a Topology<'a>) -> NodeRanges<'a> {
    NodeRanges { map, topology, index: 0, position: 0 }
}

impl NodeRanges<'_> {
    /// The next run within one range of the map and one claim.
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
            // What touches and agrees is one run, across claims and across ranges of the map: a
            // claim may make two kinds one.
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
