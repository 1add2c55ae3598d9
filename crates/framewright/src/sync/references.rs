//! Reference counts: from nothing only by whoever owns what is counted, to nothing once, and never
//! over the edge.
//!
//! | count | means |
//! |---|---|
//! | 0 | frozen: free, or somebody's alone; nobody can get a reference |
//! | 1..=`u32::MAX - 1` | that many references |
//! | `u32::MAX` | saturated: it stays so, and what is counted is never freed |
//!
//! Orders of memory: Relaxed: looks at a count that may be another already, first guesses of a
//! loop, and failed exchanges. Saturated counts order nothing, as what they count is never freed.

use super::atomics::atomic;
use super::atomics::table_atomic;
use core::sync::atomic::Ordering;

/// A number that counts, the processor's or the model checker's.
pub trait CountWord {
    /// Loads it.
    fn load(&self, order: Ordering) -> u32;
    /// Replaces `old` by `new`; the error is what is there instead. Failure orders nothing.
    ///
    /// # Errors
    /// As said.
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

/// More references than can be counted.
pub const SATURATED: u32 = u32::MAX;

/// The count of what `word` counts. See the module documentation.
#[repr(transparent)]
pub struct ReferenceCount<W: CountWord>(pub W);

impl<W: CountWord> ReferenceCount<W> {
    /// The count, at some moment.
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// One more, unless it is frozen.
    #[inline]
    pub fn try_get(&self) -> bool {
        try_get(&self.0)
    }

    /// One less; true when that was the last. Nothing is changed when there is none.
    ///
    /// # Errors
    /// [`NoReference`].
    #[inline]
    pub fn put(&self) -> Result<bool, NoReference> {
        put(&self.0)
    }

    /// Makes `expected` references nothing: the caller, who holds them all, is alone from then on.
    ///
    /// # Errors
    /// The count, when it is another, zero, or saturated.
    pub fn freeze(&self, expected: u32) -> Result<(), u32> {
        freeze(&self.0, expected)
    }

    /// Makes nothing `count` references, by whoever is alone.
    ///
    /// # Errors
    /// The count, when it is not zero; zero, when `count` is.
    pub fn unfreeze(&self, count: u32) -> Result<(), u32> {
        unfreeze(&self.0, count)
    }
}

/// There is no reference that could be put.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoReference;

/// See [`ReferenceCount::try_get`].
#[inline]
pub(crate) fn try_get<W: CountWord>(word: &W) -> bool {
    // Acquire, here and below: pairs with the Release in `unfreeze`, through any number of changes
    // between.
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
        // Release: what was done under this reference is done before the last one goes.
        match word.replace(count, left, Ordering::Release) {
            Ok(_) if left == 0 => {
                // Acquire: the last one sees what was done under all others.
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
    // Acquire pairs with the Release of everybody who has put a reference.
    word.replace(expected, 0, Ordering::Acquire).map(drop)
}

/// See [`ReferenceCount::unfreeze`].
pub(crate) fn unfreeze<W: CountWord>(word: &W, count: u32) -> Result<(), u32> {
    if count == 0 {
        return Err(0);
    }
    // Release: who gets a reference sees what was prepared.
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
