//! Which frames are in the balloon: a stack of runs, in memory that no device reaches
//! ([`PrivateMemory`]), because frames are given back by what is read here.
//!
//! One page holds 510 runs of up to 512 frames, so that a balloon of 2 MiB pieces costs 4 KiB for
//! nearly 1 GiB.

use crate::private::{PRIVATE_PAGE_BYTES, Private, PrivateMemory};

const RUNS_IN_PAGE: usize = 510;

/// Neighbouring frames, at least one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    pub first_pfn: u64,
    pub pages: u32,
}

/// A run as it is written down.
#[derive(Clone, Copy, Default)]
struct Written {
    first_pfn: u32,
    pages: u32,
}

impl Written {
    fn run(self) -> Run {
        Run { first_pfn: self.first_pfn.into(), pages: self.pages }
    }
}

/// Runs that were written down together, at least one once the page is in use.
struct Page<H: PrivateMemory> {
    older: Option<Private<H, Page<H>>>,
    count: usize,
    runs: [Written; RUNS_IN_PAGE],
}

/// A stack of runs.
pub struct Ledger<H: PrivateMemory> {
    /// The page that has room, with older ones behind it.
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

    /// Frames in all runs.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Puts a run on top. False when there is no memory to write it down, or its first frame's
    /// number has more than 32 bits.
    pub fn push(&mut self, run: Run) -> bool {
        let Ok(first_pfn) = u32::try_from(run.first_pfn) else { return false };
        if self.newest.as_ref().is_none_or(|page| page.count == RUNS_IN_PAGE) {
            let empty = Page { older: None, count: 0, runs: [Written::default(); RUNS_IN_PAGE] };
            let Some(mut page) = Private::new(empty) else { return false };
            page.older = self.newest.take();
            self.newest = Some(page);
        }
        let Some(page) = &mut self.newest else { return false };
        let Page { count, runs, .. } = &mut **page;
        let Some(place) = runs.get_mut(*count) else { return false };
        *place = Written { first_pfn, pages: run.pages };
        *count += 1;
        self.pages += u64::from(run.pages);
        true
    }

    /// Takes up to `most_pages` frames, which is at least one: the end of the run on top.
    pub fn pop(&mut self, most_pages: u32) -> Option<Run> {
        let page = self.newest.as_mut()?;
        let last = page.count.checked_sub(1)?;
        let written = page.runs.get_mut(last)?;
        let run = written.run();
        let taken = run.pages.min(most_pages);
        let left = run.pages - taken;
        written.pages = left;
        if left == 0 {
            page.count = last;
            if last == 0 {
                // Assigned before the empty page is dropped, which so has none behind it.
                let older = page.older.take();
                self.newest = older;
            }
        }
        self.pages -= u64::from(taken);
        Some(Run { first_pfn: run.first_pfn + u64::from(left), pages: taken })
    }

    /// Runs from the top down, as far as the newest page goes.
    pub fn top(&self) -> impl Iterator<Item = Run> {
        let runs =
            self.newest.as_ref().and_then(|page| page.runs.get(..page.count)).unwrap_or_default();
        runs.iter().rev().map(|written| written.run())
    }
}

impl<H: PrivateMemory> Drop for Ledger<H> {
    fn drop(&mut self) {
        // Frames that are in the balloon to the end are lost, the pages that name them are not. One
        // after the other: who drops the newest drops all behind it on the stack of the calls.
        while let Some(mut page) = self.newest.take() {
            self.newest = page.older.take();
        }
    }
}
