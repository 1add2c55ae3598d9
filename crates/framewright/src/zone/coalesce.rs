//! The lock of a zone with everything that is free in the lists.

use super::Zone;
use crate::block::lists::FreeLists;
use crate::platform::Platform;
use crate::sync::SpinGuard;

/// Words of 64 blocks that are settled under one hold of the lock: each takes a microsecond at
/// most.
const AT_ONCE: u32 = 16;
/// Holds of the lock after which the rest is settled whatever that takes, so that others who free
/// all the time cannot keep one here for ever.
const MOST_HOLDS: u32 = 1 << 16;

impl Zone {
    /// The lock, with no block loose ([`loose`](crate::block::deferred_merge)): free neighbours are
    /// merged and in the lists. Whoever looks for something in the tables, or wants more than one
    /// block, takes it this way. What gets loose under the guard stays so.
    pub(super) fn lock_coalesced<'a, P: Platform>(
        &'a self,
        platform: &'a P,
    ) -> SpinGuard<'a, FreeLists, P> {
        let mut lists = self.changing.lists.lock(platform);
        for _ in 0..MOST_HOLDS {
            if lists.deferred.is_empty() {
                return lists;
            }
            lists.coalesce(&self.table, self.segments, AT_ONCE);
            // What the caller does has a hold of its own.
            drop(lists);
            lists = self.changing.lists.lock(platform);
        }
        lists.coalesce(&self.table, self.segments, u32::MAX);
        lists
    }
}
