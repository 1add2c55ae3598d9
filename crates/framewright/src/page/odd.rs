//! Runs in a CPU's cache whose size is no power of two: a stack of 280 pages, a buffer of three.
//!
//! Whoever frees such a run will probably want one like it, so the cache keeps it whole for a
//! request of exactly that many pages. There are a few, oldest first. What a request is compared
//! with is apart from the first frame: it includes the type of the run's block, which a free has to
//! look up, and who is given the run soon afterwards need not wait for that.
//!
//! Orders of memory: Relaxed: only the CPU that has the cache touches them (invariant 16). A look
//! from elsewhere is a guess.

use super::words::Put;
use crate::block::MigrateType;
use crate::sync::table_atomic::{AtomicU32, AtomicU64, Ordering};
use crate::units::{Order, PAGES_PER_BLOCK, Pfn, PfnRange};

/// The most runs, whatever their size.
const MOST: usize = if cfg!(any(loom, shuttle)) { 2 } else { 8 };
/// The most pages of all runs together.
pub(super) const MOST_PAGES: u64 = MOST as u64 * (PAGES_PER_BLOCK - 1);
/// The bits of a key that say the migrate type.
const TYPE_BITS: u32 = 3;

/// What a request determines of a run: the number of its pages, less than a block's, and the
/// migrate type of its block.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key(u32);

impl Key {
    /// The key of a run of less than a block.
    #[inline(always)]
    const fn new(pages: u64, migrate_type: MigrateType) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "less than a block's")]
        let pages = pages as u32;
        Self(pages << TYPE_BITS | migrate_type as u32)
    }

    #[inline(always)]
    fn pages(self) -> u64 {
        u64::from(self.0 >> TYPE_BITS)
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

    /// Returns whether a run is of the kind that is kept here: less than a block, no power of two,
    /// and aligned as an allocation of that size is.
    #[inline]
    pub(super) fn takes(range: PfnRange) -> bool {
        let pages = range.pages();
        (1..PAGES_PER_BLOCK).contains(&pages)
            && !pages.is_power_of_two()
            && Order::for_pages(pages).is_some_and(|order| range.start.is_aligned(order))
    }

    /// The number of runs, as an index.
    #[inline(always)]
    fn len(&self) -> usize {
        (self.len.load(Ordering::Relaxed) as usize).min(MOST)
    }

    #[inline(always)]
    fn set_len(&self, len: usize) {
        self.len.store(u32::try_from(len).unwrap_or(0), Ordering::Relaxed);
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

    /// Takes the newest run of exactly `pages` pages for this type.
    #[inline]
    pub(super) fn get(&self, pages: u64, migrate_type: MigrateType) -> Option<Pfn> {
        if pages >= PAGES_PER_BLOCK {
            return None;
        }
        let wanted = Key::new(pages, migrate_type);
        let at = (0..self.len()).rev().find(|&at| self.key(at) == wanted)?;
        let start = self.start(at);
        self.remove(at);
        Some(start)
    }

    #[inline]
    fn remove(&self, at: usize) {
        let len = self.len();
        for next in at + 1..len {
            self.set(next - 1, self.key(next), self.start(next));
        }
        self.set_len(len.wrapping_sub(1));
        let old = self.old.load(Ordering::Relaxed);
        if at < old as usize {
            self.old.store(old - 1, Ordering::Relaxed);
        }
    }

    /// Keeps a run that [`takes`](Self::takes) accepts, if there is room.
    #[inline]
    pub(super) fn put(&self, range: PfnRange, migrate_type: MigrateType) -> Put {
        let len = self.len();
        let key = Key::new(range.pages(), migrate_type);
        let mut pages = key.pages();
        for at in 0..len {
            if self.start(at) == range.start {
                return Put::DoubleFree;
            }
            pages += self.key(at).pages();
        }
        if len == MOST || pages > self.limit_pages() {
            return Put::Full;
        }
        self.set(len, key, range.start);
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
        u64::from(self.limit_pages.load(Ordering::Relaxed)).min(MOST_PAGES)
    }

    /// Changes the most pages that the runs may have.
    pub(super) fn set_limit(&self, limit_pages: u32) {
        self.limit_pages.store(limit_pages, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_run_goes_to_who_wants_just_as_many_pages() {
        let odd = OddRuns::new(600);
        let run = |start, pages| PfnRange::new(start, start + pages);
        for (range, takes) in
            [(run(8, 3), true), (run(9, 3), false), (run(8, 4), false), (run(1024, 600), false)]
        {
            assert_eq!(OddRuns::takes(range), takes, "{range:?}");
        }
        let far = (1 << 40) - 512;
        assert_eq!(odd.put(run(far, 280), MigrateType::Unmovable), Put::Cached);
        assert_eq!(odd.put(run(8, 3), MigrateType::Movable), Put::Cached);
        assert_eq!(odd.put(run(8, 3), MigrateType::Movable), Put::DoubleFree);
        assert_eq!(odd.put(run(512, 511), MigrateType::Movable), Put::Full);
        assert_eq!((odd.pages(), odd.find(run(9, 100))), (283, Some(Pfn(9))));
        assert_eq!(odd.get(280, MigrateType::Movable), None);
        assert_eq!(odd.get(280, MigrateType::Unmovable), Some(Pfn(far)));
        assert_eq!(odd.put(run(16, 3), MigrateType::Movable), Put::Cached);
        assert_eq!(odd.give_up(), Some(run(8, 3)));
        assert_eq!((odd.get(3, MigrateType::Movable), odd.pages()), (Some(Pfn(16)), 0));
        assert_eq!((odd.give_up(), odd.find(run(0, 1 << 30))), (None, None));
    }

    #[test]
    fn what_stays_becomes_old() {
        let odd = OddRuns::new(600);
        let [one, two, three] = [8, 16, 24].map(|start| PfnRange::new(start, start + 3));
        for run in [one, two] {
            assert_eq!(odd.put(run, MigrateType::Movable), Put::Cached);
        }
        assert_eq!(odd.give_up_old(), None);
        // In between, one run is used and another comes in.
        assert_eq!(odd.get(3, MigrateType::Movable), Some(two.start));
        for run in [two, three] {
            assert_eq!(odd.put(run, MigrateType::Movable), Put::Cached);
        }
        assert_eq!([odd.give_up_old(), odd.give_up_old()], [Some(one), None]);
        assert_eq!([(); 3].map(|()| odd.give_up_old()), [Some(two), Some(three), None]);
    }

    #[test]
    fn runs_are_few() {
        let odd = OddRuns::new(u32::MAX);
        let run = |number: u64| PfnRange::new(number * 4, number * 4 + 3);
        let kept = (0..100).take_while(|&n| odd.put(run(n), MigrateType::Movable) == Put::Cached);
        assert_eq!(kept.count(), MOST);
    }
}
