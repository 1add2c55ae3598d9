//! The record of the frames in the balloon: a stack of runs, in memory that no device can access
//! ([`PrivateMemory`]), because it decides which frames are given back.
//!
//! One page holds 510 runs of up to 512 frames: a balloon of 2 MiB blocks needs 4 KiB for nearly 1
//! GiB.

use framewright_virtio::{PRIVATE_PAGE_BYTES, Private, PrivateMemory};

const RUNS_IN_PAGE: usize = 510;

/// A run of contiguous frames, at least one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    pub first_pfn: u64,
    pub pages: u32,
}

/// A run as the ledger stores it.
#[derive(Clone, Copy, Default)]
struct PackedRun {
    first_pfn: u32,
    pages: u32,
}

impl PackedRun {
    fn run(self) -> Run {
        Run { first_pfn: self.first_pfn.into(), pages: self.pages }
    }
}

/// A page of runs; it has at least one once it is in use.
struct Page<H: PrivateMemory> {
    older: Option<Private<H, Page<H>>>,
    count: usize,
    runs: [PackedRun; RUNS_IN_PAGE],
}

/// A stack of runs.
pub struct Ledger<H: PrivateMemory> {
    /// The page that has room; it owns the older pages.
    newest: Option<Private<H, Page<H>>>,
    pages: u64,
}

impl<H: PrivateMemory> Ledger<H> {
    const FITS: () =
        assert!(size_of::<Page<H>>() == PRIVATE_PAGE_BYTES, "as many runs as a page holds");

    pub const fn new() -> Self {
        let () = Self::FITS;
        Self { newest: None, pages: 0 }
    }

    /// The number of frames in all runs.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Pushes a run. Returns false if there is no memory for it, or if its first frame's number has
    /// more than 32 bits.
    pub fn push(&mut self, run: Run) -> bool {
        let Ok(first_pfn) = u32::try_from(run.first_pfn) else { return false };
        if self.newest.as_ref().is_none_or(|page| page.count == RUNS_IN_PAGE) {
            let empty = Page { older: None, count: 0, runs: [PackedRun::default(); RUNS_IN_PAGE] };
            let Some(mut page) = Private::new(empty) else { return false };
            page.older = self.newest.take();
            self.newest = Some(page);
        }
        let Some(page) = &mut self.newest else { return false };
        let Page { count, runs, .. } = &mut **page;
        let Some(slot) = runs.get_mut(*count) else { return false };
        *slot = PackedRun { first_pfn, pages: run.pages };
        *count += 1;
        self.pages += u64::from(run.pages);
        true
    }

    /// Pops up to `most_pages` frames, at least one, from the end of the newest run.
    pub fn pop(&mut self, most_pages: u32) -> Option<Run> {
        let page = self.newest.as_mut()?;
        let last = page.count.checked_sub(1)?;
        let packed = page.runs.get_mut(last)?;
        let run = packed.run();
        let taken = run.pages.min(most_pages);
        let left = run.pages - taken;
        packed.pages = left;
        if left == 0 {
            page.count = last;
            if last == 0 {
                // Moved out before the empty page is dropped, so that older pages stay.
                let older = page.older.take();
                self.newest = older;
            }
        }
        self.pages -= u64::from(taken);
        Some(Run { first_pfn: run.first_pfn + u64::from(left), pages: taken })
    }

    /// The runs of the newest page, newest first.
    pub fn top(&self) -> impl Iterator<Item = Run> {
        let runs =
            self.newest.as_ref().and_then(|page| page.runs.get(..page.count)).unwrap_or_default();
        runs.iter().rev().map(|packed| packed.run())
    }
}

impl<H: PrivateMemory> Drop for Ledger<H> {
    fn drop(&mut self) {
        // Frames that are still in the balloon are lost, but the pages of the ledger are freed.
        // They are dropped one by one, because dropping the newest page would drop all others
        // recursively.
        while let Some(mut page) = self.newest.take() {
            self.newest = page.older.take();
        }
    }
}
