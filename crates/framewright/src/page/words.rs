//! What a CPU's cache is made of: words of runs, and stacks.
//!
//! Orders of memory: Relaxed: whoever has the cache touches them (invariant 16); a look from
//! elsewhere is a guess.

use crate::sync::table_atomic::{AtomicU32, AtomicU64, Ordering};
use crate::units::{Order, Pfn};
use core::ops::Range;

/// Orders that come by the word: 0..=3.
pub(super) const WORD_ORDERS: u8 = 4;
/// No frame has this number.
pub(super) const NOWHERE: u64 = u64::MAX;

/// What freeing into a cache came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Put {
    /// It is kept.
    Cached,
    /// It is free already.
    DoubleFree,
    /// There is no room.
    Full,
}

/// Runs of one order with a common 64-frame word: the word's first frame, and a bit for the first
/// frame of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Runs {
    pub(crate) base: Pfn,
    pub(crate) runs: u64,
}

impl Runs {
    pub(crate) const NONE: Self = Self { base: Pfn(NOWHERE), runs: 0 };

    /// One run: of orders from 4 on an entry has no more.
    #[inline]
    pub(crate) const fn one(start: Pfn, order: Order) -> Self {
        let offset = if order.get() < WORD_ORDERS { start.0 & 63 } else { 0 };
        Self { base: Pfn(start.0 - offset), runs: 1 << offset }
    }

    /// The first frames of the runs.
    pub(crate) fn starts(self) -> impl Iterator<Item = Pfn> {
        let mut runs = self.runs;
        core::iter::from_fn(move || {
            let next = u64::from(runs.trailing_zeros());
            let some = runs != 0;
            runs &= runs.wrapping_sub(1);
            some.then(|| self.base.add(next))
        })
    }
}

/// [`Runs`] in place.
pub(super) struct Word {
    base: AtomicU64,
    runs: AtomicU64,
}

impl Word {
    pub(super) fn empty() -> Self {
        Self { base: AtomicU64::new(NOWHERE), runs: AtomicU64::new(0) }
    }

    /// Takes the lowest of its runs, of which there is one, and says whether it was the last.
    #[inline]
    pub(super) fn take(&self) -> (Pfn, bool) {
        let runs = self.runs.load(Ordering::Relaxed);
        debug_assert!(runs != 0, "no entry in use is empty");
        let left = runs & runs.wrapping_sub(1);
        self.runs.store(left, Ordering::Relaxed);
        let start = self.base.load(Ordering::Relaxed) + u64::from(runs.trailing_zeros());
        (Pfn(start), left == 0)
    }

    /// Whether these runs are of this word.
    #[inline]
    pub(super) fn holds(&self, more: Runs) -> bool {
        self.base.load(Ordering::Relaxed) == more.base.0
    }

    /// Keeps runs of this word.
    #[inline]
    pub(super) fn give(&self, more: Runs) -> Put {
        let runs = self.runs.load(Ordering::Relaxed);
        if runs & more.runs != 0 {
            return Put::DoubleFree;
        }
        self.runs.store(runs | more.runs, Ordering::Relaxed);
        Put::Cached
    }

    pub(super) fn read(&self) -> Runs {
        Runs {
            base: Pfn(self.base.load(Ordering::Relaxed)),
            runs: self.runs.load(Ordering::Relaxed),
        }
    }

    #[inline]
    pub(super) fn set(&self, runs: Runs) {
        self.base.store(runs.base.0, Ordering::Relaxed);
        self.runs.store(runs.runs, Ordering::Relaxed);
    }
}

/// A stack among the entries of a cache.
pub(super) struct Stack {
    len: AtomicU32,
    pub(super) limit: AtomicU32,
    first: usize,
}

impl Stack {
    /// Stacks one after the other, each of at most `most` entries, as many as `share` allows.
    pub(super) fn all<const STACKS: usize>(
        most: &[usize],
        share: impl Fn(usize) -> u64,
    ) -> [Self; STACKS] {
        let mut first = 0;
        core::array::from_fn(|stack| {
            let limit = u32::try_from(share(stack).min(most[stack] as u64)).unwrap_or(0);
            let new = Self { len: AtomicU32::new(0), limit: AtomicU32::new(limit), first };
            first += most[stack];
            new
        })
    }

    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn limit(&self) -> u32 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Where the entry on top is, if there is one.
    #[inline]
    pub(super) fn top(&self) -> Option<usize> {
        Some(self.first + self.len().checked_sub(1)? as usize)
    }

    /// Where the next entry goes, if there is room; it counts then.
    #[inline]
    pub(super) fn grow(&self) -> Option<usize> {
        let len = self.len();
        if len >= self.limit() {
            return None;
        }
        self.len.store(len + 1, Ordering::Relaxed);
        Some(self.first + len as usize)
    }

    pub(super) fn set_len(&self, len: usize) {
        self.len.store(u32::try_from(len).unwrap_or(0), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn shrink(&self, entries: u32) {
        self.len.store(self.len().saturating_sub(entries), Ordering::Relaxed);
    }

    /// Where its entries are, oldest first.
    pub(super) fn entries(&self) -> Range<usize> {
        self.first..self.first + self.len() as usize
    }
}
