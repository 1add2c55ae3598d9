//! Measures how long bring-up works on the memory of each node.

use crate::manager::state::Node;
use crate::platform::Platform;
use crate::units::NodeId;

/// The kind of work that is done for a node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// Putting its free memory into free lists as blocks.
    Zones,
    /// The work before and after that: counting its memory, recording what is reserved, and noting
    /// and describing split blocks.
    Bookkeeping,
}

/// Charges the time between two calls to the node that is being worked on. Work may alternate
/// between nodes.
pub(crate) struct NodeClock<'a, P> {
    platform: &'a P,
    /// The node and the work, and when it began if the platform has a clock.
    current: Option<(NodeId, Work, Option<u64>)>,
}

impl<'a, P: Platform> NodeClock<'a, P> {
    /// Makes a clock that charges no node yet.
    pub(crate) const fn new(platform: &'a P) -> Self {
        Self { platform, current: None }
    }

    /// Charges the time from now on to `node`.
    #[inline(never)]
    pub(crate) fn turn_to(&mut self, nodes: &mut [Node], node: NodeId, work: Work) {
        if self.current.is_none_or(|(current, doing, _)| current != node || doing != work) {
            self.stop(nodes);
            self.current = Some((node, work, self.platform.now_ns()));
        }
    }

    /// Charges the time from now on to no node.
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
