//! Files of `/proc/sys/vm` (and `compact` of each node) that take more than storing a value.

use super::super::text::{Shown, parse_words};
use super::super::{FileError, parse_number};
use super::lookup::node;
use crate::manager::{Budget, CompactError, Manager, SettingsError};
use crate::platform::Platform;
use crate::units::NodeId;

/// Sets a number that may be refused.
pub(super) fn set(text: &str, set: impl FnOnce(u64) -> Result<(), SettingsError>) -> Shown {
    set(parse_number(text)?).map_err(|_| FileError::Invalid)
}

/// Sets the ratio of each zone, the last of them Movable. Linux's tables may have a number for one
/// more zone, of devices' memory, which is checked and ignored.
pub(super) fn set_lowmem_reserve_ratio<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    text: &str,
) -> Shown {
    let [dma, dma32, normal, movable] = manager.sysctl().lowmem_reserve_ratio();
    let mut ratios = [dma, dma32, normal, movable, 0];
    parse_words(text, &mut ratios, ratio)?;
    let [dma, dma32, normal, movable, _] = ratios;
    manager.sysctl().set_lowmem_reserve_ratio([dma, dma32, normal, movable]);
    Ok(())
}

/// Parses an `int`. Negative ratios become 0, which reserves nothing (Linux: `mm/page_alloc.c`,
/// `lowmem_reserve_ratio_sysctl_handler`).
fn ratio(word: &str) -> Result<u64, FileError> {
    match word.strip_prefix('-') {
        Some(digits) if parse_number(digits)? <= 1 << 31 => Ok(0),
        None if i32::try_from(parse_number(word)?).is_ok() => parse_number(word),
        _ => Err(FileError::Invalid),
    }
}

/// Compacts all memory when 1 is written (Linux: `mm/compaction.c`, `sysctl_compaction_handler`).
pub(super) fn compact_memory<P: Platform>(manager: &Manager<P>, _: &[u64], text: &str) -> Shown {
    if parse_number(text)? != 1 {
        return Err(FileError::Invalid);
    }
    compact(manager, None)
}

/// Compacts a node whatever is written (Linux: `mm/compaction.c`, `compact_store`).
pub(super) fn compact_node<P: Platform>(manager: &Manager<P>, numbers: &[u64], _: &str) -> Shown {
    let id = node(manager, numbers).ok_or(FileError::NotFound)?.id;
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
