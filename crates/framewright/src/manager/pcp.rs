//! The short way: orders 0 to 9 through the calling CPU's cache.
//!
//! Pin, enter, take a bit or an entry, leave, unpin. A cache that is empty refills by the word
//! under one hold of the zone lock, one that is full gives what it has back under one. An interrupt
//! handler that finds its CPU inside, and a CPU whose cache is being drained, go the long way.

use crate::block::MigrateType;
use crate::debug::Place;
use crate::manager::alloc::usable_type;
use crate::manager::facets::Caches;
use crate::manager::request::{AllocateError, Mark, Request, Search};
use crate::manager::state::Manager;
use crate::manager::vmemmap::deferred::Growth;
use crate::page::{CpuCache, Flow, MOST_FREED, MOST_RETURNED, MOST_RUNS, Put, Runs};
use crate::platform::{Platform, pinned};
use crate::units::{BLOCK_ORDER, Order, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;
use crate::zone::{FreeError, Refill, Zone, ZoneId, ZoneKind, segment};
use core::panic::Location;

/// What a CPU keeps for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpuCacheInfo {
    /// Of this zone.
    pub zone: ZoneId,
    /// So many pages now.
    pub pages: u64,
    /// A refill brings at most so many single pages.
    pub batch_pages: u64,
    /// It never has more than so many.
    pub most_pages: u64,
}

impl<P: Platform> Caches<'_, P> {
    /// Pages that CPUs keep in their caches, free to them and allocated to everybody else. Exact
    /// when nobody allocates.
    #[must_use]
    pub fn pages(self) -> u64 {
        self.manager.caches.iter().map(CpuCache::pages).sum()
    }

    /// What CPU `cpu` keeps: of which zone, how many pages, and how many it may. Nothing when there
    /// is no such CPU, or no zone for it to keep frames of. Exact when it does not allocate.
    #[must_use]
    pub fn cpu(self, cpu: u32) -> Option<CpuCacheInfo> {
        let cache = self.manager.caches.get(cpu as usize)?;
        let zone = self.manager.zones.get(cache.zone)?.id();
        let (batch_pages, most_pages) = cache.limits();
        Some(CpuCacheInfo { zone, pages: cache.pages(), batch_pages, most_pages })
    }
}

impl<P: Platform> Manager<P> {
    /// Allocates 2^`order` pages near the caller, at any address: the short way for the usual
    /// request. Content is undefined.
    ///
    /// # Errors
    /// See [`AllocateError`].
    #[inline(always)]
    #[track_caller]
    pub fn allocate_order(
        &self,
        order: Order,
        migrate_type: MigrateType,
    ) -> Result<Pfn, AllocateError> {
        // First, so that a request that is known to fail does nothing else. What is on at all is on
        // from bring-up to the end.
        if self.pressure.epoch.wants_attention() {
            if self.pressure.is_lost(order, migrate_type) {
                return Err(AllocateError::OutOfMemory { order });
            }
            return self.allocate_with_attention(order, migrate_type, Location::caller());
        }
        self.allocate_unseen(order, migrate_type)
    }

    /// [`allocate_order`](Self::allocate_order) without debug hooks.
    #[inline]
    fn allocate_unseen(
        &self,
        order: Order,
        migrate_type: MigrateType,
    ) -> Result<Pfn, AllocateError> {
        if order > Order::BLOCK {
            return self.allocate_large(order, migrate_type);
        }
        match self.inside(|cache| cache.get(order, migrate_type)) {
            Some(Some(start)) => Ok(start),
            _ => self.allocate_slowly(order, migrate_type),
        }
    }

    /// Allocates orders that no cache keeps.
    #[inline(never)]
    fn allocate_large(
        &self,
        order: Order,
        migrate_type: MigrateType,
    ) -> Result<Pfn, AllocateError> {
        if order == Order::MAX
            && let Some(zone) = self.sole
            && let Some(start) = zone.take_largest(self.platform, migrate_type)
        {
            return Ok(start);
        }
        self.allocate_slowly(order, migrate_type)
    }

    /// The zone that the calling CPU's cache keeps frames of.
    #[inline]
    fn near_zone(&self) -> Option<&'static Zone> {
        self.pinned(|cpu| {
            self.caches.get(cpu as usize).and_then(|cache| self.zones.get(cache.zone))
        })
    }

    /// Calls `work` with the number of the CPU on which it then runs to its end.
    #[inline]
    pub(super) fn pinned<T>(&self, work: impl FnOnce(u32) -> T) -> T {
        pinned(self.platform, work)
    }

    /// Where something besides the work is to be done: nobody has freed anything since the caches
    /// were emptied, but this may be had yet, or a debug aid is on.
    #[inline(never)]
    fn allocate_with_attention(
        &self,
        order: Order,
        migrate_type: MigrateType,
        place: Place,
    ) -> Result<Pfn, AllocateError> {
        let start = self.allocate_unseen(order, migrate_type)?;
        let taken = PfnRange { start, end: start.add(order.pages()) };
        self.after_allocation(core::iter::once(taken), false, place)?;
        Ok(start)
    }

    /// Calls `work` with the CPU's cache, unless somebody else is in it.
    #[inline]
    pub(super) fn inside<T>(&self, work: impl FnOnce(&CpuCache) -> T) -> Option<T> {
        self.pinned(|cpu| match self.caches.get(cpu as usize) {
            Some(cache) if cache.ownership.enter() => {
                let result = work(cache);
                cache.ownership.leave();
                Some(result)
            }
            _ => None,
        })
    }

    /// From the near zone, above its low mark if it has that; then from the others; then by all
    /// other means.
    #[cold]
    #[inline(never)]
    fn allocate_slowly(
        &self,
        order: Order,
        migrate_type: MigrateType,
    ) -> Result<Pfn, AllocateError> {
        // Here, as a search for a type that no memory is kept for would bring up all that is
        // withheld.
        usable_type(migrate_type)?;
        let near = if order > Order::BLOCK {
            let take = |zone: &'static Zone| {
                self.try_zone(zone, &Search::near(zone.id().node, migrate_type), order, Mark::Low)
            };
            self.near_zone().and_then(take).map(|range| range.start)
        } else {
            self.inside(|cache| self.refill(cache, order, migrate_type)).flatten()
        };
        match near {
            Some(start) => Ok(start),
            None => self
                .allocate_bare(&Request { migrate_type, ..Request::new(order) })
                .map(|range| range.start),
        }
    }

    /// Fills the cache and takes a run; nothing when the order is not cached, or no zone has any
    /// above its marks.
    fn refill(&self, cache: &CpuCache, order: Order, migrate_type: MigrateType) -> Option<Pfn> {
        if !cache.caches(order, migrate_type) {
            return None;
        }
        // An interrupt since the last look may have filled it; a refill finds room only in an empty
        // one.
        if let Some(start) = cache.get(order, migrate_type) {
            return Some(start);
        }
        if cache.reuse_where(order, migrate_type, |base| self.is_crowded(base)) {
            return cache.get(order, migrate_type);
        }
        let home = self.zones.get(cache.zone)?;
        if order == Order::BLOCK {
            cache.adapt(Flow::In, self.may_keep_more(home));
        }
        let search = Search::near(home.id().node, migrate_type);
        let from = |zone: &Zone, mark: Mark, runs| {
            let keep = mark.keeps(zone, ZoneKind::Normal);
            let wanted = Refill { order, migrate_type, most: runs, keep_pages: keep };
            zone.refill(self.platform, cache, &wanted)
        };
        let mut start = from(home, Mark::Low, u32::MAX);
        // What this CPU has freed is free to it, whatever the marks say, and the host backs it,
        // unlike reported memory.
        if start.is_none() && cache.reuse(order, migrate_type) {
            return cache.get(order, migrate_type);
        }
        if start.is_none() {
            match self.vmemmap().grow_inside(home, order.pages()) {
                Growth::Grown => start = from(home, Mark::Low, u32::MAX),
                // Outside of the cache it can be waited for, and is nearer than another zone.
                Growth::Busy => return None,
                Growth::NothingLeft => {}
            }
        }
        if start.is_none() {
            // Little of zones that it does not keep frames of, which go back one by one.
            let little = u32::try_from(64 / order.pages().min(64)).unwrap_or(1);
            let most = |zone: &Zone| {
                if cache.keeps(zone.pfn_range()) { u32::MAX } else { little }
            };
            let mut marks = [Mark::Low, Mark::Min].into_iter();
            let cached = cache.pages();
            start = marks.find_map(|mark| {
                self.zonelist(&search).find_map(|zone| {
                    let start = from(zone, mark, most(zone))?;
                    self.note_node(
                        zone,
                        &search,
                        cache.pages().saturating_sub(cached) + order.pages(),
                    );
                    Some(start)
                })
            });
        }
        if start.is_some() {
            self.pressure.epoch.note_free();
        }
        start
    }

    /// Whether a CPU may keep more blocks than usual of a zone: not where memory is short, nor
    /// while free memory is to go back to a hypervisor.
    fn may_keep_more(&self, zone: &Zone) -> bool {
        zone.free_pages() > zone.watermarks().high_pages && !self.reporting.is_registered()
    }

    /// Gives back what [`allocate_order`](Self::allocate_order) gave, or an aligned part of it.
    ///
    /// Where what is wrong with it is found depends on the build.
    ///
    /// * Every build finds at this call what is not aligned to `order`; and, of a free that no
    ///   cache takes, all but that the frame is in a cache. No cache takes orders above 9, nor
    ///   frames outside of the zones of its node (DMA apart), which includes tables that bring-up
    ///   placed below the lowest of these zones or above the highest.
    /// * With debug assertions also every other frame that is free, was never allocated, is a table
    ///   or of the vmemmap, or was freed before and is in the cache of this CPU, or in that of
    ///   another where these can be waited for ([`Platform::can_wait`]). What others do with the
    ///   same frame at the same moment may hide it.
    /// * With `page_owner=on`, in every build, whatever that record does not call allocated, in
    ///   caches and elsewhere.
    /// * All else is found when the frame leaves the cache for its zone, and is the error of the
    ///   call that made it leave. A frame that was freed twice is free once then. Until it leaves,
    ///   the cache may hand it out, even twice.
    ///
    /// # Errors
    /// See [`FreeError`].
    ///
    /// # Safety
    /// See [*Owning memory*](super#owning-memory): the caller owns these frames, and nobody uses
    /// them any more.
    #[inline]
    #[track_caller]
    pub unsafe fn free_order(&self, start: Pfn, order: Order) -> Result<(), FreeError> {
        if cfg!(debug_assertions) {
            self.check_free_order(start, order).map_err(|error| self.explained(error))?;
        }
        if order > Order::BLOCK {
            return self.free_large(start, order, Location::caller());
        }
        let put = self.inside(|cache| {
            let usual = !self.pressure.epoch.wants_attention()
                && cache.covers(start, order)
                && start.is_aligned(order);
            if usual { cache.put(start, order) } else { Put::Full }
        });
        if put == Some(Put::Cached) {
            Ok(())
        } else {
            self.free_slowly(start, order, put, Location::caller())
        }
    }

    /// Makes room in the cache, or frees into the zone; tells those who want to know of every free.
    #[cold]
    #[inline(never)]
    fn free_slowly(
        &self,
        start: Pfn,
        order: Order,
        put: Option<Put>,
        place: Place,
    ) -> Result<(), FreeError> {
        if put == Some(Put::DoubleFree) {
            return Err(FreeError::free_already(start));
        }
        let mut told = false;
        let kept = self.inside(|cache| {
            if !(cache.caches(order, MigrateType::Movable)
                && cache.covers(start, order)
                && start.is_aligned(order))
            {
                return None;
            }
            if self.pressure.epoch.wants_attention() {
                self.pressure.epoch.note_free();
                told = true;
                if let Err(error) = self.before_free(
                    PfnRange { start, end: start.add(order.pages()) },
                    false,
                    place,
                ) {
                    return Some(Err(error));
                }
            }
            let mut result = Ok(());
            let mut put = cache.put(start, order);
            if put == Put::Full
                && order == Order::BLOCK
                && let Some(home) = self.zones.get(cache.zone)
                && cache.adapt(Flow::Out, self.may_keep_more(home))
            {
                put = cache.put(start, order);
            }
            if put == Put::Full {
                // Of words as many as go back together: of those that stay some may be used again.
                // Of runs the newer half may be wanted soon, of blocks, which cost most under the
                // lock, a quarter.
                let waiting = cache.waiting(order);
                let oldest = match order.get() {
                    0..4 => waiting.min(MOST_FREED),
                    BLOCK_ORDER => waiting - waiting / 4,
                    _ => waiting.div_ceil(2),
                };
                result = self.return_oldest(cache, order, oldest);
                put = cache.put(start, order);
            }
            match put {
                Put::Cached => Some(result),
                Put::DoubleFree => Some(Err(FreeError::free_already(start))),
                Put::Full => None,
            }
        });
        if let Some(result) = kept.flatten() {
            return result;
        }
        self.free_into_zone(start, order, (!told).then_some(place))
    }

    /// Frees what no cache keeps.
    #[inline(never)]
    fn free_large(&self, start: Pfn, order: Order, place: Place) -> Result<(), FreeError> {
        if order == Order::MAX
            && !self.pressure.epoch.wants_attention()
            && let Some(zone) = self.sole
            && zone.free_largest(self.platform, start)
        {
            self.pressure.epoch.note_free();
            return Ok(());
        }
        self.free_into_zone(start, order, Some(place))
    }

    /// `place` is absent when those who want to know of every free have been told.
    fn free_into_zone(
        &self,
        start: Pfn,
        order: Order,
        place: Option<Place>,
    ) -> Result<(), FreeError> {
        if !start.is_aligned(order) {
            return Err(FreeError::NotAligned { start, order });
        }
        let range = PfnRange::new(start.0, start.0.saturating_add(order.pages()));
        if let Some(place) = place
            && self.pressure.epoch.wants_attention()
        {
            self.before_free(range, false, place)?;
        }
        let (zone, segment) = self.zone_of_range(range)?;
        zone.free_order(self.platform, segment, start, order)?;
        self.pressure.epoch.note_free();
        Ok(())
    }

    fn check_free_order(&self, start: Pfn, order: Order) -> Result<(), FreeError> {
        if !start.is_aligned(order) {
            return Err(FreeError::NotAligned { start, order });
        }
        self.check_free(PfnRange::new(start.0, start.0.saturating_add(order.pages())))
    }

    /// All that can be known to be wrong with a free, without page owners.
    #[cold]
    #[inline(never)]
    pub(super) fn check_free(&self, range: PfnRange) -> Result<(), FreeError> {
        let (zone, segment) = self.zone_of_range(range)?;
        zone.check_allocated(self.platform, segment, range)?;
        self.check_not_cached(range)
    }

    /// Finds frames that were freed before and that a CPU keeps, to which the zones' tables know no
    /// difference.
    fn check_not_cached(&self, range: PfnRange) -> Result<(), FreeError> {
        // Model checkers try every order of all these looks.
        if cfg!(any(loom, shuttle)) {
            return Ok(());
        }
        if self.caches.iter().all(|cache| cache.find(range).is_none()) {
            return Ok(());
        }
        // It may be one of a frame that is on its way to us through another's hands, so it is
        // looked at with nobody inside.
        let mut found = None;
        if self.platform.cpus() > 1 && !self.platform.can_wait() {
            found = self.inside(|cache| cache.find(range)).flatten();
        } else {
            self.isolation().with_caches(&mut |cache| found = found.or_else(|| cache.find(range)));
        }
        found.map_or(Ok(()), |pfn| Err(FreeError::free_already(pfn)))
    }

    /// Gives the oldest `count` entries that wait back to their zones.
    fn return_oldest(&self, cache: &CpuCache, order: Order, count: usize) -> Result<(), FreeError> {
        // No larger than what usually goes back: clearing more takes as long as a few frees.
        if order == Order::PAGE {
            return self.return_some::<MOST_FREED>(cache, order, count);
        }
        if order == Order::BLOCK {
            return self.return_some::<MOST_RETURNED>(cache, order, count);
        }
        self.return_some::<MOST_RUNS>(cache, order, count)
    }

    fn return_some<const MOST: usize>(
        &self,
        cache: &CpuCache,
        order: Order,
        count: usize,
    ) -> Result<(), FreeError> {
        let (mut left, mut result) = (count, Ok(()));
        while left != 0 {
            let mut batch = [Runs::NONE; MOST];
            let copied = cache.copy_waiting(order, &mut batch);
            let some = whole_blocks(&batch[..copied], left.min(copied));
            if some == 0 {
                break;
            }
            left = left.saturating_sub(some);
            cache.forget_oldest(order, some);
            if order.get() >= 4 && batch[0].base > batch[some - 1].base {
                // Runs that were freed downwards go back together as those that were freed upwards
                // do.
                batch[..some].reverse();
            }
            let returned = self.return_runs(cache, order, &batch[..some]);
            result = result.and(returned);
        }
        result
    }

    /// Gives runs back to their zones. All that can go back do; the first that cannot is the error.
    fn return_runs(&self, cache: &CpuCache, order: Order, batch: &[Runs]) -> Result<(), FreeError> {
        let Some(home) = self.zones.get(cache.zone) else { return Ok(()) };
        if batch.iter().all(|entry| home.pfn_range().contains(entry.base)) {
            return self.return_to(home, order, batch);
        }
        self.return_to_several(home, order, batch)
    }

    /// Gives each zone what is its own, together.
    #[cold]
    #[inline(never)]
    fn return_to_several(
        &self,
        home: &'static Zone,
        order: Order,
        batch: &[Runs],
    ) -> Result<(), FreeError> {
        let mut result = Ok(());
        let mut left = [Runs::NONE; MOST_RETURNED];
        for batch in batch.chunks(MOST_RETURNED) {
            let mut count = batch.len();
            left[..count].copy_from_slice(batch);
            while let Some(first) = left[..count].first() {
                let zone = self.zone_of(first.base).unwrap_or(home);
                let (mut same, mut taken, mut others) = ([Runs::NONE; MOST_RETURNED], 0, 0);
                for at in 0..count {
                    let entry = left[at];
                    // The first always goes: so this ends, whatever it is.
                    if at == 0 || zone.pfn_range().contains(entry.base) {
                        same[taken] = entry;
                        taken += 1;
                    } else {
                        left[others] = entry;
                        others += 1;
                    }
                }
                count = others;
                result = result.and(self.return_to(zone, order, &same[..taken]));
            }
        }
        result
    }

    fn return_to(&self, zone: &Zone, order: Order, batch: &[Runs]) -> Result<(), FreeError> {
        let mut result = Ok(());
        zone.drain(self.platform, batch, order, &mut |entry| {
            // Something in it is wrong, or it belongs to another zone, as spans may overlap: one
            // run after the other.
            for start in entry.starts() {
                let freed = self.free_bare(PfnRange { start, end: start.add(order.pages()) });
                if result.is_ok() {
                    result = freed.map_err(|error| self.explained(error));
                }
            }
        });
        result
    }

    /// The zone of a frame, if it has one.
    fn zone_of(&self, pfn: Pfn) -> Option<&'static Zone> {
        let segment = segment::find(self.directory, BlockNumber::containing(pfn))?;
        self.zones.get(usize::from(segment.zone))
    }

    /// Whether this frame's block has so little free that it will hardly become whole soon. Asked
    /// without the lock: a wrong answer costs little.
    fn is_crowded(&self, pfn: Pfn) -> bool {
        let block = BlockNumber::containing(pfn);
        let segment = segment::find(self.directory, block);
        let zone = segment.and_then(|segment| self.zones.get(usize::from(segment.zone)));
        let (Some(segment), Some(zone)) = (segment, zone) else { return false };
        zone.is_crowded(segment.index_of(block))
    }

    /// Empties the caches of all CPUs into the zones, where the frames merge and can be had by
    /// everybody.
    ///
    /// Where other CPUs cannot be waited for ([`Platform::can_wait`]) only the calling CPU's cache
    /// is emptied. Returns how many pages went back.
    ///
    /// # Errors
    /// The first frame in a cache that was not allocated; all others have gone back.
    pub fn drain(&self) -> Result<u64, FreeError> {
        if self.platform.cpus() == 1 || !self.platform.can_wait() {
            return self.drain_own();
        }
        self.drain_all()
    }

    /// Empties the caches of all CPUs, where waiting for them is allowed. Several may do so at a
    /// time: none waits for a drain as a whole, whose task may have been preempted.
    pub(super) fn drain_all(&self) -> Result<u64, FreeError> {
        self.pressure.count_drain();
        let number = self.pressure.epoch.begin_drain();
        let (mut pages, mut wrong) = (0, None);
        self.with_all_caches(&mut |cache| match self.drain_cache(cache) {
            Ok(drained) => pages += drained,
            Err(error) => wrong = wrong.or(Some(error)),
        });
        self.pressure.epoch.end_drain(number);
        wrong.map_or(Ok(pages), Err)
    }

    /// Calls `body` for each CPU's cache while it is ours, where waiting for CPUs is allowed.
    /// `body` is pinned and short.
    pub(super) fn with_all_caches(&self, body: &mut dyn FnMut(&CpuCache)) {
        self.caches.iter().for_each(|cache| cache.ownership.revoke());
        self.platform.cpu_barrier();
        for cache in self.caches {
            cache.ownership.wait(self.platform);
            cache.ownership.alone(self.platform, || body(cache));
            cache.ownership.give_back();
        }
    }

    /// Empties the calling CPU's cache.
    pub(super) fn drain_own(&self) -> Result<u64, FreeError> {
        let drained = self.inside(|cache| {
            if self.platform.cpus() != 1 {
                return self.drain_cache(cache);
            }
            self.pressure.count_drain();
            let number = self.pressure.epoch.begin_drain();
            let drained = self.drain_cache(cache);
            self.pressure.epoch.end_drain(number);
            drained
        });
        drained.unwrap_or(Ok(0))
    }

    /// Empties a cache that is ours for the moment.
    pub(super) fn drain_cache(&self, cache: &CpuCache) -> Result<u64, FreeError> {
        let pages = cache.pages();
        let mut result = Ok(pages);
        while let Some((order, word)) = cache.give_up_word() {
            result = join(result, self.return_runs(cache, order, &[word]).map(|()| 0));
        }
        for order in CpuCache::orders() {
            let waiting = cache.waiting(order);
            if waiting != 0 {
                result = join(result, self.return_oldest(cache, order, waiting).map(|()| 0));
            }
        }
        result
    }
}

/// How many runs go back if `count` of them should: up to half as many more, if the last one's
/// block ends there, because a block that comes back in one piece never gets into a list.
fn whole_blocks(runs: &[Runs], count: usize) -> usize {
    let Some(last) = count.checked_sub(1).and_then(|last| runs.get(last)) else { return count };
    let block = BlockNumber::containing(last.base);
    let follow =
        runs[count..].iter().take_while(|runs| BlockNumber::containing(runs.base) == block).count();
    if follow <= count / 2 { count + follow } else { count }
}

/// The sum, or the first error.
fn join(one: Result<u64, FreeError>, other: Result<u64, FreeError>) -> Result<u64, FreeError> {
    Ok(one? + other?)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn what_goes_back_ends_where_a_block_does_if_that_is_near() {
        let half = |number: u64| Runs::one(Pfn(number * 256));
        let odd: Vec<Runs> = (1..9).map(half).collect();
        assert_eq!(
            [0, 1, 2, 3, 4, 7, 8].map(|count| whole_blocks(&odd, count)),
            [0, 1, 3, 3, 5, 7, 8]
        );
        // The rest of the block would be all that there is.
        let small: Vec<Runs> = (0..16).map(|number| Runs::one(Pfn(number * 16))).collect();
        assert_eq!([4, 8, 11, 16].map(|count| whole_blocks(&small, count)), [4, 8, 16, 16]);
        assert_eq!(whole_blocks(&[], 0), 0);
    }
}
