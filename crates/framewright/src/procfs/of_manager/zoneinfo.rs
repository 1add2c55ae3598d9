//! `/proc/zoneinfo` (Linux: `mm/vmstat.c`), with those of Linux's counters that mean something
//! here.

use super::super::FileError;
use super::lookup::zones_of;
use super::{reporting, vmstat};
use crate::manager::{Manager, Node, ZoneView};
use crate::platform::Platform;
use crate::units::PAGE_SIZE;
use crate::zone::{Watermarks, ZoneId, ZoneKind};
use core::fmt::Write;

/// All zones of all nodes, those without memory included, as in Linux.
pub(super) fn zoneinfo<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Result<(), FileError> {
    for node in manager.nodes() {
        let mut first = true;
        for kind in ZoneKind::ALL {
            let zone = manager.view(ZoneId { node: node.id, kind });
            write!(out, "Node {}, zone {kind:>8}", node.id)?;
            if zone.is_some() && core::mem::take(&mut first) {
                write!(out, "\n  per-node stats")?;
                per_node(manager, node, out)?;
            }
            pages(zone.as_ref(), out)?;
            if let Some(zone) = zone {
                populated(manager, &zone, out)?;
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
    let table_bytes: u64 = zones_of(manager, node.id).map(|zone| zone.table_bytes()).sum();
    let descriptor_pages: u64 =
        zones_of(manager, node.id).map(|zone| zone.descriptor_pages()).sum();
    write!(out, "\n      {:<12} {descriptor_pages}", vmstat::MAP_PAGES)?;
    write!(out, "\n      {:<12} {}", vmstat::TABLE_PAGES, table_bytes / PAGE_SIZE)?;
    Ok(())
}

fn pages<P: Platform>(
    zone: Option<&ZoneView<'static, P>>,
    out: &mut dyn Write,
) -> Result<(), FileError> {
    let marks = zone.map_or_else(Watermarks::default, ZoneView::watermarks);
    let count = |of: fn(&ZoneView<'static, P>) -> u64| zone.map_or(0, of);
    write!(out, "\n  pages free     {}", count(ZoneView::free_pages))?;
    for (name, pages) in [
        ("boost", 0),
        ("min", marks.min_pages),
        ("low", marks.low_pages),
        ("high", marks.high_pages),
        ("promo", marks.promo_pages),
        ("spanned", count(|zone| zone.span().pages())),
        ("present", count(ZoneView::present_pages)),
        ("managed", count(ZoneView::managed_pages)),
        ("cma", 0),
    ] {
        write!(out, "\n        {name:<8} {pages}")?;
    }
    write!(out, "\n        protection: (")?;
    for (index, pages) in
        zone.map_or([0; ZoneKind::COUNT], ZoneView::lowmem_reserve).into_iter().enumerate()
    {
        write!(out, "{}{pages}", if index == 0 { "" } else { ", " })?;
    }
    Ok(write!(out, ")")?)
}

fn populated<P: Platform>(
    manager: &Manager<P>,
    zone: &ZoneView<'static, P>,
    out: &mut dyn Write,
) -> Result<(), FileError> {
    let platform = manager.platform();
    for (name, pages) in [
        (vmstat::FREE_PAGES, zone.free_pages()),
        (vmstat::FREE_BLOCK_PAGES, zone.free_block_pages()),
        (vmstat::ISOLATED_PAGES, zone.isolated_pages()),
    ] {
        write!(out, "\n      {name:<12} {pages}")?;
    }
    write!(out, "\n  pagesets")?;
    for cpu in 0..platform.cpus() {
        let cache = manager.caches().cpu(cpu).filter(|cache| cache.zone == zone.id());
        let (count, high, batch) =
            cache.map_or((0, 0, 0), |cache| (cache.pages, cache.most_pages, cache.batch_pages));
        write!(out, "\n    cpu: {cpu}")?;
        // What a cache keeps at most does not adapt, so the limits are one.
        for (name, pages) in [
            ("count:", count),
            ("high:", high),
            ("batch:", batch),
            ("high_min:", high),
            ("high_max:", high),
        ] {
            write!(out, "\n              {name:<9} {pages}")?;
        }
    }
    if manager.settings().shuffle {
        reporting::shuffled(zone, out)?;
    }
    write!(out, "\n  {:<20} 0", "node_unreclaimable:")?;
    write!(out, "\n  {:<20} {}", "start_pfn:", zone.span().start.0)?;
    Ok(())
}
