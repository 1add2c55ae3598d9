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

    /// Makes frames `start..end` free, unless one of them is free already: then nothing changes and the first such frame is returned.
    ///
    /// # Errors
    /// The index of a frame that is free already.
    pub fn give(&self, start: usize, end: usize) -> Result<(), usize> {
        for (index, word) in self.words.iter().enumerate() {
            let twice = word.load(Ordering::Relaxed) & mask(start, end, index * 64);
            if twice != 0 {
                return Err(index * 64 + twice.trailing_zeros() as usize);
            }
        }
        self.set_range(start, end);
        Ok(())
    }

    /// Makes frames `start..end`, all of them free, not free.
    pub fn take(&self, start: usize, end: usize) {
        for index in start / 64..end.div_ceil(64) {
            let word = &self.words[index];
            word.store(word.load(Ordering::Relaxed) & !mask(start, end, index * 64), Ordering::Relaxed);
        }
    }

    /// Whether all frames `start..end` are free.
    #[must_use]
    pub fn all_free(&self, start: usize, end: usize) -> bool {
        (start / 64..end.div_ceil(64)).all(|index| {
            let mask = mask(start, end, index * 64);
            self.words[index].load(Ordering::Relaxed) & mask == mask
        })
    }

    /// The lowest aligned run of 2^`order` free frames.
    #[must_use]
    pub fn find(&self, order: u8) -> Option<usize> {
        if order >= 6 {
            let words = 1_usize << (order - 6);
            return (0..WORDS / words)
                .map(|run| run * words)
                .find(|&first| {
                    self.words[first..first + words].iter().all(|word| word.load(Ordering::Relaxed) == u64::MAX)
                })
                .map(|first| first * 64);
        }
        self.words.iter().enumerate().find_map(|(index, word)| {
            let starts = runs(word.load(Ordering::Relaxed), order);
            (starts != 0).then(|| index * 64 + starts.trailing_zeros() as usize)
        })
    }

    /// Takes aligned runs of 2^`order` (at most 32 frames), the lowest first and at most `limit`, out of the lowest word that has one; returns the
    /// word's first frame and one bit for the start of each run.
    pub fn take_word(&self, order: u8, limit: u32) -> Option<(usize, u64)> {
        self.words.iter().enumerate().find_map(|(index, word)| {
            let free = word.load(Ordering::Relaxed);
            let mut starts = runs(free, order);
            if starts == 0 {
                return None;
            }
            for _ in limit..starts.count_ones() {
                starts &= !(1 << starts.ilog2());
            }
            let pages = (0..order).fold(starts, |pages, step| pages | pages << (1 << step));
            word.store(free & !pages, Ordering::Relaxed);
            Some((index * 64, starts))
        })
    }

    /// The order of the largest aligned run that is free, if any frame is.
    #[must_use]
    pub fn largest_order(&self) -> Option<u8> {
        let top = u8::try_from((WORDS * 64).ilog2()).unwrap_or(u8::MAX);
        (0..=top).rev().find(|&order| self.find(order).is_some())
    }

    /// The order of the largest aligned free run that holds the free frame `index`.
    #[must_use]
    pub fn run_order(&self, index: usize) -> u8 {
        let mut order = 0;
        while 2_usize << order <= WORDS * 64 {
            let start = index >> (order + 1) << (order + 1);
            if !self.all_free(start, start + (2 << order)) {
                break;
            }
            order += 1;
        }
        order
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

/// One bit for each aligned run of 2^`order` set bits (at most 32) at its start.
const fn runs(word: u64, order: u8) -> u64 {
    // Every 2^order-th bit.
    const STARTS: [u64; 6] = [
        u64::MAX,
        0x5555_5555_5555_5555,
        0x1111_1111_1111_1111,
        0x0101_0101_0101_0101,
        0x0001_0001_0001_0001,
        0x1_0000_0001,
    ];
    let (mut all, mut step) = (word, 0);
    while step < order {
        all &= all >> (1 << step);
        step += 1;
    }
    all & STARTS[order as usize]
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
    fn runs_are_found_taken_and_measured_as_a_naive_search_does() {
        let mut seed = 7_u64;
        for density in [1, 2, 3, 8, 64] {
            for _ in 0..50 {
                let map = empty();
                for frame in 0..512 {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    if !(seed >> 33).is_multiple_of(density) || density == 1 && frame != 300 {
                        map.set_range(frame, frame + 1);
                    }
                }
                let free = |start: usize, size: usize| (start..start + size).all(|frame| map.is_free(frame));
                for order in 0..=9_u8 {
                    let size = 1_usize << order;
                    assert_eq!(
                        map.find(order),
                        (0..512).step_by(size).find(|&start| free(start, size)),
                        "order {order}"
                    );
                }
                assert_eq!(map.largest_order(), (0..=9).rev().find(|&order| map.find(order).is_some()));
                for frame in (0..512).filter(|&frame| map.is_free(frame)) {
                    let naive = (0..=9_u8).rev().find(|&order| free(frame >> order << order, 1 << order));
                    assert_eq!(Some(map.run_order(frame)), naive);
                }
                for order in 0..=5_u8 {
                    let before = map.count();
                    let Some((base, starts)) = map.take_word(order, 64) else { continue };
                    assert_eq!(before - map.count(), u64::from(starts.count_ones()) << order);
                    assert!((0..64).filter(|bit| starts >> bit & 1 != 0).all(|bit| bit % (1 << order) == 0));
                    for bit in (0..64).filter(|bit| starts >> bit & 1 != 0) {
                        assert_eq!(map.give(base + bit, base + bit + (1 << order)), Ok(()));
                    }
                    assert_eq!(before, map.count());
                }
            }
        }
    }

    #[test]
    fn a_word_gives_no_more_than_asked() {
        let map = empty();
        map.set_range(70, 100);
        assert_eq!(map.take_word(1, 3), Some((64, 1 << 6 | 1 << 8 | 1 << 10)));
        assert_eq!(map.count(), 24);
        assert_eq!(map.take_word(0, 1), Some((64, 1 << 12)));
        assert_eq!(map.take_word(5, 9), None);
    }

    #[test]
    fn what_is_free_cannot_be_given_again() {
        let map = empty();
        assert_eq!(map.give(60, 70), Ok(()));
        assert_eq!(map.give(0, 512), Err(60));
        assert_eq!(map.give(69, 71), Err(69));
        assert_eq!(map.count(), 10);
        map.take(62, 66);
        assert_eq!(map.give(0, 512), Err(60));
        assert_eq!(map.give(62, 66), Ok(()));
        assert!(map.all_free(60, 70) && !map.all_free(59, 70) && !map.all_free(60, 71));
    }

    #[test]
    fn a_map_is_one_cache_line() {
        assert_eq!((size_of::<FreeMap>(), align_of::<FreeMap>()), (64, 64));
    }
}
