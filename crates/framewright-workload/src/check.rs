//! Checks whether an allocation matches its request.

use framewright::memblock::NodeChoice;
use framewright::units::{Order, PfnRange};
use framewright::zone::ZoneKind;
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
        NodeChoice::Exact(node) => manager.nodes().get(node.index()).is_some_and(|node| {
            !node.span.is_empty() && node.span.start <= range.start && range.end <= node.span.end
        }),
        NodeChoice::Any | NodeChoice::Preferred(_) => true,
    };
    range.pages() == request.pages
        && range.start.is_aligned(order.max(request.align))
        && range.end.address() <= request.max_address
        && ZoneKind::of(range.start) <= request.zone
        && (request.boundary_pages == 0
            || range.start.0 / request.boundary_pages == last / request.boundary_pages)
        && on_node
}
