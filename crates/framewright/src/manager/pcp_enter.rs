//! Entering the CPU's cache: the few instructions that most requests and frees execute.
//!
//! The code avoids closures that the compiler may not inline, as such a closure keeps its captures
//! in memory. Calls that are not served here continue in `pcp`, whose functions enter the cache
//! again.

use crate::block::MigrateType;
use crate::debug::Place;
use crate::manager::state::Manager;
use crate::page::{CpuCache, Put};
use crate::platform::{PinnedCpu, Platform, pinned};
use crate::units::{Order, Pfn, PfnRange};
use crate::zone::FreeError;

/// The calling CPU is pinned and inside its cache until it [leaves](Self::leave).
#[must_use]
pub(super) struct Inside<'a, P: Platform> {
    pub(super) cache: &'a CpuCache,
    platform: &'a P,
    cpu: PinnedCpu,
}

impl<P: Platform> Inside<'_, P> {
    #[inline(always)]
    pub(super) fn leave(self) {
        self.cache.ownership.leave();
        // SAFETY: pinned on entry; everything pinned since is unpinned (invariant 16).
        unsafe { self.platform.unpin(self.cpu) };
    }
}

impl<P: Platform> Manager<P> {
    /// Calls `work` with the number of the calling CPU, and stays on that CPU until `work` returns.
    #[inline(always)]
    pub(super) fn pinned<T>(&self, work: impl FnOnce(u32) -> T) -> T {
        pinned(self.platform, work)
    }

    /// Calls `work` with the CPU's cache, unless the cache is in use or being drained.
    #[inline]
    pub(super) fn inside<T>(&self, work: impl FnOnce(&CpuCache) -> T) -> Option<T> {
        let inside = self.enter()?;
        let result = work(inside.cache);
        inside.leave();
        Some(result)
    }

    /// Enters the CPU's cache, unless it is in use or being drained: [`inside`](Self::inside) for
    /// code where each instruction counts.
    #[inline(always)]
    pub(super) fn enter(&self) -> Option<Inside<'_, P>> {
        if !cfg!(feature = "smp") {
            return None;
        }
        let cpu = self.platform.pin();
        if let Some(cache) = self.caches.get(cpu.index() as usize)
            && cache.ownership.enter()
        {
            return Some(Inside { cache, platform: self.platform, cpu });
        }
        // SAFETY: pinned just above (invariant 16).
        unsafe { self.platform.unpin(cpu) };
        None
    }

    /// Takes a run, if the cache has one and nothing wants attention.
    #[inline(always)]
    pub(super) fn take_run(&self, order: Order, migrate_type: MigrateType) -> Option<Pfn> {
        if self.pressure.epoch.wants_attention() {
            return None;
        }
        self.take_run_anyway(order, migrate_type)
    }

    /// Takes a run, if the cache has one. Where this is a call, arguments and run are in registers;
    /// a [`Result`] would be in memory.
    #[inline]
    pub(super) fn take_run_anyway(&self, order: Order, migrate_type: MigrateType) -> Option<Pfn> {
        self.take_run_here(order, migrate_type)
    }

    #[inline(always)]
    fn take_run_here(&self, order: Order, migrate_type: MigrateType) -> Option<Pfn> {
        let inside = self.enter()?;
        let start = inside.cache.get(order, migrate_type);
        inside.leave();
        start
    }

    /// Takes a movable page, if the cache has one and nothing wants attention. Inlined, with an
    /// order that is a constant, as most requests are for one page.
    #[inline(always)]
    pub(super) fn take_page(&self) -> Option<Pfn> {
        if self.pressure.epoch.wants_attention() {
            return None;
        }
        self.take_run_here(Order::PAGE, MigrateType::Movable)
    }

    /// Takes a run of `pages` pages, not a power of two, as [`take_run`](Self::take_run) does.
    #[inline]
    pub(super) fn take_odd(&self, pages: u64, migrate_type: MigrateType) -> Option<Pfn> {
        if self.pressure.epoch.wants_attention() {
            return None;
        }
        let inside = self.enter()?;
        let start = inside.cache.get_odd(pages, migrate_type);
        inside.leave();
        start
    }

    /// Frees at most a block. A run of the word that is handed out from next goes into that word;
    /// any other run goes on from inside the cache. Nothing here branches on the order, which no
    /// branch predictor can guess in mixed traffic. `RANGE` says whether a run that cannot be kept
    /// goes back as [`free`](Self::free) does it, not as [`free_order`](Self::free_order) does.
    #[inline(always)]
    pub(super) fn free_near<const RANGE: bool>(
        &self,
        start: Pfn,
        order: Order,
        place: Place,
    ) -> Result<(), FreeError> {
        let Some(Inside { cache, platform, cpu }) = self.enter() else {
            return self.free_elsewhere::<RANGE>(start, order, None, place);
        };
        if self.pressure.epoch.wants_attention() || cache.has_strays() || !start.is_aligned(order) {
            return self.free_inside(cache, cpu, start, order, place, RANGE);
        }
        match cache.put_next(start, order) {
            Some(Put::Cached) => {
                Inside { cache, platform, cpu }.leave();
                Ok(())
            }
            Some(_) => self.free_inside(cache, cpu, start, order, place, RANGE),
            None => self.free_other_word::<RANGE>(cache, cpu, start, order, place),
        }
    }

    /// [`free_near`](Self::free_near) of an aligned run of another word than the next one; still
    /// inside the cache. Takes its arguments in registers, and passes them on unchanged if it
    /// cannot serve.
    #[inline(never)]
    fn free_other_word<const RANGE: bool>(
        &self,
        cache: &CpuCache,
        cpu: PinnedCpu,
        start: Pfn,
        order: Order,
        place: Place,
    ) -> Result<(), FreeError> {
        let lot = cache.lot_of_aligned(start, order);
        match lot.map(|lot| cache.put_not_next(start, order, lot)) {
            Some(Put::Cached) => {
                Inside { cache, platform: self.platform, cpu }.leave();
                Ok(())
            }
            Some(Put::Full) => self.free_from_full::<RANGE>(cache, cpu, start, order, place),
            _ => self.free_inside(cache, cpu, start, order, place, RANGE),
        }
    }

    /// [`free_near`](Self::free_near) where the cache is full.
    #[inline(never)]
    fn free_from_full<const RANGE: bool>(
        &self,
        cache: &CpuCache,
        cpu: PinnedCpu,
        start: Pfn,
        order: Order,
        place: Place,
    ) -> Result<(), FreeError> {
        Inside { cache, platform: self.platform, cpu }.leave();
        self.free_elsewhere::<RANGE>(start, order, Some(Put::Full), place)
    }

    /// [`free_near`](Self::free_near) of a run whose block has to be looked up elsewhere, or that
    /// is wrong, or while something wants attention; still inside the cache. While a CPU's node is
    /// full, all frees of pages come here. Compiled once: `is_range` is `RANGE` there.
    #[inline(never)]
    fn free_inside(
        &self,
        cache: &CpuCache,
        cpu: PinnedCpu,
        start: Pfn,
        order: Order,
        place: Place,
        is_range: bool,
    ) -> Result<(), FreeError> {
        let put = if self.pressure.epoch.wants_attention() {
            Put::Full
        } else {
            self.put_kept(cache, start, order)
        };
        Inside { cache, platform: self.platform, cpu }.leave();
        match put {
            Put::Cached => Ok(()),
            put if is_range => self.free_elsewhere::<true>(start, order, Some(put), place),
            put => self.free_elsewhere::<false>(start, order, Some(put), place),
        }
    }

    /// Caches a run of frames that the cache [keeps](CpuCache::covers), if there is room.
    #[inline(always)]
    fn put_kept(&self, cache: &CpuCache, start: Pfn, order: Order) -> Put {
        self.come_home_now_and_then(cache);
        // No frame has a number near the largest.
        let run = PfnRange { start, end: Pfn(start.0.saturating_add(order.pages())) };
        if !start.is_aligned(order) || !cache.covers(run) {
            return Put::Full;
        }
        if let Some(put) = cache.put_next(start, order) {
            return put;
        }
        let lot = self.lot_elsewhere(cache, start, order.pages(), order);
        lot.map_or(Put::Full, |lot| cache.put_not_next(start, order, lot))
    }

    #[inline(always)]
    fn free_elsewhere<const RANGE: bool>(
        &self,
        start: Pfn,
        order: Order,
        put: Option<Put>,
        place: Place,
    ) -> Result<(), FreeError> {
        if RANGE {
            // A range that ends before it begins may get here.
            let end = Pfn(start.0.wrapping_add(order.pages()));
            self.free_any(PfnRange { start, end }, put, place)
        } else {
            self.free_slowly(start, order, put, false, place)
        }
    }

    /// [`free_near`](Self::free_near) of a range that is hardly ever in the word that comes next.
    #[inline(never)]
    pub(super) fn free_far(&self, start: Pfn, order: Order, place: Place) -> Result<(), FreeError> {
        self.check_order_when_debugging(start, order)?;
        let put = self.enter().map(|inside| {
            let put = self.keep(inside.cache, start, order);
            inside.leave();
            put
        });
        if put == Some(Put::Cached) {
            return Ok(());
        }
        if put == Some(Put::DoubleFree) {
            return Err(FreeError::free_already(start));
        }
        // The range may consist of several allocations.
        self.free_slowly(start, order, put, true, place)
    }

    /// Runs [`check_free_order`](Self::check_free_order) in builds with debug assertions.
    #[inline(always)]
    pub(super) fn check_order_when_debugging(
        &self,
        start: Pfn,
        order: Order,
    ) -> Result<(), FreeError> {
        if cfg!(debug_assertions) {
            self.check_free_order(start, order).map_err(|error| self.explained(error))?;
        }
        Ok(())
    }

    /// The part of [`free_order`](Self::free_order) that frees at most a block.
    #[inline(always)]
    pub(super) fn check_and_free(
        &self,
        start: Pfn,
        order: Order,
        place: Place,
    ) -> Result<(), FreeError> {
        self.check_order_when_debugging(start, order)?;
        self.free_near::<false>(start, order, place)
    }
}
