//! `/proc/sys/vm` and `/sys/module`: what the command line set, and what of it can be changed.

use super::super::{FileError, parse_number, parse_numbers};
use super::lookup::node;
use crate::manager::{Budget, CompactError, Manager};
use crate::platform::Platform;
use crate::units::NodeId;
use core::fmt::{Display, Write};

type Shown = Result<(), FileError>;

fn show(out: &mut dyn Write, value: impl Display) -> Shown {
    Ok(writeln!(out, "{value}")?)
}

#[inline(never)]
fn switch(out: &mut dyn Write, on: bool) -> Shown {
    show(out, if on { "Y" } else { "N" })
}

pub(super) fn min_free_kbytes<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Shown {
    show(out, manager.sysctl().min_free_kbytes())
}

pub(super) fn set_min_free_kbytes<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    text: &str,
) -> Shown {
    manager.sysctl().set_min_free_kbytes(parse_number(text)?).map_err(|_| FileError::Invalid)
}

pub(super) fn watermark_scale_factor<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Shown {
    show(out, manager.sysctl().watermark_scale_factor())
}

pub(super) fn set_watermark_scale_factor<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    text: &str,
) -> Shown {
    manager.sysctl().set_watermark_scale_factor(parse_number(text)?).map_err(|_| FileError::Invalid)
}

pub(super) fn lowmem_reserve_ratio<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Shown {
    let [dma, dma32, normal] = manager.sysctl().lowmem_reserve_ratio();
    show(out, format_args!("{dma}\t{dma32}\t{normal}"))
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

pub(super) fn extfrag_threshold<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Shown {
    show(out, manager.sysctl().extfrag_threshold())
}

pub(super) fn set_extfrag_threshold<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    text: &str,
) -> Shown {
    manager.sysctl().set_extfrag_threshold(parse_number(text)?).map_err(|_| FileError::Invalid)
}

pub(super) fn compaction_proactiveness<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Shown {
    show(out, manager.sysctl().compaction_proactiveness())
}

pub(super) fn set_compaction_proactiveness<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    text: &str,
) -> Shown {
    let proactiveness = parse_number(text)?;
    manager.sysctl().set_compaction_proactiveness(proactiveness).map_err(|_| FileError::Invalid)
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

pub(super) fn memmap_init<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Shown {
    show(out, manager.vmemmap().policy().name())
}

pub(super) fn pages<P: Platform>(manager: &Manager<P>, _: &[u64], out: &mut dyn Write) -> Shown {
    show(out, manager.settings().pages.name())
}

pub(super) fn numa<P: Platform>(manager: &Manager<P>, _: &[u64], out: &mut dyn Write) -> Shown {
    switch(out, manager.settings().numa)
}

/// In bytes; 0 when there is no limit.
pub(super) fn mem<P: Platform>(manager: &Manager<P>, _: &[u64], out: &mut dyn Write) -> Shown {
    show(out, manager.settings().memory_limit.unwrap_or(0))
}

pub(super) fn page_owner<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Shown {
    switch(out, manager.debug().aids().page_owner)
}

pub(super) fn page_poison<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Shown {
    switch(out, manager.debug().aids().page_poison)
}

pub(super) fn init_on_alloc<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Shown {
    switch(out, manager.debug().aids().init_on_alloc)
}

pub(super) fn init_on_free<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Shown {
    switch(out, manager.debug().aids().init_on_free)
}

/// The seed; 0 when the mode is off.
pub(super) fn careful<P: Platform>(manager: &Manager<P>, _: &[u64], out: &mut dyn Write) -> Shown {
    show(out, manager.debug().aids().placement_seed.unwrap_or(0))
}
