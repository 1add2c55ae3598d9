//! When pages of pools are on their way: in a chain of several that is in no list.
//!
//! The links of such a page look like those of one in a list. Who has to tell them apart, because a
//! memory error hit the page, looks whether anybody moves pages at this moment; if so the page
//! waits in the books until nobody does. A page that moves alone is told apart by its links and
//! needs nothing of this.

use super::Manager;
use crate::platform::Platform;
use crate::sync::table_atomic::Ordering;

/// Pages may be on their way while this lives. Made before pages leave a zone or a list, dropped
/// when they are in the other and no lock is held.
pub(super) struct Moving<'a, P: Platform>(&'a Manager<P>);

impl<'a, P: Platform> Moving<'a, P> {
    pub(super) fn start(manager: &'a Manager<P>) -> Self {
        // Relaxed, as all of this word: who finds a page that moves has held the lock of the zone
        // or the books after its mover did, and so sees that it started (invariant 37).
        manager.pools.moving.fetch_add(1, Ordering::Relaxed);
        Self(manager)
    }
}

impl<P: Platform> Drop for Moving<'_, P> {
    fn drop(&mut self) {
        if self.0.pools.moving.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.settle_suspects();
        }
    }
}

impl<P: Platform> Manager<P> {
    /// Whether pages may be on their way. With the lock of the books.
    pub(super) fn pages_move(&self) -> bool {
        self.pools.moving.load(Ordering::Relaxed) != 0
    }
}
