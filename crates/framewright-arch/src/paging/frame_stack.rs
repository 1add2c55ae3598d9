//! Frames that are allocated but not in a table yet, kept so that a call that runs out of frames
//! can free all of them.
//!
//! There may be hundreds of frames, and there is no heap. They therefore form a linked stack: the
//! first word of each run of frames names the run that was taken before it.

use core::ptr::NonNull;
use framewright::Platform;
use framewright::units::{Order, Pfn};
use framewright::vmemmap_space::{FrameSource, VMEMMAP_PAGES_PER_BLOCK};

/// The link of the bottom run.
const NONE: u64 = u64::MAX;

/// A stack of frames. See the module documentation.
pub(crate) struct FrameStack<'a, P> {
    platform: &'a P,
    frames: &'a mut dyn FrameSource,
    /// The run that was taken last: its frame number, above the eight bits of its order.
    last: u64,
}

impl<'a, P: Platform> FrameStack<'a, P> {
    pub(crate) fn new(platform: &'a P, frames: &'a mut dyn FrameSource) -> Self {
        Self { platform, frames, last: NONE }
    }

    fn word(&self, start: Pfn) -> NonNull<u64> {
        self.platform.direct(start.address()).cast()
    }

    /// Takes a run from the source. Returns false if the source has none.
    pub(crate) fn take(&mut self, order: Order) -> bool {
        let Some(start) = self.frames.take(order) else { return false };
        let word = self.word(start);
        // SAFETY: the frame was just taken and belongs to nobody else, by the source's promise
        // (invariants 1 and 39).
        unsafe { word.write(self.last) };
        self.last = start.0 << 8 | u64::from(order.get());
        true
    }

    /// Takes the frames for the descriptors of one block, in one run if possible.
    pub(crate) fn take_block(&mut self) -> bool {
        let together =
            Order::for_pages(VMEMMAP_PAGES_PER_BLOCK).is_some_and(|order| self.take(order));
        together || (0..VMEMMAP_PAGES_PER_BLOCK).all(|_| self.take(Order::PAGE))
    }

    /// Returns the run that was taken last and passes it to the caller.
    pub(crate) fn pop(&mut self) -> Option<(Pfn, Order)> {
        if self.last == NONE {
            return None;
        }
        let start = Pfn(self.last >> 8);
        let order = Order::new(self.last.to_le_bytes()[0])?;
        let word = self.word(start);
        // SAFETY: `take` wrote the word, and the frame still belongs to this stack alone (invariant
        // 39).
        self.last = unsafe { word.read() };
        Some((start, order))
    }

    /// Passes the frames that [`take_block`](Self::take_block) took last to `each`, page by page,
    /// with the page's index 0..8. Frames keep their order, so that a run stays a run.
    pub(crate) fn pop_block(&mut self, mut each: impl FnMut(usize, Pfn)) {
        let mut left = VMEMMAP_PAGES_PER_BLOCK;
        while left > 0
            && let Some((start, order)) = self.pop()
        {
            left = left.saturating_sub(order.pages());
            (0..order.pages())
                .for_each(|page| each(usize::try_from(left + page).unwrap_or(0), start.add(page)));
        }
    }

    /// Returns everything that was not popped to the source.
    pub(crate) fn put_back(mut self) {
        while let Some((start, order)) = self.pop() {
            // SAFETY: the run was taken by this stack and not popped, so no table names it
            // (invariant 39).
            unsafe { self.frames.put_back(start, order) };
        }
    }
}
