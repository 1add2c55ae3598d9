//! Tracks which free pages hold the pattern, with one bit for each page. Pages that were never
//! freed may hold anything, and so may pages that sparse filling left out.
//!
//! Orders of memory: Relaxed: a page's bit is changed only by the owner of the page; what orders
//! the page's owners also orders the bit.

use crate::sync::table_atomic::{AtomicU64, Ordering};
use core::ops::Range;

/// The bits of one segment; empty when nothing is filled. Pages are counted from the segment's
/// first block.
#[derive(Clone, Copy)]
pub(crate) struct Filled(pub(crate) &'static [AtomicU64]);

impl Filled {
    /// Marks a page as filled.
    pub(crate) fn set(self, page: usize) {
        if let Some(word) = self.0.get(page / 64) {
            word.fetch_or(1 << (page % 64), Ordering::Relaxed);
        }
    }

    /// Unmarks `pages`, and calls `filled` for each page that was marked.
    pub(crate) fn take(self, pages: Range<usize>, mut filled: impl FnMut(usize)) {
        let mut page = pages.start;
        while page < pages.end {
            let Some(word) = self.0.get(page / 64) else { return };
            let end = pages.end.min((page / 64 + 1) * 64);
            let mask = (u64::MAX << (page % 64)) & (u64::MAX >> (63 - (end - 1) % 64));
            let mut marked = word.fetch_and(!mask, Ordering::Relaxed) & mask;
            while marked != 0 {
                filled(page / 64 * 64 + marked.trailing_zeros() as usize);
                marked &= marked - 1;
            }
            page = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn marks_are_taken_once_and_neighbours_stay() {
        let words: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
        let filled = Filled(words.leak());
        for page in 0..512 {
            filled.set(page);
        }
        for (range, expected) in
            [(63..65, 63..65), (60..70, 60..63), (64..128, 70..128), (510..512, 510..512)]
        {
            let mut taken = Vec::new();
            filled.take(range.clone(), |page| taken.push(page));
            if range == (60..70) {
                assert_eq!(taken, [60, 61, 62, 65, 66, 67, 68, 69]);
            } else {
                assert_eq!(taken, expected.collect::<Vec<_>>());
            }
        }
        let mut rest = 0;
        filled.take(0..512, |_| rest += 1);
        assert_eq!(rest, 512 - 2 - 8 - 58 - 2);
        Filled(&[]).take(0..512, |_| panic!("nothing is filled"));
    }
}
