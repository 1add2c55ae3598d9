//! `/sys/kernel/mm/mempolicy/weighted_interleave` and `/sys/devices/virtual/memory_tiering`: the
//! share of each node in a weighted interleave, and how slow nodes are. Both name only nodes with
//! memory, as in Linux (`mm/mempolicy.c`, `mm/memory-tiers.c`).

use super::super::FileError;
use super::super::text::{Shown, show};
use crate::manager::Manager;
use crate::platform::Platform;
use crate::units::NodeId;
use core::fmt::Write;

/// The node with memory that a file's number names.
pub(super) fn node<P: Platform>(
    manager: &Manager<P>,
    numbers: &[u64],
) -> Result<NodeId, FileError> {
    let index = numbers.first().and_then(|&node| usize::try_from(node).ok());
    let node = index.and_then(NodeId::new).ok_or(FileError::NotFound)?;
    if manager.numa().with_memory().contains(node) { Ok(node) } else { Err(FileError::NotFound) }
}

/// Visits all nodes that have a weight.
pub(super) fn nodes<P: Platform>(manager: &Manager<P>, visit: &mut dyn FnMut(&[u64])) {
    manager.numa().with_memory().nodes().for_each(|node| visit(&[node.index() as u64]));
}

/// Visits all tiers that have nodes with memory, fastest first.
pub(super) fn tiers<P: Platform>(manager: &Manager<P>, visit: &mut dyn FnMut(&[u64])) {
    let numa = manager.numa();
    let mut next = numa.with_memory().nodes().map(|node| numa.tier(node)).min();
    while let Some(tier) = next {
        visit(&[u64::from(tier)]);
        let slower = numa.with_memory().nodes().map(|node| numa.tier(node));
        next = slower.filter(|&of| of > tier).min();
    }
}

pub(super) fn tier_nodelist<P: Platform>(
    manager: &Manager<P>,
    numbers: &[u64],
    out: &mut dyn Write,
) -> Shown {
    let tier = numbers.first().and_then(|&tier| u8::try_from(tier).ok());
    let nodes = tier.map(|tier| manager.numa().tier_nodes(tier));
    let nodes = nodes.filter(|nodes| !nodes.is_empty()).ok_or(FileError::NotFound)?;
    show(out, &nodes)
}
