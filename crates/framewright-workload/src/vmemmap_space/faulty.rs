//! A source of frames that fails on demand.

use framewright::units::{Order, Pfn};
use framewright::vmemmap_space::FrameSource;

/// Passes on to another source until it fails, and then fails for good.
#[derive(Debug)]
pub struct FaultyFrames<S> {
    inner: S,
    left: Option<u64>,
    asked: u64,
    held_pages: i64,
}

impl<S: FrameSource> FaultyFrames<S> {
    /// Never fails, but counts.
    pub fn new(inner: S) -> Self {
        Self { inner, left: None, asked: 0, held_pages: 0 }
    }

    /// Succeeds `count` times.
    pub fn fail_after(inner: S, count: u64) -> Self {
        Self { left: Some(count), ..Self::new(inner) }
    }

    /// How often it was asked for frames.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// Frames that were taken through it and not put back through it.
    #[must_use]
    pub fn held_pages(&self) -> i64 {
        self.held_pages
    }
}

fn signed_pages(order: Order) -> i64 {
    i64::try_from(order.pages()).unwrap_or(i64::MAX)
}

// SAFETY: what it returns comes from the source inside, unchanged.
unsafe impl<S: FrameSource> FrameSource for FaultyFrames<S> {
    fn take(&mut self, order: Order) -> Option<Pfn> {
        self.asked += 1;
        if self.left == Some(0) {
            return None;
        }
        let start = self.inner.take(order)?;
        self.left = self.left.map(|left| left - 1);
        self.held_pages += signed_pages(order);
        Some(start)
    }

    unsafe fn put_back(&mut self, start: Pfn, order: Order) {
        self.held_pages -= signed_pages(order);
        // SAFETY: passed on to the caller: what was taken through this was taken from there.
        unsafe { self.inner.put_back(start, order) };
    }
}
