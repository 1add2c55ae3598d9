//! Worker numbers: the lowest that is free, so that they stay below the number of workers that
//! there are at once.
//!
//! Orders of memory: Relaxed is the failure of the update: who gets no number reads nothing.

use crate::sync::atomic::{AtomicU64, Ordering};

/// 256 numbers. Number 0 is the caller's.
pub(super) struct Indices([AtomicU64; 4]);

impl Indices {
    pub(super) fn new() -> Self {
        Self([AtomicU64::new(1), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)])
    }

    /// A number that nobody has. There is one: at most 255 helpers work at once.
    pub(super) fn take(&self) -> Option<u32> {
        (0..).zip(&self.0).find_map(|(place, word)| {
            let lowest_free = |bits: u64| (bits != u64::MAX).then(|| bits | (bits + 1));
            // Acquire pairs with the Release in `give_back`: the last holder's chunks come before
            // the next one's.
            let before =
                word.fetch_update(Ordering::Acquire, Ordering::Relaxed, lowest_free).ok()?;
            Some(place * 64 + before.trailing_ones())
        })
    }

    pub(super) fn give_back(&self, index: u32) {
        if let Some(word) = self.0.get(index as usize / 64) {
            word.fetch_and(!(1 << (index % 64)), Ordering::Release);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::Indices;

    #[test]
    fn the_lowest_free_number_is_given() {
        let indices = Indices::new();
        for expected in 1..256 {
            assert_eq!(indices.take(), Some(expected));
        }
        assert_eq!(indices.take(), None);
        indices.give_back(130);
        indices.give_back(7);
        assert_eq!((indices.take(), indices.take(), indices.take()), (Some(7), Some(130), None));
    }
}
