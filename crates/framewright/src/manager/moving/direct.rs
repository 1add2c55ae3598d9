//! Compaction for a request that found no run, before the reclaim hook is asked (Linux:
//! `mm/page_alloc.c`, `__alloc_pages_direct_compact`).
//!
//! For runs of up to 2 MiB, a block, emptying any block helps that the request may have. Larger
//! runs need neighbouring blocks, and below an address that lies inside a zone not every block
//! helps, so there a run is vacated where the least has to be moved. After a failure, requests that
//! ask that node first, for memory of that zone, do not try again at once
//! ([`Defer`](crate::zone::Defer)).

use super::compact::Extent;
use super::contiguous::{ContiguousError, ContiguousRequest};
use super::outcome::Budget;
use crate::block::MigrateType;
use crate::manager::reclaim::Attempt;
use crate::manager::request::{Mark, ORDINARY, Search};
use crate::manager::state::Manager;
use crate::manager::state::moving::Compaction;
use crate::manager::state::pressure::count;
use crate::platform::Platform;
use crate::units::{Order, PAGES_PER_BLOCK, Pfn};
use crate::zone::{ContigInfo, Suitability, Zone, suitability};
use core::panic::Location;

/// The most runs that are begun in one part of a zone, or for one run.
const MOST_RUNS: u64 = 1 << 16;

impl<P: Platform> Manager<P> {
    /// Compacts for a request that lacks `missing` pages in runs of `order`, and attempts the
    /// request again.
    pub(in crate::manager) fn direct_compact(
        &self,
        search: &Search,
        order: Order,
        missing: u64,
        attempt: &mut Attempt<'_>,
    ) -> Compaction {
        if !cfg!(feature = "moving") || order == Order::PAGE || !self.moving.has_mover() {
            return Compaction::Failed;
        }
        if !self.platform.can_wait() {
            return Compaction::NotTried;
        }
        let task = self.platform.current_task().map(core::num::NonZeroU64::get);
        // A mover that runs short of memory does not start another compaction.
        let Some(_inside) = self.pressure.enter_compaction(task) else {
            return Compaction::NotTried;
        };
        let nearest = self.zonelist(search).next().map(|zone| zone.id().node);
        let nearest = nearest.and_then(|node| self.numa.nodes().get(node.index()));
        let Some(nearest) = nearest else { return Compaction::Failed };
        let (defer, of) = (&nearest.defer, search.highest as usize);
        if defer.lock(self.platform)[of].skips(order) {
            // Not a plain failure: a request that is known to fail never comes here, so nobody
            // would try compaction again.
            return Compaction::NotTried;
        }
        if !self.zonelist(search).any(|zone| self.may_help(zone, search, order)) {
            return Compaction::Failed;
        }
        let counters = &self.moving.counters;
        count(&counters.compact_stalls, 1);
        let max = Pfn::containing(search.max_address);
        let is_cut = |zone: &Zone| zone.span().start < max && max < zone.span().end;
        let compacted = if order <= Order::BLOCK && !self.zonelist(search).any(is_cut) {
            self.compact_for(search, order, missing, attempt)
        } else {
            self.vacate_for(search, order, attempt)
        };
        let defer = &mut defer.lock(self.platform)[of];
        if matches!(compacted, Compaction::Succeeded) {
            defer.succeeded(order);
            count(&counters.compact_successes, 1);
        } else {
            defer.failed(order);
        }
        compacted
    }

    /// Returns whether a part of a zone has enough free memory for the request, in pieces: below
    /// its limit, above the mark of the zone, and room for what is moved in the part itself.
    #[inline(never)]
    fn may_help(&self, part: &Zone, search: &Search, order: Order) -> bool {
        if part.span().start.address() >= search.max_address {
            return false;
        }
        let keeps = self.keeps_of_all(Mark::Min, part, search);
        let runs = part.free_areas(self.platform).by_order();
        let threshold = self.sysctl().extfrag_threshold();
        self.is_above(part, keeps.saturating_add(2 * order.pages()))
            && suitability(&ContigInfo::of(&runs, order), 0, threshold) == Suitability::Suitable
    }

    /// Compacts where the request may have what becomes whole, part of a zone by part, in the
    /// order in which the request looks for memory. If no block becomes whole, moving what can be
    /// moved out of some blocks still makes room for shorter runs beside what cannot be moved.
    fn compact_for(
        &self,
        search: &Search,
        order: Order,
        missing: u64,
        attempt: &mut Attempt<'_>,
    ) -> Compaction {
        let blocks = missing.div_ceil(PAGES_PER_BLOCK).max(1);
        let is_movable = search.migrate_type == MigrateType::Movable;
        let mut refused_runs = 0;
        for part in self.zonelist(search) {
            if !self.may_help(part, search, order) {
                continue;
            }
            for in_pieces in [false, true] {
                if in_pieces && order >= Order::BLOCK {
                    continue;
                }
                let extent = Extent { blocks, most_pages: u64::MAX, in_pieces, is_movable };
                let is_meant = |zone: &Zone| core::ptr::eq(zone, part);
                let made = self.moving().compact_where(&is_meant, extent, Budget::runs(MOST_RUNS));
                refused_runs |= made.refused_runs;
                if made.blocks + made.moved.moved_runs != 0 && attempt(ORDINARY).is_ok() {
                    return Compaction::Succeeded;
                }
            }
        }
        if refused_runs == 0 { Compaction::Failed } else { Compaction::Refused }
    }

    /// Vacates one run after another and attempts the request after each, as long as that makes
    /// progress.
    fn vacate_for(&self, search: &Search, order: Order, attempt: &mut Attempt<'_>) -> Compaction {
        let wanted = ContiguousRequest {
            align: order,
            zone: search.highest,
            max_address: search.max_address,
            migrate_type: search.migrate_type,
            ..ContiguousRequest::new(order.pages())
        };
        let mut missing = u64::MAX;
        loop {
            let budget = Budget::runs(MOST_RUNS);
            let made = self.moving().vacate_cheapest(search, &wanted, budget);
            let run = match made {
                Ok(run) => run,
                Err(ContiguousError::InTheWay(_)) => return Compaction::Refused,
                Err(_) => return Compaction::Failed,
            };
            // This cannot fail: the run was just allocated and nobody else has it.
            let _ = self.free_uncached(run, Location::caller());
            match attempt(ORDINARY) {
                Ok(()) => return Compaction::Succeeded,
                Err(left) if left < missing => missing = left,
                Err(_) => return Compaction::Failed,
            }
        }
    }
}
