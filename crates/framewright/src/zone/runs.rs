//! Memory cut into zones, with every block given to one zone.

use super::kind::{ZoneId, ZoneKind};
use crate::firmware::{MemoryKind, MemoryRun};
use crate::units::{BLOCK_ORDER, MAX_NODES, NodeId, PAGES_PER_BLOCK, Pfn, PfnRange};
use core::cmp::Reverse;

/// A run of present frames of one zone and kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneRun {
    /// The frames.
    pub range: PfnRange,
    /// The zone in which they are present.
    pub zone: ZoneId,
    /// The kind of memory, one of those that are present.
    pub kind: MemoryKind,
    /// Whether these are unaccepted frames that have been accepted since
    /// ([`RegionFlags::AHEAD`](crate::memblock::RegionFlags::AHEAD)).
    pub is_ahead: bool,
    /// Whether the frames lie in a block that belongs to another zone: present here, managed
    /// nowhere.
    pub stray: bool,
}

/// Iterator over [`ZoneRun`]s, ascending. See [`zone_runs`].
#[derive(Clone, Debug)]
pub struct ZoneRuns<I> {
    rest: I,
    current: Option<MemoryRun>,
    /// The end of the current block and its owner, once that was settled.
    settled: Option<(u64, ZoneId)>,
}

/// Cuts memory, given ascending and disjoint, at zone borders and at the edges of blocks that
/// several zones share. Such a block belongs to the zone with most frames in it, and to the lower
/// one on a tie (docs/architecture.md).
#[must_use]
pub fn zone_runs<I: Iterator<Item = MemoryRun> + Clone>(mut runs: I) -> ZoneRuns<I> {
    let current = runs.next();
    ZoneRuns { rest: runs, current, settled: None }
}

fn zone_of(range: MemoryRun, pfn: Pfn) -> ZoneId {
    ZoneId { node: range.node, kind: ZoneKind::of(pfn) }
}

const fn block_start(pfn: u64) -> u64 {
    pfn >> BLOCK_ORDER << BLOCK_ORDER
}

impl<I: Iterator<Item = MemoryRun> + Clone> ZoneRuns<I> {
    /// The owner of the current position's block, which may hold frames of a second zone. Zone
    /// kinds change at block borders, so only the node can differ.
    fn owner_of_block(&self, current: MemoryRun) -> ZoneId {
        let start = current.range.start;
        let mine = zone_of(current, start);
        if MAX_NODES == 1 {
            return mine;
        }
        let end = block_start(start.0) + PAGES_PER_BLOCK;
        if let Some((settled_end, owner)) = self.settled
            && settled_end == end
        {
            return owner;
        }
        if self.rest.clone().next().is_none_or(|next| next.range.start.0 >= end) {
            return mine;
        }
        // This is the first run in the block: if another before `start` lay in it, its owner would
        // be settled by now.
        let block = PfnRange::new(start.0, end);
        let in_block = || self.rest.clone().take_while(|run| run.range.start.0 < end);
        if in_block().all(|run| run.node == mine.node) {
            return mine;
        }
        let owner = fullest(block, &|look| {
            look(current);
            in_block().for_each(look);
        });
        ZoneId { node: owner.unwrap_or(mine.node), kind: mine.kind }
    }
}

/// What to do with each run.
type Look<'a> = &'a mut dyn FnMut(MemoryRun);

/// The node with most frames in a block, the lower one on a tie. `each` passes every run to its
/// argument. There are few, so all are counted again for each.
#[inline(never)]
fn fullest(block: PfnRange, each: &dyn Fn(Look<'_>)) -> Option<NodeId> {
    let mut most = None;
    each(&mut |one| {
        let mut pages = 0;
        each(&mut |run| {
            if run.node == one.node {
                pages += run.range.intersection(block).pages();
            }
        });
        most = most.max(Some((pages, Reverse(one.node))));
    });
    most.map(|(_, node)| node.0)
}

impl<I: Iterator<Item = MemoryRun> + Clone> Iterator for ZoneRuns<I> {
    type Item = ZoneRun;

    // Not inlined, so that all loops share one copy: each loop visits few runs, and at boot most of
    // the cost of code is its first execution.
    #[inline(never)]
    fn next(&mut self) -> Option<ZoneRun> {
        let current = self.current?;
        let start = current.range.start;
        let zone = zone_of(current, start);
        let owner = self.owner_of_block(current);
        let zone_end = zone.kind.frames().end.0.min(current.range.end.0);
        let block_end = block_start(start.0) + PAGES_PER_BLOCK;
        let end = if MAX_NODES == 1 || owner == zone {
            // The zone's own up to the last block, which another zone may share.
            let last_block = block_start(zone_end);
            if last_block > start.0 { last_block } else { zone_end }
        } else {
            block_end.min(zone_end)
        };
        self.settled = Some((block_end, owner)).filter(|_| end < block_end);
        if end < current.range.end.0 {
            self.current =
                Some(MemoryRun { range: PfnRange::new(end, current.range.end.0), ..current });
        } else {
            self.current = self.rest.next();
        }
        Some(ZoneRun {
            range: PfnRange::new(start.0, end),
            zone,
            kind: current.kind,
            is_ahead: current.is_ahead,
            stray: MAX_NODES != 1 && owner != zone,
        })
    }
}
