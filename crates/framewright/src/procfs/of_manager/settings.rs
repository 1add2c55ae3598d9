//! Files of `/proc/sys/vm` (and `compact` of each node) that take more than storing a value.

use super::super::text::Shown;
use super::super::{FileError, parse_number, parse_numbers};
use super::lookup::node;
use crate::manager::{Budget, CompactError, Manager, SettingsError};
use crate::platform::Platform;
use crate::units::NodeId;

/// Sets a number that may be refused.
pub(super) fn set(text: &str, set: impl FnOnce(u64) -> Result<(), SettingsError>) -> Shown {
    set(parse_number(text)?).map_err(|_| FileError::Invalid)
}

pub(super) fn set_lowmem_reserve_ratio<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    text: &str,
) -> Shown {
    let mut ratio = manager.sysctl().lowmem_reserve_ratio();
    parse_numbers(text, &mut ratio)?;
    if ratio.iter().any(|&ratio| i32::try_from(ratio).is_err()) {
        return Err(FileError::Invalid);
    }
    manager.sysctl().set_lowmem_reserve_ratio(ratio);
    Ok(())
}

/// Compacts all memory when 1 is written (Linux: `mm/compaction.c`, `sysctl_compaction_handler`).
pub(super) fn compact_memory<P: Platform>(manager: &Manager<P>, _: &[u64], text: &str) -> Shown {
    if parse_number(text)? != 1 {
        return Err(FileError::Invalid);
    }
    compact(manager, None)
}

/// Compacts a node when any number is written (Linux: `mm/compaction.c`, `compact_store`).
pub(super) fn compact_node<P: Platform>(
    manager: &Manager<P>,
    numbers: &[u64],
    text: &str,
) -> Shown {
    let id = node(manager, numbers).ok_or(FileError::NotFound)?.id;
    parse_number(text)?;
    compact(manager, Some(id))
}

/// Empties the caches of all CPUs, so that their pages merge, and then compacts. If there is no
/// mover, the former is all the compaction that is possible.
fn compact<P: Platform>(manager: &Manager<P>, node: Option<NodeId>) -> Shown {
    // An error means that a frame in a cache had been freed wrongly. All other frames went back.
    let _ = manager.drain();
    match manager.moving().compact(node, u64::MAX, Budget::UNLIMITED) {
        Ok(_) | Err(CompactError::NoMover) => Ok(()),
        Err(CompactError::NoNode(_)) => Err(FileError::NotFound),
        Err(CompactError::CannotWait) => Err(FileError::Busy),
    }
}
