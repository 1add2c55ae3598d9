//! `/proc/vmstat` and each node's `vmstat`, with Linux's names where it has one and names in their
//! style elsewhere.
//!
//! Events in CPU caches are not counted, because that would cost each allocation and free a store.
//! Counted are events off the fast paths that take a lock anyway. So `pgalloc_` and `pgfree` are
//! exactly the pages that left zones and came back, including those that refills took and drains
//! returned. A page that a cache hands out again before it goes back is in neither. `pgalloc` less
//! `pgfree` is what callers, pools and caches have, of which `nr_pcp_pages` is in caches.
//!
//! `numa_` names count pages, as Linux's documentation says. The exception is `numa_mask_`: these
//! names count requests that found nothing in their allowed nodes, or whose allowed nodes have no
//! memory. `pcp_` names are about the caches.

use super::super::FileError;
use super::lookup::{lines, node, sum_of};
use super::reporting;
use crate::manager::{MOST_AREAS, Manager, MovingEvents, NumaCounts, ZoneView};
use crate::platform::Platform;
use crate::units::{NodeId, PAGE_SIZE};
use crate::zone::{Grade, ZoneEvents, ZoneKind};
use core::fmt::Write;

const FREE_PAGES: &str = "nr_free_pages";
/// Free pages in whole blocks.
const FREE_BLOCK_PAGES: &str = "nr_free_pages_blocks";
/// Free pages of isolated blocks.
const ISOLATED_PAGES: &str = "nr_isolated_pages";
/// Free pages of blocks that are lent to movable requests.
const FREE_CMA_PAGES: &str = "nr_free_cma";
/// Pages that hold descriptors, or wait until they can.
const MAP_PAGES: &str = "nr_memmap_pages";
/// Pages that hold the zones' tables.
const TABLE_PAGES: &str = "nr_block_table_pages";
/// Pages that are withheld until their part of the memory map is initialised.
pub(super) const DEFERRED_PAGES: &str = "nr_deferred_pages";

/// Pages that come up once they are accepted; they are also in [`FREE_PAGES`].
const UNACCEPTED_PAGES: &str = "nr_unaccepted";

/// The file of the whole machine.
pub(super) fn vmstat<P: Platform>(
    manager: &Manager<P>,
    _: &[u64],
    out: &mut dyn Write,
) -> Result<(), FileError> {
    pages(manager, None, out)?;
    let pressure = manager.pressure().events();
    let [dma, dma32, normal] = pressure.stalls;
    let accept = manager.acceptance().events();
    lines(
        out,
        "nr_memmap_boot_pages nr_pcp_pages allocstall_dma allocstall_dma32 allocstall_normal \
         alloc_fail accept_calls accept_pages accept_demand_pages accept_fail accept_lost_pages \
         reclaim_hook_calls reclaim_hook_pages pageoutrun pgsteal_kswapd pcp_drain",
        &[
            // Pages of the vmemmap that bring-up made, less those that map reclaim gave back.
            // Together with [`MAP_PAGES`] these are all pages that hold descriptors.
            manager.vmemmap().pages(),
            manager.caches().pages(),
            dma,
            dma32,
            normal,
            pressure.failures,
            accept.calls,
            accept.accepted_pages,
            accept.demand_pages,
            accept.failures,
            manager.acceptance().lost_pages(),
            pressure.reclaim_calls,
            pressure.reclaim_pages,
            pressure.background_wakes,
            pressure.background_pages,
            pressure.drains,
        ],
    )?;
    let (mut allocated, mut freed) = ([0; ZoneKind::COUNT], 0);
    for zone in manager.views() {
        let flow = zone.flow();
        allocated[zone.id().kind as usize] += flow.allocated_pages;
        freed += flow.freed_pages;
    }
    lines(out, "pgalloc_dma pgalloc_dma32 pgalloc_normal", &allocated)?;
    lines(out, "pgfree", &[freed])?;
    moving(&manager.moving().events(), out)?;
    areas(manager, out)?;
    let (taken, short) = manager.hugetlb().takes();
    lines(out, "htlb_buddy_alloc_success htlb_buddy_alloc_fail", &[taken, short])?;
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
    numa_lines(&numa, out)?;
    lines(out, "numa_mask_empty", &[manager.numa().without_memory()])?;
    events(manager, None, out)?;
    reporting::counters(manager, out)
}

/// Names for what was in the way of moves, in the order of
/// [`ObstacleKind`](crate::manager::ObstacleKind). Linux does not count these kinds.
const OBSTACLES: &str = "compact_obstacle_pinned compact_obstacle_busy compact_obstacle_fixed \
     compact_obstacle_unknown compact_obstacle_failed compact_obstacle_not_moved \
     compact_obstacle_no_memory compact_obstacle_reserved compact_obstacle_manager \
     compact_obstacle_pool compact_obstacle_poisoned compact_obstacle_reporting \
     compact_obstacle_descriptors";

/// Writes what was moved. There is no `compact_free_scanned`: counts tell where pages can move to.
fn moving(events: &MovingEvents, out: &mut dyn Write) -> Result<(), FileError> {
    lines(
        out,
        "pgmigrate_success pgmigrate_fail compact_migrate_scanned compact_isolated compact_stall \
         compact_fail compact_success compact_blocks compact_daemon_wake \
         compact_daemon_migrate_scanned",
        &[
            events.moved_pages,
            events.failed_pages,
            events.scanned_pages,
            events.isolated_pages,
            events.compact_stalls,
            events.compact_stalls.saturating_sub(events.compact_successes),
            events.compact_successes,
            events.compacted_blocks,
            events.daemon_wakes,
            events.daemon_scanned_pages,
        ],
    )?;
    lines(out, OBSTACLES, &events.obstacles)
}

/// Writes what reserve areas gave and did not give, in pages.
fn areas<P: Platform>(manager: &Manager<P>, out: &mut dyn Write) -> Result<(), FileError> {
    let (mut success, mut fail) = (0, 0);
    for (_, _, counts) in (0..MOST_AREAS).filter_map(|number| manager.moving().area(number)) {
        success += counts.success_pages;
        fail += counts.fail_pages;
    }
    lines(out, "cma_alloc_success cma_alloc_fail", &[success, fail])
}

/// A node's `vmstat`: all counts that exist for each node.
pub(super) fn of_node<P: Platform>(
    manager: &Manager<P>,
    numbers: &[u64],
    out: &mut dyn Write,
) -> Result<(), FileError> {
    let id = node(manager, numbers).ok_or(FileError::NotFound)?.id;
    pages(manager, Some(id), out)?;
    numa_lines(&manager.numa().counts(id), out)?;
    events(manager, Some(id), out)
}

/// A node's `numastat`.
pub(super) fn numastat<P: Platform>(
    manager: &Manager<P>,
    numbers: &[u64],
    out: &mut dyn Write,
) -> Result<(), FileError> {
    let id = node(manager, numbers).ok_or(FileError::NotFound)?.id;
    let NumaCounts { hit, miss, foreign, local, other, interleave, .. } = manager.numa().counts(id);
    lines(
        out,
        "numa_hit numa_miss numa_foreign interleave_hit local_node other_node",
        &[hit, miss, foreign, interleave, local, other],
    )
}

/// Writes these counters with their names in `vmstat`.
fn numa_lines(counts: &NumaCounts, out: &mut dyn Write) -> Result<(), FileError> {
    let &NumaCounts { hit, miss, foreign, local, other, interleave, refused } = counts;
    lines(
        out,
        "numa_hit numa_miss numa_foreign numa_interleave numa_local numa_other numa_mask_refused",
        &[hit, miss, foreign, interleave, local, other, refused],
    )
}

/// A count of a zone.
type CountOf<P> = fn(&ZoneView<'static, P>) -> u64;

/// Writes pages by their state, of one node or of all.
#[inline(never)]
fn pages<P: Platform>(
    manager: &Manager<P>,
    node: Option<NodeId>,
    out: &mut dyn Write,
) -> Result<(), FileError> {
    let sums: [(&str, CountOf<P>); 8] = [
        (FREE_PAGES, |zone| zone.free_pages() + zone.unaccepted_pages()),
        (FREE_BLOCK_PAGES, ZoneView::free_block_pages),
        (ISOLATED_PAGES, ZoneView::isolated_pages),
        (FREE_CMA_PAGES, |zone| zone.free_pages_of(Grade::Removable)),
        (UNACCEPTED_PAGES, ZoneView::unaccepted_pages),
        (DEFERRED_PAGES, ZoneView::deferred_pages),
        (MAP_PAGES, ZoneView::descriptor_pages),
        (TABLE_PAGES, |zone| zone.table_bytes() / PAGE_SIZE),
    ];
    sums.iter().try_for_each(|(name, of)| lines(out, name, &[sum_of(manager, node, of)]))
}

/// Writes what happened in zones, of one node or of all.
#[inline(never)]
fn events<P: Platform>(
    manager: &Manager<P>,
    node: Option<NodeId>,
    out: &mut dyn Write,
) -> Result<(), FileError> {
    let mut events = ZoneEvents::default();
    for zone in manager.views().filter(|zone| node.is_none_or(|node| zone.id().node == node)) {
        events += zone.events();
    }
    lines(
        out,
        "pcp_refill pcp_refill_pages pcp_return pcp_return_pages block_split block_merge \
         fallback_claim fallback_steal",
        &[
            events.cache_refills,
            events.cache_refill_pages,
            events.cache_returns,
            events.cache_return_pages,
            events.block_splits,
            events.block_merges,
            events.fallback_claims,
            events.fallback_steals,
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::ObstacleKind;
    use std::format;
    use std::string::String;

    #[test]
    fn each_kind_of_obstacle_has_its_line() {
        let mut events = MovingEvents::default();
        for (count, number) in events.obstacles.iter_mut().zip(100..) {
            *count = number;
        }
        let mut text = String::new();
        moving(&events, &mut text).expect("room");
        let kinds = [
            (ObstacleKind::Pinned, "pinned"),
            (ObstacleKind::Busy, "busy"),
            (ObstacleKind::Fixed, "fixed"),
            (ObstacleKind::Unknown, "unknown"),
            (ObstacleKind::Failed, "failed"),
            (ObstacleKind::NotMoved, "not_moved"),
            (ObstacleKind::NoMemory, "no_memory"),
            (ObstacleKind::Reserved, "reserved"),
            (ObstacleKind::Manager, "manager"),
            (ObstacleKind::Pool, "pool"),
            (ObstacleKind::Poisoned, "poisoned"),
            (ObstacleKind::Reporting, "reporting"),
            (ObstacleKind::Descriptors, "descriptors"),
        ];
        assert_eq!(kinds.len(), ObstacleKind::COUNT);
        let lines = text.lines().filter(|line| line.starts_with("compact_obstacle_"));
        assert_eq!(lines.count(), kinds.len());
        for (kind, name) in kinds {
            let line = format!("compact_obstacle_{name} {}", events.obstacles[kind as usize]);
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
