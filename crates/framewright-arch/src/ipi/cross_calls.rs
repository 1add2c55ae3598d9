//! One CPU has others call a function and waits: [`CrossCalls`].
//!
//! Each CPU has a *slot*, where it says what to call, and an *inbox*, a bit for each caller. To
//! call, a CPU fills its slot, sets its bit in the inboxes of its targets and notifies those whose
//! inbox word was empty: somebody else's notice is on its way to the others. Whoever is notified
//! takes all bits at once, calls what these callers' slots say, and counts each down. There is no
//! lock and no queue, so any number of CPUs may call at once, each other too, as long as who waits
//! is notified meanwhile. How CPUs are notified, and how they wait, is the kernel's business.
//!
//! # Memory ordering
//!
//! | store | load | carries |
//! |---|---|---|
//! | a bit in an inbox, Release | the swap in [`serve`](CrossCalls::serve), Acquire | the slot, and what the caller wrote before |
//! | the count in a slot, Release | `done`, Acquire | what the function did |
//!
//! That a caller may leave its notice to another: words change by read-modify-write operations,
//! which see the last value. The swap that finds our bit comes after the notice that somebody owes
//! for the bit that was there before ours, or finds both.
//!
//! Orders of memory: Relaxed for what a caller writes before it sets its bit, which publishes it
//! (Release, with the Acquire of `serve`), for what only its own CPU uses, and for looks that only
//! say whether an exchange is worth its price.

use crate::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::sync::{const_fn, relax};
use core::ptr;

/// Most CPUs that can call each other.
pub const MAX_CPUS: usize = 256;
const WORDS: usize = MAX_CPUS / 64;

/// What is called.
pub type Function<'a> = &'a (dyn Fn() + Sync + 'a);

/// Slot and inbox of one CPU, on a cache line of their own.
#[repr(align(64))]
struct Place {
    /// Points to a [`Function`] on the stack of the CPU.
    function: AtomicPtr<()>,
    /// Targets that have not called it yet, and one more while more may come.
    remaining: AtomicU32,
    busy: AtomicBool,
    callers: [AtomicU64; WORDS],
}

impl Place {
    const_fn! {
        fn new() -> Self {
            Self {
                function: AtomicPtr::new(ptr::null_mut()),
                remaining: AtomicU32::new(0),
                busy: AtomicBool::new(false),
                callers: [AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)],
            }
        }
    }

    /// Calls what the slot says and counts down. Returns whether that was the last.
    fn call(&self) -> bool {
        let function = self.function.load(Ordering::Relaxed).cast_const().cast::<Function<'_>>();
        // SAFETY: the slot's owner set our bit after it had put a `Function` there, and stays until
        // we have counted down (invariant 29).
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

/// Whatever happens, a caller leaves only when all have called.
struct Stay<'a>(&'a Place);

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        while !self.0.is_done() {
            relax();
        }
        self.0.busy.store(false, Ordering::Relaxed);
    }
}

/// The calls of `CPUS` CPUs, at most [`MAX_CPUS`]: one kind of them, such as those that are served
/// in interrupts.
pub struct CrossCalls<const CPUS: usize> {
    places: [Place; CPUS],
}

#[cfg(not(loom))]
impl<const CPUS: usize> CrossCalls<CPUS> {
    /// Nobody calls anybody.
    #[must_use]
    pub const fn new() -> Self {
        const { assert!(CPUS <= MAX_CPUS, "an inbox has a bit for each CPU") };
        Self { places: [const { Place::new() }; CPUS] }
    }
}

#[cfg(loom)]
impl<const CPUS: usize> CrossCalls<CPUS> {
    /// Nobody calls anybody.
    pub fn new() -> Self {
        Self { places: core::array::from_fn(|_| Place::new()) }
    }
}

impl<const CPUS: usize> Default for CrossCalls<CPUS> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const CPUS: usize> CrossCalls<CPUS> {
    /// CPU `me` has each of `targets` call `function`, once each. `notify` is called for those that
    /// must be told to [`serve`](Self::serve). `wait` is called with a question that it asks until
    /// the answer is true, or it is called again. What was written before is visible to the
    /// function, and what the function wrote afterwards here. Returns how many called.
    ///
    /// Targets that do not exist are left out; `me` may be among them if `wait` serves.
    ///
    /// # Panics
    /// When CPU `me` is in a call of this kind already, or does not exist: errors in the kernel.
    pub fn call(
        &self,
        me: u32,
        targets: impl Iterator<Item = u32>,
        function: Function<'_>,
        mut notify: impl FnMut(u32),
        mut wait: impl FnMut(&dyn Fn() -> bool),
    ) -> u32 {
        let Some(own) = self.places.get(me as usize) else {
            panic!("there is no CPU {me} to call from")
        };
        // Nothing is ordered by this: who calls twice is one CPU.
        assert!(!own.busy.swap(true, Ordering::Relaxed), "CPU {me} is in a call already");
        own.function.store((&raw const function).cast_mut().cast(), Ordering::Relaxed);
        own.remaining.store(1, Ordering::Relaxed);
        let stay = Stay(own);
        let mut count = 0;
        for (target, place) in
            targets.filter_map(|target| Some((target, self.places.get(target as usize)?)))
        {
            let Some(word) = place.callers.get(me as usize / 64) else { continue };
            let bit = 1 << (me % 64);
            own.remaining.fetch_add(1, Ordering::Relaxed);
            // Release pairs with the Acquire in `serve`.
            let before = word.fetch_or(bit, Ordering::Release);
            if before & bit != 0 {
                // Named twice, and the first has not been served: once is enough.
                own.remaining.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            count += 1;
            if before == 0 {
                notify(target);
            }
        }
        own.remaining.fetch_sub(1, Ordering::Relaxed);
        while !own.is_done() {
            wait(&|| own.is_done());
        }
        drop(stay);
        count
    }

    /// Whether somebody wants something of CPU `me`. A hint, like every look at what others may
    /// change.
    #[must_use]
    pub fn is_wanted(&self, me: u32) -> bool {
        let callers =
            self.places.get(me as usize).map(|place| place.callers.iter().take(CPUS.div_ceil(64)));
        callers.is_some_and(|mut callers| callers.any(|word| word.load(Ordering::Relaxed) != 0))
    }

    /// CPU `me` does what others want of it. `last` is told of each caller whose last target this
    /// was, which may be asleep. Returns whether there was anything.
    pub fn serve(&self, me: u32, mut last: impl FnMut(u32)) -> bool {
        let Some(place) = self.places.get(me as usize) else { return false };
        let mut served = false;
        for (first, word) in (0u32..).step_by(64).zip(&place.callers).take(CPUS.div_ceil(64)) {
            // Acquire pairs with the Release in `call`.
            let mut callers =
                if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::Acquire) };
            while callers != 0 {
                let caller = first + callers.trailing_zeros();
                callers &= callers - 1;
                if let Some(slot) = self.places.get(caller as usize) {
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
