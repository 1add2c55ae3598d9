//! Reference counts. Only the sole owner of the counted object takes its count up from zero, the
//! count falls to zero once, and it never overflows.
//!
//! | count | means |
//! |---|---|
//! | 0 | frozen: free, or owned by one alone; nobody can get a reference |
//! | 1..=`u32::MAX - 1` | that many references |
//! | `u32::MAX` | saturated: the count stays so, and the object is never freed |
//!
//! Orders of memory: Relaxed: looks at a count that may already have changed, first guesses of a
//! loop, and failed exchanges. Saturated counts order nothing, because their objects are never
//! freed.

use super::atomics::atomic;
use super::atomics::table_atomic;
use core::sync::atomic::Ordering;

/// The word that holds a count: the processor's atomic or the model checker's.
pub trait CountWord {
    /// Loads the count.
    fn load(&self, order: Ordering) -> u32;
    /// Replaces `old` by `new`. Failure orders nothing.
    ///
    /// # Errors
    /// The value that is there instead of `old`.
    fn replace(&self, old: u32, new: u32, success: Ordering) -> Result<u32, u32>;
}

impl CountWord for table_atomic::AtomicU32 {
    #[inline]
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    #[inline]
    fn replace(&self, old: u32, new: u32, success: Ordering) -> Result<u32, u32> {
        self.compare_exchange(old, new, success, Ordering::Relaxed)
    }
}

#[cfg(loom)]
impl CountWord for atomic::AtomicU32 {
    fn load(&self, order: Ordering) -> u32 {
        self.load(order)
    }

    fn replace(&self, old: u32, new: u32, success: Ordering) -> Result<u32, u32> {
        self.compare_exchange(old, new, success, Ordering::Relaxed)
    }
}

/// The saturated count: more references than can be counted.
pub const SATURATED: u32 = u32::MAX;

/// The reference count in one word. See the module documentation.
#[repr(transparent)]
pub struct ReferenceCount<W: CountWord>(pub W);

impl<W: CountWord> ReferenceCount<W> {
    /// The count at some moment.
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes one more reference, unless the count is frozen; returns whether it did.
    #[inline]
    pub fn try_get(&self) -> bool {
        try_get(&self.0)
    }

    /// Puts one reference; returns true if it was the last one. Changes nothing when there is none.
    ///
    /// # Errors
    /// [`NoReference`] when the count is zero.
    #[inline]
    pub fn put(&self) -> Result<bool, NoReference> {
        put(&self.0)
    }

    /// Freezes the count from `expected` to zero: the caller, which holds all references, is the
    /// sole owner from then on.
    ///
    /// # Errors
    /// The current count, when it is not `expected`, or when `expected` is zero or saturated.
    pub fn freeze(&self, expected: u32) -> Result<(), u32> {
        freeze(&self.0, expected)
    }

    /// Sets a frozen count to `count` references. Called by the sole owner.
    ///
    /// # Errors
    /// The current count, when it is not zero; zero, when `count` is zero.
    pub fn unfreeze(&self, count: u32) -> Result<(), u32> {
        unfreeze(&self.0, count)
    }
}

/// There is no reference to put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoReference;

/// See [`ReferenceCount::try_get`].
#[inline]
pub(crate) fn try_get<W: CountWord>(word: &W) -> bool {
    // Acquire, here and below, pairs with the Release in `unfreeze`, through any number of changes
    // in between.
    let mut count = word.load(Ordering::Acquire);
    loop {
        if count == 0 {
            return false;
        }
        if count == SATURATED {
            return true;
        }
        match word.replace(count, count + 1, Ordering::Acquire) {
            Ok(_) => return true,
            Err(now) => count = now,
        }
    }
}

/// See [`ReferenceCount::put`].
#[inline]
pub(crate) fn put<W: CountWord>(word: &W) -> Result<bool, NoReference> {
    let mut count = word.load(Ordering::Relaxed);
    loop {
        if count == SATURATED {
            return Ok(false);
        }
        let left = count.checked_sub(1).ok_or(NoReference)?;
        // Release: what was done under this reference is done before the last reference goes.
        match word.replace(count, left, Ordering::Release) {
            Ok(_) if left == 0 => {
                // Acquire: the thread that put the last reference sees what was done under all
                // others.
                atomic::fence(Ordering::Acquire);
                return Ok(true);
            }
            Ok(_) => return Ok(false),
            Err(now) => count = now,
        }
    }
}

/// See [`ReferenceCount::freeze`].
pub(crate) fn freeze<W: CountWord>(word: &W, expected: u32) -> Result<(), u32> {
    if expected == 0 || expected == SATURATED {
        return Err(word.load(Ordering::Relaxed));
    }
    // Acquire pairs with the Release of every thread that has put a reference.
    word.replace(expected, 0, Ordering::Acquire).map(drop)
}

/// See [`ReferenceCount::unfreeze`].
pub(crate) fn unfreeze<W: CountWord>(word: &W, count: u32) -> Result<(), u32> {
    if count == 0 {
        return Err(0);
    }
    // Release: a thread that gets a reference sees what was prepared.
    word.replace(0, count, Ordering::Release).map(drop)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use table_atomic::AtomicU32;

    fn count(value: u32) -> ReferenceCount<AtomicU32> {
        ReferenceCount(AtomicU32::new(value))
    }

    #[test]
    fn from_frozen_to_frozen() {
        let count = count(0);
        assert!(!count.try_get());
        assert_eq!(count.put(), Err(NoReference));
        assert_eq!(count.unfreeze(0), Err(0));
        assert_eq!(count.unfreeze(2), Ok(()));
        assert_eq!(count.unfreeze(1), Err(2));
        assert!(count.try_get());
        assert_eq!(count.freeze(2), Err(3));
        assert_eq!(
            (count.put(), count.put(), count.put(), count.put()),
            (Ok(false), Ok(false), Ok(true), Err(NoReference))
        );
        assert_eq!(count.freeze(0), Err(0));
    }

    #[test]
    fn a_count_at_the_edge_stays_there() {
        let count = count(SATURATED - 1);
        assert!(count.try_get() && count.try_get());
        assert_eq!(count.get(), SATURATED);
        assert_eq!((count.put(), count.put()), (Ok(false), Ok(false)));
        assert_eq!(count.get(), SATURATED);
        assert_eq!(count.freeze(SATURATED), Err(SATURATED));
    }
}
