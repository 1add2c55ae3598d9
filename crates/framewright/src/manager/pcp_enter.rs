//! The CPU's cache, entered: the few instructions that most requests and frees take.
//!
//! In code that the compiler keeps in one piece: a closure that it does not has what it captures in
//! memory. What is not served here goes the ways in `pcp`, which enter again.

use crate::block::MigrateType;
use crate::manager::state::Manager;
use crate::page::{CpuCache, Put};
use crate::platform::{PinnedCpu, Platform, pinned};
use crate::units::{Order, Pfn};

/// Inside the CPU's cache, and pinned, until it [leaves](Self::leave).
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
        // SAFETY: pinned when it went in; what was pinned since is unpinned (invariant 16).
        unsafe { self.platform.unpin(self.cpu) };
    }
}

impl<P: Platform> Manager<P> {
    /// Calls `work` with the number of the CPU on which it then runs to its end.
    #[inline(always)]
    pub(super) fn pinned<T>(&self, work: impl FnOnce(u32) -> T) -> T {
        pinned(self.platform, work)
    }

    /// Calls `work` with the CPU's cache, unless somebody else is in it.
    #[inline]
    pub(super) fn inside<T>(&self, work: impl FnOnce(&CpuCache) -> T) -> Option<T> {
        let inside = self.enter()?;
        let result = work(inside.cache);
        inside.leave();
        Some(result)
    }

    /// The CPU's cache, unless somebody else is in it: [`inside`](Self::inside) where each
    /// instruction counts.
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
        // SAFETY: pinned here just now (invariant 16).
        unsafe { self.platform.unpin(cpu) };
        None
    }

    /// A movable page, if the cache has one and nothing besides is to be done.
    #[inline(always)]
    pub(super) fn take_page(&self) -> Option<Pfn> {
        if self.pressure.epoch.wants_attention() {
            return None;
        }
        let inside = self.enter()?;
        let start = inside.cache.get(Order::PAGE, MigrateType::Movable);
        inside.leave();
        start
    }

    /// A movable run of so many pages, no power of two, as [`take_page`](Self::take_page).
    #[inline(always)]
    pub(super) fn take_odd(&self, pages: u64) -> Option<Pfn> {
        if self.pressure.epoch.wants_attention() {
            return None;
        }
        let inside = self.enter()?;
        let start = inside.cache.get_odd(pages, MigrateType::Movable);
        inside.leave();
        start
    }

    /// Frees into the word that is handed out from next, if that is the run's.
    #[inline(always)]
    pub(super) fn free_next(&self, start: Pfn, order: Order) -> bool {
        // The long way says what is wrong.
        if cfg!(debug_assertions) && self.check_free_order(start, order).is_err() {
            return false;
        }
        let Some(inside) = self.enter() else { return false };
        let is_kept = !self.pressure.epoch.wants_attention()
            && inside.cache.put_next(start, order) == Some(Put::Cached);
        inside.leave();
        is_kept
    }
}
