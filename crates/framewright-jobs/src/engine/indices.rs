//! Worker numbers. A worker gets the lowest free number, so numbers stay below the number of
//! workers that exist at once.
//!
//! Memory ordering: a failed update is Relaxed, because a helper without a number reads nothing.

use crate::sync::atomic::{AtomicU64, Ordering};

/// A set of 256 numbers; a set bit means taken. Number 0 is the caller's.
pub(super) struct Indices([AtomicU64; 4]);

impl Indices {
    pub(super) fn new() -> Self {
        Self([AtomicU64::new(1), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)])
    }

    /// Takes the lowest free number. There always is one, because at most 255 helpers work at once.
    pub(super) fn take(&self) -> Option<u32> {
        (0..).zip(&self.0).find_map(|(place, word)| {
            let lowest_free = |bits: u64| (bits != u64::MAX).then(|| bits | (bits + 1));
            // Acquire pairs with the Release in `release`: the chunks of the previous worker with
            // this number happen before those of the next.
            let before =
                word.fetch_update(Ordering::Acquire, Ordering::Relaxed, lowest_free).ok()?;
            Some(place * 64 + before.trailing_ones())
        })
    }

    pub(super) fn release(&self, index: u32) {
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
        indices.release(130);
        indices.release(7);
        assert_eq!((indices.take(), indices.take(), indices.take()), (Some(7), Some(130), None));
    }
}
