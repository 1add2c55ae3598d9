//! Checks whether an allocation matches its request.

use framewright::memblock::NodeChoice;
use framewright::units::{Order, PfnRange};
use framewright::{Manager, Platform, Request};

/// Whether `range` satisfies `request`.
pub(crate) fn is_as_asked<P: Platform>(
    manager: &Manager<P>,
    request: &Request,
    range: PfnRange,
) -> bool {
    let Some(order) = Order::for_pages(request.pages) else { return false };
    let last = range.end.0.saturating_sub(1);
    let on_node = match request.node {
        // Checked by the node's segments, because another node's memory may lie in a hole of its
        // span.
        NodeChoice::Exact(node) => {
            let of_node = manager.zones().iter().filter(|zone| zone.id().node == node);
            of_node.flat_map(|zone| zone.segments()).any(|segment| {
                segment.start.start() <= range.start && range.end <= segment.end().start()
            })
        }
        NodeChoice::Any | NodeChoice::Preferred(_) => true,
    };
    range.pages() == request.pages
        && range.start.is_aligned(order.max(request.align))
        && range.end.address() <= request.max_address
        && range.end <= request.zone.reach()
        && (request.boundary_pages == 0
            || range.start.0 / request.boundary_pages == last / request.boundary_pages)
        && on_node
}
