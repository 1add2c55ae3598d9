//! Lets one CPU make other CPUs call a function, and wait for them: [`CrossCalls`].
//!
//! Each CPU has a *slot*, which says what to call, and an *inbox*, with one bit for each caller. To
//! call, a CPU fills its slot, sets its bit in the inboxes of its targets and notifies those whose
//! inbox word was empty: the other targets have already been notified by another caller. A CPU that
//! is notified takes all bits at once, calls what the slots of these callers say, and decrements
//! their counts. There is no lock and no queue, so any number of CPUs may call at the same time,
//! even each other, as long as a waiting CPU can be notified. How CPUs are notified, and how they
//! wait, is up to the kernel.
//!
//! # Memory ordering
//!
//! * A bit in an inbox is set with Release and taken by the swap in [`serve`](CrossCalls::serve)
//!   with Acquire: this carries the slot, and everything that the caller wrote before.
//! * The count in a slot is decremented with Release and read by `is_done` with Acquire: this
//!   carries what the function did.
//! * A slot is freed by a store with Release and found free with Acquire: two threads may therefore
//!   take turns in being one CPU, and the next one finds the slot as the last one left it.
//! * Relaxed is enough for what a caller writes before it sets its bit, for what only its own CPU
//!   uses, and for loads that only say whether an exchange is worth its cost.
//!
//! A caller may rely on another caller's notification: inbox words change only by read-modify-write
//! operations, which see the latest value, so a bit that is found in a word has not been taken yet.
//! The swap that takes that bit, after its own caller's notification at the latest, takes the new
//! bit as well.

use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::sync::{const_fn, relax};
use core::ptr;

/// The most CPUs that can call each other.
pub const MAX_CPUS: usize = 256;
const WORDS: usize = MAX_CPUS / 64;

/// The function that is called.
pub type Function<'a> = &'a (dyn Fn() + Sync + 'a);

/// Slot and inbox of one CPU, on cache lines of their own.
#[repr(align(64))]
struct CpuSlot {
    /// Points to a [`Function`] on the CPU's stack.
    function: AtomicPtr<()>,
    /// The number of targets that have not called the function yet, plus one while more targets may
    /// be added.
    remaining: AtomicU32,
    busy: AtomicBool,
    callers: [AtomicU64; WORDS],
}

impl CpuSlot {
    const_fn! {
        fn new() -> Self {
            Self {
                function: AtomicPtr::new(ptr::null_mut()),
                remaining: AtomicU32::new(0),
                busy: AtomicBool::new(false),
                callers: [
                    AtomicU64::new(0),
                    AtomicU64::new(0),
                    AtomicU64::new(0),
                    AtomicU64::new(0),
                ],
            }
        }
    }

    /// Calls the function in the slot and decrements the count. Returns whether this was the last
    /// call.
    fn call(&self) -> bool {
        let function = self.function.load(Ordering::Relaxed).cast_const().cast::<Function<'_>>();
        // SAFETY: the slot's owner set our bit after it had put a `Function` there, and does not
        // return until we have decremented the count (invariant 29).
        let function = unsafe { *function };
        function();
        // Release pairs with the Acquire in `is_done`. Nothing on the owner's stack is touched
        // after this.
        self.remaining.fetch_sub(1, Ordering::Release) == 1
    }

    fn is_done(&self) -> bool {
        // Acquire pairs with the Release in `call`.
        self.remaining.load(Ordering::Acquire) == 0
    }
}

/// Makes sure that a caller returns only when all targets have called the function, even if it
/// panics.
struct WaitForAll<'a>(&'a CpuSlot);

impl Drop for WaitForAll<'_> {
    fn drop(&mut self) {
        while !self.0.is_done() {
            relax();
        }
        // Release pairs with the Acquire in `Caller::call`.
        self.0.busy.store(false, Ordering::Release);
    }
}

/// Keeps the count one above the number of targets that have not called the function, while targets
/// are added.
struct StillAdding<'a>(&'a CpuSlot);

impl Drop for StillAdding<'_> {
    fn drop(&mut self) {
        // Relaxed: only the caller itself reads the extra one.
        self.0.remaining.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Calls among `CPUS` CPUs, at most [`MAX_CPUS`]. All calls of one `CrossCalls` are of one kind,
/// for example those that are served in interrupts.
pub struct CrossCalls<const CPUS: usize> {
    cpus: [CpuSlot; CPUS],
}

#[cfg(not(loom))]
impl<const CPUS: usize> CrossCalls<CPUS> {
    /// Creates the slots and empty inboxes.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(CPUS <= MAX_CPUS, "an inbox has a bit for each CPU") };
        Self { cpus: [const { CpuSlot::new() }; CPUS] }
    }
}

#[cfg(loom)]
impl<const CPUS: usize> CrossCalls<CPUS> {
    /// Creates the slots and empty inboxes.
    pub fn new() -> Self {
        Self { cpus: core::array::from_fn(|_| CpuSlot::new()) }
    }
}

impl<const CPUS: usize> Default for CrossCalls<CPUS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const CPUS: usize> CrossCalls<CPUS> {
    /// CPU `me` as a caller.
    #[must_use]
    pub const fn caller(&self, me: u32) -> Caller<'_, CPUS> {
        Caller { calls: self, me }
    }

    /// Whether CPU `me` has calls to serve. This is a hint: another CPU may add a call at any time.
    #[must_use]
    pub fn is_wanted(&self, me: u32) -> bool {
        let callers =
            self.cpus.get(me as usize).map(|slot| slot.callers.iter().take(CPUS.div_ceil(64)));
        callers.is_some_and(|mut callers| callers.any(|word| word.load(Ordering::Relaxed) != 0))
    }

    /// Makes CPU `me` call what other CPUs want it to call. `last` is called with each caller that
    /// was waiting only for this CPU, because that caller may be asleep. Returns whether there was
    /// anything to call.
    pub fn serve(&self, me: u32, mut last: impl FnMut(u32)) -> bool {
        let Some(inbox) = self.cpus.get(me as usize) else { return false };
        let mut served = false;
        for (first, word) in (0u32..).step_by(64).zip(&inbox.callers).take(CPUS.div_ceil(64)) {
            // Acquire pairs with the Release in `call`.
            let mut callers =
                if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::Acquire) };
            while callers != 0 {
                let caller = first + callers.trailing_zeros();
                callers &= callers - 1;
                if let Some(slot) = self.cpus.get(caller as usize) {
                    served = true;
                    if slot.call() {
                        last(caller);
                    }
                }
            }
        }
        served
    }
}

/// A CPU that calls others, from [`CrossCalls::caller`].
pub struct Caller<'a, const CPUS: usize> {
    calls: &'a CrossCalls<CPUS>,
    me: u32,
}

impl<const CPUS: usize> Caller<'_, CPUS> {
    /// Makes each of `targets` call `function` once, however often it is named, and waits for them.
    /// Returns how many CPUs called it.
    ///
    /// `notify` is called with each target that must be made to call [`serve`](CrossCalls::serve).
    /// `wait` is called with a condition to wait for; if it returns early, it is called again. What
    /// was written before the call is visible to the function, and what the function wrote is
    /// visible after it.
    ///
    /// Targets that do not exist are left out; `me` may be among the targets if `wait` serves
    /// calls.
    ///
    /// # Panics
    /// When the CPU is in a call of this kind already, or does not exist. Both are errors in the
    /// kernel.
    pub fn call(
        self,
        targets: impl Iterator<Item = u32>,
        function: Function<'_>,
        mut notify: impl FnMut(u32),
        mut wait: impl FnMut(&dyn Fn() -> bool),
    ) -> u32 {
        let Self { calls, me } = self;
        let Some(own) = calls.cpus.get(me as usize) else {
            panic!("there is no CPU {me} to call from")
        };
        // Acquire pairs with the Release of the thread that was CPU `me` before.
        assert!(!own.busy.swap(true, Ordering::Acquire), "CPU {me} is in a call already");
        own.function.store((&raw const function).cast_mut().cast(), Ordering::Relaxed);
        own.remaining.store(1, Ordering::Relaxed);
        let wait_for_all = WaitForAll(own);
        // Dropped before the wait, even in a panic.
        let still_adding = StillAdding(own);
        let mut count = 0;
        let mut named = [0_u64; WORDS];
        for (target, slot) in
            targets.filter_map(|target| Some((target, calls.cpus.get(target as usize)?)))
        {
            let Some(word) = slot.callers.get(me as usize / 64) else { continue };
            let Some(seen) = named.get_mut(target as usize / 64) else { continue };
            // A target may be named twice, and may have served the first request already.
            if *seen & 1 << (target % 64) != 0 {
                continue;
            }
            *seen |= 1 << (target % 64);
            own.remaining.fetch_add(1, Ordering::Relaxed);
            // Release pairs with the Acquire in `serve`. The bit was not set: it is set by calls
            // from this CPU alone, and those before have ended.
            let before = word.fetch_or(1 << (me % 64), Ordering::Release);
            count += 1;
            if before == 0 {
                notify(target);
            }
        }
        drop(still_adding);
        while !own.is_done() {
            wait(&|| own.is_done());
        }
        drop(wait_for_all);
        count
    }
}
