//! Shared by the tests: a log of chunks, and a check that it covers a job.
#![allow(dead_code, reason = "no test file uses all of it")]

pub mod starved;

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// The chunks in the order in which they were called.
#[derive(Default)]
pub struct Log(Mutex<Vec<Range<u64>>>);

impl Log {
    pub fn add(&self, range: Range<u64>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(range);
    }

    pub fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns the chunks in ascending order.
    pub fn sorted(self) -> Vec<Range<u64>> {
        let mut ranges = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        ranges.sort_by_key(|range| range.start);
        ranges
    }
}

/// Fails unless `chunks`, which ascend, cover exactly `range` and are cut only at multiples of
/// `align`.
pub fn assert_covers(chunks: &[Range<u64>], range: Range<u64>, align: u64) {
    let mut at = range.start;
    for chunk in chunks {
        assert_eq!(chunk.start, at, "a gap or an overlap before {chunk:?} of {range:?}");
        assert!(chunk.end > chunk.start, "empty chunk {chunk:?}");
        assert!(
            chunk.end == range.end || chunk.end % align == 0,
            "{chunk:?} is not cut at a multiple of {align}"
        );
        at = chunk.end;
    }
    assert_eq!(at, range.end, "the end of {range:?} is missing");
}

/// Returns `ranges` in ascending order, with adjacent ones joined.
pub fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_by_key(|range| range.start);
    let mut out: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match out.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => out.push(range),
        }
    }
    out
}
