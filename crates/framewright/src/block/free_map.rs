//! The free map of a split block: one bit per frame, set when the frame is free.
//!
//! Orders of memory: Relaxed everywhere. Words are written under the zone lock, or by whoever has
//! the memory alone, and the lock's Acquire and Release order these writes. Whatever is read
//! without the lock is a hint.

use crate::sync::table_atomic::{AtomicU64, Ordering};

/// Bits for `WORDS * 64` frames. The page tier uses eight words; model checking uses one.
///
/// All operations are Relaxed: the block's lock or the zone lock decides who may change a map.
#[repr(C, align(64))]
pub struct FreeMap<const WORDS: usize = 8> {
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> FreeMap<WORDS> {
    /// The number of frames that the map describes.
    pub const PAGES: usize = WORDS * 64;

    /// Returns a map without free frames.
    #[must_use]
    pub fn new() -> Self {
        Self { words: core::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Copies `other` into this map.
    pub fn copy(&self, other: &Self) {
        for (to, from) in self.words.iter().zip(&other.words) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Returns the map's words: a bit for each frame that is free.
    pub(crate) fn words(&self) -> [u64; WORDS] {
        core::array::from_fn(|word| self.words[word].load(Ordering::Relaxed))
    }

    /// Frees the frames whose bits are set in `frames`.
    pub(crate) fn add_words(&self, frames: &[u64; WORDS]) {
        for (word, frames) in self.words.iter().zip(frames) {
            word.store(word.load(Ordering::Relaxed) | frames, Ordering::Relaxed);
        }
    }

    /// Marks every frame not free.
    pub fn clear(&self) {
        for word in &self.words {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Marks frames free or not free. It is written for little code, because only bring-up uses it,
    /// for a few blocks.
    pub(crate) fn set_run(&self, frames: core::ops::Range<usize>, free: bool) {
        let bits = if free { u64::MAX } else { 0 };
        let Some(words) = self.words.get(frames.start / 64..frames.end.div_ceil(64)) else {
            return;
        };
        let mut mask = u64::MAX << (frames.start % 64);
        let mut left = frames.end - frames.start / 64 * 64;
        for word in words {
            mask &= below(left);
            word.store(word.load(Ordering::Relaxed) & !mask | bits & mask, Ordering::Relaxed);
            mask = u64::MAX;
            left = left.saturating_sub(64);
        }
    }

    /// Returns whether neither the frame before these frames nor the one behind them is free.
    pub(crate) fn is_apart(&self, frames: &core::ops::Range<usize>) -> bool {
        let is_free = |frame: usize| {
            let word = self.words.get(frame / 64).map_or(0, |word| word.load(Ordering::Relaxed));
            word >> (frame % 64) & 1 != 0
        };
        !is_free(frames.end) && !frames.start.checked_sub(1).is_some_and(is_free)
    }

    /// Marks frames `start..end` free and returns how many were not free before.
    pub fn set_range(&self, start: usize, end: usize) -> u64 {
        let mut changed = 0;
        for index in start / 64..end.div_ceil(64) {
            let Some(word) = self.words.get(index) else { break };
            let mask = mask(start, end, index * 64);
            let old = word.load(Ordering::Relaxed);
            word.store(old | mask, Ordering::Relaxed);
            changed += u64::from((mask & !old).count_ones());
        }
        changed
    }

    /// Returns the first free frame of `start..end`.
    #[must_use]
    pub fn first_free(&self, start: usize, end: usize) -> Option<usize> {
        self.first(start, end, |word| word)
    }

    /// Returns the first frame of `start..end` that is not free.
    #[must_use]
    pub fn first_taken(&self, start: usize, end: usize) -> Option<usize> {
        self.first(start, end, |word| !word)
    }

    /// Returns the last free frame.
    #[must_use]
    pub fn last_free(&self) -> Option<usize> {
        let words = self.words.iter().map(|word| word.load(Ordering::Relaxed)).enumerate();
        let (index, word) = words.rev().find(|&(_, word)| word != 0)?;
        Some(index * 64 + word.ilog2() as usize)
    }

    fn first(&self, start: usize, end: usize, wanted: impl Fn(u64) -> u64) -> Option<usize> {
        (start / 64..end.div_ceil(64)).find_map(|index| {
            let found =
                wanted(self.words[index].load(Ordering::Relaxed)) & mask(start, end, index * 64);
            (found != 0).then(|| index * 64 + found.trailing_zeros() as usize)
        })
    }

    /// Frees the aligned run of 2^`order` frames at `start`. Returns false and changes nothing if
    /// one of them is free already.
    pub fn give_run(&self, start: usize, order: u8) -> bool {
        let index = start / 64;
        if order < 6 {
            return self.give_mask(index, run_mask(start, order));
        }
        let run = &self.words[index..index + (1 << (order - 6))];
        if run.iter().any(|word| word.load(Ordering::Relaxed) != 0) {
            return false;
        }
        run.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
        true
    }

    /// Frees the half of the block that begins at frame `start`.
    pub(crate) fn set_half(&self, start: usize) {
        self.half(start).iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
    }

    /// Returns whether no frame is free in the half that begins at frame `start`.
    pub(crate) fn is_half_taken(&self, start: usize) -> bool {
        self.half(start).iter().fold(0, |free, word| free | word.load(Ordering::Relaxed)) == 0
    }

    fn half(&self, start: usize) -> &[AtomicU64] {
        let (low, high) = self.words.split_at(WORDS / 2);
        if start == 0 { low } else { high }
    }

    /// Frees runs of 2^`order` frames (at most 32) in the word that begins at frame `start`; the
    /// set bits of `runs` are their first frames. Returns false and changes nothing if one of the
    /// frames is free already.
    pub fn give_word(&self, start: usize, runs: u64, order: u8) -> bool {
        self.give_mask(start / 64, spread(runs, order))
    }

    fn give_mask(&self, index: usize, frames: u64) -> bool {
        let word = &self.words[index];
        let old = word.load(Ordering::Relaxed);
        if old & frames != 0 {
            return false;
        }
        word.store(old | frames, Ordering::Relaxed);
        true
    }

    /// Takes the aligned run of 2^`order` free frames at `start`.
    pub fn take_run(&self, start: usize, order: u8) {
        let index = start / 64;
        if order < 6 {
            let word = &self.words[index];
            word.store(word.load(Ordering::Relaxed) & !run_mask(start, order), Ordering::Relaxed);
        } else {
            self.words[index..index + (1 << (order - 6))]
                .iter()
                .for_each(|word| word.store(0, Ordering::Relaxed));
        }
    }

    /// Returns whether the aligned run of 2^`order` frames at `start` is free.
    #[must_use]
    pub fn is_run_free(&self, start: usize, order: u8) -> bool {
        let index = start / 64;
        if order < 6 {
            let run = run_mask(start, order);
            return self.words[index].load(Ordering::Relaxed) & run == run;
        }
        self.words[index..index + (1 << (order - 6))]
            .iter()
            .all(|word| word.load(Ordering::Relaxed) == u64::MAX)
    }

    /// Returns the lowest aligned run of 2^`order` free frames.
    #[must_use]
    pub fn find(&self, order: u8) -> Option<usize> {
        if order >= 6 {
            let words = 1_usize << (order - 6);
            return (0..WORDS * 64)
                .step_by(words * 64)
                .find(|&start| self.is_run_free(start, order));
        }
        // This loop has no branch per word: the place of the first run is unpredictable, and a
        // misprediction costs more than reading all eight words.
        let which = |has_run: fn(u64, u8) -> bool| {
            self.words.iter().enumerate().fold(0_u64, |found, (index, word)| {
                found | u64::from(has_run(word.load(Ordering::Relaxed), order)) << index
            })
        };
        let with_runs = if order == 0 {
            which(|word, _| word != 0)
        } else {
            which(|word, order| runs(word, order) != 0)
        };
        let index = with_runs.trailing_zeros() as usize;
        let word = self.words.get(index)?;
        Some(index * 64 + runs(word.load(Ordering::Relaxed), order).trailing_zeros() as usize)
    }

    /// Takes aligned runs of 2^`order` frames (at most 32) out of the word that holds frame
    /// `start`: the lowest first, and at most `limit`. Returns the word's first frame, and a bit
    /// for the start of each run.
    pub fn take_word(&self, start: usize, order: u8, limit: u32) -> (usize, u64) {
        let word = &self.words[start / 64];
        let free = word.load(Ordering::Relaxed);
        let mut starts = runs(free, order);
        // Counting bits is slow on targets that may lack an instruction for it, and most requests
        // either want all runs or find only one.
        if limit < 64 && !starts.is_power_of_two() {
            for _ in limit..starts.count_ones() {
                starts &= !(1 << starts.ilog2());
            }
        }
        word.store(free & !spread(starts, order), Ordering::Relaxed);
        (start & !63, starts)
    }

    /// [`take_word`](Self::take_word) from the first word that has such a run, if any has one.
    pub fn take_first_word(&self, order: u8, limit: u32) -> Option<(usize, u64)> {
        let start = self.find(order)?;
        Some(self.take_word(start, order, limit))
    }

    /// Takes aligned runs of 2^`order` frames from frame `start` on, the lowest first, until `out`
    /// is full. Returns the number of runs.
    pub fn take_runs(&self, start: usize, order: u8, out: &mut [usize]) -> usize {
        let mut taken = 0;
        for run in (start..WORDS * 64).step_by(1 << order) {
            let Some(place) = out.get_mut(taken) else { break };
            if self.is_run_free(run, order) {
                self.take_run(run, order);
                *place = run;
                taken += 1;
            }
        }
        taken
    }

    /// Returns the order of the largest aligned free run, if any frame is free.
    #[must_use]
    pub fn largest_order(&self) -> Option<u8> {
        let top = u8::try_from((WORDS * 64).ilog2()).unwrap_or(u8::MAX);
        (0..=top).rev().find(|&order| self.find(order).is_some())
    }

    /// Returns the number of free runs by order. Each frame counts once, in the largest aligned run
    /// that contains it, so these are the blocks that a buddy allocator would have. Orders above
    /// the map's size have none.
    #[must_use]
    pub fn largest_runs(&self) -> [u32; 10] {
        const { assert!(WORDS < 16, "sums of so many words fit into four bits") }
        let mut aligned = [0_u32; 11];
        let mut full = [false; WORDS];
        // Counts are summed in fields of eight or four bits: counting the bits of each word would
        // be most of the work on targets that may lack an instruction for it.
        let mut sums = [0_u64; 6];
        for (word, full) in self.words.iter().zip(&mut full) {
            let frames = word.load(Ordering::Relaxed);
            let pairs = frames & frames >> 1 & 0x5555_5555_5555_5555;
            let fours = pairs & pairs >> 2 & 0x1111_1111_1111_1111;
            let eights = fours & fours >> 4 & 0x0101_0101_0101_0101;
            let sixteens = eights & eights >> 8 & 0x0001_0001_0001_0001;
            let halves = sixteens & sixteens >> 16 & 0x1_0000_0001;
            let of_two = frames - (frames >> 1 & 0x5555_5555_5555_5555);
            let counts = [of_two, pairs].map(|of_two| {
                let of_four =
                    (of_two & 0x3333_3333_3333_3333) + (of_two >> 2 & 0x3333_3333_3333_3333);
                (of_four + (of_four >> 4)) & 0x0f0f_0f0f_0f0f_0f0f
            });
            let fields = [counts[0], counts[1], fours, eights, sixteens, halves];
            sums.iter_mut().zip(fields).for_each(|(sum, fields)| *sum += fields);
            *full = frames == u64::MAX;
        }
        sums[2] = (sums[2] & 0x0f0f_0f0f_0f0f_0f0f) + (sums[2] >> 4 & 0x0f0f_0f0f_0f0f_0f0f);
        for (sum, count) in sums.into_iter().zip(&mut aligned) {
            let of_sixteen = (sum & 0x00ff_00ff_00ff_00ff) + (sum >> 8 & 0x00ff_00ff_00ff_00ff);
            *count =
                u32::try_from(of_sixteen.wrapping_mul(0x0001_0001_0001_0001) >> 48).unwrap_or(0);
        }
        for (order, count) in aligned.iter_mut().enumerate().skip(6).take(4) {
            let runs =
                full.chunks_exact(1 << (order - 6)).filter(|run| run.iter().all(|&full| full));
            *count = u32::try_from(runs.count()).unwrap_or(0);
        }
        core::array::from_fn(|order| aligned[order] - 2 * aligned[order + 1])
    }

    /// Returns the number of free frames.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.load(Ordering::Relaxed).count_ones())).sum()
    }

    /// Returns whether frame `index` is free; false beyond the end.
    #[must_use]
    pub fn is_free(&self, index: usize) -> bool {
        self.words
            .get(index / 64)
            .is_some_and(|word| word.load(Ordering::Relaxed) >> (index % 64) & 1 != 0)
    }
}

impl<const WORDS: usize> Default for FreeMap<WORDS> {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the bits of the aligned run of 2^`order` frames (at most 64) at `start`, within its
/// word.
const fn run_mask(start: usize, order: u8) -> u64 {
    (u64::MAX >> (64 - (1 << order))) << (start & 63)
}

/// Returns the frames of the runs of 2^`order` frames (at most 32) that begin at the set bits of
/// `starts`.
const fn spread(starts: u64, order: u8) -> u64 {
    let (mut frames, mut step) = (starts, 0);
    while step < order {
        frames |= frames << (1 << step);
        step += 1;
    }
    frames
}

/// Returns the bit at the start of each aligned run of 2^`order` set bits (at most 32).
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

/// Returns the bits for frames in `start..end`, in the word that begins at frame `base`.
fn mask(start: usize, end: usize, base: usize) -> u64 {
    let low = start.clamp(base, base + 64) - base;
    let high = end.clamp(base, base + 64) - base;
    if low >= high {
        return 0;
    }
    (u64::MAX >> (64 - (high - low))) << low
}

/// Returns the lowest `bits` bits of a word, or the whole word if there are fewer, without a
/// branch.
fn below(bits: usize) -> u64 {
    if bits < 64 { (1 << bits) - 1 } else { u64::MAX }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn empty() -> FreeMap {
        FreeMap::new()
    }

    #[test]
    fn ranges_set_exactly_their_bits() {
        for (start, end) in
            [(0, 0), (0, 1), (0, 512), (63, 65), (1, 64), (64, 128), (5, 500), (511, 512), (7, 7)]
        {
            let map = empty();
            assert_eq!(map.set_range(start, end), (end - start) as u64);
            assert_eq!(map.count(), (end - start) as u64);
            for frame in 0..512 {
                assert_eq!(
                    map.is_free(frame),
                    (start..end).contains(&frame),
                    "{start}..{end} at {frame}"
                );
            }
            assert_eq!(map.set_range(0, 512), 512 - (end - start) as u64);
        }
        assert!(!empty().is_free(512));
    }

    #[test]
    fn frames_are_painted_free_and_not_free_and_no_others() {
        for (start, end) in
            [(0, 0), (0, 1), (0, 512), (63, 65), (1, 64), (64, 128), (5, 500), (511, 512), (7, 7)]
        {
            for free in [false, true] {
                for others in [false, true] {
                    let map = empty();
                    map.set_run(0..512, others);
                    map.set_run(start..end, free);
                    for frame in 0..512 {
                        let expected = if (start..end).contains(&frame) { free } else { others };
                        assert_eq!(
                            map.is_free(frame),
                            expected,
                            "{start}..{end} {free} in {others} at {frame}"
                        );
                    }
                }
            }
        }
        let map = empty();
        map.set_run(0..513, true);
        assert_eq!(map.count(), 0, "a range beyond the block is none");
    }

    #[test]
    fn runs_are_found_taken_and_measured_as_a_naive_search_does() {
        let mut seed = 7_u64;
        for density in [1, 2, 3, 8, 64] {
            for _ in 0..50 {
                let map = empty();
                for frame in 0..512 {
                    seed = seed
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    if !(seed >> 33).is_multiple_of(density) || density == 1 && frame != 300 {
                        map.set_range(frame, frame + 1);
                    }
                }
                let free = |start: usize, size: usize| {
                    (start..start + size).all(|frame| map.is_free(frame))
                };
                let largest = |order: usize| {
                    let inside =
                        |start: usize| order < 9 && free(start & !((2 << order) - 1), 2 << order);
                    (0..512)
                        .step_by(1 << order)
                        .filter(|&start| free(start, 1 << order) && !inside(start))
                        .count()
                };
                for (order, runs) in map.largest_runs().into_iter().enumerate() {
                    assert_eq!(runs as usize, largest(order), "{order}");
                }
                for order in 0..=9_u8 {
                    let size = 1_usize << order;
                    assert_eq!(
                        map.find(order),
                        (0..512).step_by(size).find(|&start| free(start, size)),
                        "order {order}"
                    );
                }
                assert_eq!(
                    map.largest_order(),
                    (0..=9).rev().find(|&order| map.find(order).is_some())
                );
                for frame in (0..512).filter(|&frame| map.is_free(frame)) {
                    let order = (0..=8_u8)
                        .rev()
                        .find(|&order| frame % (1 << order) == 0 && free(frame, 1 << order));
                    let order = order.expect("the frame is free");
                    assert!(map.is_run_free(frame, order));
                    assert!(!map.give_run(frame, order), "it is free already");
                    map.take_run(frame, order);
                    assert_eq!(map.first_free(frame, frame + (1 << order)), None);
                    assert!(map.give_run(frame, order));
                }
                for order in 0..=5_u8 {
                    let before = map.count();
                    let Some(start) = map.find(order) else { continue };
                    let (base, starts) = map.take_word(start, order, 64);
                    assert_eq!(before - map.count(), u64::from(starts.count_ones()) << order);
                    assert!(
                        (0..64)
                            .filter(|bit| starts >> bit & 1 != 0)
                            .all(|bit| bit % (1 << order) == 0)
                    );
                    for bit in (0..64).filter(|bit| starts >> bit & 1 != 0) {
                        assert!(map.give_run(base + bit, order));
                    }
                    assert_eq!(before, map.count());
                }
                for order in 0..=8_u8 {
                    let Some(start) = map.find(order) else { continue };
                    let (before, mut out) = (map.count(), [0; 20]);
                    let naive: Vec<usize> = (0..512)
                        .step_by(1 << order)
                        .filter(|&run| free(run, 1 << order))
                        .take(20)
                        .collect();
                    let taken = map.take_runs(start, order, &mut out);
                    assert_eq!(&out[..taken], naive);
                    assert_eq!(before - map.count(), (taken as u64) << order);
                    assert!(out[..taken].iter().all(|&run| map.give_run(run, order)));
                }
            }
        }
    }

    #[test]
    fn a_word_gives_no_more_than_asked() {
        let map = empty();
        map.set_range(70, 100);
        assert_eq!(map.take_word(70, 1, 3), (64, 1 << 6 | 1 << 8 | 1 << 10));
        assert_eq!(map.count(), 24);
        assert_eq!(map.take_word(100, 0, 1), (64, 1 << 12));
        assert_eq!(map.take_word(64, 5, 9), (64, 0));
    }

    #[test]
    fn the_first_free_frame_of_a_range() {
        let map = empty();
        map.set_range(60, 70);
        assert_eq!(map.first_free(0, 512), Some(60));
        assert_eq!(map.first_free(65, 66), Some(65));
        assert_eq!(map.first_free(0, 60), None);
        assert_eq!(map.first_free(70, 512), None);
        assert_eq!(map.first_taken(0, 512), Some(0));
        assert_eq!(map.first_taken(60, 512), Some(70));
        assert_eq!(map.first_taken(60, 70), None);
        assert_eq!(map.first_taken(63, 63), None);
    }

    #[test]
    fn a_map_is_one_cache_line() {
        assert_eq!((size_of::<FreeMap>(), align_of::<FreeMap>()), (64, 64));
    }
}
