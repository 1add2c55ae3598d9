//! The rows of a CPU whose own node has no memory left, beside those of a CPU whose node has some.
//!
//! The machine has two nodes; the usual call, which prefers the caller's node, is measured.

use super::Scale;
use super::crew;
use super::patterns;
use super::rows::{Rows, Title};
use crate::bench::common::failed;
use crate::bench::subject::{Ours, Subject};
use crate::progress;
use framewright::memblock::NodeChoice;
use framewright::units::{NodeId, Order, PfnRange};
use framewright::{Request, zone::MigrateType};
use framewright_cli::error::Error;

/// The names of the rows: the CPU's own node has memory, or all of it is taken.
pub const PATTERNS: [&str; 2] = ["own node pair", "away pair"];
/// The orders that are measured.
const ORDERS: [u8; 2] = [0, 9];

/// Measures both, on nodes of this many GiB each.
///
/// # Errors
/// Fails if a machine cannot be emulated by this process, or if memory comes from the wrong node,
/// so that both patterns would be alike.
pub fn measure(rows: &mut Rows, node_gib: u64, scale: Scale) -> Result<(), Error> {
    progress::step(&format_args!("alloc: {}, own node full", Ours::NAME))?;
    Ours::with_nodes(node_gib << 31, 2, 2, |ours| {
        for (pattern, is_away) in PATTERNS.into_iter().zip([false, true]) {
            let taken = if is_away { crew::alone(ours, || fill(ours))? } else { Vec::new() };
            for order in ORDERS.into_iter().filter_map(Order::new) {
                crew::alone(ours, || check(ours, order, is_away))??;
                let samples = crew::run(ours, 1, |member| {
                    patterns::pair(ours, member, order, scale.operations, scale.effort)
                })?;
                let title = Title {
                    allocator: Ours::NAME,
                    managed_gib: node_gib,
                    order,
                    pattern,
                    threads: 1,
                    working_set: 1,
                };
                rows.add(title, samples.into_iter().collect(), Vec::new());
            }
            crew::alone(ours, || {
                for range in taken {
                    // SAFETY: allocated below for this purpose and not used for anything (invariant
                    // 42).
                    let freed = unsafe { ours.manager().free(range) };
                    debug_assert!(freed.is_ok(), "{freed:?}");
                }
            })?;
        }
        Ok(())
    })
}

/// Checks that runs come from the node that the pattern says: if filling had left some of the own
/// node's memory, both patterns would be alike, and their ratio 1.
fn check(ours: &Ours<'_>, order: Order, is_away: bool) -> Result<(), Error> {
    let order_shown = order.get();
    let start = ours.get(order).ok_or_else(|| failed(format!("no run of order {order_shown}")))?;
    let own = ours.manager().nodes().iter().find(|node| node.id == NodeId::ZERO);
    let is_own = own.is_some_and(|node| (node.span.start.0..node.span.end.0).contains(&start));
    ours.put(start, order);
    if is_own == is_away {
        let [found, wanted] = [is_own, !is_away].map(|own| if own { "own" } else { "other" });
        return Err(failed(format!(
            "a run of order {order_shown} came from the {found} node rather than the {wanted} one"
        )));
    }
    Ok(())
}

/// Allocates all memory of the node of CPU 0.
fn fill(ours: &Ours<'_>) -> Vec<PfnRange> {
    let mut taken = Vec::new();
    for order in (0..=Order::MAX.get()).rev().filter_map(Order::new) {
        let request = Request {
            node: NodeChoice::Exact(NodeId::ZERO),
            migrate_type: MigrateType::Movable,
            ..Request::new(order)
        };
        while let Ok(range) = ours.manager().allocate(&request) {
            taken.push(range);
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_away_once_the_own_node_is_taken() {
        let done = Ours::with_nodes(256 << 20, 2, 2, |ours| {
            crew::alone(ours, || {
                for order in ORDERS.into_iter().filter_map(Order::new) {
                    assert!(check(ours, order, false).is_ok() && check(ours, order, true).is_err());
                }
                let taken = fill(ours);
                for order in ORDERS.into_iter().filter_map(Order::new) {
                    assert!(check(ours, order, true).is_ok() && check(ours, order, false).is_err());
                }
                for range in taken {
                    // SAFETY: allocated above and not used for anything (invariant 42).
                    unsafe { ours.manager().free(range) }.expect("it was allocated");
                }
            })
        });
        done.expect("there is such a machine");
    }
}
