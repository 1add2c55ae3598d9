//! `/proc/vmstat` and each node's: Linux's names where it has one, ours in their style.
//!
//! What happens in the caches of CPUs is not counted, because that would cost each allocation and
//! free a store: what is counted is what happens under a lock anyway and off the usual way. So
//! `pgalloc_` and `pgfree` are the pages that left zones and came back, exactly, with refills of
//! caches and what came back from them: a page that a cache hands out again before it goes back is
//! in neither. `pgalloc` less `pgfree` is what callers, pools and caches have, and `nr_pcp_pages`
//! of it is in caches. `numa_` names count pages, as Linux's documentation says of them, but for
//! `numa_mask_`, which count requests that found nothing within their nodes, or nodes without
//! memory. `pcp_` names tell of the caches.

use super::super::FileError;
use super::lookup::{node, zones_of};
use super::reporting;
use crate::manager::{MOST_AREAS, Manager, MovingEvents, NumaCounts, ZoneView};
use crate::platform::Platform;
use crate::units::PAGE_SIZE;
use crate::zone::{Grade, ZoneEvents, ZoneKind};
use core::fmt::Write;

pub(super) const FREE_PAGES: &str = "nr_free_pages";
/// Free pages in whole blocks.
pub(super) const FREE_BLOCK_PAGES: &str = "nr_free_pages_blocks";
/// Free pages of isolated blocks.
pub(super) const ISOLATED_PAGES: &str = "nr_isolated_pages";
/// Free pages of blocks that are lent to movable requests.
pub(super) const FREE_CMA_PAGES: &str = "nr_free_cma";
/// Pages that hold descriptors.
pub(super) const MAP_PAGES: &str = "nr_memmap_pages";
/// Pages that hold the zones' tables.
pub(super) const TABLE_PAGES: &str = "nr_block_table_pages";
/// Pages of the vmemmap that bring-up made, less what map reclaim gave back: with [`MAP_PAGES`]
/// all that describes pages.
const ARRAY_PAGES: &str = "nr_memmap_boot_pages";

/// Pages that are withheld until their part of the memory map is initialised.
pub(super) const DEFERRED_PAGES: &str = "nr_deferred_pages";

/// Pages that come up once they are accepted; they are among [`FREE_PAGES`].
pub(super) const UNACCEPTED_PAGES: &str = "nr_unaccepted";

/// Everything.
pub(super) fn vmstat<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Result<(), FileError> {
    let line = &mut |name: &str, value: u64| writeln!(out, "{name} {value}");
    pages(manager.views(), line)?;
    line(ARRAY_PAGES, manager.vmemmap().pages())?;
    line("nr_pcp_pages", manager.caches().pages())?;
    let pressure = manager.pressure().events();
    let [dma, dma32, normal] = pressure.stalls;
    line("allocstall_dma", dma)?;
    line("allocstall_dma32", dma32)?;
    line("allocstall_normal", normal)?;
    line("alloc_fail", pressure.failures)?;
    let accept = manager.acceptance().events();
    line("accept_calls", accept.calls)?;
    line("accept_pages", accept.accepted_pages)?;
    line("accept_demand_pages", accept.demand_pages)?;
    line("accept_fail", accept.failures)?;
    line("accept_lost_pages", manager.acceptance().lost_pages())?;
    line("reclaim_hook_calls", pressure.reclaim_calls)?;
    line("reclaim_hook_pages", pressure.reclaim_pages)?;
    line("pageoutrun", pressure.background_wakes)?;
    line("pgsteal_kswapd", pressure.background_pages)?;
    line("pcp_drain", pressure.drains)?;
    for kind in ZoneKind::ALL {
        let zones = manager.views().filter(|zone| zone.id().kind == kind);
        let pages = zones.map(|zone| zone.flow().allocated_pages).sum();
        line(["pgalloc_dma", "pgalloc_dma32", "pgalloc_normal"][kind as usize], pages)?;
    }
    line("pgfree", manager.views().map(|zone| zone.flow().freed_pages).sum())?;
    moving(&manager.moving().events(), line)?;
    areas(manager, line)?;
    let (taken, short) = manager.hugetlb().takes();
    line("htlb_buddy_alloc_success", taken)?;
    line("htlb_buddy_alloc_fail", short)?;
    let mut numa = NumaCounts::default();
    for node in manager.nodes() {
        let counts = manager.numa().counts(node.id);
        numa.hit += counts.hit;
        numa.miss += counts.miss;
        numa.foreign += counts.foreign;
        numa.local += counts.local;
        numa.other += counts.other;
        numa.interleave += counts.interleave;
        numa.refused += counts.refused;
    }
    numa_lines(&numa, line)?;
    line("numa_mask_empty", manager.numa().without_memory())?;
    events(manager.views(), line)?;
    reporting::counters(manager, out)
}

/// What was moved. There is no `compact_free_scanned`: where to is told by counts.
fn moving(events: &MovingEvents, line: &mut Line<'_>) -> core::fmt::Result {
    line("pgmigrate_success", events.moved_pages)?;
    line("pgmigrate_fail", events.failed_pages)?;
    line("compact_migrate_scanned", events.scanned_pages)?;
    line("compact_isolated", events.begun_runs)?;
    line("compact_stall", events.compact_stalls)?;
    line("compact_fail", events.compact_stalls.saturating_sub(events.compact_successes))?;
    line("compact_success", events.compact_successes)?;
    line("compact_blocks", events.compacted_blocks)?;
    line("compact_daemon_wake", events.daemon_wakes)?;
    line("compact_daemon_migrate_scanned", events.daemon_scanned_pages)
}

/// What reserve areas gave and did not give, in pages.
fn areas<P: Platform>(manager: &Manager<P>, line: &mut Line<'_>) -> core::fmt::Result {
    let (mut success, mut fail) = (0, 0);
    for (_, _, counts) in (0..MOST_AREAS).filter_map(|number| manager.moving().area(number)) {
        success += counts.success_pages;
        fail += counts.fail_pages;
    }
    line("cma_alloc_success", success)?;
    line("cma_alloc_fail", fail)
}

/// What can be told of one node.
pub(super) fn of_node<P: Platform>(
    manager: &Manager<P>,
    numbers: &[u64],
    out: &mut dyn Write,
) -> Result<(), FileError> {
    let id = node(manager, numbers).ok_or(FileError::NotFound)?.id;
    let line = &mut |name: &str, value: u64| writeln!(out, "{name} {value}");
    pages(zones_of(manager, id), line)?;
    numa_lines(&manager.numa().counts(id), line)?;
    events(zones_of(manager, id), line)
}

/// A node's `numastat`.
pub(super) fn numastat<P: Platform>(
    manager: &Manager<P>,
    numbers: &[u64],
    out: &mut dyn Write,
) -> Result<(), FileError> {
    let id = node(manager, numbers).ok_or(FileError::NotFound)?.id;
    let NumaCounts { hit, miss, foreign, local, other, interleave, .. } = manager.numa().counts(id);
    writeln!(out, "numa_hit {hit}\nnuma_miss {miss}\nnuma_foreign {foreign}")?;
    writeln!(out, "interleave_hit {interleave}\nlocal_node {local}\nother_node {other}")?;
    Ok(())
}

/// The names that these counters have in `vmstat`.
fn numa_lines(counts: &NumaCounts, line: &mut Line<'_>) -> core::fmt::Result {
    let &NumaCounts { hit, miss, foreign, local, other, interleave, refused } = counts;
    line("numa_hit", hit)?;
    line("numa_miss", miss)?;
    line("numa_foreign", foreign)?;
    line("numa_interleave", interleave)?;
    line("numa_local", local)?;
    line("numa_other", other)?;
    line("numa_mask_refused", refused)
}

/// Takes a name and a number.
type Line<'a> = dyn FnMut(&str, u64) -> core::fmt::Result + 'a;

fn pages<P: Platform>(
    zones: impl Iterator<Item = ZoneView<'static, P>> + Clone,
    line: &mut Line<'_>,
) -> Result<(), FileError> {
    let sum =
        |of: fn(&ZoneView<'static, P>) -> u64| zones.clone().map(|zone| of(&zone)).sum::<u64>();
    line(FREE_PAGES, sum(ZoneView::free_pages) + sum(ZoneView::unaccepted_pages))?;
    line(FREE_BLOCK_PAGES, sum(ZoneView::free_block_pages))?;
    line(ISOLATED_PAGES, sum(ZoneView::isolated_pages))?;
    line(FREE_CMA_PAGES, sum(|zone| zone.free_pages_of(Grade::Removable)))?;
    line(UNACCEPTED_PAGES, sum(ZoneView::unaccepted_pages))?;
    line(DEFERRED_PAGES, sum(ZoneView::deferred_pages))?;
    line(MAP_PAGES, sum(ZoneView::descriptor_pages))?;
    line(TABLE_PAGES, sum(|zone| zone.table_bytes() / PAGE_SIZE))?;
    Ok(())
}

fn events<P: Platform>(
    zones: impl Iterator<Item = ZoneView<'static, P>>,
    line: &mut Line<'_>,
) -> Result<(), FileError> {
    let mut events = ZoneEvents::default();
    for zone in zones {
        events += zone.events();
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
