//! `/proc/vmstat` and each node's: Linux's names where it has one, ours in their style.
//!
//! Allocations and frees are not counted, because that would cost each of them a store: what is counted is what happens under a lock anyway and off the usual
//! way. `pcp_` names tell of the caches of CPUs.

use super::super::FileError;
use super::{node, reporting, zones_of};
use crate::manager::Manager;
use crate::platform::Platform;
use crate::units::PAGE_SIZE;
use crate::zone::{Zone, ZoneEvents};
use core::fmt::Write;

pub(super) const FREE_PAGES: &str = "nr_free_pages";
/// Free pages in whole blocks.
pub(super) const FREE_BLOCK_PAGES: &str = "nr_free_pages_blocks";
/// Free pages of isolated blocks.
pub(super) const ISOLATED_PAGES: &str = "nr_isolated_pages";
/// Pages that hold descriptors.
pub(super) const MAP_PAGES: &str = "nr_memmap_pages";
/// Pages that hold the zones' tables.
pub(super) const TABLE_PAGES: &str = "nr_memmap_boot_pages";

/// Pages that are withheld until their part of the memory map is initialised.
pub(super) const DEFERRED_PAGES: &str = "nr_deferred_pages";

/// Everything.
pub(super) fn vmstat<P: Platform>(manager: &Manager<P>, _: &[u64], out: &mut dyn Write) -> Result<(), FileError> {
    let line = &mut |name: &str, value: u64| writeln!(out, "{name} {value}");
    pages(manager, manager.zones().iter(), line)?;
    line("nr_memmap_array_pages", manager.memory_map_bytes() / PAGE_SIZE)?;
    line("nr_pcp_pages", manager.cached_pages())?;
    let pressure = manager.pressure_events();
    let [dma, dma32, normal] = pressure.stalls;
    line("allocstall_dma", dma)?;
    line("allocstall_dma32", dma32)?;
    line("allocstall_normal", normal)?;
    line("alloc_fail", pressure.failures)?;
    line("reclaim_hook_calls", pressure.reclaim_calls)?;
    line("reclaim_hook_pages", pressure.reclaim_pages)?;
    line("pcp_drain", pressure.drains)?;
    events(manager, manager.zones().iter(), line)?;
    reporting::counters(manager, out)
}

/// What can be told of one node.
pub(super) fn of_node<P: Platform>(
    manager: &Manager<P>,
    numbers: &[u64],
    out: &mut dyn Write,
) -> Result<(), FileError> {
    let id = node(manager, numbers).ok_or(FileError::NotFound)?.id;
    let line = &mut |name: &str, value: u64| writeln!(out, "{name} {value}");
    pages(manager, zones_of(manager, id), line)?;
    events(manager, zones_of(manager, id), line)
}

/// Takes a name and a number.
type Line<'a> = dyn FnMut(&str, u64) -> core::fmt::Result + 'a;

fn pages<'a, P: Platform>(
    manager: &Manager<P>,
    zones: impl Iterator<Item = &'a Zone> + Clone,
    line: &mut Line<'_>,
) -> Result<(), FileError> {
    let sum = |of: fn(&Zone) -> u64| zones.clone().map(of).sum();
    line(FREE_PAGES, sum(Zone::free_pages))?;
    line(FREE_BLOCK_PAGES, zones.clone().map(|zone| manager.view(zone).free_block_pages()).sum())?;
    line(ISOLATED_PAGES, sum(Zone::isolated_pages))?;
    line(DEFERRED_PAGES, sum(Zone::deferred_pages))?;
    line(MAP_PAGES, sum(Zone::map_pages))?;
    line(TABLE_PAGES, sum(|zone| zone.table_memory().size() / PAGE_SIZE))?;
    Ok(())
}

fn events<'a, P: Platform>(
    manager: &Manager<P>,
    zones: impl Iterator<Item = &'a Zone>,
    line: &mut Line<'_>,
) -> Result<(), FileError> {
    let mut events = ZoneEvents::default();
    for zone in zones {
        events += manager.view(zone).events();
    }
    for (name, count) in [
        ("pcp_refill", events.cache_refills),
        ("pcp_refill_pages", events.cache_refill_pages),
        ("pcp_return", events.cache_returns),
        ("pcp_return_pages", events.cache_return_pages),
        ("block_split", events.block_splits),
        ("block_merge", events.block_merges),
        ("fallback_claim", events.fallback_claims),
        ("fallback_steal", events.fallback_steals),
    ] {
        line(name, count)?;
    }
    Ok(())
}
