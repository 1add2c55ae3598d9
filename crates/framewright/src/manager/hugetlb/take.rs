//! Moves pages from zones into pools and back. Nobody else sees these pages meanwhile.
//!
//! With debug aids on, each page is allocated and freed like any other, so that the aids see it;
//! otherwise whole runs are taken and given back under one hold of a zone's lock.

use crate::block::{Chain, MigrateType, PageList};
use crate::hugetlb::Taken;
use crate::manager::accept::Growing;
use crate::manager::facets::Hugetlb;
use crate::manager::hugetlb::cma::GiveBack;
use crate::manager::hugetlb::pool::Pool;
use crate::manager::reclaim::Lacking;
use crate::manager::request::{AllocateError, Mark, ORDINARY, Request, Search};
use crate::manager::state::pools::{PoolBatch, PoolVmemmap};
use crate::memblock::NodeChoice;
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::{NodeId, Order, Pfn, PfnRange};
use crate::vmemmap::SECTION_PAGES;
use crate::zone::{ForPool, Zone, ZoneKind};
use core::panic::Location;

/// How many runs of pages a hook is given at once.
const RUNS_OF_A_CALL: usize = 32;
/// The order of the memory that a section of the vmemmap describes.
const SECTION: Order = match Order::for_pages(SECTION_PAGES) {
    Some(order) => order,
    None => Order::MAX,
};
/// How often damaged memory is passed over before a page counts as not found.
const DAMAGED_TRIES: u32 = 4;

/// Selects a call of [`PoolVmemmap`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Moment {
    Publish,
    Free,
    Demotion,
}

impl<P: Platform> Hugetlb<'_, P> {
    /// Writes `vm.hugetlb_optimize_vmemmap`: sets whether pages that enter a pool from now on give
    /// up their part of the vmemmap, if there is one (Linux: `mm/hugetlb_vmemmap.c`). Pages that
    /// are already in a pool stay as they are.
    pub fn set_optimize_vmemmap(self, on: bool) {
        // Relaxed: a page that enters right now may go either way.
        self.manager.pools.optimize.store(on, Ordering::Relaxed);
    }

    /// Reads `vm.hugetlb_optimize_vmemmap`; its first value is that of `hugetlb_free_vmemmap=` once
    /// [`fill`](Self::fill) was called.
    #[must_use]
    pub fn optimizes_vmemmap(self) -> bool {
        self.manager.pools.optimize.load(Ordering::Relaxed)
    }

    /// Returns the number of the user group that may make shared memory of huge pages
    /// (`vm.hugetlb_shm_group`); 0 at first. Kept for an adopter that has users: the manager knows
    /// none, and gives pages to any caller.
    #[must_use]
    pub fn shm_group(self) -> u32 {
        u32::try_from(self.manager.pools.shared_group.load(Ordering::Relaxed)).unwrap_or(u32::MAX)
    }

    /// Sets the group that [`shm_group`](Self::shm_group) returns.
    pub fn set_shm_group(self, group: u32) {
        self.manager.pools.shared_group.store(group.into(), Ordering::Relaxed);
    }

    /// Sets whether pages that leave a pool first get their part of the vmemmap back, as in Linux.
    /// Otherwise, and if memory for that is short, they get their descriptors inside when they are
    /// split, which needs no memory and no TLB flush.
    pub fn set_eager_restore(self, on: bool) {
        self.manager.pools.restore_eagerly.store(on, Ordering::Relaxed);
    }

    /// Returns what [`set_eager_restore`](Self::set_eager_restore) set; false at first.
    #[must_use]
    pub fn eager_restore(self) -> bool {
        self.manager.pools.restore_eagerly.load(Ordering::Relaxed)
    }

    /// Returns how often the TLBs of all CPUs were flushed since bring-up for pages that entered or
    /// left pools.
    #[must_use]
    pub fn flushes(self) -> u64 {
        self.manager.pools.flushes.load(Ordering::Relaxed)
    }

    /// Sets a hook that handles the descriptors of pages in pools instead of the manager; `None`,
    /// as at first, for no hook. To be set while no pool changes.
    pub fn set_vmemmap_hook(self, maps: Option<&'static dyn PoolVmemmap>) {
        *self.manager.pools.maps.lock(self.manager.platform) = maps;
        // Relaxed: a page that enters or leaves right now may go either way, and the hook itself is
        // read under its lock.
        self.manager.pools.has_vmemmap_hook.store(maps.is_some(), Ordering::Relaxed);
    }

    /// Returns how many 2 MiB pages pools took out of zones since bring-up, and how often a node
    /// had fewer than were asked for.
    #[must_use]
    pub fn takes(self) -> (u64, u64) {
        let takes = &self.manager.pools;
        (takes.taken_pages.load(Ordering::Relaxed), takes.short_takes.load(Ordering::Relaxed))
    }
}

impl<P: Platform> Pool<'_, P> {
    /// Takes up to `most` pages of a node, from its area and from its zones above the watermarks of
    /// ordinary requests.
    pub(super) fn take_pages(&self, node: NodeId, most: u64) -> Taken {
        let mut taken = Taken::NONE;
        self.take_from_area(&mut taken, node, most);
        let left = most - taken.pages();
        self.take_of_zones(&mut taken, node, left, ORDINARY);
        self.count_taken(most, &taken);
        taken
    }

    /// Does [`take_pages`](Self::take_pages) for up to `more` pages outside areas, above the given
    /// watermarks.
    pub(super) fn take_of_zones(&self, taken: &mut Taken, node: NodeId, more: u64, marks: &[Mark]) {
        if self.is_area_only() {
            return;
        }
        if self.manager.debug().aids().watch() {
            let most = taken.pages() + more;
            self.take_singly(taken, node, most);
        } else {
            self.take_marked(taken, node, more, marks);
        }
    }

    fn count_taken(&self, wanted: u64, taken: &Taken) {
        let (size, got) = (self.size, taken.pages());
        if !size.is_gigantic() {
            let is_short = got < wanted && !taken.is_full();
            // Relaxed: counters, changed once for many pages.
            self.manager.pools.taken_pages.fetch_add(got, Ordering::Relaxed);
            self.manager.pools.short_takes.fetch_add(u64::from(is_short), Ordering::Relaxed);
        }
    }

    /// Does [`take_pages`](Self::take_pages) from the node's zones alone, above the given
    /// watermarks.
    pub(super) fn take_marked(&self, taken: &mut Taken, node: NodeId, most: u64, marks: &[Mark]) {
        let size = self.size;
        let mut left = most;
        // Sections that are taken whole give up their map without needing a page table.
        let least = if self.manager.hugetlb().optimizes_vmemmap() { SECTION } else { size.order() };
        // Pools take no memory with a grade.
        let search = Search::near(node, MigrateType::Unmovable);
        for &mark in marks {
            for (slot, zone) in self.manager.hugetlb().node_zones(node) {
                while left != 0 && taken.has_room(slot) {
                    let mut note = |run| taken.note(slot, run);
                    let (keep, most) = match self.spared_at_boot(mark) {
                        Some(spared) => (0, left.min(spared)),
                        None => (self.manager.keeps(mark, zone, &search), left),
                    };
                    let list = zone.take_for_pool(
                        self.manager.platform,
                        &ForPool { order: size.order(), most, keep_pages: keep, least },
                        &mut note,
                    );
                    if list.pages() == 0
                        && !self.manager.grow(
                            zone,
                            &Growing {
                                pages: left.saturating_mul(size.frames()),
                                least: size.order(),
                                max: Pfn(u64::MAX),
                                migrate_type: search.migrate_type(),
                            },
                        )
                    {
                        break;
                    }
                    left -= list.pages();
                    // Only a part that gave something takes a place.
                    if list.pages() != 0
                        && let Some(place) = taken.list(slot)
                    {
                        place.append(zone.table(), list);
                    }
                }
            }
        }
    }

    /// Returns how many gigantic pages all zones together can give at boot above a watermark. A
    /// single zone may then be left with nothing: otherwise a node with a whole number of GiB could
    /// not give its last page. Requests for memory on such a node get it from another one. Linux
    /// takes these pages before zones have watermarks (`mm/hugetlb.c`, `alloc_bootmem_huge_page`).
    fn spared_at_boot(&self, mark: Mark) -> Option<u64> {
        let size = self.size;
        if !size.is_gigantic() || !self.manager.pools.at_boot.load(Ordering::Relaxed) {
            return None;
        }
        // Pools cannot take graded memory, and it is of no use to the requests that are left with
        // the rest.
        let has = |zone: &Zone| {
            let out_of_reach = zone.out_of_reach(MigrateType::Unmovable);
            (zone.free_pages() + zone.unaccepted_pages()).saturating_sub(out_of_reach)
        };
        let free: u64 = self.manager.zones().iter().map(has).sum();
        let keeps = |zone: &Zone| {
            let parts = self.manager.parts(zone.id()).iter();
            let withheld: u64 = parts.map(Zone::deferred_pages).sum();
            mark.keeps_of_all(zone, ZoneKind::Normal, MigrateType::Unmovable)
                .saturating_sub(withheld)
        };
        let firsts = self.manager.zones().iter().filter(|zone| zone.part() == 0);
        let keep: u64 = firsts.map(keeps).sum();
        Some(free.saturating_sub(keep) / size.frames())
    }

    /// Does [`take_pages`](Self::take_pages) with debug aids: each page is an allocation of its
    /// own.
    #[inline(never)]
    fn take_singly(&self, taken: &mut Taken, node: NodeId, most: u64) {
        let size = self.size;
        // Pools take no memory with a grade, which movable requests might be given. But if no
        // memory has a grade, an unmovable request would needlessly give 16 MiB around each page
        // another type.
        let has_grades = self.manager.zones().iter().any(|zone| zone.graded_pages() != 0);
        let migrate_type = if has_grades { MigrateType::Unmovable } else { MigrateType::Movable };
        let request = Request {
            node: NodeChoice::Exact(node),
            migrate_type,
            fail_fast: true,
            ..Request::new(size.order())
        };
        let mut damaged = 0;
        while taken.pages() < most {
            // Bypass the caches, whose blocks may have been counted already or have a grade.
            match self.manager.allocate_from_zones(&request, Location::caller()) {
                Ok(range) => {
                    let Ok((zone, segment)) = self.manager.zone_of_range(range) else { return };
                    let slot = usize::from(segment.zone);
                    let Some(list) = taken.list(slot) else {
                        // It was just allocated, and nobody else knows of it.
                        let _ = self.manager.free_uncached(range, Location::caller());
                        return;
                    };
                    let Some(chain) =
                        zone.adopt_for_pool(self.manager.platform, range.start, size.order())
                    else {
                        // The page became isolated a moment ago, and stays isolated.
                        damaged += 1;
                        // It was just allocated, and nobody else knows of it.
                        let freed = self.manager.free_uncached(range, Location::caller());
                        if freed.is_err() || damaged == DAMAGED_TRIES {
                            return;
                        }
                        continue;
                    };
                    list.append(zone.table(), PageList::unreported(chain));
                    taken.note(slot, Some(range));
                }
                Err(AllocateError::Damaged(_)) if damaged < DAMAGED_TRIES => damaged += 1,
                Err(_) => return,
            }
        }
    }

    /// Does [`take_pages`](Self::take_pages) for a caller that has no other way: drains the caches
    /// and asks the reclaim hook.
    pub(super) fn take_hard(&self, node: NodeId, most: u64) -> Taken {
        let size = self.size;
        let mut taken = Taken::NONE;
        // Use a type without access to graded memory, as pools take none: then a failure here says
        // nothing about requests that may use it.
        let request = Request {
            node: NodeChoice::Exact(node),
            migrate_type: MigrateType::Unmovable,
            ..Request::new(size.order())
        };
        let Ok(search) = self.manager.search(&request) else { return taken };
        self.take_from_area(&mut taken, node, most);
        if self.is_area_only() || taken.pages() == most {
            return taken;
        }
        let unwinding = GiveBack { pool: *self, taken: &mut taken };
        let mut attempt = |marks: &[Mark]| {
            let taken = &mut *unwinding.taken;
            let left = most - taken.pages();
            self.take_of_zones(taken, node, left, marks);
            if taken.pages() == most || taken.is_full() {
                Ok(())
            } else {
                Err((most - taken.pages()).saturating_mul(size.frames()))
            }
        };
        let known_to_fail = self.manager.pressure.epoch.wants_attention()
            && self.manager.is_known_to_fail(&search, size.order());
        if known_to_fail || attempt(ORDINARY).is_err() {
            // `taken` shows whether all pages were found.
            let (request, search, order) = (&request, &search, size.order());
            let lacking = Lacking { request, search, order, known_to_fail };
            self.manager.direct_reclaim(&lacking, &mut attempt);
        }
        core::mem::forget(unwinding);
        self.count_taken(most, &taken);
        taken
    }

    /// Returns which of the taken pages are in which part of which zone.
    pub(super) fn lists_of<'a>(
        &self,
        taken: &'a Taken,
    ) -> impl Iterator<Item = (usize, &'static Zone, PageList)> + use<'a, P> {
        let zones = self.manager.zones();
        taken.lists().filter_map(move |(slot, list)| Some((slot, zones.get(slot)?, list)))
    }

    /// Gives pages back to their zones.
    pub(super) fn give_back(&self, taken: &Taken) {
        for (_, zone, list) in self.lists_of(taken) {
            self.give_back_list(zone, list);
        }
    }

    /// Gives pages of one zone back to it.
    pub(super) fn give_back_list(&self, zone: &'static Zone, list: PageList) {
        let size = self.size;
        if list.pages() == 0 {
            return;
        }
        let mut leaked = 0;
        for chain in list.chains() {
            self.announce(zone, chain, Moment::Free);
            leaked += if size.is_gigantic() && self.manager.moving().area_pages() != 0 {
                self.give_back_to_areas(zone, chain)
            } else {
                self.release(zone, chain)
            };
        }
        if leaked != 0 {
            self.accounting().counts_mut(size).leaked += leaked;
        }
        self.manager.pressure.epoch.note_free();
    }

    /// Removes pages of one zone from the pool; returns how many stay allocated for ever.
    pub(super) fn release(&self, zone: &'static Zone, chain: Chain) -> u64 {
        if self.manager.debug().aids().watch() {
            self.give_back_singly(zone, chain)
        } else {
            zone.release_from_pool(self.manager.platform, self.size.order(), chain)
        }
    }

    fn give_back_singly(&self, zone: &'static Zone, chain: Chain) -> u64 {
        let size = self.size;
        let mut leaked = 0;
        let mut rest = chain;
        while rest.pages != 0 {
            let one = rest.take(zone.table(), 1);
            let frames = zone.frames_of(one.first, size.order());
            if !zone.disown_from_pool(self.manager.platform, one.first) {
                leaked += zone.release_from_pool(
                    self.manager.platform,
                    size.order(),
                    Chain { reported: false, ..one },
                );
            } else if let Some(frames) = frames {
                // The page was allocated as one; if an aid disagrees, it stays allocated. It left
                // its pool, where nobody had it, and is in no list: it is ours alone (invariants 37
                // and 42).
                let freed = self.manager.free_uncached(frames, Location::caller());
                leaked += u64::from(freed.is_err());
            }
        }
        leaked
    }

    /// Makes free pages visible as persistent ones. Returns how many frames their descriptors gave
    /// back.
    pub(super) fn publish_pages(&self, node: NodeId, taken: &Taken) -> u64 {
        let size = self.size;
        let returned = self.prepare_pages(taken);
        let mut accounting = self.accounting();
        accounting.add_free(size, node, taken.pages());
        for (slot, zone, list) in self.lists_of(taken) {
            accounting.list(size, slot).append(zone.table(), list);
        }
        returned
    }

    /// Prepares pages before others see them. Returns how many frames their descriptors gave back.
    pub(super) fn prepare_pages(&self, taken: &Taken) -> u64 {
        let size = self.size;
        let is_ours = !self.manager.pools.has_vmemmap_hook.load(Ordering::Relaxed);
        let prepare = |(slot, zone, list): (usize, &'static Zone, PageList)| {
            let runs = taken.runs(slot).filter(|_| is_ours && list.pages() != 0);
            debug_assert!(
                runs.clone()
                    .is_none_or(|runs| runs.map(PfnRange::pages).sum::<u64>()
                        == list.pages() * size.frames()),
                "the runs are all pages"
            );
            match runs {
                Some(runs) if self.manager.hugetlb().optimizes_vmemmap() => {
                    self.optimize_vmemmap(zone, runs)
                }
                Some(_) => 0,
                None => list
                    .chains()
                    .map(|chain| self.announce(zone, chain, Moment::Publish))
                    .iter()
                    .sum(),
            }
        };
        self.lists_of(taken).map(prepare).sum()
    }

    /// Gives up the descriptors of pages that nobody sees yet, as the manager does without a hook.
    /// Returns how many frames came back. If there is no array, or other CPUs cannot be waited for,
    /// pages stay as they are.
    fn optimize_vmemmap(
        &self,
        zone: &'static Zone,
        runs: impl Iterator<Item = PfnRange> + Clone,
    ) -> u64 {
        let change = self.manager.vmemmap().optimize_own_vmemmap(zone, runs).unwrap_or_default();
        self.manager.pools.flushes.fetch_add(change.flushes, Ordering::Relaxed);
        change.freed_pages.saturating_sub(change.spent_pages)
    }

    /// Tells the hook, or the manager's own code for descriptors, about the pages of a chain, in
    /// runs of neighbours.
    pub(super) fn announce(&self, zone: &'static Zone, chain: Chain, moment: Moment) -> u64 {
        let size = self.size;
        if chain.pages == 0 {
            return 0;
        }
        let maps = *self.manager.pools.maps.lock(self.manager.platform);
        let give_up = self.manager.hugetlb().optimizes_vmemmap();
        let restore = self.manager.pools.restore_eagerly.load(Ordering::Relaxed);
        let concerns_us = if moment == Moment::Publish { give_up } else { restore };
        if maps.is_none() && !concerns_us {
            return 0;
        }
        let at_boot = self.manager.pools.at_boot.load(Ordering::Relaxed);
        let mut returned = 0;
        let mut tell = |runs: &[PfnRange]| {
            let batch = PoolBatch { size, runs, at_boot };
            // Pages on their way into or out of a pool are in no list, and nobody but this caller
            // has or sees them (invariant 37).
            match (moment, maps) {
                // SAFETY: as said (invariant 42).
                (Moment::Publish, Some(maps)) => returned += unsafe { maps.before_publish(&batch) },
                // SAFETY: as said (invariant 42).
                (Moment::Free, Some(maps)) => unsafe { maps.before_free(&batch) },
                // SAFETY: as said (invariant 42).
                (Moment::Demotion, Some(maps)) => unsafe { maps.before_demotion(&batch) },
                (Moment::Publish, None) if give_up => {
                    returned += self.optimize_vmemmap(zone, runs.iter().copied())
                }
                // Descriptors that could not be restored lie inside the page when it is split.
                (Moment::Free, None) if restore => {
                    // SAFETY: as said (invariant 42).
                    let change =
                        unsafe { self.manager.vmemmap().restore(runs) }.unwrap_or_default();
                    self.manager.pools.flushes.fetch_add(change.flushes, Ordering::Relaxed);
                }
                (Moment::Publish | Moment::Free | Moment::Demotion, None) => {}
            }
        };
        let mut runs = [PfnRange::new(0, 0); RUNS_OF_A_CALL];
        let mut filled = 0;
        let mut index = chain.first;
        for _ in 0..chain.pages {
            let Some(frames) = zone.frames_of(index, size.order()) else { break };
            match runs[..filled].last_mut() {
                Some(last) if last.end == frames.start => last.end = frames.end,
                _ => {
                    if filled == runs.len() {
                        tell(&runs);
                        filled = 0;
                    }
                    runs[filled] = frames;
                    filled += 1;
                }
            }
            index = zone.table().links(index).1;
        }
        if filled != 0 {
            tell(&runs[..filled]);
        }
        returned
    }
}
