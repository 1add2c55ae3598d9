//! Who may touch a CPU's own data: the CPU, without a locked instruction, or a drainer that took it
//! away.
//!
//! The owner stores *busy* and then loads *revokers*; the drainer adds itself to *revokers*, has
//! every CPU execute a full barrier ([`Platform::cpu_barrier`]), and then waits for *busy* to
//! clear. The barrier stands for the one that the owner leaves out: after it, either the owner's
//! store of *busy* is visible to the drainer, or the owner's load sees the drainer (invariant 16).
//!
//! Nobody here waits for a task that may have been preempted. The owner is pinned while it is
//! inside; so is the drainer that has the data, one at a time. A drainer that is preempted between
//! barrier and data keeps owners out, who have another way, and no other drainer.

use super::atomics::atomic::{AtomicBool, AtomicU32, Ordering};
use super::barrier::order_store_before_load;
use crate::platform::{Platform, pinned};

/// See the module documentation.
pub struct Ownership {
    busy: AtomicBool,
    /// A drainer has the data.
    taken: AtomicBool,
    /// Drainers that keep the owner out.
    revokers: AtomicU32,
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
        Self {
            busy: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            revokers: AtomicU32::new(0),
        }
    }

    /// Nobody is inside.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            taken: AtomicBool::new(false),
            revokers: AtomicU32::new(0),
        }
    }

    /// For the owner, pinned: whether it may go in. An interrupt handler that finds its own CPU
    /// inside may not.
    #[inline]
    pub fn enter(&self) -> bool {
        // Relaxed: only this CPU writes it, and it sees its own stores.
        if self.busy.load(Ordering::Relaxed) {
            return false;
        }
        // Relaxed: the drainer's barrier on all CPUs makes it visible, see the module
        // documentation.
        self.busy.store(true, Ordering::Relaxed);
        order_store_before_load();
        // Acquire pairs with the Releases in `give_back`, of which each hands on those before it:
        // what drainers did is seen.
        if self.revokers.load(Ordering::Acquire) != 0 {
            // Release pairs with the Acquire in `wait`, as in `leave`: this may be the store that
            // the drainer finds, over the one of an earlier `leave`, and it has to carry what was
            // done before that.
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

    /// For a drainer: keeps the owner out from the next barrier on.
    pub fn revoke(&self) {
        // Relaxed: the barrier on all CPUs makes it visible, and who is kept out reads nothing.
        self.revokers.fetch_add(1, Ordering::Relaxed);
    }

    /// For a drainer, after the barrier: waits until the owner is out, which stays so until
    /// [`give_back`](Self::give_back). The owner is pinned inside, so that it goes on.
    pub fn wait<P: Platform>(&self, platform: &P) {
        // Acquire pairs with both Releases of `busy`: what the owner did is done.
        while self.busy.load(Ordering::Acquire) {
            platform.relax();
        }
    }

    /// For a drainer, once the owner is out: does `work`, which is short, with the data to itself.
    /// Other drainers wait meanwhile; it is pinned, so that it goes on.
    pub fn alone<P: Platform, R>(&self, platform: &P, work: impl FnOnce() -> R) -> R {
        let mut work = Some(work);
        loop {
            // Relaxed: who does not get the data reads nothing. Not pinned meanwhile; who has it
            // is, on another CPU.
            while self.taken.load(Ordering::Relaxed) {
                platform.relax();
            }
            let done = pinned(platform, |_| {
                // Acquire pairs with the Release below: drainers follow one another.
                self.taken
                    .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                    .ok()?;
                let result = work.take().map(|work| work());
                self.taken.store(false, Ordering::Release);
                result
            });
            if let Some(result) = done {
                return result;
            }
        }
    }

    /// For a drainer: the owner may go in again, if no other keeps it out.
    pub fn give_back(&self) {
        // Release pairs with the Acquire in `enter`: what the drainer did is seen.
        self.revokers.fetch_sub(1, Ordering::Release);
    }
}
