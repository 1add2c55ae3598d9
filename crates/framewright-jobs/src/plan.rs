//! How jobs with a smallest chunk are divided, following `padata_do_multithreaded` in Linux's
//! `kernel/padata.c`. These are pure functions of numbers.
//!
//! Units are whatever the caller counts. The order of the steps in [`chunk_units`] is part of the
//! rule: raise to the smallest chunk, raise to one, round up to the alignment.

use core::ops::Range;

/// The average number of chunks for each thread; more than one, so that threads finish close
/// together.
pub const CHUNKS_PER_THREAD: u64 = 4;

/// How many threads, including the caller, a job of `size` units is worth: at least 1, and at most
/// `max_threads` unless that is 0.
///
/// An `align` or `min_chunk` of 0 counts as 1.
#[must_use]
pub fn threads_wanted(size: u64, align: u64, min_chunk: u64, max_threads: u32) -> u32 {
    let worth = size / min_chunk.max(align).max(1);
    u32::try_from(worth).unwrap_or(u32::MAX).min(max_threads).max(1)
}

/// The number of units in one chunk when `threads` take part: at least 1, and a multiple of `align`
/// unless that would be 2^64 or more.
#[must_use]
pub fn chunk_units(size: u64, threads: u32, align: u64, min_chunk: u64) -> u64 {
    let shares = u64::from(threads.max(1)) * CHUNKS_PER_THREAD;
    let chunk = (size / shares).max(min_chunk).max(1);
    chunk.checked_next_multiple_of(align.max(1)).unwrap_or(u64::MAX)
}

/// A range cut at every absolute multiple of `chunk`. The first piece is short if the range does
/// not begin on a multiple, and the last if it does not end on one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grid {
    start: u64,
    end: u64,
    chunk: u64,
}

impl Grid {
    /// Cuts `range` into pieces. A `chunk` of 0 counts as 1; a range whose end is not above its
    /// start has no pieces.
    #[must_use]
    pub fn new(range: Range<u64>, chunk: u64) -> Self {
        Self { start: range.start, end: range.end.max(range.start), chunk: chunk.max(1) }
    }

    /// The number of pieces.
    #[must_use]
    pub fn count(&self) -> u64 {
        if self.start == self.end {
            0
        } else {
            (self.end - 1) / self.chunk - self.start / self.chunk + 1
        }
    }

    /// Piece `index`, counted from 0 in ascending order, or `None` if there is no such piece.
    #[must_use]
    pub fn piece(&self, index: u64) -> Option<Range<u64>> {
        if index >= self.count() {
            return None;
        }
        // A piece that exists begins below `end`, so only its own end can lie beyond 2^64.
        let line = self.start / self.chunk + index;
        let from = (line * self.chunk).max(self.start);
        let to = (line + 1).checked_mul(self.chunk).map_or(self.end, |to| to.min(self.end));
        Some(from..to)
    }
}
