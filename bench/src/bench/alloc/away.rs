//! The rows of a CPU whose own node has no memory left, beside those of the same CPU when it has.
//!
//! The machine has two nodes; what is measured is the usual call, near the caller.

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

/// What the rows are called: the CPU's own node has memory, or all of that is taken.
pub const PATTERNS: [&str; 2] = ["own node pair", "away pair"];
/// Orders that are measured.
const ORDERS: [u8; 2] = [0, 9];

/// Measures both, on nodes of so many GiB each.
///
/// # Errors
/// A machine that this process cannot stand in for; memory that comes from the wrong node, so that
/// the two would be one.
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
                    // SAFETY: allocated below for this and used for nothing (invariant 42).
                    let freed = unsafe { ours.manager().free(range) };
                    debug_assert!(freed.is_ok(), "{freed:?}");
                }
            })?;
        }
        Ok(())
    })
}

/// Looks whether runs come from where the pattern says: if filling had left some of the own node's
/// memory, both patterns would be one, and their ratio 1.
fn check(ours: &Ours<'_>, order: Order, is_away: bool) -> Result<(), Error> {
    let order_shown = order.get();
    let start = ours.get(order).ok_or_else(|| failed(format!("no run of order {order_shown}")))?;
    let own = ours.manager().nodes().iter().find(|node| node.id == NodeId::ZERO);
    let is_own = own.is_some_and(|node| (node.span.start.0..node.span.end.0).contains(&start));
    ours.put(start, order);
    if is_own == is_away {
        let [found, wanted] = [is_own, !is_away].map(|own| if own { "own" } else { "other" });
        return Err(failed(format!(
            "a run of order {order_shown} is of the {found} node rather than the {wanted}"
        )));
    }
    Ok(())
}

/// All memory of the node of CPU 0.
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
                    // SAFETY: allocated above and used for nothing (invariant 42).
                    unsafe { ours.manager().free(range) }.expect("it was allocated");
                }
            })
        });
        done.expect("there is such a machine");
    }
}
