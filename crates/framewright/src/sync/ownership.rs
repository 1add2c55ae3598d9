//! Who may touch a CPU's own data: the CPU, without a locked instruction, or one drainer that took it away.
//!
//! The owner stores *busy* and then loads *revoked*; the drainer stores *revoked*, has every CPU execute a full barrier
//! ([`Platform::cpu_barrier`]), and then waits for *busy* to clear. The barrier stands for the one that the owner leaves out: after it, either
//! the owner's store of *busy* is visible to the drainer, or the owner's load sees *revoked* (invariant 16).

use super::atomic::{AtomicBool, Ordering};
use super::barrier::order_store_before_load;
use crate::platform::Platform;

/// See the module documentation.
pub struct Ownership {
    busy: AtomicBool,
    revoked: AtomicBool,
}

impl Default for Ownership {
    fn default() -> Self {
        Self::new()
    }
}

impl Ownership {
    /// Nobody is inside.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self { busy: AtomicBool::new(false), revoked: AtomicBool::new(false) }
    }

    /// Nobody is inside.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self { busy: AtomicBool::new(false), revoked: AtomicBool::new(false) }
    }

    /// For the owner, pinned: whether it may go in. An interrupt handler that finds its own CPU inside may not.
    #[inline]
    pub fn enter(&self) -> bool {
        // Relaxed: only this CPU writes it, and it sees its own stores.
        if self.busy.load(Ordering::Relaxed) {
            return false;
        }
        // Relaxed: the drainer's barrier on all CPUs makes it visible, see the module documentation.
        self.busy.store(true, Ordering::Relaxed);
        order_store_before_load();
        // Acquire pairs with the Release in `give_back`: what the drainer did is seen.
        if self.revoked.load(Ordering::Acquire) {
            // Release pairs with the Acquire in `wait`, as in `leave`: this may be the store that the drainer finds, over the
            // one of an earlier `leave`, and it has to carry what was done before that.
            self.busy.store(false, Ordering::Release);
            return false;
        }
        true
    }

    /// For the owner: it is out again.
    #[inline]
    pub fn leave(&self) {
        // Release pairs with the Acquire in `wait`.
        self.busy.store(false, Ordering::Release);
    }

    /// For a drainer, of which there is one at a time: keeps the owner out from the next barrier on.
    pub fn revoke(&self) {
        // Release pairs with the Acquire in `enter`: an owner that is kept out sees that somebody drains.
        self.revoked.store(true, Ordering::Release);
    }

    /// For the drainer, after the barrier: waits until the owner is out. The data is the drainer's then.
    pub fn wait<P: Platform>(&self, platform: &P) {
        // Acquire pairs with both Releases of `busy`: what the owner did is done.
        while self.busy.load(Ordering::Acquire) {
            platform.relax();
        }
    }

    /// For the drainer: the owner may go in again.
    pub fn give_back(&self) {
        // Release pairs with the Acquire in `enter`: what the drainer did is seen.
        self.revoked.store(false, Ordering::Release);
    }
}
