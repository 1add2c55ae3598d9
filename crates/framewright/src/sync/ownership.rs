//! Decides who may touch a CPU's own data: the CPU itself, without a locked instruction, or a
//! drainer that took the data away.
//!
//! The owner stores *busy* and then loads *revokers*. The drainer adds itself to *revokers*, makes
//! every CPU execute a full barrier ([`Platform::cpu_barrier`]), and then waits for *busy* to
//! clear. That barrier replaces the one that the owner leaves out: after it, either the drainer
//! sees the owner's store of *busy*, or the owner's load sees the drainer (invariant 16).
//!
//! An owner that is turned away *answers*: drainers are numbered, and the owner stores the number
//! up to which it has seen all of them. A drainer that has this answer needs no barrier for this
//! owner: the owner is out, and whatever it does next, it does knowing of the drainer. So CPUs that
//! are busy allocating and freeing, as they are when memory is short, are not interrupted, and the
//! drainer does not wait for an interrupt.
//!
//! Nothing here waits for a task that may have been preempted. The owner is pinned while it is
//! inside, and so is the one drainer that has the data. A drainer that is preempted between its
//! barrier and the data keeps owners out, which have another way to do their work, but no other
//! drainer.

use super::atomics::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use super::barrier::order_store_before_load;
use crate::platform::{Platform, pinned};

/// See the module documentation.
pub struct Ownership {
    busy: AtomicBool,
    /// A drainer has the data.
    taken: AtomicBool,
    /// The number of drainers that keep the owner out.
    revokers: AtomicU32,
    /// How many drainers there were so far. It has 64 bits, so that it never wraps round to an
    /// answer that a CPU gave long ago.
    asked: AtomicU64,
    /// The owner has answered this many of them.
    answered: AtomicU64,
}

impl Default for Ownership {
    fn default() -> Self {
        Self::new()
    }
}

impl Ownership {
    /// Makes an ownership that nobody holds.
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

    /// Makes an ownership that nobody holds.
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

    /// For the owner, pinned: enters if it may, and returns whether it did. An interrupt handler
    /// whose own CPU is inside may not enter.
    #[inline]
    pub fn enter(&self) -> bool {
        self.enter_with(order_store_before_load)
    }

    /// [`enter`](Self::enter) without the fence that stands for a barrier in models: this is what
    /// processors execute.
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
        // Relaxed: the drainer's barrier on all CPUs makes the store visible, see the module
        // documentation.
        self.busy.store(true, Ordering::Relaxed);
        order_store_before_load();
        // Acquire pairs with the Releases in `give_back`, each of which passes on those before it:
        // the owner sees what drainers did.
        if self.revokers.load(Ordering::Acquire) != 0 {
            // Release pairs with the Acquire in `wait`, as in `leave`: the drainer may see this
            // store in place of the one of an earlier `leave`, so this store has to publish what
            // was done before that one.
            self.busy.store(false, Ordering::Release);
            self.answer();
            return false;
        }
        true
    }

    /// For the owner, pinned and not inside: answers all drainers so far.
    #[inline]
    fn answer(&self) {
        // Acquire pairs with the Release in `revoke`, each of which passes on those before it: from
        // here on the owner sees all these drainers.
        let asked = self.asked.load(Ordering::Acquire);
        // Release pairs with the Acquire in `has_answered`: everything that the owner did is
        // visible. An interrupt handler that runs in between may answer more drainers, and this
        // store takes that back, which only costs a barrier.
        self.answered.store(asked, Ordering::Release);
    }

    /// For a drainer that runs on the owner's own CPU, pinned: answers for that CPU, unless the
    /// drainer has interrupted the owner inside.
    pub fn answer_if_outside(&self) {
        // Relaxed: only this CPU writes it, and it sees its own stores.
        if !self.busy.load(Ordering::Relaxed) {
            self.answer();
        }
    }

    /// For the owner: leaves.
    #[inline]
    pub fn leave(&self) {
        // Release pairs with the Acquire in `wait`.
        self.busy.store(false, Ordering::Release);
    }

    /// For a drainer: keeps the owner out, from the owner's answer or the next barrier on.
    pub fn revoke(&self) {
        // Relaxed: the barrier on all CPUs, or the Release below, makes this visible; an owner that
        // is kept out reads nothing.
        self.revokers.fetch_add(1, Ordering::Relaxed);
        // Release pairs with the Acquire in `answer`: an owner that answers has seen the line
        // above.
        self.asked.fetch_add(1, Ordering::Release);
    }

    /// For a drainer that has [revoked](Self::revoke): whether the owner knows of it, so that no
    /// barrier is needed.
    #[must_use]
    pub fn has_answered(&self) -> bool {
        // Relaxed: the number is at least this drainer's own, and an answer to a later drainer also
        // holds for this one.
        let asked = self.asked.load(Ordering::Relaxed);
        // Acquire pairs with the Release in `answer`.
        self.answered.load(Ordering::Acquire) >= asked
    }

    /// For a drainer that has no answer: whether the owner has also failed to answer a drainer that
    /// is already done, so that waiting for its answer is hardly worthwhile. A guess.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        // Relaxed: a hint, because any of these values may be older than the others.
        let asked = self.asked.load(Ordering::Relaxed);
        let waiting = asked.saturating_sub(self.answered.load(Ordering::Relaxed));
        waiting > u64::from(self.revokers.load(Ordering::Relaxed))
    }

    /// For a drainer, after the answer or the barrier: waits until the owner is out. The owner then
    /// stays out until [`give_back`](Self::give_back). The wait ends, because an owner inside is
    /// pinned and keeps running.
    pub fn wait<P: Platform>(&self, platform: &P) {
        // Acquire pairs with both Releases of `busy`: everything that the owner did is visible.
        while self.busy.load(Ordering::Acquire) {
            platform.relax();
        }
    }

    /// For a drainer, once the owner is out: does `work`, which is short, with exclusive access to
    /// the data. Other drainers wait meanwhile; this one is pinned, so it keeps running.
    pub fn alone<P: Platform, R>(&self, platform: &P, work: impl FnOnce() -> R) -> R {
        let mut work = Some(work);
        loop {
            // Relaxed: a drainer that does not get the data reads nothing. The waiting drainer is
            // not pinned; the one that has the data is, on another CPU.
            while self.taken.load(Ordering::Relaxed) {
                platform.relax();
            }
            let done = pinned(platform, |_| {
                // Acquire pairs with the Release below: drainers come one after another.
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

    /// For a drainer: lets the owner in again, unless another drainer keeps it out.
    pub fn give_back(&self) {
        // Release pairs with the Acquire in `enter`: the owner sees what the drainer did.
        self.revokers.fetch_sub(1, Ordering::Release);
    }
}
