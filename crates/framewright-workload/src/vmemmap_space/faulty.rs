//! A source of frames that fails on demand.

use framewright::units::{Order, Pfn};
use framewright::vmemmap_space::FrameSource;

/// Passes requests on to another source until it fails, and then fails for good.
#[derive(Debug)]
pub struct FaultyFrames<S> {
    inner: S,
    left: Option<u64>,
    asked: u64,
    held_pages: i64,
}

impl<S: FrameSource> FaultyFrames<S> {
    /// Makes a source that never fails, but counts.
    pub fn new(inner: S) -> Self {
        Self { inner, left: None, asked: 0, held_pages: 0 }
    }

    /// Makes a source that succeeds `count` times and then fails.
    pub fn fail_after(inner: S, count: u64) -> Self {
        Self { left: Some(count), ..Self::new(inner) }
    }

    /// Returns how often it was asked for frames.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.asked
    }

    /// Returns how many frames were taken through it and not put back through it.
    #[must_use]
    pub fn held_pages(&self) -> i64 {
        self.held_pages
    }
}

fn signed_pages(order: Order) -> i64 {
    i64::try_from(order.pages()).unwrap_or(i64::MAX)
}

// SAFETY: the frames come from the inner source, unchanged.
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
        // SAFETY: the caller upholds it: frames that were taken through this were taken from the
        // inner source.
        unsafe { self.inner.put_back(start, order) };
    }
}
