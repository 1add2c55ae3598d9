//! Who resizes, and when pages of pools are on their way: in a chain of several that is in no list.
//!
//! The links of such a page look like those of one in a list. Whoever has to tell them apart,
//! because a memory error hit the page, looks whether anybody moves pages at this moment; if so the
//! page waits in the accounting until nobody does. A page that moves alone is told apart by its
//! links and needs nothing of this.

use crate::hugetlb::PoolError;
use crate::manager::facets::Hugetlb;
use crate::manager::state::Manager;
use crate::platform::Platform;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::PoolSize;

/// Pages may be on their way while this lives. Made before pages leave a zone or a list, dropped
/// when they are in the other and no lock is held.
pub(super) struct Moving<'a, P: Platform>(&'a Manager<P>);

impl<'a, P: Platform> Moving<'a, P> {
    pub(super) fn start(manager: &'a Manager<P>) -> Self {
        // Relaxed, as all of this word: who finds a page that moves has held the lock of the zone
        // or the accounting after its mover did, and so sees that it started (invariant 37).
        manager.pools.moving.fetch_add(1, Ordering::Relaxed);
        Self(manager)
    }
}

impl<P: Platform> Drop for Moving<'_, P> {
    fn drop(&mut self) {
        if self.0.pools.moving.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.hugetlb().recheck_suspects();
        }
    }
}

impl<'m, P: Platform> Hugetlb<'m, P> {
    /// Whether pages may be on their way. With the lock on the accounting.
    pub(super) fn pages_move(self) -> bool {
        self.manager.pools.moving.load(Ordering::Relaxed) != 0
    }
}

/// Who resizes on a platform that cannot tell its tasks apart.
const SOMEBODY: u64 = u64::MAX;

/// Nobody else resizes while this lives.
pub(super) struct Resizing<'a, P: Platform> {
    resizer: &'a AtomicU64,
    /// Ends before the next resize begins.
    moving: Option<Moving<'a, P>>,
}

impl<P: Platform> Drop for Resizing<'_, P> {
    #[inline(never)]
    fn drop(&mut self) {
        if let Some(Moving(manager)) = &self.moving {
            // So it is already, but where a mover panicked and this is unwinding.
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
    /// Waits until nobody else resizes.
    #[inline(never)]
    pub(super) fn start_resizing(self) -> Result<Resizing<'m, P>, PoolError> {
        let can_wait = self.manager.platform.can_wait();
        let task = if can_wait { self.manager.platform.current_task() } else { None };
        let me = task.map_or(SOMEBODY, core::num::NonZeroU64::get);
        // Acquire pairs with the Release when `Resizing` is dropped: resizes follow one another.
        // Relaxed: a task knows its own number, and that of another decides nothing.
        while let Err(owner) =
            self.manager.pools.resizer.compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
        {
            // A resize inside the reclaim hook of a resize would wait for itself.
            if !can_wait || me == SOMEBODY || owner == me {
                return Err(PoolError::Busy);
            }
            // It takes long, and its task may have lost its CPU.
            self.manager.platform.yield_now();
        }
        Ok(Resizing {
            resizer: &self.manager.pools.resizer,
            moving: Some(Moving::start(self.manager)),
        })
    }
}
