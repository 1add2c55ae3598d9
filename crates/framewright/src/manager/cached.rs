//! The short way: orders 0 to 3 and 9 through the calling CPU's cache.
//!
//! Pin, enter, take a bit or an entry, leave, unpin. A cache that is empty refills by the word under one hold of the zone lock, one that is full gives
//! its oldest half back under one. An interrupt handler that finds its CPU inside, and a CPU whose cache is being drained, go the long way.

use super::allocate::{Mark, Search};
use super::{AllocateError, Manager, Request};
use crate::block::MigrateType;
use crate::debug::Place;
use crate::page::{CpuCache, EMPTY_BATCH, Put, Runs, is_cached};
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;
use crate::units::{Order, Pfn, PfnRange};
use crate::zone::{FreeError, ZoneKind};
use core::panic::Location;

impl<P: Platform> Manager<P> {
    /// Allocates 2^`order` pages near the caller, at any address: the short way for the usual request. Content is undefined.
    ///
    /// # Errors
    /// See [`AllocateError`].
    #[inline]
    #[track_caller]
    pub fn allocate_order(&self, order: Order, migrate_type: MigrateType) -> Result<Pfn, AllocateError> {
        let start = self.allocate_order_bare(order, migrate_type)?;
        if self.pressure.quiet.wants_attention() {
            let taken = PfnRange { start, end: start.add(order.pages()) };
            self.after_allocation(core::iter::once(taken), false, Location::caller())?;
        }
        Ok(start)
    }

    #[inline]
    fn allocate_order_bare(&self, order: Order, migrate_type: MigrateType) -> Result<Pfn, AllocateError> {
        if is_cached(order, migrate_type) {
            let cpu = self.platform.pin();
            let taken = self.cache(cpu.index()).filter(|cache| cache.ownership.enter()).and_then(|cache| {
                let taken = cache.get(order, migrate_type).or_else(|| self.refill(cache, order, migrate_type));
                cache.ownership.leave();
                taken
            });
            self.platform.unpin(cpu);
            if let Some(pfn) = taken {
                return Ok(pfn);
            }
        }
        self.allocate_uncached(order, migrate_type)
    }

    /// The zone that is asked first, without the ceremony; then all.
    fn allocate_uncached(&self, order: Order, migrate_type: MigrateType) -> Result<Pfn, AllocateError> {
        let cpu = self.platform.pin();
        let zone = self.cache(cpu.index()).and_then(|cache| self.zones.get(cache.zone));
        self.platform.unpin(cpu);
        let near = zone.and_then(|zone| self.try_zone(zone, &Search::of_type(migrate_type), order, Mark::Low));
        let anywhere = || self.allocate_bare(&Request { migrate_type, ..Request::new(order) });
        near.map_or_else(anywhere, Ok).map(|range| range.start)
    }

    /// Gives back what [`allocate_order`](Self::allocate_order) gave, or an aligned part of it.
    ///
    /// What is wrong with `start` may be found only when the frame leaves the cache, which is then the error of the call that made it leave; builds with
    /// debug assertions look at once, and so does every build with `page_owner=on`.
    ///
    /// # Errors
    /// See [`FreeError`].
    #[inline]
    #[track_caller]
    pub fn free_order(&self, start: Pfn, order: Order) -> Result<(), FreeError> {
        if cfg!(debug_assertions) {
            self.check_allocated(start, order).map_err(|error| self.explained(error))?;
        }
        if is_cached(order, MigrateType::Movable) && start.is_aligned(order) {
            let cpu = self.platform.pin();
            let done = match self.cache(cpu.index()) {
                Some(cache) if cache.keeps(start, order) && cache.ownership.enter() => {
                    let done = if self.pressure.quiet.wants_attention() {
                        self.put_attentively(cache, start, order, Location::caller())
                    } else {
                        self.put(cache, start, order)
                    };
                    cache.ownership.leave();
                    Some(done)
                }
                _ => None,
            };
            self.platform.unpin(cpu);
            if let Some(done) = done {
                return done;
            }
        }
        self.free_order_uncached(start, order, Location::caller())
    }

    #[inline]
    fn put(&self, cache: &CpuCache, start: Pfn, order: Order) -> Result<(), FreeError> {
        match cache.put(start, order) {
            Put::Kept => Ok(()),
            Put::Twice => Err(FreeError::free_already(start)),
            Put::Full => self.make_room(cache, start, order),
        }
    }

    /// The same where a debug aid or somebody who is short of memory wants to know.
    #[cold]
    fn put_attentively(&self, cache: &CpuCache, start: Pfn, order: Order, place: Place) -> Result<(), FreeError> {
        self.pressure.quiet.stir();
        self.before_free(PfnRange { start, end: start.add(order.pages()) }, false, place)?;
        self.put(cache, start, order)
    }

    fn free_order_uncached(&self, start: Pfn, order: Order, place: Place) -> Result<(), FreeError> {
        let range = PfnRange::new(start.0, start.0.saturating_add(order.pages()));
        if self.pressure.quiet.wants_attention() {
            self.before_free(range, false, place)?;
        }
        let (zone, segment) = self.zone_of_range(range)?;
        zone.free_order(self.platform, segment, start, order)?;
        self.pressure.quiet.stir();
        Ok(())
    }

    fn check_allocated(&self, start: Pfn, order: Order) -> Result<(), FreeError> {
        let range = PfnRange::new(start.0, start.0.saturating_add(order.pages()));
        let (zone, segment) = self.zone_of_range(range)?;
        zone.check_allocated(self.platform, segment, range)
    }

    #[inline]
    fn cache(&self, cpu: u32) -> Option<&'static CpuCache> {
        self.caches.get(cpu as usize)
    }

    #[cold]
    fn refill(&self, cache: &CpuCache, order: Order, migrate_type: MigrateType) -> Option<Pfn> {
        let zone = self.zones.get(cache.zone)?;
        let keep = zone.keeps(zone.watermarks().low_pages, ZoneKind::Normal);
        let taken = zone.refill(self.platform, cache, order, migrate_type, keep);
        if taken.is_some() {
            // Still inside the cache's section. A refill that finds nothing changes nothing.
            self.pressure.quiet.stir();
        }
        taken
    }

    /// Gives the older half of a full stack back to its zone, then keeps the run.
    #[cold]
    fn make_room(&self, cache: &CpuCache, start: Pfn, order: Order) -> Result<(), FreeError> {
        let result = self.return_oldest(cache, order, cache.stack(order).len().div_ceil(2));
        match cache.put(start, order) {
            Put::Kept | Put::Full => result,
            Put::Twice => Err(FreeError::free_already(start)),
        }
    }

    /// Gives the oldest `count` entries of a stack back to their zones.
    fn return_oldest(&self, cache: &CpuCache, order: Order, count: u32) -> Result<(), FreeError> {
        let mut batch = EMPTY_BATCH;
        let count = cache.stack(order).take_oldest(count, &mut batch);
        if order >= Order::BLOCK {
            // Neighbours go back as one.
            batch[..count].sort_unstable_by_key(|entry| entry.base);
        }
        self.return_runs(cache, order, &batch[..count])
    }

    /// Gives runs back to their zones. All that can go back do; the first that cannot is the error.
    fn return_runs(&self, cache: &CpuCache, order: Order, batch: &[Runs]) -> Result<(), FreeError> {
        let Some(zone) = self.zones.get(cache.zone) else { return Ok(()) };
        let mut result = Ok(());
        zone.free_batch(self.platform, batch, order, &mut |entry| {
            // Something in it is wrong, or it belongs to another zone, as spans may overlap: one run after the other.
            let mut runs = entry.runs;
            while runs != 0 {
                let start = entry.base.add(u64::from(runs.trailing_zeros()));
                let freed = self.free_bare(PfnRange { start, end: start.add(order.pages()) });
                if result.is_ok() {
                    result = freed.map_err(|error| self.explained(error));
                }
                runs &= runs - 1;
            }
        });
        result
    }

    /// Pages that CPUs keep in their caches, free to them and allocated to everybody else. Exact when nobody allocates.
    #[must_use]
    pub fn cached_pages(&self) -> u64 {
        self.caches.iter().map(CpuCache::pages).sum()
    }

    /// Empties the caches of all CPUs into the zones, where the frames merge and can be had by everybody.
    ///
    /// Where other CPUs cannot be waited for ([`Platform::can_wait`]) only the calling CPU's cache is emptied. Returns how many pages went back.
    ///
    /// # Errors
    /// The first frame in a cache that was not allocated; all others have gone back.
    pub fn drain(&self) -> Result<u64, FreeError> {
        if self.platform.cpus() == 1 || !self.platform.can_wait() {
            return self.drain_own();
        }
        // A second one at the same time has nothing to do.
        self.drain_all().unwrap_or(Ok(0))
    }

    /// Empties the caches of all CPUs, where waiting for them is allowed; nothing when somebody else does so already.
    pub(super) fn drain_all(&self) -> Option<Result<u64, FreeError>> {
        // Acquire and Release: drainers follow one another.
        if self.draining.swap(true, Ordering::Acquire) {
            return None;
        }
        self.pressure.quiet.begin_drain();
        self.caches.iter().for_each(|cache| cache.ownership.revoke());
        self.platform.cpu_barrier();
        let mut drained = Ok(0);
        for cache in self.caches {
            cache.ownership.wait(self.platform);
            drained = join(drained, self.drain_cache(cache));
            cache.ownership.give_back();
        }
        self.pressure.quiet.end_drain();
        self.draining.store(false, Ordering::Release);
        Some(drained)
    }

    /// Empties the calling CPU's cache.
    pub(super) fn drain_own(&self) -> Result<u64, FreeError> {
        let cpu = self.platform.pin();
        let drained = match self.cache(cpu.index()) {
            Some(cache) if cache.ownership.enter() => {
                let all = self.platform.cpus() == 1;
                if all {
                    self.pressure.quiet.begin_drain();
                }
                let drained = self.drain_cache(cache);
                if all {
                    self.pressure.quiet.end_drain();
                }
                cache.ownership.leave();
                drained
            }
            _ => Ok(0),
        };
        self.platform.unpin(cpu);
        drained
    }

    /// Empties a cache that is ours for the moment.
    fn drain_cache(&self, cache: &CpuCache) -> Result<u64, FreeError> {
        let pages = cache.pages();
        let mut result = Ok(pages);
        for (order, index, migrate_type) in CpuCache::words() {
            let word = cache.take_word(index, migrate_type);
            if word.runs != 0 {
                result = join(result, self.return_runs(cache, order, &[word]).map(|()| 0));
            }
        }
        for order in CpuCache::orders() {
            let all = cache.stack(order).len();
            result = join(result, self.return_oldest(cache, order, all).map(|()| 0));
        }
        result
    }
}

/// The sum, or the first error.
fn join(one: Result<u64, FreeError>, other: Result<u64, FreeError>) -> Result<u64, FreeError> {
    Ok(one? + other?)
}
