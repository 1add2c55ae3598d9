//! `/proc/meminfo` and each node's: those of Linux's lines that a memory manager alone can fill.

use super::super::{FileError, write_kib};
use super::lookup::{node, zones_of};
use crate::manager::{Manager, ZoneView};
use crate::platform::Platform;
use crate::units::PAGE_SIZE;
use crate::zone::Grade;
use core::fmt::Write;

const KIB_PER_PAGE: u64 = PAGE_SIZE / 1024;

/// The whole machine's.
pub(super) fn meminfo<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Result<(), FileError> {
    let totals = manager.totals();
    let kept: u64 = manager.views().map(kept_pages).sum();
    // Unaccepted memory is as good as free, as in Linux.
    let unaccepted = totals.unaccepted_pages;
    let free = totals.free_pages + unaccepted;
    let available = (free + manager.caches().pages()).saturating_sub(kept);
    let mut line = |name, pages: u64| write_kib(out, format_args!(""), name, pages * KIB_PER_PAGE);
    line("MemTotal", totals.managed_pages + unaccepted)?;
    line("MemFree", free)?;
    line("MemAvailable", available)?;
    line("CmaTotal", manager.views().map(cma_pages).sum())?;
    line("CmaFree", manager.views().map(|zone| zone.free_pages_of(Grade::Removable)).sum())?;
    line("Unaccepted", unaccepted)?;
    line("PcpFree", manager.caches().pages())?;
    line("Isolated", totals.isolated_pages)?;
    line("MemMap", totals.descriptor_pages)?;
    line("MemMapArray", manager.vmemmap().pages())?;
    let tables_bytes = manager.metadata_bytes() - manager.vmemmap().bytes();
    write_kib(out, format_args!(""), "MemTables", tables_bytes / 1024)
}

/// Memory that is lent to movable requests: reserve areas, and other blocks of their grade.
fn cma_pages<P: Platform>(zone: ZoneView<'_, P>) -> u64 {
    zone.graded_memory(Grade::Removable).managed_pages
}

/// Pages that ordinary requests leave, as Linux reckons what is available: the high mark and the
/// largest reserve.
fn kept_pages<P: Platform>(zone: ZoneView<'_, P>) -> u64 {
    let reserve = zone.lowmem_reserve().into_iter().max().unwrap_or(0);
    zone.watermarks()
        .high_pages
        .saturating_add(reserve)
        .min(zone.managed_pages() + zone.unaccepted_pages())
}

/// One node's.
pub(super) fn of_node<P: Platform>(
    manager: &Manager<P>,
    numbers: &[u64],
    out: &mut dyn Write,
) -> Result<(), FileError> {
    let id = node(manager, numbers).ok_or(FileError::NotFound)?.id;
    let sum = |of: fn(&ZoneView<'static, P>) -> u64| {
        zones_of(manager, id).map(|zone| of(&zone)).sum::<u64>()
    };
    let unaccepted = sum(ZoneView::unaccepted_pages);
    let managed = sum(ZoneView::managed_pages) + unaccepted;
    let free = sum(ZoneView::free_pages) + unaccepted;
    let mut line =
        |name, pages: u64| write_kib(out, format_args!("Node {id} "), name, pages * KIB_PER_PAGE);
    line("MemTotal", managed)?;
    line("MemFree", free)?;
    line("MemUsed", managed.saturating_sub(free))?;
    line("Unaccepted", unaccepted)?;
    line("Isolated", sum(ZoneView::isolated_pages))?;
    line("MemMap", sum(ZoneView::descriptor_pages))
}
