//! `/sys/module/page_reporting/parameters`, what is counted of free page reporting, and the shuffle
//! beside it.

use super::super::{FileError, parse_bool, parse_number};
use crate::manager::{Manager, ZoneView};
use crate::platform::Platform;
use crate::reporting::Pace;
use crate::units::Order;
use core::fmt::Write;

type Shown = Result<(), FileError>;

/// The smallest order that is reported; -1 while it is unset, as in Linux.
pub(super) fn order<P: Platform>(manager: &Manager<P>, _: &[u64], out: &mut dyn Write) -> Shown {
    match manager.reporting().order() {
        Some(order) => writeln!(out, "{}", order.get())?,
        None => writeln!(out, "-1")?,
    }
    Ok(())
}

/// What is no order is refused, and so is unsetting it again.
pub(super) fn set_order<P: Platform>(manager: &Manager<P>, _: &[u64], text: &str) -> Shown {
    let order =
        u8::try_from(parse_number(text)?).ok().and_then(Order::new).ok_or(FileError::Invalid)?;
    manager.reporting().set_order(order);
    Ok(())
}

pub(super) fn delay_ms<P: Platform>(manager: &Manager<P>, _: &[u64], out: &mut dyn Write) -> Shown {
    Ok(writeln!(out, "{}", manager.reporting().delay_ms())?)
}

pub(super) fn set_delay_ms<P: Platform>(manager: &Manager<P>, _: &[u64], text: &str) -> Shown {
    manager.reporting().set_delay_ms(milliseconds(text)?);
    Ok(())
}

pub(super) fn timeout_ms<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Shown {
    Ok(writeln!(out, "{}", manager.reporting().timeout_ms())?)
}

pub(super) fn set_timeout_ms<P: Platform>(manager: &Manager<P>, _: &[u64], text: &str) -> Shown {
    manager.reporting().set_timeout_ms(milliseconds(text)?);
    Ok(())
}

pub(super) fn pace<P: Platform>(manager: &Manager<P>, _: &[u64], out: &mut dyn Write) -> Shown {
    Ok(writeln!(out, "{}", manager.reporting().pace().name())?)
}

pub(super) fn set_pace<P: Platform>(manager: &Manager<P>, _: &[u64], text: &str) -> Shown {
    manager.reporting().set_pace(Pace::parse(text.trim()).ok_or(FileError::Invalid)?);
    Ok(())
}

/// Whether free pages of huge-page pools are reported, too.
pub(super) fn pools<P: Platform>(manager: &Manager<P>, _: &[u64], out: &mut dyn Write) -> Shown {
    Ok(writeln!(out, "{}", if manager.reporting().has_pools() { "Y" } else { "N" })?)
}

pub(super) fn set_pools<P: Platform>(manager: &Manager<P>, _: &[u64], text: &str) -> Shown {
    manager.reporting().set_pools(parse_bool(text)?);
    Ok(())
}

/// Whether free memory is in random order.
pub(super) fn shuffle<P: Platform>(manager: &Manager<P>, _: &[u64], out: &mut dyn Write) -> Shown {
    Ok(writeln!(out, "{}", if manager.settings().shuffle { "Y" } else { "N" })?)
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

/// How shuffled a zone is, for `/proc/zoneinfo`.
pub(super) fn shuffled<P: Platform>(zone: &ZoneView<'_, P>, out: &mut dyn Write) -> Shown {
    let shuffled = zone.shuffled();
    write!(out, "\n  shuffle")?;
    for (name, count) in [("pairs:", shuffled.pairs), ("neighbours:", shuffled.neighbours)] {
        write!(out, "\n              {name:<11} {count}")?;
    }
    Ok(())
}

fn milliseconds(text: &str) -> Result<u32, FileError> {
    u32::try_from(parse_number(text)?).map_err(|_| FileError::Invalid)
}
