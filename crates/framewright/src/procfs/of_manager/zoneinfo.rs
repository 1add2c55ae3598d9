//! `/proc/zoneinfo` (Linux: `mm/vmstat.c`), with those of Linux's counters that have a meaning
//! here. The counters of NUMA are kept by node, not by zone, so they are not here.

use super::super::FileError;
use super::lookup::sum_of;
use super::pages::MOVABLE;
use super::reporting;
use crate::manager::{Manager, Node, ZoneView};
use crate::platform::Platform;
use crate::units::{PAGE_SIZE, PfnRange};
use crate::zone::{Grade, RESERVE_CLASSES, Watermarks, ZoneId, ZoneKind};
use core::fmt::Write;

/// What the file tells of a zone, in pages.
#[derive(Default)]
struct Pages {
    free: u64,
    free_blocks: u64,
    isolated: u64,
    unaccepted: u64,
    marks: Watermarks,
    span: PfnRange,
    present: u64,
    managed: u64,
    cma: u64,
    free_cma: u64,
    protection: [u64; RESERVE_CLASSES],
}

impl Pages {
    /// The numbers of a zone without its memory for movable requests alone, which is added to
    /// `movable`.
    fn of<P: Platform>(zone: &ZoneView<'static, P>, movable: &mut Self) -> Self {
        let unaccepted = zone.unaccepted_pages();
        let kept = zone.graded_memory(Grade::MovableOnly);
        let (kept_free, kept_blocks) =
            (zone.free_pages_of(Grade::MovableOnly), zone.free_block_pages_of(Grade::MovableOnly));
        let (mut marks, more) = (zone.watermarks(), zone.movable_watermarks());
        if kept.span.is_empty() {
            marks += more;
        } else {
            movable.marks += more;
            let span = &mut movable.span;
            let start = if span.is_empty() { kept.span.start } else { span.start };
            *span =
                PfnRange { start: start.min(kept.span.start), end: span.end.max(kept.span.end) };
            movable.free += kept_free + kept.unaccepted_pages;
            movable.unaccepted += kept.unaccepted_pages;
            movable.free_blocks += kept_blocks;
            movable.present += kept.present_pages;
            movable.managed += kept.managed_pages;
        }
        Self {
            // Unaccepted memory counts as free, as in Linux.
            free: (zone.free_pages() + unaccepted)
                .saturating_sub(kept_free + kept.unaccepted_pages),
            free_blocks: zone.free_block_pages().saturating_sub(kept_blocks),
            isolated: zone.isolated_pages(),
            unaccepted: unaccepted.saturating_sub(kept.unaccepted_pages),
            marks,
            span: zone.span(),
            present: zone.present_pages().saturating_sub(kept.present_pages),
            managed: (zone.managed_pages() + unaccepted).saturating_sub(kept.managed_pages),
            cma: zone.graded_memory(Grade::Removable).managed_pages,
            free_cma: zone.free_pages_of(Grade::Removable),
            protection: zone.lowmem_reserve(),
        }
    }
}

/// All zones of all nodes, including those without memory, as in Linux. Memory for movable requests
/// alone is shown as a zone `Movable` of its node and left out of the zones that it is part of. Its
/// watermarks are what it adds to theirs; its isolated pages are shown in the zones that they are
/// part of, unless these have no other memory.
pub(super) fn zoneinfo<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Result<(), FileError> {
    for node in manager.nodes() {
        let mut first = true;
        let mut movable = Pages::default();
        for kind in ZoneKind::ALL.into_iter().map(Some).chain([None]) {
            let zone = kind.and_then(|kind| manager.view(ZoneId { node: node.id, kind }));
            let mut counts = match (kind, &zone) {
                (Some(_), Some(zone)) => Pages::of(zone, &mut movable),
                (Some(_), None) => Pages::default(),
                (None, _) => core::mem::take(&mut movable),
            };
            let is_populated = counts.present != 0;
            if !is_populated {
                movable.isolated += counts.isolated;
                counts = Pages::default();
            }
            write!(out, "Node {}, zone {:>8}", node.id, kind.map_or(MOVABLE, ZoneKind::name))?;
            if is_populated && core::mem::take(&mut first) {
                write!(out, "\n  per-node stats")?;
                per_node(manager, node, out)?;
            }
            pages(&counts, out)?;
            if is_populated {
                free(&counts, out)?;
                if let Some(zone) = &zone {
                    pagesets(manager, zone, out)?;
                }
                named(out, (2, 20), "node_unreclaimable: start_pfn:", &[0, counts.span.start.0])?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

fn per_node<P: Platform>(
    manager: &Manager<P>,
    node: &Node,
    out: &mut dyn Write,
) -> Result<(), FileError> {
    let sum = |of: fn(&ZoneView<'static, P>) -> u64| sum_of(manager, Some(node.id), &of);
    let (table_bytes, descriptor_pages) =
        (sum(ZoneView::table_bytes), sum(ZoneView::descriptor_pages));
    let values = [descriptor_pages, table_bytes / PAGE_SIZE];
    named(out, (6, 12), "nr_memmap_pages nr_block_table_pages", &values)
}

fn pages(counts: &Pages, out: &mut dyn Write) -> Result<(), FileError> {
    write!(out, "\n  pages free     {}", counts.free)?;
    let Watermarks { min_pages, low_pages, high_pages, promo_pages } = counts.marks;
    named(
        out,
        (8, 8),
        "boost min low high promo spanned present managed cma",
        &[
            0,
            min_pages,
            low_pages,
            high_pages,
            promo_pages,
            counts.span.pages(),
            counts.present,
            counts.managed,
            counts.cma,
        ],
    )?;
    write!(out, "\n        protection: (")?;
    for (index, pages) in counts.protection.iter().enumerate() {
        write!(out, "{}{pages}", if index == 0 { "" } else { ", " })?;
    }
    Ok(write!(out, ")")?)
}

fn free(counts: &Pages, out: &mut dyn Write) -> Result<(), FileError> {
    named(
        out,
        (6, 12),
        "nr_free_pages nr_free_pages_blocks nr_isolated_pages nr_free_cma nr_unaccepted",
        &[counts.free, counts.free_blocks, counts.isolated, counts.free_cma, counts.unaccepted],
    )
}

/// Writes a line for each of the words of `names`, with so many spaces before it and so wide: the
/// word and its number. All lines share this code, so that each adds only its name and value.
#[inline(never)]
fn named(
    out: &mut dyn Write,
    (indent, width): (usize, usize),
    names: &str,
    values: &[u64],
) -> Result<(), FileError> {
    for (name, value) in names.split_ascii_whitespace().zip(values) {
        write!(out, "\n{:indent$}{name:<width$} {value}", "")?;
    }
    Ok(())
}

fn pagesets<P: Platform>(
    manager: &Manager<P>,
    zone: &ZoneView<'static, P>,
    out: &mut dyn Write,
) -> Result<(), FileError> {
    write!(out, "\n  pagesets")?;
    for cpu in manager.cpus().iter() {
        let cache = manager.caches().cpu(cpu).filter(|cache| cache.zone == zone.id());
        let (count, high, batch) =
            cache.map_or((0, 0, 0), |cache| (cache.pages, cache.most_pages, cache.batch_pages));
        write!(out, "\n    cpu: {cpu}")?;
        // The most pages that a cache keeps do not adapt, so all limits are one.
        named(
            out,
            (14, 9),
            "count: high: batch: high_min: high_max:",
            &[count, high, batch, high, high],
        )?;
    }
    if manager.settings().shuffle {
        reporting::shuffled(zone, out)?;
    }
    Ok(())
}
