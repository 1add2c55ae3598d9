//! Tracks which task resizes, and when pages of pools are on their way: in a chain of several pages
//! that is in no list.
//!
//! The links of such a page look like those of a page in a list. A caller that has to tell them
//! apart, because of a memory error in the page, checks whether anybody is moving pages right now;
//! if so, the page waits in the accounting until nobody is. A page that moves alone can be told
//! apart by its links and needs none of this.

use crate::hugetlb::PoolError;
use crate::manager::facets::Hugetlb;
use crate::manager::state::Manager;
use crate::platform::Platform;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::PoolSize;

/// While this lives, pages may be on their way. Made before pages leave a zone or a list, and
/// dropped when they have arrived in the other and no lock is held.
pub(super) struct PagesOnTheWay<'a, P: Platform>(&'a Manager<P>);

impl<'a, P: Platform> PagesOnTheWay<'a, P> {
    pub(super) fn start(manager: &'a Manager<P>) -> Self {
        // Relaxed, like all accesses to this word: a CPU that finds a moving page has held the lock
        // of the zone or of the accounting after the page's mover, and so sees that the move has
        // started (invariant 37).
        manager.pools.moving.fetch_add(1, Ordering::Relaxed);
        Self(manager)
    }
}

impl<P: Platform> Drop for PagesOnTheWay<'_, P> {
    fn drop(&mut self) {
        if self.0.pools.moving.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.hugetlb().recheck_suspects();
        }
    }
}

impl<'m, P: Platform> Hugetlb<'m, P> {
    /// Returns whether pages may be on their way. The caller holds the accounting lock.
    pub(super) fn pages_move(self) -> bool {
        self.manager.pools.moving.load(Ordering::Relaxed) != 0
    }
}

/// Stands for the resizing task on a platform that cannot tell its tasks apart.
const SOMEBODY: u64 = u64::MAX;

/// While this lives, nobody else resizes.
pub(super) struct Resizing<'a, P: Platform> {
    resizer: &'a AtomicU64,
    /// Dropped before the next resize begins.
    moving: Option<PagesOnTheWay<'a, P>>,
}

impl<P: Platform> Drop for Resizing<'_, P> {
    #[inline(never)]
    fn drop(&mut self) {
        if let Some(PagesOnTheWay(manager)) = &self.moving {
            // The targets already have these values, unless a mover panicked and this is unwinding.
            let mut accounting = manager.hugetlb().accounting();
            for size in PoolSize::ALL {
                let counts = accounting.counts_mut(size);
                counts.target = counts.all.persistent();
            }
        }
        self.moving = None;
        // Release pairs with the Acquire in `start_resizing`.
        self.resizer.store(0, Ordering::Release);
    }
}

impl<'m, P: Platform> Hugetlb<'m, P> {
    /// Waits until nobody else resizes, and begins a resize.
    #[inline(never)]
    pub(super) fn start_resizing(self) -> Result<Resizing<'m, P>, PoolError> {
        let can_wait = self.manager.platform.can_wait();
        let task = if can_wait { self.manager.platform.current_task() } else { None };
        let me = task.map_or(SOMEBODY, core::num::NonZeroU64::get);
        // Acquire pairs with the Release when `Resizing` is dropped, so resizes follow one another.
        // Relaxed: a task knows its own number, and nothing depends on another task's.
        while let Err(owner) =
            self.manager.pools.resizer.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
        {
            // A resize inside the reclaim hook of a resize would wait for itself.
            if !can_wait || me == SOMEBODY || owner == me {
                return Err(PoolError::Busy);
            }
            // A resize takes long, and its task may have lost its CPU.
            self.manager.platform.yield_now();
        }
        Ok(Resizing {
            resizer: &self.manager.pools.resizer,
            moving: Some(PagesOnTheWay::start(self.manager)),
        })
    }
}
