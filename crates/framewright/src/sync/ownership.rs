//! Who may touch a CPU's own data: the CPU, without a locked instruction, or a drainer that took it
//! away.
//!
//! The owner stores *busy* and then loads *revokers*; the drainer adds itself to *revokers*, has
//! every CPU execute a full barrier ([`Platform::cpu_barrier`]), and then waits for *busy* to
//! clear. The barrier stands for the one that the owner leaves out: after it, either the owner's
//! store of *busy* is visible to the drainer, or the owner's load sees the drainer (invariant 16).
//!
//! An owner that is turned away *answers*: it says up to which of the drainers, by their number, it
//! has seen them all. Who has his answer needs no barrier for this owner: it is out, and whatever
//! it does next is done in knowledge of him. So CPUs that are busy with memory, which is when
//! memory is short, are not interrupted, and whoever drains does not wait for that.
//!
//! Nobody here waits for a task that may have been preempted. The owner is pinned while it is
//! inside; so is the drainer that has the data, one at a time. A drainer that is preempted between
//! barrier and data keeps owners out, who have another way, and no other drainer.

use super::atomics::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use super::barrier::order_store_before_load;
use crate::platform::{Platform, pinned};

/// See the module documentation.
pub struct Ownership {
    busy: AtomicBool,
    /// A drainer has the data.
    taken: AtomicBool,
    /// Drainers that keep the owner out.
    revokers: AtomicU32,
    /// How many drainers there were so far. Of 64 bits, so that it never comes round to an answer
    /// that a CPU gave long ago.
    asked: AtomicU64,
    /// Of those so many have their answer.
    answered: AtomicU64,
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
            asked: AtomicU64::new(0),
            answered: AtomicU64::new(0),
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
            asked: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        }
    }

    /// For the owner, pinned: whether it may go in. An interrupt handler that finds its own CPU
    /// inside may not.
    #[inline]
    pub fn enter(&self) -> bool {
        self.enter_with(order_store_before_load)
    }

    /// [`enter`](Self::enter) without the fence that stands for a barrier in models: as processors
    /// see it.
    #[cfg(loom)]
    pub fn enter_without_fence(&self) -> bool {
        self.enter_with(|| {})
    }

    #[inline(always)]
    fn enter_with(&self, order_store_before_load: impl FnOnce()) -> bool {
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
            self.answer();
            return false;
        }
        true
    }

    /// For the owner, pinned and not inside.
    #[inline]
    fn answer(&self) {
        // Acquire pairs with the Release in `revoke`, of which each hands on those before it: from
        // here on the owner sees all these drainers.
        let asked = self.asked.load(Ordering::Acquire);
        // Release pairs with the Acquire in `has_answered`: what the owner did is done. A handler
        // that strikes in between answers to more, and this takes that back, which only costs a
        // barrier.
        self.answered.store(asked, Ordering::Release);
    }

    /// For a drainer that runs on the owner's own CPU, pinned: it answers itself, unless it has
    /// interrupted the owner inside.
    pub fn answer_if_outside(&self) {
        // Relaxed: only this CPU writes it, and it sees its own stores.
        if !self.busy.load(Ordering::Relaxed) {
            self.answer();
        }
    }

    /// For the owner: it is out again.
    #[inline]
    pub fn leave(&self) {
        // Release pairs with the Acquire in `wait`.
        self.busy.store(false, Ordering::Release);
    }

    /// For a drainer: keeps the owner out, from its answer or the next barrier on.
    pub fn revoke(&self) {
        // Relaxed: the barrier on all CPUs makes it visible, or the line below; and who is kept out
        // reads nothing.
        self.revokers.fetch_add(1, Ordering::Relaxed);
        // Release pairs with the Acquire in `answer`: who answers has seen the line above.
        self.asked.fetch_add(1, Ordering::Release);
    }

    /// For a drainer that has [revoked](Self::revoke): whether the owner knows of it, and so needs
    /// no barrier.
    #[must_use]
    pub fn has_answered(&self) -> bool {
        // Relaxed: at least this drainer's own number, and an answer to a later one holds for it.
        let asked = self.asked.load(Ordering::Relaxed);
        // Acquire pairs with the Release in `answer`.
        self.answered.load(Ordering::Acquire) >= asked
    }

    /// For a drainer that has no answer: whether the owner has not answered somebody who is done,
    /// either, and so is hardly worth waiting for. A guess.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        // Relaxed: a hint, as any of these may be older than the others.
        let asked = self.asked.load(Ordering::Relaxed);
        let waiting = asked.saturating_sub(self.answered.load(Ordering::Relaxed));
        waiting > u64::from(self.revokers.load(Ordering::Relaxed))
    }

    /// For a drainer, after the answer or the barrier: waits until the owner is out, which stays so
    /// until [`give_back`](Self::give_back). The owner is pinned inside, so that it goes on.
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
