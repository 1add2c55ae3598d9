//! Compaction before anybody asks: nodes are kept from falling into pieces, a little at a time
//! (Linux: `kcompactd` in `mm/compaction.c`).
//!
//! There is no thread here: whoever has one polls. A node's score is the percentage of its free
//! memory that is not in whole blocks, and `compaction_proactiveness` says between which scores it
//! is compacted.
//!
//! ```text
//!   at rest ──score above high──> working ──zones at low──> at rest    looks every 500 ms
//!                                    │ nothing became whole
//!                                    └──────────────────> paused       for 32 s
//! ```

use super::compact::Compacted;
use super::vacate::Budget;
use crate::manager::facets::Moving;
use crate::manager::state::pressure::count;
use crate::platform::Platform;
use crate::units::{MAX_NODES, NodeId, NodeMask, PAGES_PER_BLOCK};
use crate::zone::{ProactiveMarks, weighted_score};

/// How often a node at rest is looked at, as in Linux (`HPAGE_FRAG_CHECK_INTERVAL_MSEC`).
const INTERVAL_NS: u64 = 500_000_000;
/// Intervals that a node is left alone where compaction does not help (`COMPACT_MAX_DEFER_SHIFT`).
const PAUSE: u64 = 64;
/// Runs of a node that one poll moves: 16 MiB of pages, some milliseconds.
const RUNS: u64 = 1 << 12;
/// The rest of the time between two polls that move.
const BREATH_NS: u64 = 20_000_000;

/// Compacts a manager's nodes in the background. One for each manager is enough; several do no harm
/// but do the work twice. Its only state is when each node is due, and which are being worked on.
pub struct Compactor<'m, P: Platform> {
    moving: Moving<'m, P>,
    due_ns: [u64; MAX_NODES],
    /// Nodes that are being compacted, a bit each.
    working: NodeMask,
}

/// How a node's free memory lies.
#[derive(Clone, Copy, Default)]
struct Pieces {
    /// The node's score.
    score: u64,
    /// Blocks that are missing until no zone is above the low mark.
    missing_blocks: u64,
}

impl<'m, P: Platform> Moving<'m, P> {
    /// Compacts nodes in the background whenever it is polled.
    #[must_use]
    pub const fn compactor(self) -> Compactor<'m, P> {
        Compactor { moving: self, due_ns: [0; MAX_NODES], working: NodeMask::EMPTY }
    }

    /// Percent of a node's free memory that is not in whole blocks, zones weighted by their size
    /// (Linux: `fragmentation_score_node` in `mm/compaction.c`). 0 for nodes without memory.
    #[must_use]
    pub fn fragmentation_score(self, node: NodeId) -> u64 {
        self.pieces(node, None).score
    }

    fn pieces(self, node: NodeId, marks: Option<ProactiveMarks>) -> Pieces {
        let zones = || self.manager.views().filter(|zone| zone.id().node == node);
        let node_present: u64 = zones().map(|zone| zone.present_pages()).sum();
        let mut pieces = Pieces::default();
        for zone in zones() {
            let (whole, free) = (zone.free_block_pages(), zone.free_pages());
            let score = (free.saturating_sub(whole) * 100).checked_div(free).unwrap_or(0);
            pieces.score += weighted_score(score, zone.present_pages(), node_present);
            let Some(marks) = marks.filter(|marks| marks.goes_on(score)) else { continue };
            let wanted = free.saturating_mul(100_u64.saturating_sub(marks.low)).div_ceil(100);
            pieces.missing_blocks += wanted.saturating_sub(whole).div_ceil(PAGES_PER_BLOCK);
        }
        pieces
    }
}

impl<P: Platform> Compactor<'_, P> {
    /// Does what is to be done at `now_ns`, by any clock that only goes forward, and says when to
    /// come back. One call moves at most 4096 runs of each node. It does nothing while there is no
    /// mover, where `compaction_proactiveness` is 0, and on nodes that wait for reclaim.
    ///
    /// To be called where a [`Mover`](crate::Mover) may be.
    pub fn poll(&mut self, now_ns: u64) -> u64 {
        let manager = self.moving.manager;
        let mut next = now_ns.saturating_add(INTERVAL_NS);
        let marks = ProactiveMarks::of(manager.sysctl().compaction_proactiveness());
        let Some(marks) = marks.filter(|_| self.moving.mover().is_some()) else {
            self.working = NodeMask::EMPTY;
            return next;
        };
        for node in manager.nodes() {
            let Some(due) = self.due_ns.get_mut(node.id.index()) else { continue };
            if *due <= now_ns {
                let wait = visit(self.moving, node.id, marks, &mut self.working);
                *due = now_ns.saturating_add(wait);
            }
            next = next.min(*due);
        }
        next
    }
}

/// Looks after a node; says how long it can wait.
fn visit<P: Platform>(
    moving: Moving<'_, P>,
    node: NodeId,
    marks: ProactiveMarks,
    working: &mut NodeMask,
) -> u64 {
    let manager = moving.manager;
    let begun = working.contains(node);
    *working = working.without(node);
    let pieces = moving.pieces(node, Some(marks));
    let wanted = if begun { pieces.missing_blocks != 0 } else { marks.begins(pieces.score) };
    // Reclaim makes room first, and what it frees may lie well.
    if !wanted || manager.pressure().is_short(node) {
        return INTERVAL_NS;
    }
    let counters = &manager.moving.counters;
    count(&counters.daemon_wakes, u64::from(!begun));
    let made = moving.compact(Some(node), pieces.missing_blocks.max(1), Budget::runs(RUNS));
    let Ok(Compacted { blocks, is_cut_short, scanned_pages, .. }) = made else {
        return INTERVAL_NS;
    };
    count(&counters.daemon_scanned_pages, scanned_pages);
    if blocks == 0 {
        return PAUSE * INTERVAL_NS;
    }
    if is_cut_short {
        *working = working.with(node);
        return BREATH_NS;
    }
    INTERVAL_NS
}
