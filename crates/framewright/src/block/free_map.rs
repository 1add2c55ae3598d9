//! The free map of a split block: one bit a frame, set when the frame is free.

use crate::sync::table_atomic::{AtomicU64, Ordering};

/// Bits for `WORDS * 64` frames. The page tier uses eight words; model checking uses one.
///
/// All operations are relaxed: who may change a map is settled by its block's lock or by the zone lock.
#[repr(C, align(64))]
pub struct FreeMap<const WORDS: usize = 8> {
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> FreeMap<WORDS> {
    /// Frames that it describes.
    pub const PAGES: usize = WORDS * 64;

    /// Makes every frame not free.
    pub fn clear(&self) {
        for word in &self.words {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Makes frames `start..end` free and says how many were not free before.
    pub fn set_range(&self, start: usize, end: usize) -> u64 {
        let mut changed = 0;
        for (index, word) in self.words.iter().enumerate() {
            let mask = mask(start, end, index * 64);
            let old = word.load(Ordering::Relaxed);
            word.store(old | mask, Ordering::Relaxed);
            changed += u64::from((mask & !old).count_ones());
        }
        changed
    }

    /// Frames that are free.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }

    /// Whether frame `index` is free; false beyond the end.
    #[must_use]
    pub fn is_free(&self, index: usize) -> bool {
        self.words.get(index / 64).is_some_and(|word| word.load(Ordering::Relaxed) >> (index % 64) & 1 != 0)
    }
}

/// The bits of the word that begins at frame `base` that lie in `start..end`.
fn mask(start: usize, end: usize, base: usize) -> u64 {
    let low = start.clamp(base, base + 64) - base;
    let high = end.clamp(base, base + 64) - base;
    if low >= high {
        return 0;
    }
    (u64::MAX >> (64 - (high - low))) << low
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty() -> FreeMap {
        FreeMap { words: core::array::from_fn(|_| AtomicU64::new(0)) }
    }

    #[test]
    fn ranges_set_exactly_their_bits() {
        for (start, end) in [(0, 0), (0, 1), (0, 512), (63, 65), (1, 64), (64, 128), (5, 500), (511, 512), (7, 7)] {
            let map = empty();
            assert_eq!(map.set_range(start, end), (end - start) as u64);
            assert_eq!(map.count(), (end - start) as u64);
            for frame in 0..512 {
                assert_eq!(map.is_free(frame), (start..end).contains(&frame), "{start}..{end} at {frame}");
            }
            assert_eq!(map.set_range(0, 512), 512 - (end - start) as u64);
        }
        assert!(!empty().is_free(512));
    }

    #[test]
    fn a_map_is_one_cache_line() {
        assert_eq!((size_of::<FreeMap>(), align_of::<FreeMap>()), (64, 64));
    }
}
