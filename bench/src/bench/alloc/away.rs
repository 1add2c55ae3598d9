//! The rows of a CPU whose own node has no memory left, beside those of the same CPU when it has.
//!
//! The machine has two nodes; what is measured is the usual call, near the caller.

use super::Scale;
use super::crew;
use super::patterns;
use super::rows::{Rows, Title};
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
/// A machine that this process cannot stand in for.
pub fn measure(rows: &mut Rows, node_gib: u64, scale: Scale) -> Result<(), Error> {
    progress::step(&format_args!("alloc: {}, own node full", Ours::NAME))?;
    Ours::with_nodes(node_gib << 31, 2, 2, |ours| {
        for (pattern, is_away) in PATTERNS.into_iter().zip([false, true]) {
            let taken = if is_away { crew::alone(ours, || fill(ours))? } else { Vec::new() };
            for order in ORDERS.into_iter().filter_map(Order::new) {
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
