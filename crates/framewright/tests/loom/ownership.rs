//! The owner, the interrupt handler and the drainer of one CPU's own data, under every interleaving
//! that the memory model allows.
//!
//! The model has no way to execute a barrier on another thread, so each side executes a fence of
//! its own in place of that barrier. What is checked is the protocol around the barrier.

use framewright::internals::Ownership;
use framewright::{IrqState, PinnedCpu, Platform};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use loom::thread;
use std::ptr::NonNull;

/// A CPU that only waits.
struct Waiter;

// SAFETY: nothing but `pin`, `unpin` and `relax` is called, and the number that `pin` gives is not
// used.
unsafe impl Platform for Waiter {
    fn direct(&self, pa: u64) -> NonNull<u8> {
        unreachable!("nobody reads address {pa:#x}")
    }

    fn pin(&self) -> PinnedCpu {
        PinnedCpu::new(0)
    }

    fn irq_save(&self) -> IrqState {
        unreachable!("nobody takes a lock")
    }

    unsafe fn irq_restore(&self, state: IrqState) {
        unreachable!("nobody took a lock: {state:?}")
    }

    fn relax(&self) {
        thread::yield_now();
    }
}

struct Shared {
    ownership: Ownership,
    /// loom fails the test if two threads are in here at once.
    data: UnsafeCell<u32>,
}

// SAFETY: that is what is being checked.
unsafe impl Sync for Shared {}
// SAFETY: a number may move.
unsafe impl Send for Shared {}

impl Shared {
    fn new() -> Arc<Self> {
        Arc::new(Self { ownership: Ownership::new(), data: UnsafeCell::new(0) })
    }

    fn add(&self) {
        // SAFETY: the caller entered or waited, so it is alone, or loom says that it is not.
        self.data.with_mut(|data| unsafe { *data += 1 });
    }

    /// Uses the cache once as its owner; returns whether the owner could enter.
    fn use_once(&self) -> bool {
        self.use_if(self.ownership.enter())
    }

    /// Does what [`use_once`](Self::use_once) does without a fence, beside drainers that have no
    /// barrier.
    fn use_without_fence(&self) -> bool {
        self.use_if(self.ownership.enter_without_fence())
    }

    fn use_if(&self, inside: bool) -> bool {
        if inside {
            self.add();
            self.ownership.leave();
        }
        inside
    }

    fn drain(&self) {
        self.ownership.revoke();
        fence(Ordering::SeqCst);
        self.finish_drain();
    }

    /// Does what follows the barrier or the answer.
    fn finish_drain(&self) {
        self.ownership.wait(&Waiter);
        self.ownership.alone(&Waiter, || self.add());
        self.ownership.give_back();
    }

    /// Does what [`drain`](Self::drain) does without a barrier, if the owner has answered; returns
    /// whether it has.
    fn drain_if_answered(&self) -> bool {
        self.ownership.revoke();
        let is_out = self.ownership.has_answered();
        if is_out {
            self.finish_drain();
        } else {
            self.ownership.give_back();
        }
        is_out
    }

    fn total(&self) -> u32 {
        // SAFETY: all threads have been joined.
        self.data.with(|data| unsafe { *data })
    }
}

#[test]
fn owner_and_drainer_are_never_inside_together() {
    loom::model(|| {
        let shared = Shared::new();
        let owner = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || u32::from(shared.use_once()) + u32::from(shared.use_once()))
        };
        shared.drain();
        let used = owner.join().unwrap();
        assert_eq!(shared.total(), used + 1);
        assert!(shared.use_once(), "after the drainer gave it back the owner may go in");
    });
}

#[test]
fn drainers_that_follow_one_another_see_what_was_done() {
    loom::model(|| {
        let shared = Shared::new();
        let owner = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || u32::from(shared.use_once()))
        };
        shared.drain();
        shared.drain();
        let used = owner.join().unwrap();
        assert_eq!(shared.total(), used + 2);
    });
}

#[test]
fn an_interrupt_handler_keeps_out_of_its_own_cpu() {
    loom::model(|| {
        let shared = Shared::new();
        let drainer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.drain())
        };
        if shared.ownership.enter() {
            // The handler interrupts here, on the same CPU.
            assert!(!shared.ownership.enter());
            shared.add();
            shared.ownership.leave();
        }
        drainer.join().unwrap();
    });
}

/// Two threads only, because in the model two waiting threads would yield to each other for ever.
#[test]
fn two_drainers_at_a_time_and_the_owner() {
    loom::model(|| {
        let shared = Shared::new();
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.drain())
        };
        let used = u32::from(shared.use_once());
        shared.drain();
        other.join().unwrap();
        assert_eq!(shared.total(), used + 2);
        assert!(shared.use_once(), "after both gave it back the owner may go in");
    });
}

/// A drainer that finds a CPU gone sends it no barrier: such a CPU is in no call, and all that it
/// did before is visible. The CPU executes a barrier when it is back, before it enters again.
#[test]
fn who_is_away_is_not_asked_for_a_barrier() {
    loom::model(|| {
        let shared = Shared::new();
        let away = Arc::new(AtomicBool::new(false));
        let drainer = {
            let (shared, away) = (Arc::clone(&shared), Arc::clone(&away));
            thread::spawn(move || {
                shared.ownership.revoke();
                fence(Ordering::SeqCst);
                if !away.load(Ordering::Acquire) {
                    // The CPU's own barrier is the one in its `enter`.
                    fence(Ordering::SeqCst);
                }
                shared.finish_drain();
            })
        };
        let before = u32::from(shared.use_once());
        away.store(true, Ordering::Release);
        away.store(false, Ordering::Release);
        fence(Ordering::SeqCst);
        let after = u32::from(shared.use_once());
        drainer.join().unwrap();
        assert_eq!(shared.total(), before + after + 1);
        assert!(shared.use_once(), "nobody keeps it out");
    });
}

/// An answer replaces the barrier: the drainer executes none here.
#[test]
fn who_has_the_answer_of_the_owner_needs_no_barrier() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static DRAINED: AtomicU32 = AtomicU32::new(0);
    loom::model(|| {
        let shared = Shared::new();
        let drainer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.drain_if_answered())
        };
        let used: u32 = (0..3).map(|_| u32::from(shared.use_without_fence())).sum();
        let drained = u32::from(drainer.join().unwrap());
        DRAINED.fetch_add(drained, Ordering::Relaxed);
        assert_eq!(shared.total(), used + drained);
        assert!(shared.use_once(), "nobody keeps it out");
    });
    assert_ne!(DRAINED.load(Ordering::Relaxed), 0, "the owner is refused in some order");
}

/// The answer to one drainer does not count for another one that begins as the first one ends.
#[test]
fn an_answer_is_not_taken_for_one_to_a_later_drainer() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static FIRST_ALONE: AtomicU32 = AtomicU32::new(0);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let shared = Shared::new();
        let drainer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || [shared.drain_if_answered(), shared.drain_if_answered()])
        };
        let used: u32 = (0..3).map(|_| u32::from(shared.use_without_fence())).sum();
        let drained = drainer.join().unwrap();
        FIRST_ALONE.fetch_add(u32::from(drained == [true, false]), Ordering::Relaxed);
        assert_eq!(shared.total(), used + drained.map(u32::from).iter().sum::<u32>());
        assert!(shared.use_once(), "nobody keeps it out");
    });
    assert_ne!(
        FIRST_ALONE.load(Ordering::Relaxed),
        0,
        "only the first has an answer in some order"
    );
}

/// A drainer on the owner's CPU answers itself, unless it has interrupted the owner inside.
#[test]
fn who_drains_on_the_owners_cpu_answers_for_it() {
    loom::model(|| {
        let ownership = Ownership::new();
        assert!(ownership.has_answered() && !ownership.is_silent(), "nobody has asked");
        ownership.revoke();
        assert!(!ownership.has_answered() && !ownership.is_silent(), "asked just now");
        ownership.answer_if_outside();
        assert!(ownership.has_answered());
        ownership.give_back();
        assert!(ownership.enter());
        ownership.revoke();
        ownership.answer_if_outside();
        assert!(!ownership.has_answered(), "the owner is inside");
        ownership.leave();
        ownership.give_back();
        ownership.revoke();
        assert!(ownership.is_silent(), "the drain before this one had no answer");
        assert!(!ownership.enter() && ownership.has_answered(), "who is refused answers to all");
        ownership.give_back();
        assert!(ownership.enter(), "nobody keeps it out");
    });
}
