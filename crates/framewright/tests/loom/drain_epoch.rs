//! Frees that race with a drain, under every interleaving that the memory model allows: while an
//! epoch lasts, a frame that a search did not find is in no cache.
//!
//! The model has no way to execute a barrier on another thread, so each side executes a fence of
//! its own in place of that barrier. What is checked is the protocol around the barrier.

use framewright::internals::{DrainEpoch, Ownership};
use framewright::{IrqState, PinnedCpu, Platform};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Arc, Mutex};
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

/// A zone, and one CPU's cache.
struct Machine {
    /// Whether owners execute a fence in place of each barrier of other CPUs.
    has_fences: bool,
    epoch: DrainEpoch,
    ownership: Ownership,
    cached: UnsafeCell<u32>,
    zone: Mutex<u32>,
    /// The number of pages in the zone, for readers that do not take its lock.
    free_pages: AtomicU32,
}

// SAFETY: the cache is touched by its owner or the drainer, which is what is being checked.
unsafe impl Sync for Machine {}
// SAFETY: numbers may move.
unsafe impl Send for Machine {}

impl Machine {
    fn new() -> Arc<Self> {
        Self::of(true)
    }

    /// Behaves as processors do, beside drains that have no barrier.
    fn without_fences() -> Arc<Self> {
        Self::of(false)
    }

    fn of(has_fences: bool) -> Arc<Self> {
        Arc::new(Self {
            has_fences,
            epoch: DrainEpoch::new(false),
            ownership: Ownership::new(),
            cached: UnsafeCell::new(0),
            zone: Mutex::new(0),
            free_pages: AtomicU32::new(0),
        })
    }

    fn enter(&self) -> bool {
        if self.has_fences { self.ownership.enter() } else { self.ownership.enter_without_fence() }
    }

    fn note_free(&self) {
        if self.has_fences { self.epoch.note_free() } else { self.epoch.note_free_without_fence() }
    }

    /// Frees a page into the cache, or into the zone when the cache is being drained.
    fn free(&self) {
        if self.enter() {
            self.note_free();
            // SAFETY: we entered.
            self.cached.with_mut(|cached| unsafe { *cached += 1 });
            self.ownership.leave();
        } else {
            self.free_to_zone();
        }
    }

    fn free_to_zone(&self) {
        self.put_into_zone(1);
        self.note_free();
    }

    fn put_into_zone(&self, pages: u32) {
        let mut zone = self.zone.lock().expect("no panic");
        *zone += pages;
        self.free_pages.store(*zone, Ordering::Relaxed);
    }

    /// Drains and searches; returns the epoch's number if nothing was found.
    fn search(&self) -> Option<u64> {
        let drain = self.epoch.begin_drain();
        self.ownership.revoke();
        fence(Ordering::SeqCst);
        self.empty_cache();
        let number = self.end(drain);
        let found = *self.zone.lock().expect("no panic");
        number.filter(|_| found == 0)
    }

    /// Does what [`search`](Self::search) does without a barrier, if the owner answers; otherwise
    /// it finds out nothing. A drainer on the owner's CPU answers itself.
    fn search_if_answered(&self, is_here: bool) -> Option<u64> {
        let drain = self.epoch.begin_drain();
        self.ownership.revoke();
        if is_here {
            self.ownership.answer_if_outside();
        }
        if !self.ownership.has_answered() {
            self.ownership.give_back();
            return None;
        }
        // As `pass_lock`.
        drop(self.zone.lock().expect("no panic"));
        self.empty_cache();
        let number = self.end(drain);
        let found = self.free_pages.load(Ordering::Relaxed);
        number.filter(|_| found == 0)
    }

    /// Does what follows the barrier or the answer.
    fn empty_cache(&self) {
        self.ownership.wait(&Waiter);
        self.ownership.alone(&Waiter, || {
            // SAFETY: the owner is out, and other drainers are.
            let drained = self.cached.with_mut(|cached| unsafe { std::mem::take(&mut *cached) });
            if drained != 0 {
                self.put_into_zone(drained);
            }
        });
        self.ownership.give_back();
    }

    fn end(&self, drain: u64) -> Option<u64> {
        self.epoch.end_drain(drain);
        self.epoch.number()
    }

    /// Everybody is done: if the search's failure still counts, there is nothing.
    fn check(&self, failed: Option<u64>) {
        if failed.is_some() && self.epoch.number() == failed {
            assert_eq!(*self.zone.lock().expect("no panic"), 0);
            // SAFETY: nobody is inside any more.
            self.cached.with(|cached| assert_eq!(unsafe { *cached }, 0));
        }
    }
}

#[test]
fn a_free_into_the_cache_ends_the_quiet() {
    loom::model(|| {
        let machine = Machine::new();
        let owner = Arc::clone(&machine);
        let owner = thread::spawn(move || owner.free());
        let failed = machine.search();
        owner.join().expect("no panic");
        machine.check(failed);
    });
}

#[test]
fn a_free_into_the_zone_ends_the_quiet() {
    loom::model(|| {
        let machine = Machine::new();
        let other = Arc::clone(&machine);
        let other = thread::spawn(move || other.free_to_zone());
        let failed = machine.search();
        other.join().expect("no panic");
        machine.check(failed);
    });
}

#[test]
fn a_free_on_each_way_while_two_drains_follow_one_another() {
    loom::model(|| {
        let machine = Machine::new();
        let owner = Arc::clone(&machine);
        let owner = thread::spawn(move || owner.free());
        let first = machine.search();
        let again = machine.search();
        owner.join().expect("no panic");
        machine.check(first);
        machine.check(again);
    });
}

/// A requester that does not drain learns of frees and drains from the two words alone: it finds
/// the mark of a later drain, and must not take it for the mark of an earlier one.
#[test]
fn a_quiet_that_is_over_does_not_come_back() {
    loom::model(|| {
        let machine = Machine::new();
        let failed = machine.search();
        assert_eq!(failed, Some(1), "the machine is empty and nobody frees");
        let asker = Arc::clone(&machine);
        let asker = thread::spawn(move || {
            let is_over = asker.epoch.number().is_none();
            let number = asker.epoch.number();
            assert!(!is_over || number != failed, "what ended is there again");
        });
        machine.free_to_zone();
        machine.epoch.end_drain(machine.epoch.begin_drain());
        asker.join().expect("no panic");
    });
}

/// Two threads only, because in the model two waiting threads would yield to each other for ever.
#[test]
fn two_drains_at_a_time_while_somebody_frees_on_each_way() {
    for into_cache in [true, false] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let machine = Machine::new();
            let other = Arc::clone(&machine);
            let other = thread::spawn(move || other.search());
            if into_cache {
                machine.free();
            } else {
                machine.free_to_zone();
            }
            let failed = machine.search();
            let failed_there = other.join().expect("no panic");
            machine.check(failed);
            machine.check(failed_there);
        });
    }
}

/// A caller that freed a page, or that was told of the free, must not take memory for used up
/// because an earlier search found nothing.
#[test]
fn who_freed_and_who_was_told_do_not_find_the_quiet() {
    for told in [false, true] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let machine = Machine::new();
            let searching = {
                let machine = Arc::clone(&machine);
                thread::spawn(move || machine.search())
            };
            if told {
                let freeing = Arc::clone(&machine);
                thread::spawn(move || freeing.free()).join().expect("no panic");
            } else {
                machine.free();
            }
            // The free came before this, so a number from here on is one whose search has found the
            // page.
            let number = machine.epoch.number();
            let failed = searching.join().expect("no panic");
            assert!(
                number.is_none() || number != failed,
                "a page is free, and the memo says that there is none"
            );
            machine.check(failed);
        });
    }
}

/// Owners that answer, and tasks that run on no CPU of the platform, execute no fence; nor does the
/// drain.
#[test]
fn a_drain_with_answers_instead_of_a_barrier() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static FAILED: AtomicU32 = AtomicU32::new(0);
    for is_on_a_cpu in [true, false] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let machine = Machine::without_fences();
            let other = Arc::clone(&machine);
            let other = thread::spawn(move || {
                if is_on_a_cpu {
                    other.free();
                    other.free();
                } else {
                    other.free_to_zone();
                }
            });
            let failed = machine.search_if_answered(!is_on_a_cpu);
            other.join().expect("no panic");
            machine.check(failed);
            FAILED.fetch_add(u32::from(failed.is_some()), Ordering::Relaxed);
        });
        assert_ne!(FAILED.swap(0, Ordering::Relaxed), 0, "something is not found in some order");
    }
}
