//! `/proc/meminfo` and each node's `meminfo`: those of Linux's lines that a memory manager alone
//! can fill.

use super::super::{FileError, write_kib};
use super::lookup::{node, sum_of};
use crate::manager::{Manager, ZoneView};
use crate::platform::Platform;
use crate::units::PAGE_SIZE;
use crate::zone::Grade;
use core::fmt::{Arguments, Write};

const KIB_PER_PAGE: u64 = PAGE_SIZE / 1024;

/// The `meminfo` of the whole machine.
pub(super) fn meminfo<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Result<(), FileError> {
    let totals = manager.totals();
    let kept = sum_of(manager, None, &kept_pages);
    // Unaccepted memory counts as free, as in Linux.
    let unaccepted = totals.unaccepted_pages;
    let free = totals.free_pages + unaccepted;
    let available = (free + manager.caches().pages()).saturating_sub(kept);
    lines(
        out,
        format_args!(""),
        "MemTotal MemFree MemAvailable CmaTotal CmaFree Unaccepted PcpFree Isolated MemMap \
         MemMapArray",
        &[
            totals.managed_pages + unaccepted,
            free,
            available,
            sum_of(manager, None, &cma_pages),
            sum_of(manager, None, &|zone| zone.free_pages_of(Grade::Removable)),
            unaccepted,
            manager.caches().pages(),
            totals.isolated_pages,
            totals.descriptor_pages,
            manager.vmemmap().pages(),
        ],
    )?;
    let tables_bytes = manager.metadata_bytes() - manager.vmemmap().bytes();
    write_kib(out, format_args!(""), "MemTables", tables_bytes / 1024)
}

/// Pages that are lent to movable requests: reserve areas, and other blocks of their grade.
fn cma_pages<P: Platform>(zone: &ZoneView<'_, P>) -> u64 {
    zone.graded_memory(Grade::Removable).managed_pages
}

/// Pages that ordinary requests leave, as Linux estimates available memory: the high watermarks and
/// the largest reserve.
fn kept_pages<P: Platform>(zone: &ZoneView<'_, P>) -> u64 {
    let reserve = zone.lowmem_reserve().into_iter().max().unwrap_or(0);
    let mut marks = zone.watermarks();
    marks += zone.movable_watermarks();
    marks.high_pages.saturating_add(reserve).min(zone.managed_pages() + zone.unaccepted_pages())
}

/// The `meminfo` of one node.
pub(super) fn of_node<P: Platform>(
    manager: &Manager<P>,
    numbers: &[u64],
    out: &mut dyn Write,
) -> Result<(), FileError> {
    let id = node(manager, numbers).ok_or(FileError::NotFound)?.id;
    let sum = |of: fn(&ZoneView<'static, P>) -> u64| sum_of(manager, Some(id), &of);
    let unaccepted = sum(ZoneView::unaccepted_pages);
    let managed = sum(ZoneView::managed_pages) + unaccepted;
    let free = sum(ZoneView::free_pages) + unaccepted;
    lines(
        out,
        format_args!("Node {id} "),
        "MemTotal MemFree MemUsed Unaccepted Isolated MemMap",
        &[
            managed,
            free,
            managed.saturating_sub(free),
            unaccepted,
            sum(ZoneView::isolated_pages),
            sum(ZoneView::descriptor_pages),
        ],
    )
}

/// Writes a line for each of the words of `names`, all with one prefix.
#[inline(never)]
fn lines(
    out: &mut dyn Write,
    prefix: Arguments<'_>,
    names: &str,
    pages: &[u64],
) -> Result<(), FileError> {
    let named = names.split_ascii_whitespace().zip(pages);
    debug_assert_eq!(names.split_ascii_whitespace().count(), pages.len());
    named
        .into_iter()
        .try_for_each(|(name, pages)| write_kib(out, prefix, name, pages * KIB_PER_PAGE))
}
