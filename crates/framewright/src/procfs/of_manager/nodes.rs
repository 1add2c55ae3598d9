//! `/sys/devices/system/node`: which nodes there are, their CPUs and the distances between them.

use super::super::text::Shown;
use super::super::{FileError, write_cpu_list};
use super::lookup::node;
use crate::manager::{Manager, Node};
use crate::platform::Platform;
use crate::zone::Zone;
use core::fmt::Write;

/// Visits all nodes, for paths with a node in them.
pub(crate) fn numbers<P: Platform>(manager: &Manager<P>, visit: &mut dyn FnMut(&[u64])) {
    for node in manager.nodes() {
        visit(&[node.id.index() as u64]);
    }
}

#[inline(never)]
pub(super) fn list<P: Platform>(
    manager: &Manager<P>,
    out: &mut dyn Write,
    wanted: &dyn Fn(&Node) -> bool,
) -> Shown {
    let nodes = manager.nodes().iter().filter(|node| wanted(node));
    write_cpu_list(out, nodes.filter_map(|node| u32::try_from(node.id.index()).ok()))
}

pub(super) fn all<P: Platform>(manager: &Manager<P>, _: &[u64], out: &mut dyn Write) -> Shown {
    list(manager, out, &|_| true)
}

pub(super) fn has_memory<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Shown {
    with_zones(manager, out, |zone| zone.final_managed_pages() != 0)
}

/// Nodes with memory that any request may have (Linux: `include/linux/nodemask.h`,
/// `N_NORMAL_MEMORY`).
pub(super) fn has_normal_memory<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Shown {
    with_zones(manager, out, |zone| zone.pages_for_limits().ungraded != 0)
}

/// Writes the nodes that have a zone, or a part of one, as wanted.
fn with_zones<P: Platform>(
    manager: &Manager<P>,
    out: &mut dyn Write,
    wanted: fn(&Zone) -> bool,
) -> Shown {
    list(manager, out, &|node| {
        manager.zones().iter().any(|zone| zone.id().node == node.id && wanted(zone))
    })
}

/// The distance of each node, in ACPI's units.
pub(super) fn distance<P: Platform>(
    manager: &Manager<P>,
    numbers: &[u64],
    out: &mut dyn Write,
) -> Shown {
    let node = node(manager, numbers).ok_or(FileError::NotFound)?;
    for (index, distance) in node.distances.iter().enumerate() {
        write!(out, "{}{distance}", if index == 0 { "" } else { " " })?;
    }
    Ok(writeln!(out)?)
}
