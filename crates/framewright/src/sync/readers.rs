//! Who reads what may go away, and who takes it away.
//!
//! Descriptors inside a block go when the block becomes whole, and a whole block's links are its
//! count only while it is allocated. Whoever looks at either without the zone lock is *inside*
//! meanwhile, with interrupts off and for a few instructions. Whoever takes them away, under the
//! zone lock, first says so in the block's state word and then waits until nobody is inside
//! (invariant 22). A reader that comes later sees the word.
//!
//! One [`Readers`] serves many blocks: a wait may then be for readers of another block, which are
//! as short. On many CPUs there may always be one inside, so that who comes while somebody waits
//! goes out again until the wait is over.

use super::atomics::atomic::{AtomicU32, Ordering, fence};
use crate::platform::{Platform, with_interrupts_off};
use core::marker::PhantomData;

/// See the module documentation. A cache line of its own, as all CPUs write it.
#[repr(align(64))]
pub struct Readers {
    /// How many are inside, and [`WAITING`] for each who waits for them.
    word: AtomicU32,
}

const WAITING: u32 = 1 << 16;

impl Default for Readers {
    fn default() -> Self {
        Self::new()
    }
}

impl Readers {
    /// Nobody is inside.
    #[must_use]
    pub fn new() -> Self {
        Self { word: AtomicU32::new(0) }
    }

    /// Goes in, until the guard is dropped, as soon as nobody waits. Interrupts are off meanwhile,
    /// and no lock is taken nor are others entered: whoever waits may hold one. What says whether
    /// there is something to read is loaded with `SeqCst` afterwards.
    #[inline]
    pub fn enter<P: Platform + ?Sized>(&self, platform: &P) -> Reading<'_> {
        // Either the state word that is loaded next is the changed one, or `wait` sees this. Of one
        // who has waited it is the changed one: this acquires what that released.
        while self.word.fetch_add(1, Ordering::SeqCst) >= WAITING {
            self.stand_aside(platform);
        }
        Self::order_for_the_model();
        Reading { readers: self, stays: PhantomData }
    }

    /// Goes out again until nobody waits.
    #[cold]
    #[inline(never)]
    fn stand_aside<P: Platform + ?Sized>(&self, platform: &P) {
        // Relaxed: nothing was read.
        self.word.fetch_sub(1, Ordering::Relaxed);
        while self.word.load(Ordering::Relaxed) >= WAITING {
            platform.relax();
        }
    }

    /// The processor has one total order of these; the model checker has it for fences only.
    #[cfg(not(loom))]
    fn order_for_the_model() {}

    #[cfg(loom)]
    fn order_for_the_model() {
        fence(Ordering::SeqCst);
    }

    /// Waits until nobody is inside who came before the state word was changed.
    pub fn wait<P: Platform + ?Sized>(&self, platform: &P) {
        fence(Ordering::SeqCst);
        // Acquire pairs with the Release in the guard's drop: what readers did is done.
        if self.word.load(Ordering::Acquire) != 0 {
            self.wait_alone(platform);
        }
    }

    /// Keeps others out, and waits for those who are inside. Interrupts are off: a handler, or
    /// another task, that stood aside on this CPU would do so for ever.
    #[cold]
    #[inline(never)]
    fn wait_alone<P: Platform + ?Sized>(&self, platform: &P) {
        with_interrupts_off(platform, || {
            // Relaxed: what matters is which readers come before it.
            self.word.fetch_add(WAITING, Ordering::Relaxed);
            // Acquire as in `wait`.
            while !self.word.load(Ordering::Acquire).is_multiple_of(WAITING) {
                platform.relax();
            }
            // Release pairs with `enter`.
            self.word.fetch_sub(WAITING, Ordering::Release);
        });
    }
}

/// Somebody is inside, with interrupts off, so that it stays where it is:
///
/// ```compile_fail,E0277
/// # use framewright::internals::Readers;
/// # use framewright::platform::{LinearMap, OneAtATime};
/// fn leaves<T: Send>(_: T) {}
/// # fn of(platform: &LinearMap<OneAtATime>) {
/// leaves(Readers::new().enter(platform));
/// # }
/// ```
/// ```
/// # use framewright::internals::Readers;
/// fn leaves<T: Send>(_: T) {}
/// leaves(Readers::new());
/// ```
pub struct Reading<'a> {
    readers: &'a Readers,
    /// Makes it neither `Send` nor `Sync`.
    stays: PhantomData<*mut ()>,
}

impl Reading<'_> {
    /// Whether it is inside these.
    pub(crate) fn is_of(&self, readers: &Readers) -> bool {
        core::ptr::eq(self.readers, readers)
    }
}

impl Drop for Reading<'_> {
    #[inline]
    fn drop(&mut self) {
        // Release pairs with the Acquire in `wait`.
        self.readers.word.fetch_sub(1, Ordering::Release);
    }
}
