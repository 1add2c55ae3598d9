//! The short way: orders 0 to 3 and 9 through the calling CPU's cache.
//!
//! Pin, enter, take a bit or an entry, leave, unpin. A cache that is empty refills by the word under one hold of the zone lock, one that is full gives
//! its oldest half back under one. An interrupt handler that finds its CPU inside, and a CPU whose cache is being drained, go the long way.

use super::allocate::Mark;
use super::{AllocateError, Manager, Request};
use crate::block::MigrateType;
use crate::page::{CpuCache, EMPTY_BATCH, Put, Runs, is_cached};
use crate::platform::Platform;
use crate::sync::atomic::Ordering;
use crate::units::{Order, Pfn, PfnRange};
use crate::zone::{FreeError, ZoneKind};

impl<P: Platform> Manager<P> {
    /// Allocates 2^`order` pages near the caller, at any address: the short way for the usual request. Content is undefined.
    ///
    /// # Errors
    /// See [`AllocateError`].
    #[inline]
    pub fn allocate_order(&self, order: Order, migrate_type: MigrateType) -> Result<Pfn, AllocateError> {
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
        let request = Request { migrate_type, ..Request::new(order) };
        let near = zone.and_then(|zone| self.try_zone(zone, &request, order, Mark::Low));
        near.map_or_else(|| self.allocate(&request), Ok).map(|range| range.start)
    }

    /// Gives back what [`allocate_order`](Self::allocate_order) gave.
    ///
    /// What is wrong with `start` may be found only when the frame leaves the cache, which is then the error of the call that made it leave; builds with
    /// debug assertions look at once.
    ///
    /// # Errors
    /// See [`FreeError`].
    #[inline]
    pub fn free_order(&self, start: Pfn, order: Order) -> Result<(), FreeError> {
        if cfg!(debug_assertions) {
            self.check_allocated(start, order)?;
        }
        if is_cached(order, MigrateType::Movable) && start.is_aligned(order) {
            let cpu = self.platform.pin();
            let done = match self.cache(cpu.index()) {
                Some(cache) if cache.keeps(start, order) && cache.ownership.enter() => {
                    let done = match cache.put(start, order) {
                        Put::Kept => Some(Ok(())),
                        Put::Twice => Some(Err(FreeError::free_already(start))),
                        Put::Full => Some(self.make_room(cache, start, order)),
                    };
                    cache.ownership.leave();
                    done
                }
                _ => None,
            };
            self.platform.unpin(cpu);
            if let Some(done) = done {
                return done;
            }
        }
        let range = PfnRange::new(start.0, start.0.saturating_add(order.pages()));
        let (zone, segment) = self.zone_of_range(range)?;
        zone.free_order(self.platform, segment, start, order)
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
        zone.refill(self.platform, cache, order, migrate_type, keep)
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
                let freed = self.free(PfnRange { start, end: start.add(order.pages()) });
                if result.is_ok() {
                    result = freed;
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
        let Some(before) = self.begin_drain() else { return Ok(0) };
        self.caches.iter().for_each(|cache| cache.ownership.revoke());
        self.platform.cpu_barrier();
        let mut drained = Ok(0);
        for cache in self.caches {
            cache.ownership.wait(self.platform);
            drained = join(drained, self.drain_cache(cache));
            cache.ownership.give_back();
        }
        self.drains.store(before.wrapping_add(2), Ordering::Release);
        drained
    }

    /// Makes the caller the one that empties all caches, and says how many [`drains`](Self::drains) there were before. Where somebody is at it already, waits until that
    /// is over: what is in that one's hands is neither cached nor free, and may be all that there is.
    fn begin_drain(&self) -> Option<u32> {
        let before = self.drains();
        let during = before | 1;
        // Acquire here and Release at the end: drainers follow one another.
        let is_ours = before != during
            && self.drains.compare_exchange(before, during, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if is_ours {
            return Some(before);
        }
        while self.drains() == during {
            self.platform.relax();
        }
        None
    }

    /// How often all caches began to be emptied and were empty, together.
    pub(super) fn drains(&self) -> u32 {
        // Pairs with the Release at the end of a drain: what that freed is seen.
        self.drains.load(Ordering::Acquire)
    }

    fn drain_own(&self) -> Result<u64, FreeError> {
        let cpu = self.platform.pin();
        let drained = match self.cache(cpu.index()) {
            Some(cache) if cache.ownership.enter() => {
                let drained = self.drain_cache(cache);
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
