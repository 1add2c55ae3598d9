//! Frames that were taken but are in no table yet, so that a call that runs short can put all of
//! them back.
//!
//! There may be hundreds, and there is no heap: each run's first word, which is nobody's yet, holds
//! which run was taken before it.

use core::ptr::NonNull;
use framewright::Platform;
use framewright::units::{Order, Pfn};
use framewright::vmemmap_space::{FrameSource, MAP_PAGES_PER_BLOCK};

/// The first run's word.
const NONE: u64 = u64::MAX;

/// See the module documentation.
pub(crate) struct Taken<'a, P> {
    platform: &'a P,
    frames: &'a mut dyn FrameSource,
    /// The last run: its frame number above its order's eight bits.
    last: u64,
}

impl<'a, P: Platform> Taken<'a, P> {
    pub(crate) fn new(platform: &'a P, frames: &'a mut dyn FrameSource) -> Self {
        Self { platform, frames, last: NONE }
    }

    fn word(&self, start: Pfn) -> NonNull<u64> {
        self.platform.direct(start.address()).cast()
    }

    /// Takes a run. False when there is none.
    pub(crate) fn take(&mut self, order: Order) -> bool {
        let Some(start) = self.frames.take(order) else { return false };
        let word = self.word(start);
        // SAFETY: the frame was taken a moment ago and is nobody else's, by the source's promise
        // (invariants 1 and 39).
        unsafe { word.write(self.last) };
        self.last = start.0 << 8 | u64::from(order.get());
        true
    }

    /// Takes a part of the array for one block: in one piece if possible.
    pub(crate) fn take_part(&mut self) -> bool {
        let together = Order::for_pages(MAP_PAGES_PER_BLOCK).is_some_and(|order| self.take(order));
        together || (0..MAP_PAGES_PER_BLOCK).all(|_| self.take(Order::PAGE))
    }

    /// Gives out what was taken last. It is the caller's.
    pub(crate) fn pop(&mut self) -> Option<(Pfn, Order)> {
        if self.last == NONE {
            return None;
        }
        let start = Pfn(self.last >> 8);
        let order = Order::new(self.last.to_le_bytes()[0])?;
        let word = self.word(start);
        // SAFETY: `take` wrote it, and the frame is still ours alone (invariant 39).
        self.last = unsafe { word.read() };
        Some((start, order))
    }

    /// Gives out what [`take_part`](Self::take_part) took last, page by page to `each`, which gets
    /// the page's place 0..8 too. Frames keep their order, so that those which follow one another
    /// stay a run.
    pub(crate) fn pop_part(&mut self, mut each: impl FnMut(usize, Pfn)) {
        let mut left = MAP_PAGES_PER_BLOCK;
        while left > 0
            && let Some((start, order)) = self.pop()
        {
            left = left.saturating_sub(order.pages());
            (0..order.pages())
                .for_each(|page| each(usize::try_from(left + page).unwrap_or(0), start.add(page)));
        }
    }

    /// Puts everything back that was not given out.
    pub(crate) fn put_back(mut self) {
        while let Some((start, order)) = self.pop() {
            // SAFETY: taken by this and not given out, so that no table names it (invariant 39).
            unsafe { self.frames.put_back(start, order) };
        }
    }
}
