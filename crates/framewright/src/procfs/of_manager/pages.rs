//! `/proc/buddyinfo` and `/proc/pagetypeinfo` (Linux: `mm/vmstat.c`): Linux's columns for orders 0
//! to 10, then those of the orders that only this manager has.

use super::super::FileError;
use super::lookup::zones_of;
use crate::block::MigrateType;
use crate::manager::Manager;
use crate::platform::Platform;
use crate::units::{BLOCK_ORDER, PAGES_PER_BLOCK};
use crate::zone::ORDERS;
use core::fmt::Write;

/// Linux stops counting here, because it counts a list under a lock; programs know the sign.
const MANY: u64 = 100_000;

/// A line for each zone with its free runs by order.
pub(super) fn buddyinfo<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Result<(), FileError> {
    for zone in manager.views() {
        let runs = zone.free_areas().by_order();
        write!(out, "Node {}, zone {:>8} ", zone.id().node, zone.id().kind)?;
        for runs in runs {
            write!(out, "{runs:6} ")?;
        }
        writeln!(out)?;
    }
    Ok(())
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
        for zone in zones_of(manager, node.id) {
            let areas = zone.free_areas();
            for (kind, runs) in MigrateType::ALL.iter().zip(areas.runs) {
                write!(
                    out,
                    "Node {:>4}, zone {:>8}, type {:>12} ",
                    node.id,
                    zone.id().kind,
                    kind.name()
                )?;
                for runs in runs {
                    let sign = if runs >= MANY { ">" } else { "" };
                    write!(out, "{sign}{:6} ", runs.min(MANY))?;
                }
                writeln!(out)?;
            }
        }
        write!(out, "\n{:<23}", "Number of blocks type ")?;
        for kind in MigrateType::ALL {
            write!(out, "{:>12} ", kind.name())?;
        }
        writeln!(out)?;
        for zone in zones_of(manager, node.id) {
            write!(out, "Node {}, zone {:>8} ", node.id, zone.id().kind)?;
            for blocks in zone.free_areas().blocks {
                write!(out, "{blocks:12} ")?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}
