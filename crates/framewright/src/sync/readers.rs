//! Protects readers of data that may go away from a thread that takes the data away.
//!
//! The descriptors inside a block go away when the block becomes whole again, and the links of a
//! whole block hold its reference count only while the block is allocated. A reader that looks at
//! either without the zone lock is *inside* meanwhile, with interrupts off and for a few
//! instructions. A CPU that takes them away, under the zone lock, first says so in the block's
//! state word and then waits until nobody is inside (invariant 22). A reader that comes later sees
//! the new word.
//!
//! One [`Readers`] serves many blocks, so a wait may be for readers of another block, which are as
//! short. On many CPUs somebody may always be inside, so a reader that enters while somebody waits
//! goes out again until the wait is over.

use super::atomics::atomic::{AtomicU32, Ordering, fence};
use crate::platform::{Platform, with_interrupts_off};
use core::marker::PhantomData;

/// See the module documentation. It has a cache line of its own, because all CPUs write it.
#[repr(align(64))]
pub struct Readers {
    /// How many readers are inside, plus [`WAITING`] for each CPU that waits for them.
    word: AtomicU32,
}

const WAITING: u32 = 1 << 16;

impl Default for Readers {
    fn default() -> Self {
        Self::new()
    }
}

impl Readers {
    /// Makes an object with no reader inside.
    #[must_use]
    pub fn new() -> Self {
        Self { word: AtomicU32::new(0) }
    }

    /// Enters as soon as nobody waits, until the guard is dropped. Interrupts are off meanwhile,
    /// and the reader takes no lock and enters no other [`Readers`], because a waiting CPU may hold
    /// a lock. Afterwards the reader loads the word that says whether there is something to read,
    /// with `SeqCst`.
    #[inline]
    pub fn enter<P: Platform + ?Sized>(&self, platform: &P) -> Reading<'_> {
        // Either the state word that the reader loads next is the changed one, or `wait` sees this
        // reader. If the waiting CPU is done already, the word is the changed one: this acquires
        // what that CPU released.
        while self.word.fetch_add(1, Ordering::SeqCst) >= WAITING {
            self.stand_aside(platform);
        }
        Self::order_for_the_model();
        Reading { readers: self, stays: PhantomData }
    }

    /// Goes out again, and waits until nobody waits for readers.
    #[cold]
    #[inline(never)]
    fn stand_aside<P: Platform + ?Sized>(&self, platform: &P) {
        // Relaxed: nothing was read.
        self.word.fetch_sub(1, Ordering::Relaxed);
        while self.word.load(Ordering::Relaxed) >= WAITING {
            platform.relax();
        }
    }

    /// The processor has one total order of the `SeqCst` operations; the model checker has one of
    /// fences only.
    #[cfg(not(loom))]
    fn order_for_the_model() {}

    #[cfg(loom)]
    fn order_for_the_model() {
        fence(Ordering::SeqCst);
    }

    /// Waits for every reader that entered before the state word was changed to leave.
    pub fn wait<P: Platform + ?Sized>(&self, platform: &P) {
        fence(Ordering::SeqCst);
        // Acquire pairs with the Release in the guard's drop: the readers have finished.
        if self.word.load(Ordering::Acquire) != 0 {
            self.wait_alone(platform);
        }
    }

    /// Keeps new readers out, and waits for those that are inside. Interrupts are off: otherwise a
    /// handler, or another task on this CPU, could interrupt this wait and stand aside for ever.
    #[cold]
    #[inline(never)]
    fn wait_alone<P: Platform + ?Sized>(&self, platform: &P) {
        with_interrupts_off(platform, || {
            // Relaxed: what matters is only which readers come before it.
            self.word.fetch_add(WAITING, Ordering::Relaxed);
            // Acquire as in `wait`.
            while !self.word.load(Ordering::Acquire).is_multiple_of(WAITING) {
                platform.relax();
            }
            // Release pairs with the Acquire half of the SeqCst in `enter`.
            self.word.fetch_sub(WAITING, Ordering::Release);
        });
    }
}

/// A reader that is inside, with interrupts off. It cannot move to another thread:
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
    /// Whether this reader is inside `readers`.
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
