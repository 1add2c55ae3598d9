//! `/proc/buddyinfo` and `/proc/pagetypeinfo` (Linux: `mm/vmstat.c`): Linux's columns for orders 0
//! to 10, then those of the orders that only this manager has.
//!
//! Memory for movable requests alone is shown as a zone `Movable` of its node, as in Linux.

use super::super::FileError;
use super::lookup::zones_of;
use crate::block::MigrateType;
use crate::manager::{Manager, Node};
use crate::platform::Platform;
use crate::units::{BLOCK_ORDER, NodeId, PAGES_PER_BLOCK};
use crate::zone::{FreeAreas, ORDERS};
use core::fmt::{self, Write};

/// Linux stops counting here, because it counts a list under a lock. Programs know the sign `>`
/// from it.
const MANY: u64 = 100_000;
/// The zone of blocks of [`MigrateType::MovableOnly`].
pub(super) const MOVABLE: &str = "Movable";
/// The types that are shown, in Linux's order.
const TYPES: [MigrateType; 5] = [
    MigrateType::Unmovable,
    MigrateType::Movable,
    MigrateType::Reclaimable,
    MigrateType::Cma,
    MigrateType::Isolate,
];

/// Calls `visit` for each zone of a node, last for that of movable memory, if there is any.
fn each_zone<P: Platform>(
    manager: &Manager<P>,
    node: NodeId,
    visit: &mut dyn FnMut(&str, &FreeAreas) -> Result<(), FileError>,
) -> Result<(), FileError> {
    let [kept, shown] = [MigrateType::MovableOnly, MigrateType::Movable].map(|kind| kind as usize);
    let mut movable = FreeAreas::EMPTY;
    // A zone all of whose memory is in `Movable` has no line, as it would have none in Linux.
    let visit = &mut |zone: &str, areas: &FreeAreas| {
        if areas.blocks == [0; MigrateType::COUNT] { Ok(()) } else { visit(zone, areas) }
    };
    for zone in zones_of(manager, node) {
        let mut areas = zone.free_areas();
        movable.blocks[shown] += core::mem::take(&mut areas.blocks[kept]);
        let runs = core::mem::take(&mut areas.runs[kept]);
        movable.runs[shown].iter_mut().zip(runs).for_each(|(sum, more)| *sum += more);
        visit(zone.id().kind.name(), &areas)?;
    }
    visit(MOVABLE, &movable)
}

/// Writes a line for each zone of some nodes: its name, then what `columns` writes.
pub(super) fn lines<P: Platform>(
    manager: &Manager<P>,
    nodes: &[Node],
    out: &mut dyn Write,
    columns: fn(&FreeAreas, &mut dyn Write) -> fmt::Result,
) -> Result<(), FileError> {
    for node in nodes {
        each_zone(manager, node.id, &mut |zone, areas| {
            write!(out, "Node {}, zone {zone:>8} ", node.id)?;
            columns(areas, out)?;
            Ok(writeln!(out)?)
        })?;
    }
    Ok(())
}

/// `/proc/buddyinfo`: a line for each zone with its free runs by order.
pub(super) fn buddyinfo<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Result<(), FileError> {
    lines(manager, manager.nodes(), out, |areas, out| {
        areas.by_order().iter().try_for_each(|runs| write!(out, "{runs:6} "))
    })
}

/// `/proc/pagetypeinfo`: free runs by migrate type and order, and how many blocks have each type.
pub(super) fn pagetypeinfo<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Result<(), FileError> {
    for node in manager.nodes() {
        if zones_of(manager, node.id).next().is_none() {
            continue;
        }
        writeln!(out, "Page block order: {BLOCK_ORDER}\nPages per block:  {PAGES_PER_BLOCK}\n")?;
        write!(out, "{:<43} ", "Free pages count per migrate type at order")?;
        for order in 0..ORDERS {
            write!(out, "{order:6} ")?;
        }
        writeln!(out)?;
        each_zone(manager, node.id, &mut |zone, areas| {
            for kind in TYPES {
                let name = kind.name();
                write!(out, "Node {:>4}, zone {zone:>8}, type {name:>12} ", node.id)?;
                for runs in areas.runs[kind as usize] {
                    let sign = if runs >= MANY { ">" } else { "" };
                    write!(out, "{sign}{:6} ", runs.min(MANY))?;
                }
                writeln!(out)?;
            }
            Ok(())
        })?;
        write!(out, "\n{:<23}", "Number of blocks type ")?;
        for kind in TYPES {
            write!(out, "{:>12} ", kind.name())?;
        }
        writeln!(out)?;
        lines(manager, core::slice::from_ref(node), out, |areas, out| {
            TYPES.iter().try_for_each(|&kind| write!(out, "{:12} ", areas.blocks[kind as usize]))
        })?;
    }
    Ok(())
}
