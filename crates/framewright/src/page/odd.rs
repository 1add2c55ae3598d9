//! Runs in a CPU's cache whose size is no power of two: a stack of 280 pages, a buffer of three.
//!
//! Whoever frees such a run will probably want one like it, so the cache keeps it whole for a
//! request of exactly that many pages. There are a few, oldest first. What a request is compared
//! with is apart from the first frame: it includes the lot of the run's block, which a free has to
//! look up, and whoever is given the run soon afterwards need not wait for that.
//!
//! Orders of memory: Relaxed: only the CPU that has the cache touches them (invariant 16). A look
//! from elsewhere is a guess.

use super::words::Put;
use crate::block::Lot;
use crate::block::lots::WORD_ORDERS;
use crate::sync::table_atomic::{AtomicU32, AtomicU64, Ordering};
use crate::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange};

/// The most runs, whatever their size.
const MOST: usize = if cfg!(any(loom, shuttle)) { 2 } else { 8 };
/// The most pages of all runs together.
pub(super) const MOST_PAGES: u64 = MOST as u64 * (PAGES_PER_BLOCK - 1);
/// The bits of a key that say the lot.
const LOT_BITS: u32 = 3;
const _: () = assert!(Lot::COUNT <= 1 << LOT_BITS, "a lot's index has room");

/// What a request determines of a run: the number of its pages, less than a block's, and the lot of
/// its migrate type.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key(u32);

impl Key {
    /// The key of a run of less than a block.
    #[inline(always)]
    const fn new(pages: u64, lot: Lot) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "less than a block's, and a few")]
        let (pages, lot) = (pages as u32, lot.index() as u32);
        Self(pages << LOT_BITS | lot)
    }

    #[inline(always)]
    fn pages(self) -> u64 {
        u64::from(self.0 >> LOT_BITS)
    }
}

/// See the module documentation.
pub(super) struct OddRuns {
    len: AtomicU32,
    /// How many of the oldest runs were here when [`give_up_old`](Self::give_up_old) last gave up
    /// none.
    old: AtomicU32,
    limit_pages: AtomicU32,
    keys: [AtomicU32; MOST],
    starts: [AtomicU64; MOST],
}

impl OddRuns {
    /// Their lots are those of runs of this order: runs that are not kept by the word, whose frames
    /// do not go back early.
    pub(super) const LIKE: Order = match Order::new(WORD_ORDERS) {
        Some(order) => order,
        None => Order::PAGE,
    };

    /// Begins with no runs, and never has more than `limit_pages` pages in all.
    pub(super) fn new(limit_pages: u32) -> Self {
        Self {
            len: AtomicU32::new(0),
            old: AtomicU32::new(0),
            limit_pages: AtomicU32::new(limit_pages),
            keys: core::array::from_fn(|_| AtomicU32::new(0)),
            starts: core::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    /// Returns whether a run is aligned as an allocation of that size is, and of less than a block.
    /// Runs of a power of two are kept elsewhere, so callers have sorted them out.
    #[inline(always)]
    pub(super) fn takes(start: Pfn, pages: u64) -> bool {
        let last = pages.wrapping_sub(1);
        if !(1..PAGES_PER_BLOCK - 1).contains(&last) {
            return false;
        }
        start.0 & (u64::MAX >> last.leading_zeros()) == 0
    }

    /// The number of runs, as an index.
    #[inline(always)]
    fn len(&self) -> usize {
        (self.len.load(Ordering::Relaxed) as usize).min(MOST)
    }

    #[inline(always)]
    fn set_len(&self, len: usize) {
        #[expect(clippy::cast_possible_truncation, reason = "a few")]
        self.len.store(len as u32, Ordering::Relaxed);
    }

    #[inline(always)]
    fn key(&self, at: usize) -> Key {
        Key(self.keys[at].load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn start(&self, at: usize) -> Pfn {
        Pfn(self.starts[at].load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn set(&self, at: usize, key: Key, start: Pfn) {
        self.keys[at].store(key.0, Ordering::Relaxed);
        self.starts[at].store(start.0, Ordering::Relaxed);
    }

    fn runs(&self) -> impl Iterator<Item = PfnRange> {
        (0..self.len()).map(|at| {
            let start = self.start(at);
            PfnRange { start, end: start.add(self.key(at).pages()) }
        })
    }

    /// Takes the newest run of exactly `pages` pages out of this lot. Few instructions where that
    /// is the newest of all.
    #[inline(always)]
    pub(super) fn get(&self, pages: u64, lot: Lot) -> Option<Pfn> {
        if pages >= PAGES_PER_BLOCK {
            return None;
        }
        let wanted = Key::new(pages, lot);
        let newest = (self.len.load(Ordering::Relaxed) as usize).wrapping_sub(1);
        // None is newest among none.
        if self.keys.get(newest)?.load(Ordering::Relaxed) != wanted.0 {
            return self.get_older(wanted, newest);
        }
        self.shorten(newest, newest);
        Some(self.start(newest))
    }

    /// [`get`](Self::get) of a run that is older than the newest.
    #[inline(never)]
    fn get_older(&self, wanted: Key, newest: usize) -> Option<Pfn> {
        let at = (0..newest).rev().find(|&at| self.key(at) == wanted)?;
        let start = self.start(at);
        self.remove(at);
        Some(start)
    }

    fn remove(&self, at: usize) {
        let newest = self.len().saturating_sub(1);
        for next in at..newest {
            self.set(next, self.key(next + 1), self.start(next + 1));
        }
        self.shorten(newest, at);
    }

    /// Sets the number of runs, one less, after the one at `at` has gone.
    #[inline(always)]
    fn shorten(&self, len: usize, at: usize) {
        self.set_len(len);
        let old = self.old.load(Ordering::Relaxed);
        if at < old as usize {
            self.old.store(old - 1, Ordering::Relaxed);
        }
    }

    /// Keeps a run that [`takes`](Self::takes) accepts in a lot, if there is room.
    #[inline(always)]
    pub(super) fn put(&self, start: Pfn, pages: u64, lot: Lot) -> Put {
        let len = self.len();
        let mut sum = pages;
        for at in 0..len {
            if self.start(at) == start {
                return Put::DoubleFree;
            }
            sum += self.key(at).pages();
        }
        if len == MOST || sum > self.limit_pages() {
            return Put::Full;
        }
        self.set(len, Key::new(pages, lot), start);
        self.set_len(len + 1);
        Put::Cached
    }

    /// Gives up the oldest run.
    pub(super) fn give_up(&self) -> Option<PfnRange> {
        let oldest = self.runs().next()?;
        self.remove(0);
        Some(oldest)
    }

    /// Gives up the oldest run if it was here already when the last call gave up none.
    pub(super) fn give_up_old(&self) -> Option<PfnRange> {
        if self.old.load(Ordering::Relaxed) != 0 {
            return self.give_up();
        }
        self.old.store(self.len.load(Ordering::Relaxed), Ordering::Relaxed);
        None
    }

    /// Returns the first frame of `range` that is in one of the runs.
    pub(super) fn find(&self, range: PfnRange) -> Option<Pfn> {
        let meets = |run: &PfnRange| run.start < range.end && range.start < run.end;
        self.runs().find(meets).map(|run| run.start.max(range.start))
    }

    /// Returns the number of pages of all runs.
    pub(super) fn pages(&self) -> u64 {
        self.runs().map(PfnRange::pages).sum()
    }

    /// Returns the most pages that the runs may have.
    #[inline]
    pub(super) fn limit_pages(&self) -> u64 {
        u64::from(self.limit_pages.load(Ordering::Relaxed))
    }

    /// Changes the most pages that the runs may have.
    pub(super) fn set_limit(&self, limit_pages: u32) {
        self.limit_pages.store(limit_pages, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::block::MigrateType;

    const MOVABLE: Lot = Lot::MOVABLE;
    const UNMOVABLE: Lot = match Lot::of_type(MigrateType::Unmovable) {
        Some(lot) => lot,
        None => Lot::BACK,
    };

    #[test]
    fn a_run_goes_to_who_wants_just_as_many_pages() {
        let odd = OddRuns::new(600);
        let run = |start, pages| PfnRange::new(start, start + pages);
        for (start, pages, takes) in [
            (8, 3, true),
            (9, 3, false),
            (10, 3, false),
            (9, 4, false),
            (0, 0, false),
            (0, 1, false),
            (512, 511, true),
            (256, 257, false),
            (1024, 512, false),
            (1024, 600, false),
            (0, u64::MAX, false),
        ] {
            assert_eq!(OddRuns::takes(Pfn(start), pages), takes, "{start} {pages}");
        }
        let far = (1 << 40) - 512;
        assert_eq!(odd.put(Pfn(far), 280, UNMOVABLE), Put::Cached);
        assert_eq!(odd.put(Pfn(8), 3, MOVABLE), Put::Cached);
        assert_eq!(odd.put(Pfn(8), 3, MOVABLE), Put::DoubleFree);
        assert_eq!(odd.put(Pfn(512), 511, MOVABLE), Put::Full);
        assert_eq!((odd.pages(), odd.find(run(9, 100))), (283, Some(Pfn(9))));
        assert_eq!(odd.get(280, MOVABLE), None);
        assert_eq!(odd.get(280, UNMOVABLE), Some(Pfn(far)));
        assert_eq!(odd.put(Pfn(16), 3, MOVABLE), Put::Cached);
        assert_eq!(odd.give_up(), Some(run(8, 3)));
        assert_eq!((odd.get(3, MOVABLE), odd.pages()), (Some(Pfn(16)), 0));
        assert_eq!((odd.give_up(), odd.find(run(0, 1 << 30))), (None, None));
    }

    #[test]
    fn what_stays_becomes_old() {
        let odd = OddRuns::new(600);
        let [one, two, three] = [8, 16, 24].map(|start| PfnRange::new(start, start + 3));
        let put = |run: PfnRange| odd.put(run.start, run.pages(), MOVABLE);
        for run in [one, two] {
            assert_eq!(put(run), Put::Cached);
        }
        assert_eq!(odd.give_up_old(), None);
        // In between, one run is used and another comes in.
        assert_eq!(odd.get(3, MOVABLE), Some(two.start));
        for run in [two, three] {
            assert_eq!(put(run), Put::Cached);
        }
        assert_eq!([odd.give_up_old(), odd.give_up_old()], [Some(one), None]);
        assert_eq!([(); 3].map(|()| odd.give_up_old()), [Some(two), Some(three), None]);
    }

    #[test]
    fn runs_are_few() {
        let odd = OddRuns::new(u32::MAX);
        let kept = (0..100).take_while(|&n| odd.put(Pfn(n * 4), 3, MOVABLE) == Put::Cached);
        assert_eq!(kept.count(), MOST);
    }
}
