//! `/proc/sys/vm`, as far as it takes more than a value to say what is written or done.

use super::super::text::Shown;
use super::super::{FileError, parse_number, parse_numbers};
use super::lookup::node;
use crate::manager::{Budget, CompactError, Manager, SettingsError};
use crate::platform::Platform;
use crate::units::NodeId;

/// A number that may be refused.
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

/// 1 compacts all memory (Linux: `mm/compaction.c`, `sysctl_compaction_handler`).
pub(super) fn compact_memory<P: Platform>(manager: &Manager<P>, _: &[u64], text: &str) -> Shown {
    if parse_number(text)? != 1 {
        return Err(FileError::Invalid);
    }
    compact(manager, None)
}

/// Any number compacts a node (Linux: `mm/compaction.c`, `compact_store`).
pub(super) fn compact_node<P: Platform>(
    manager: &Manager<P>,
    numbers: &[u64],
    text: &str,
) -> Shown {
    let id = node(manager, numbers).ok_or(FileError::NotFound)?.id;
    parse_number(text)?;
    compact(manager, Some(id))
}

/// Where nobody moves contents, the caches of all CPUs are emptied, so that what they keep merges:
/// all the compaction that there is without moving anything.
fn compact<P: Platform>(manager: &Manager<P>, node: Option<NodeId>) -> Shown {
    // A frame that should not be in a cache is somebody's wrong free: all others went back.
    let _ = manager.drain();
    match manager.moving().compact(node, u64::MAX, Budget::UNLIMITED) {
        Ok(_) | Err(CompactError::NoMover) => Ok(()),
        Err(CompactError::NoNode(_)) => Err(FileError::NotFound),
        Err(CompactError::CannotWait) => Err(FileError::Busy),
    }
}
