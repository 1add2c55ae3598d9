//! The parts of a CPU's cache: words of runs, and stacks.
//!
//! Orders of memory: Relaxed: only the CPU that has the cache touches them (invariant 16). A look
//! from elsewhere is a guess.

use crate::block::lots::WORD_ORDERS;
use crate::sync::table_atomic::{AtomicU32, AtomicU64, Ordering};
use crate::units::{Order, Pfn};
use core::ops::Range;

/// No frame has this number.
pub(super) const NOWHERE: u64 = u64::MAX;

/// The result of freeing into a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Put {
    /// The cache keeps it.
    Cached,
    /// It is free already.
    DoubleFree,
    /// There is no room.
    Full,
}

/// Runs of one order in one 64-frame word: the word's first frame, and a bit for the first frame of
/// each run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Runs {
    pub(crate) base: Pfn,
    pub(crate) runs: u64,
}

impl Runs {
    pub(crate) const NONE: Self = Self { base: Pfn(NOWHERE), runs: 0 };

    /// Returns one run. From order 4 on an entry has no more.
    #[inline]
    pub(crate) const fn one(start: Pfn, order: Order) -> Self {
        let offset = Self::offset(start, order);
        Self { base: Pfn(start.0 - offset), runs: 1 << offset }
    }

    /// Returns how far into its word a run begins. From order 4 on a run is a word of its own.
    #[inline(always)]
    const fn offset(start: Pfn, order: Order) -> u64 {
        let mask = if order.get() < WORD_ORDERS { 63 } else { 0 };
        start.0 & mask
    }

    /// Returns the number of runs.
    pub(crate) const fn count(self) -> u64 {
        self.runs.count_ones() as u64
    }

    /// Returns the first frames of the runs.
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

/// [`Runs`] in a cache's entry.
pub(super) struct Word {
    base: AtomicU64,
    runs: AtomicU64,
}

impl Word {
    /// Takes the lowest of the word's runs, of which there is at least one. Returns it with whether
    /// it was the last.
    #[inline]
    pub(super) fn take(&self) -> (Pfn, bool) {
        let runs = self.runs.load(Ordering::Relaxed);
        debug_assert!(runs != 0, "no entry in use is empty");
        let left = runs & runs.wrapping_sub(1);
        self.runs.store(left, Ordering::Relaxed);
        let start = self.base.load(Ordering::Relaxed) + u64::from(runs.trailing_zeros());
        (Pfn(start), left == 0)
    }

    /// Returns whether `more` is of this word.
    #[inline]
    pub(super) fn holds(&self, more: Runs) -> bool {
        self.base.load(Ordering::Relaxed) == more.base.0
    }

    /// Adds runs of this word.
    #[inline]
    pub(super) fn give(&self, more: Runs) -> Put {
        let runs = self.runs.load(Ordering::Relaxed);
        if runs & more.runs != 0 {
            return Put::DoubleFree;
        }
        self.runs.store(runs | more.runs, Ordering::Relaxed);
        Put::Cached
    }

    /// [`give`](Self::give) in fewer instructions, for the run that begins at `start`; nothing if
    /// it is not of this word.
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

    /// [`read`](Self::read) if the word begins at a wanted frame. It reads the base only once,
    /// because the owner may empty the word meanwhile.
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

/// A stack within the entries of a cache.
///
/// ```text
///     base      floor        top            end
///      |  aside   |  in use   |    unused    |
/// ```
///
/// Gets and puts do not see the entries set aside below the floor. They stay there from one check
/// for unused entries to the next (`age`), or until the entries in use run out.
pub(super) struct Stack {
    /// The number of entries in use.
    len: AtomicU32,
    /// The place of the first entry in use.
    floor: AtomicU32,
    /// The end of the places that entries may take.
    end: AtomicU32,
    /// The place of the oldest entry that is set aside.
    base: u32,
}

impl Stack {
    /// Stacks one after the other, each with places for `most` entries, of which it uses as many as
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

    /// Returns the number of entries, including those set aside.
    #[inline]
    pub(super) fn len(&self) -> u32 {
        self.aside() + self.in_use()
    }

    /// Returns the most entries.
    #[inline]
    pub(super) fn limit(&self) -> u32 {
        self.end.load(Ordering::Relaxed).wrapping_sub(self.base)
    }

    pub(super) fn set_limit(&self, limit: u32) {
        self.end.store(self.base + limit, Ordering::Relaxed);
    }

    /// Returns the number of entries in use and the place of the top one, if any are in use.
    #[inline]
    pub(super) fn top(&self) -> Option<(u32, usize)> {
        let len = self.in_use();
        if len == 0 {
            return None;
        }
        // Computed in the width of an index, which saves an instruction.
        Some((len, (self.floor() as usize + len as usize).wrapping_sub(1)))
    }

    #[inline]
    pub(super) fn set_len(&self, len: u32) {
        self.len.store(len, Ordering::Relaxed);
    }

    /// Adds an entry, if there is room, and returns its place.
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

    /// Returns the places of the stack's entries, oldest first.
    pub(super) fn entries(&self) -> Range<usize> {
        self.base as usize..(self.floor() + self.in_use()) as usize
    }

    /// Returns the number of entries set aside.
    #[inline]
    pub(super) fn aside(&self) -> u32 {
        self.floor().wrapping_sub(self.base)
    }

    /// Sets the older half of the entries in use aside.
    pub(super) fn set_aside(&self) {
        let more = self.in_use().div_ceil(2);
        self.floor.store(self.floor() + more, Ordering::Relaxed);
        self.shrink(more);
    }

    /// Takes the entries set aside into use again.
    pub(super) fn take_back(&self) {
        self.len.store(self.len(), Ordering::Relaxed);
        self.floor.store(self.base, Ordering::Relaxed);
    }

    /// Called when the oldest `count` entries are gone and all others have moved down.
    pub(super) fn forget(&self, count: u32) {
        let aside = count.min(self.aside());
        self.floor.store(self.floor() - aside, Ordering::Relaxed);
        self.shrink(count - aside);
    }
}
