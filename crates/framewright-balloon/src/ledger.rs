//! Which frames are in the balloon: a stack of runs, in pages from [`Hal::dma_alloc`] that no device is told of.
//!
//! One page holds 509 runs of up to 512 frames, so that a balloon of 2 MiB pieces costs 4 KiB for nearly 1 GiB.

use crate::dma::DmaPage;
use virtio_drivers::{BufferDirection, Hal};

/// A page: how many runs it has, where the next older page is (physical address and pointer), then the runs.
const COUNT: usize = 0;
const OLDER: usize = 8;
const RUNS: usize = 24;
const RUN_BYTES: usize = 8;
const RUNS_IN_PAGE: u64 = 509;
/// A run in 8 bytes: its first frame, and above that how many frames.
const PFN_BITS: u32 = 40;

/// Neighbouring frames, at least one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    pub first_pfn: u64,
    pub pages: u32,
}

/// A stack of runs.
pub struct Ledger<H: Hal> {
    /// The page that has room, with older ones behind it. Every page has at least one run.
    newest: Option<DmaPage<H>>,
    pages: u64,
}

impl<H: Hal> Ledger<H> {
    pub const fn new() -> Self {
        Self { newest: None, pages: 0 }
    }

    /// Frames in all runs.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Puts a run on top. False when there is no memory to write it down.
    pub fn push(&mut self, run: Run) -> bool {
        let full = self.newest.as_ref().is_none_or(|page| page.load_u64(COUNT) == RUNS_IN_PAGE);
        if full {
            let Some(page) = DmaPage::new(BufferDirection::DriverToDevice) else { return false };
            if let Some(older) = self.newest.take() {
                let (physical, pointer) = older.into_parts();
                page.store_u64(OLDER, physical);
                page.store_u64(OLDER + 8, pointer as u64);
            }
            self.newest = Some(page);
        }
        let Some(page) = &self.newest else { return false };
        let count = page.load_u64(COUNT);
        write(page, count, run);
        page.store_u64(COUNT, count + 1);
        self.pages += u64::from(run.pages);
        true
    }

    /// Takes up to `most_pages` frames, which is at least one: the end of the run on top.
    pub fn pop(&mut self, most_pages: u32) -> Option<Run> {
        let page = self.newest.as_ref()?;
        let last = page.load_u64(COUNT).checked_sub(1)?;
        let run = read(page, last);
        let taken = run.pages.min(most_pages);
        let left = run.pages - taken;
        if left > 0 {
            write(page, last, Run { pages: left, ..run });
        } else if last > 0 {
            page.store_u64(COUNT, last);
        } else {
            let older = (page.load_u64(OLDER), page.load_u64(OLDER + 8));
            self.newest = if older.0 == 0 {
                None
            } else {
                let pointer = usize::try_from(older.1).unwrap_or(0);
                // SAFETY: `push` wrote down these parts of a page that it took apart, and they are read once, because the page that holds them goes away
                // here (invariant 33).
                unsafe { DmaPage::from_parts(older.0, pointer) }
            };
        }
        self.pages -= u64::from(taken);
        Some(Run { first_pfn: run.first_pfn + u64::from(left), pages: taken })
    }

    /// Runs from the top down, as far as the newest page goes.
    pub fn top(&self) -> impl Iterator<Item = Run> {
        let page = self.newest.as_ref();
        let count = page.map_or(0, |page| page.load_u64(COUNT));
        (0..count).rev().zip(core::iter::repeat(page)).filter_map(|(index, page)| Some(read(page?, index)))
    }
}

impl<H: Hal> Drop for Ledger<H> {
    fn drop(&mut self) {
        // Frames that are in the balloon to the end are lost, the pages that name them are not.
        while self.pop(u32::MAX).is_some() {}
    }
}

/// Where run `index` of a page is.
fn place(index: u64) -> usize {
    // A page whose count is not ours is never read; at the worst this names its last run.
    let index = index.min(RUNS_IN_PAGE - 1);
    RUNS + RUN_BYTES * usize::try_from(index).unwrap_or(0)
}

fn write<H: Hal>(page: &DmaPage<H>, index: u64, run: Run) {
    page.store_u64(place(index), run.first_pfn | u64::from(run.pages) << PFN_BITS);
}

fn read<H: Hal>(page: &DmaPage<H>, index: u64) -> Run {
    let value = page.load_u64(place(index));
    let pages = u32::try_from(value >> PFN_BITS).unwrap_or(0);
    Run { first_pfn: value & ((1 << PFN_BITS) - 1), pages }
}
