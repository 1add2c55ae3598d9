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
        let offset = Self::offset(start, order);
        Self { base: Pfn(start.0 - offset), runs: 1 << offset }
    }

    /// How far into its word a run begins; of orders from 4 on it is a word of its own.
    #[inline(always)]
    const fn offset(start: Pfn, order: Order) -> u64 {
        let mask = if order.get() < WORD_ORDERS { 63 } else { 0 };
        start.0 & mask
    }

    /// How many runs.
    pub(crate) const fn count(self) -> u64 {
        self.runs.count_ones() as u64
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

    /// Keeps the run that begins at `start`, if it is of this word: [`give`](Self::give) in fewer
    /// instructions.
    #[inline]
    pub(super) fn give_one(&self, start: Pfn, order: Order) -> Option<Put> {
        let offset = Runs::offset(start, order);
        if self.base.load(Ordering::Relaxed) != start.0 - offset {
            return None;
        }
        let runs = self.runs.load(Ordering::Relaxed);
        if runs >> offset & 1 != 0 {
            return Some(Put::DoubleFree);
        }
        self.runs.store(runs | 1 << offset, Ordering::Relaxed);
        Some(Put::Cached)
    }

    pub(super) fn read(&self) -> Runs {
        self.read_if(|_| true).unwrap_or(Runs::NONE)
    }

    /// [`read`](Self::read) where the word begins at a wanted frame. That is read once: its owner
    /// may empty it meanwhile.
    #[inline]
    pub(super) fn read_if(&self, is_wanted: impl FnOnce(u64) -> bool) -> Option<Runs> {
        let base = self.base.load(Ordering::Relaxed);
        let runs = || Runs { base: Pfn(base), runs: self.runs.load(Ordering::Relaxed) };
        is_wanted(base).then(runs)
    }

    #[inline]
    pub(super) fn set(&self, runs: Runs) {
        self.base.store(runs.base.0, Ordering::Relaxed);
        self.runs.store(runs.runs, Ordering::Relaxed);
    }
}

/// A stack among the entries of a cache.
///
/// ```text
///     base      floor        top            end
///      |  aside   |  in use   |    unused    |
/// ```
///
/// What lies aside below the floor is not seen by gets and puts. It lies there from one look at
/// what was not used to the next (`age`), or until what is in use runs out.
pub(super) struct Stack {
    /// Entries in use.
    len: AtomicU32,
    /// Where the first of them is.
    floor: AtomicU32,
    /// Where entries may not be any more.
    end: AtomicU32,
    /// Where the oldest is that lies aside.
    base: u32,
}

impl Stack {
    /// Stacks one after the other, each with room for `most` entries, of which it uses as many as
    /// its limit allows.
    pub(super) fn all<const STACKS: usize>(
        most: &[usize],
        limits: &[u32; STACKS],
    ) -> [Self; STACKS] {
        let mut base = 0;
        core::array::from_fn(|stack| {
            let (len, floor) = (AtomicU32::new(0), AtomicU32::new(base));
            let new = Self { len, floor, end: AtomicU32::new(base + limits[stack]), base };
            base += u32::try_from(most[stack]).unwrap_or(0);
            new
        })
    }

    #[inline]
    fn in_use(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
    }

    #[inline]
    fn floor(&self) -> u32 {
        self.floor.load(Ordering::Relaxed)
    }

    /// All entries, those that lie aside included.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.aside() + self.in_use()
    }

    /// Most entries.
    #[inline]
    pub(super) fn limit(&self) -> u32 {
        self.end.load(Ordering::Relaxed).wrapping_sub(self.base)
    }

    pub(super) fn set_limit(&self, limit: u32) {
        self.end.store(self.base + limit, Ordering::Relaxed);
    }

    /// How many entries are in use, if any are, and where the one on top is.
    #[inline]
    pub(super) fn top(&self) -> Option<(u32, usize)> {
        let len = self.in_use();
        if len == 0 {
            return None;
        }
        // In the width of an index, which is an instruction less.
        Some((len, (self.floor() as usize + len as usize).wrapping_sub(1)))
    }

    #[inline]
    pub(super) fn set_len(&self, len: u32) {
        self.len.store(len, Ordering::Relaxed);
    }

    /// Where the next entry goes, if there is room; it counts then.
    #[inline]
    pub(super) fn grow(&self) -> Option<usize> {
        let len = self.in_use();
        let next = self.floor() + len;
        if next >= self.end.load(Ordering::Relaxed) {
            return None;
        }
        self.len.store(len + 1, Ordering::Relaxed);
        Some(next as usize)
    }

    #[inline]
    pub(super) fn shrink(&self, entries: u32) {
        self.len.store(self.in_use().saturating_sub(entries), Ordering::Relaxed);
    }

    /// Where its entries are, oldest first.
    pub(super) fn entries(&self) -> Range<usize> {
        self.base as usize..(self.floor() + self.in_use()) as usize
    }

    /// How many entries lie aside.
    #[inline]
    pub(super) fn aside(&self) -> u32 {
        self.floor().wrapping_sub(self.base)
    }

    /// Lays the older half of what is in use aside.
    pub(super) fn set_aside(&self) {
        let more = self.in_use().div_ceil(2);
        self.floor.store(self.floor() + more, Ordering::Relaxed);
        self.shrink(more);
    }

    /// Takes what lies aside into use again.
    pub(super) fn take_back(&self) {
        self.len.store(self.len(), Ordering::Relaxed);
        self.floor.store(self.base, Ordering::Relaxed);
    }

    /// Told when the oldest `count` entries are gone and all others have moved there.
    pub(super) fn forget(&self, count: u32) {
        let aside = count.min(self.aside());
        self.floor.store(self.floor() - aside, Ordering::Relaxed);
        self.shrink(count - aside);
    }
}
