//! `/sys/kernel/debug/extfrag` (Linux: `mm/vmstat.c`): for each zone and order, whether a request
//! would fail and why, and how much of the free memory it could not use. Lines and columns are
//! those of `/proc/buddyinfo`, from whose numbers the indices are computed.
//!
//! An index between -1 and 0 is written as `-0.500`, where Linux writes ` 0.-500`.

use super::super::FileError;
use super::pages;
use crate::manager::Manager;
use crate::platform::Platform;
use crate::units::{MAX_ORDER, Order};
use crate::zone::{ContigInfo, FreeAreas};
use core::fmt::{self, Write};

/// Writes `index` for each order.
#[inline(never)]
fn indices(
    areas: &FreeAreas,
    out: &mut dyn Write,
    index: fn(&ContigInfo, &mut dyn Write) -> fmt::Result,
) -> fmt::Result {
    let runs = areas.by_order();
    let mut orders = (0..=MAX_ORDER).filter_map(Order::new);
    orders.try_for_each(|order| index(&ContigInfo::of(&runs, order), out))
}

/// Fragmentation indices: towards 0 if memory is short, towards 1 if it is in pieces, -1 if a
/// request does not fail.
pub(super) fn extfrag_index<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Result<(), FileError> {
    pages::lines(manager, manager.nodes(), out, |areas, out| {
        indices(areas, out, |info, out| {
            let index = info.fragmentation_index();
            let (sign, size) = (if index < 0 { '-' } else { ' ' }, index.unsigned_abs());
            write!(out, "{sign}{}.{:03} ", size / 1000, size % 1000)
        })
    })
}

/// Parts of free memory that requests of an order cannot use.
pub(super) fn unusable_index<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Result<(), FileError> {
    pages::lines(manager, manager.nodes(), out, |areas, out| {
        indices(areas, out, |info, out| {
            let index = info.unusable_index();
            write!(out, "{}.{:03} ", index / 1000, index % 1000)
        })
    })
}
