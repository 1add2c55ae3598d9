//! `/sys/module/page_reporting/parameters`, and the counters of free page reporting and of the
//! shuffle in other files.

use super::super::text::{Shown, show};
use super::super::{FileError, parse_number};
use crate::manager::{Manager, ZoneView};
use crate::platform::Platform;
use crate::units::Order;
use core::fmt::Write;

/// The smallest order that is reported; -1 while it is unset, as in Linux.
pub(super) fn order<P: Platform>(manager: &Manager<P>, _: &[u64], out: &mut dyn Write) -> Shown {
    match manager.reporting().order() {
        Some(order) => show(out, &order.get()),
        None => show(out, &-1),
    }
}

/// Sets the smallest order. A number that is no order is refused, so the order cannot be unset
/// again.
pub(super) fn set_order<P: Platform>(manager: &Manager<P>, _: &[u64], text: &str) -> Shown {
    let order =
        u8::try_from(parse_number(text)?).ok().and_then(Order::new).ok_or(FileError::Invalid)?;
    manager.reporting().set_order(order);
    Ok(())
}

/// All counters, for `/proc/vmstat`.
pub(super) fn counters<P: Platform>(manager: &Manager<P>, out: &mut dyn Write) -> Shown {
    let unreported: u64 = manager.zones().iter().map(|zone| zone.unreported_pages()).sum();
    writeln!(out, "nr_free_unreported {unreported}")?;
    manager
        .reporting_counters()
        .named()
        .into_iter()
        .try_for_each(|(name, count)| writeln!(out, "{name} {count}"))?;
    Ok(())
}

/// How well a zone is shuffled, for `/proc/zoneinfo`.
pub(super) fn shuffled<P: Platform>(zone: &ZoneView<'_, P>, out: &mut dyn Write) -> Shown {
    let shuffled = zone.shuffled();
    write!(out, "\n  shuffle")?;
    for (name, count) in [("pairs:", shuffled.pairs), ("neighbours:", shuffled.neighbours)] {
        write!(out, "\n              {name:<11} {count}")?;
    }
    Ok(())
}

pub(super) fn milliseconds(text: &str) -> Result<u32, FileError> {
    u32::try_from(parse_number(text)?).map_err(|_| FileError::Invalid)
}
