//! How long bring-up works on the memory of each node.

use crate::manager::state::Node;
use crate::platform::Platform;
use crate::units::NodeId;

/// What is done for a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Its free memory becomes blocks in free lists.
    Zones,
    /// What goes before and comes after: its memory is counted, what is reserved is said, blocks in
    /// pieces are noted and described.
    Bookkeeping,
}

/// Charges the time from turn to turn to the node that is worked on. Work on several nodes may
/// alternate.
pub(crate) struct NodeClock<'a, P> {
    platform: &'a P,
    /// The node and the work, and since when, where the platform has a clock.
    current: Option<(NodeId, Work, Option<u64>)>,
}

impl<'a, P: Platform> NodeClock<'a, P> {
    /// A clock that charges nobody yet.
    pub(crate) const fn new(platform: &'a P) -> Self {
        Self { platform, current: None }
    }

    /// What comes from now on is for `node`.
    #[inline(never)]
    pub(crate) fn turn_to(&mut self, nodes: &mut [Node], node: NodeId, work: Work) {
        if self.current.is_none_or(|(current, doing, _)| current != node || doing != work) {
            self.stop(nodes);
            self.current = Some((node, work, self.platform.now_ns()));
        }
    }

    /// What comes from now on is for nobody.
    #[inline(never)]
    pub(crate) fn stop(&mut self, nodes: &mut [Node]) {
        if let Some((node, work, Some(since))) = self.current.take()
            && let Some(now) = self.platform.now_ns()
            && let Some(node) = nodes.get_mut(node.index())
        {
            let sum =
                if work == Work::Zones { &mut node.init_ns } else { &mut node.bookkeeping_ns };
            *sum = Some(sum.unwrap_or(0) + now.saturating_sub(since));
        }
    }
}
