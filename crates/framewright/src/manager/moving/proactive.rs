//! Compaction before any request needs it: keeps nodes from fragmenting, a little at a time (Linux:
//! `kcompactd` in `mm/compaction.c`).
//!
//! There is no thread here: the adopter polls from one of its own. A node's score is the percentage
//! of its free memory that is not in whole blocks; `compaction_proactiveness` sets between which
//! scores the node is compacted.
//!
//! ```text
//!   at rest ──score above high──> working ──zones at low──> at rest    looks every 500 ms
//!                                    │ nothing became whole
//!                                    └──────────────────> paused       for 32 s
//! ```
//!
//! Each zone gets as many whole blocks as it needs itself. A poll works on one node, the one that
//! has been due for longest.

use super::compact::Extent;
use super::outcome::Budget;
use crate::manager::ZoneView;
use crate::manager::facets::Moving;
use crate::manager::state::pressure::count;
use crate::platform::Platform;
use crate::units::{MAX_NODES, NodeId, NodeMask, PAGES_PER_BLOCK};
use crate::zone::{ProactiveMarks, weighted_score};

/// How often a node at rest is checked, as in Linux (`HPAGE_FRAG_CHECK_INTERVAL_MSEC`).
const INTERVAL_NS: u64 = 500_000_000;
/// For how many intervals a node is left alone if compaction did not help
/// (`COMPACT_MAX_DEFER_SHIFT`).
const PAUSE: u64 = 64;
/// How many pages one poll moves, and the most runs that it begins: 16 MiB, some milliseconds.
const PAGES: u64 = 1 << 12;
/// The rest between two polls that move memory.
const BREATH_NS: u64 = 20_000_000;

/// Compacts a manager's nodes in the background. One compactor for each manager is enough; several
/// do no harm but do the work twice. Its only state is when each node is due and which nodes it is
/// working on.
pub struct Compactor<'m, P: Platform> {
    moving: Moving<'m, P>,
    due_ns: [u64; MAX_NODES],
    /// The nodes that are being compacted, a bit each.
    working: NodeMask,
}

/// How fragmented a node's free memory is.
#[derive(Clone, Copy, Default)]
struct Pieces {
    /// The node's score.
    score: u64,
    /// Whether any of its zones is above the low mark.
    is_above: bool,
}

impl<'m, P: Platform> Moving<'m, P> {
    /// Returns a compactor, which compacts nodes in the background whenever it is polled.
    #[must_use]
    pub const fn compactor(self) -> Compactor<'m, P> {
        Compactor { moving: self, due_ns: [0; MAX_NODES], working: NodeMask::EMPTY }
    }

    /// Returns the percentage of a node's free memory that is not in whole blocks, with zones
    /// weighted by their size (Linux: `fragmentation_score_node` in `mm/compaction.c`). 0 for nodes
    /// without memory.
    #[must_use]
    pub fn fragmentation_score(self, node: NodeId) -> u64 {
        self.pieces(node, None).score
    }

    fn pieces(self, node: NodeId, marks: Option<ProactiveMarks>) -> Pieces {
        let zones = || self.manager.views().filter(|zone| zone.id().node == node);
        let node_present: u64 = zones().map(|zone| zone.present_pages()).sum();
        let mut pieces = Pieces::default();
        for zone in zones() {
            let score = score_of(&zone);
            pieces.score += weighted_score(score, zone.present_pages(), node_present);
            pieces.is_above |= marks.is_some_and(|marks| marks.goes_on(score));
        }
        pieces
    }
}

/// Returns the percentage of a zone's free memory that is not in whole blocks.
fn score_of<P: Platform>(zone: &ZoneView<'_, P>) -> u64 {
    let (whole, free) = (zone.free_block_pages(), zone.free_pages());
    (free.saturating_sub(whole) * 100).checked_div(free).unwrap_or(0)
}

/// Returns how many more whole blocks a zone needs to get down to the low mark.
fn missing_blocks<P: Platform>(zone: &ZoneView<'_, P>, marks: ProactiveMarks) -> u64 {
    if !marks.goes_on(score_of(zone)) {
        return 0;
    }
    let wanted = zone.free_pages().saturating_mul(100_u64.saturating_sub(marks.low)).div_ceil(100);
    wanted.saturating_sub(zone.free_block_pages()).div_ceil(PAGES_PER_BLOCK)
}

impl<P: Platform> Compactor<'_, P> {
    /// Does the work that is due at `now_ns`, by any clock that only goes forward, and returns when
    /// to poll again. One call moves about 4096 pages of one node. It does nothing if there is no
    /// mover, if `compaction_proactiveness` is 0, and on nodes that wait for reclaim.
    ///
    /// To be called in a context in which a [`Mover`](crate::Mover) may be called.
    pub fn poll(&mut self, now_ns: u64) -> u64 {
        let manager = self.moving.manager;
        let next = now_ns.saturating_add(INTERVAL_NS);
        let marks = ProactiveMarks::of(manager.sysctl().compaction_proactiveness());
        let Some(marks) = marks.filter(|_| self.moving.mover().is_some()) else {
            self.working = NodeMask::EMPTY;
            return next;
        };
        let mut visited = NodeMask::EMPTY;
        while let Some(node) = self.longest_due(now_ns, visited) {
            visited = visited.with(node);
            let (wait, has_moved) = visit(self.moving, node, marks, &mut self.working);
            self.due_ns[node.index()] = now_ns.saturating_add(wait);
            if has_moved {
                break;
            }
        }
        let due = manager.nodes().iter().filter_map(|node| self.due_ns.get(node.id.index()));
        // Nodes that were left for later are due after a rest, too.
        due.map(|&due| due.max(now_ns.saturating_add(BREATH_NS))).fold(next, u64::min)
    }

    /// Returns the node that has been due for longest among those not visited yet.
    fn longest_due(&self, now_ns: u64, visited: NodeMask) -> Option<NodeId> {
        let due = |node: NodeId| self.due_ns.get(node.index()).copied();
        let nodes = self.moving.manager.nodes().iter().map(|node| node.id);
        nodes
            .filter(|&node| !visited.contains(node))
            .filter_map(|node| Some((due(node).filter(|&due| due <= now_ns)?, node)))
            .min_by_key(|&(due, _)| due)
            .map(|(_, node)| node)
    }
}

/// Compacts a node if necessary; returns how long it can wait, and whether anything was moved.
fn visit<P: Platform>(
    moving: Moving<'_, P>,
    node: NodeId,
    marks: ProactiveMarks,
    working: &mut NodeMask,
) -> (u64, bool) {
    let manager = moving.manager;
    let begun = working.contains(node);
    *working = working.without(node);
    let pieces = moving.pieces(node, Some(marks));
    let wanted = if begun { pieces.is_above } else { marks.begins(pieces.score) };
    // Reclaim makes room first, and may itself free whole blocks.
    if !wanted || manager.pressure().is_short(node) {
        return (INTERVAL_NS, false);
    }
    let counters = &manager.moving.counters;
    count(&counters.daemon_wakes, u64::from(!begun));
    let zones = || {
        let of_node = manager.views().filter(|zone| zone.id().node == node);
        of_node.map(|zone| (zone.id(), missing_blocks(&zone, marks))).filter(|zone| zone.1 != 0)
    };
    // A zone whose owners do not respond gets no more than its share.
    let share = PAGES / (zones().count() as u64).max(1);
    let (mut blocks, mut has_moved) = (0, false);
    for (id, missing) in zones() {
        let extent =
            Extent { blocks: missing, most_pages: share, in_pieces: false, is_movable: true };
        let made = moving.compact_where(&|zone| zone.id() == id, extent, Budget::runs(share));
        count(&counters.daemon_scanned_pages, made.scanned_pages);
        blocks += made.blocks;
        has_moved |= made.moved.moved_runs != 0;
    }
    if blocks == 0 {
        return (PAUSE * INTERVAL_NS, has_moved);
    }
    // The next poll counts anew what is missing.
    *working = working.with(node);
    (BREATH_NS, true)
}
