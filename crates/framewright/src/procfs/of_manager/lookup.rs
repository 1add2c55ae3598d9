//! What the numbers in a path name.

use crate::manager::{Manager, Node, ZoneView};
use crate::platform::Platform;
use crate::units::NodeId;

/// The node that a file's number names.
pub(super) fn node<'a, P: Platform>(manager: &'a Manager<P>, numbers: &[u64]) -> Option<&'a Node> {
    numbers.first().and_then(|&node| manager.nodes().get(usize::try_from(node).ok()?))
}

/// The zones with memory of a node.
pub(super) fn zones_of<P: Platform>(
    manager: &Manager<P>,
    node: NodeId,
) -> impl Iterator<Item = ZoneView<'static, P>> + Clone + use<P> {
    manager.views().filter(move |zone| zone.id().node == node)
}
