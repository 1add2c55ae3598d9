//! Which free blocks were reported to the hypervisor, and which are known to be zero.
//!
//! There are two bitmaps with one bit per block, so that blocks keep their bits through splits and
//! merges without anybody moving the bits. A *reported* block is free. A *zero* block is reported,
//! too, or it is split and its state word says *swept*: then its free frames are zero. Until the
//! first device registers, nothing reads the bitmaps, and they hold whatever their memory did.
//!
//! Orders of memory: Relaxed everywhere. Words are written under the zone lock, or by whoever has
//! the memory alone, and the lock's Acquire and Release order these writes. Whatever is read
//! without the lock is a hint.

use super::table::blocks_of;
use crate::sync::in_place::write_fields;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::{Order, PAGES_PER_BLOCK};
use core::mem::MaybeUninit;
use core::ops::Range;

/// Returns the number of words that the bitmaps of `blocks` blocks take.
pub(crate) const fn words_for(blocks: usize) -> usize {
    2 * blocks.div_ceil(64)
}

/// What was known of a block when it was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct WasReported {
    /// All of it was reported.
    pub(crate) reported: bool,
    /// All of it is zero.
    pub(crate) zero: bool,
}

/// The number of words for the largest block.
const MOST_WORDS: usize = blocks_of(Order::MAX) as usize / 64;

/// Which blocks of a larger block that leaves the zone were reported, one bit each.
#[derive(Clone, Copy)]
pub(crate) struct ReportedBits([u64; MOST_WORDS]);

impl ReportedBits {
    /// Returns whether all blocks of the 2^`order` pages that begin with block `from` were
    /// reported.
    pub(crate) fn has_all(&self, from: u32, order: Order) -> bool {
        let span = Span::of(from, order);
        self.0
            .get(span.words())
            .is_some_and(|words| words.iter().all(|word| word & span.mask == span.mask))
    }
}

/// See the module documentation. Changed under the zone lock only.
pub(crate) struct ReportedBitmap {
    reported: &'static [AtomicU64],
    zero: &'static [AtomicU64],
    tracked: bool,
    reported_blocks: u64,
    zero_blocks: u64,
    /// The fewest pages that were free and not reported since the last
    /// [`take_floor`](Self::take_floor).
    floor_pages: u64,
    reused_blocks: u64,
    reused_early_blocks: u64,
}

/// The bits of the blocks of one head.
#[derive(Clone, Copy)]
struct Span {
    /// The first word.
    first: usize,
    /// The number of words.
    count: usize,
    /// Which bits of each word.
    mask: u64,
}

impl Span {
    /// Returns the bits for 2^`order` pages from block `index` on.
    const fn of(index: u32, order: Order) -> Self {
        let (first, blocks) = (index as usize / 64, blocks_of(order));
        if blocks < 64 {
            Self { first, count: 1, mask: ((1 << blocks) - 1) << (index % 64) }
        } else {
            Self { first, count: blocks as usize / 64, mask: u64::MAX }
        }
    }

    const fn words(self) -> Range<usize> {
        self.first..self.first + self.count
    }
}

/// Returns the index of the lowest set bit of `word`, which is word `number` of a bitmap.
fn bit(word: u64, number: usize) -> Option<usize> {
    (word != 0).then(|| number * 64 + word.trailing_zeros() as usize)
}

/// Returns the bit at the start of each aligned run of `length` set bits; `length` is a power of
/// two below 64.
const fn aligned_runs(word: u64, length: u32) -> u64 {
    let (mut all, mut step) = (word, 1);
    while step < length {
        all &= all >> step;
        step *= 2;
    }
    // Every `length`-th bit.
    all & (u64::MAX / ((1 << length) - 1))
}

impl ReportedBitmap {
    /// Initialises bitmaps without blocks in place.
    pub(crate) fn write_empty(place: &mut MaybeUninit<Self>) -> &mut Self {
        write_fields!(
            ReportedBitmap at place,
            {
                reported: &[],
                zero: &[],
                tracked: false,
                reported_blocks: 0,
                zero_blocks: 0,
                floor_pages: 0,
                reused_blocks: 0,
                reused_early_blocks: 0,
            },
            {},
        )
    }

    /// Attaches [`words_for`] words of any content. Nothing is tracked yet.
    pub(crate) fn attach(&mut self, words: &'static [AtomicU64]) {
        (self.reported, self.zero) = words.split_at(words.len() / 2);
    }

    /// Returns whether the bits are tracked, which they are from the first device on.
    pub(crate) const fn is_tracked(&self) -> bool {
        cfg!(feature = "reporting") && self.tracked
    }

    /// Returns the words that have to be cleared before the first device registers.
    pub(crate) const fn words(&self) -> (&'static [AtomicU64], &'static [AtomicU64]) {
        (self.reported, self.zero)
    }

    /// Begins to track the bits, all of which are clear; `free_pages` pages are free.
    pub(crate) fn track(&mut self, free_pages: u64) {
        self.tracked = true;
        self.floor_pages = free_pages;
    }

    /// Stops tracking. The bitmaps go away with the memory that they lie in, none of which is free.
    pub(crate) fn forget(&mut self) {
        self.tracked = false;
        self.floor_pages = 0;
    }

    fn count(words: &[AtomicU64], span: Span) -> u64 {
        words[span.words()]
            .iter()
            .map(|word| u64::from((word.load(Ordering::Relaxed) & span.mask).count_ones()))
            .sum()
    }

    /// Sets or clears bits and returns how many changed.
    fn write(words: &[AtomicU64], span: Span, set: bool) -> u64 {
        let mut changed = 0;
        for word in &words[span.words()] {
            let old = word.load(Ordering::Relaxed);
            let new = if set { old | span.mask } else { old & !span.mask };
            if new != old {
                word.store(new, Ordering::Relaxed);
                changed += u64::from((old ^ new).count_ones());
            }
        }
        changed
    }

    /// Returns whether all blocks of a free head were reported.
    pub(crate) fn is_reported(&self, index: u32, order: Order) -> bool {
        self.is_tracked() && self.are_all_reported(index, order)
    }

    #[inline(never)]
    fn are_all_reported(&self, index: u32, order: Order) -> bool {
        let span = Span::of(index, order);
        let mask = span.mask;
        self.reported[span.words()].iter().all(|word| word.load(Ordering::Relaxed) & mask == mask)
    }

    /// Returns the number of blocks of a head that are reported, and that are zero.
    pub(crate) fn counts(&self, index: u32, order: Order) -> (u64, u64) {
        let span = Span::of(index, order);
        if self.is_tracked() {
            (Self::count(self.reported, span), Self::count(self.zero, span))
        } else {
            (0, 0)
        }
    }

    /// Returns the number of blocks that are reported, and that are zero.
    pub(crate) const fn totals(&self) -> (u64, u64) {
        (self.reported_blocks, self.zero_blocks)
    }

    /// Returns the number of pages in reported blocks.
    pub(crate) const fn reported_pages(&self) -> u64 {
        self.reported_blocks * PAGES_PER_BLOCK
    }

    /// Returns the pages of reported blocks that were handed out since the first device registered,
    /// and how many of them were handed out although unreported memory was available.
    pub(crate) const fn reused_pages(&self) -> (u64, u64) {
        (self.reused_blocks * PAGES_PER_BLOCK, self.reused_early_blocks * PAGES_PER_BLOCK)
    }

    /// Marks blocks that are about to become free as reported and, if `zero`, as zero.
    pub(crate) fn report(&mut self, index: u32, order: Order, zero: bool) {
        let span = Span::of(index, order);
        self.reported_blocks += Self::write(self.reported, span, true);
        if zero {
            self.zero_blocks += Self::write(self.zero, span, true);
        }
    }

    /// Clears the bits of blocks that are no longer free. `free_pages` pages are left in the lists;
    /// `early` says that unreported memory was available.
    #[inline(never)]
    pub(crate) fn take(
        &mut self,
        index: u32,
        order: Order,
        free_pages: u64,
        early: bool,
    ) -> WasReported {
        let span = Span::of(index, order);
        let (reported, zero) =
            (Self::write(self.reported, span, false), Self::write(self.zero, span, false));
        self.reported_blocks -= reported;
        self.zero_blocks -= zero;
        self.reused_blocks += reported;
        self.reused_early_blocks += if early { reported } else { 0 };
        self.floor_pages = self.floor_pages.min(free_pages.saturating_sub(self.reported_pages()));
        let blocks = u64::from(blocks_of(order));
        WasReported { reported: reported == blocks, zero: zero == blocks }
    }

    /// Takes the bits out of blocks that leave the lists but stay free. Returns nothing if none of
    /// the blocks was reported.
    #[inline(never)]
    pub(crate) fn move_out(
        &mut self,
        index: u32,
        order: Order,
        free_pages: u64,
    ) -> Option<ReportedBits> {
        let span = Span::of(index, order);
        let Span { mask, .. } = span;
        let mut moved = ReportedBits([0; MOST_WORDS]);
        for (out, word) in moved.0.iter_mut().zip(&self.reported[span.words()]) {
            *out = (word.load(Ordering::Relaxed) & mask) >> (index % 64);
        }
        let reported = Self::write(self.reported, span, false);
        self.reported_blocks -= reported;
        self.zero_blocks -= Self::write(self.zero, span, false);
        self.floor_pages = self.floor_pages.min(free_pages.saturating_sub(self.reported_pages()));
        (reported != 0).then_some(moved)
    }

    /// Returns the fewest pages that were free in lists and not reported since the last call, and
    /// starts over; `free_pages` pages are free now.
    pub(crate) fn take_floor(&mut self, free_pages: u64) -> u64 {
        let now = free_pages.saturating_sub(self.reported_pages());
        core::mem::replace(&mut self.floor_pages, now).min(now)
    }

    /// Returns whether the free frames of a swept split block are zero.
    pub(crate) fn is_zero(&self, index: u32) -> bool {
        self.is_tracked()
            && self.zero_blocks != 0
            && self.zero[index as usize / 64].load(Ordering::Relaxed) >> (index % 64) & 1 != 0
    }

    /// Records whether the free frames of a split block are known to be zero, as they were while it
    /// was whole.
    pub(crate) fn set_zero(&mut self, index: u32, zero: bool) {
        if self.is_tracked() {
            let changed = Self::write(self.zero, Span::of(index, Order::BLOCK), zero);
            self.zero_blocks =
                if zero { self.zero_blocks + changed } else { self.zero_blocks - changed };
        }
    }

    /// Returns where to take a piece of `order` in the free head of order `have`, parts of which
    /// were not reported: the first piece without any reported block, or else the first with an
    /// unreported one.
    pub(crate) fn choose(&self, head: u32, have: Order, order: Order) -> u32 {
        if !self.is_tracked() || have == order {
            return head;
        }
        let Span { first, count, mask } = Span::of(head, have);
        let clear = |number: usize| !self.reported[first + number].load(Ordering::Relaxed) & mask;
        let piece = blocks_of(order);
        let (even, any) = if piece < 64 {
            let even =
                (0..count).find_map(|number| bit(aligned_runs(clear(number), piece), number));
            (even, (0..count).find_map(|number| bit(clear(number), number)))
        } else {
            let words = piece as usize / 64;
            let even = (0..count)
                .step_by(words)
                .find(|&number| (number..number + words).all(|word| clear(word) == u64::MAX));
            (
                even.map(|number| number * 64),
                (0..count).find(|&number| clear(number) != 0).map(|number| number * 64),
            )
        };
        let found = even.or(any).and_then(|offset| u32::try_from(first * 64 + offset).ok());
        found.map_or(head, |index| index & !(piece - 1))
    }

    /// Returns the lowest piece of a free head, at or after block `from`, of which nothing was
    /// reported. It is as large as possible up to order `most`.
    pub(crate) fn unreported(
        &self,
        head: u32,
        have: Order,
        from: u32,
        most: Order,
    ) -> Option<(u32, Order)> {
        let Span { first, count, mask } = Span::of(head, have);
        let words = self.reported[first..first + count].iter().enumerate();
        let index = words.into_iter().find_map(|(number, word)| {
            let start = u32::try_from((first + number) * 64).ok()?;
            let behind = u64::MAX.checked_shl(from.saturating_sub(start)).unwrap_or(0);
            let clear = !word.load(Ordering::Relaxed) & mask & behind;
            (clear != 0).then(|| start + clear.trailing_zeros())
        })?;
        let mut order = Order::BLOCK;
        while order < most
            && let Some(next) = Order::new(order.get() + 1)
            && index.is_multiple_of(blocks_of(next))
            && index + blocks_of(next) <= head + blocks_of(have)
            && Self::count(self.reported, Span::of(index, next)) == 0
        {
            order = next;
        }
        Some((index, order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{boxed::Box, vec::Vec};

    fn bitmap(blocks: usize) -> &'static mut ReportedBitmap {
        let words: Vec<AtomicU64> = (0..words_for(blocks)).map(|_| AtomicU64::new(0)).collect();
        let place = Box::leak(Box::new(MaybeUninit::uninit()));
        let bitmap = ReportedBitmap::write_empty(place);
        bitmap.attach(words.leak());
        bitmap.track(blocks as u64 * PAGES_PER_BLOCK);
        bitmap
    }

    fn order(order: u8) -> Order {
        Order::new(order).expect("an order")
    }

    #[test]
    fn bits_agree_with_a_set_of_blocks() {
        let bitmap = bitmap(1024);
        let (mut reported, mut zero) = ([false; 1024], [false; 1024]);
        let mut seed = 3_u64;
        for _ in 0..4000 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let of = order(9 + u8::try_from((seed >> 60) % 10).expect("small"));
            let blocks = blocks_of(of);
            let index = u32::try_from(seed >> 33).expect("31 bits") % 1024 / blocks * blocks;
            let span = index as usize..(index + blocks) as usize;
            if seed >> 20 & 1 == 0 {
                let is_zero = seed >> 21 & 1 == 0;
                bitmap.report(index, of, is_zero);
                reported[span.clone()].fill(true);
                if is_zero {
                    zero[span.clone()].fill(true);
                }
            } else {
                let taken = bitmap.take(index, of, 1024 * PAGES_PER_BLOCK, false);
                assert_eq!(taken.reported, reported[span.clone()].iter().all(|&bit| bit));
                assert_eq!(taken.zero, zero[span.clone()].iter().all(|&bit| bit));
                reported[span.clone()].fill(false);
                zero[span.clone()].fill(false);
            }
            let count = |bits: &[bool]| bits.iter().filter(|&&bit| bit).count() as u64;
            assert_eq!(bitmap.totals(), (count(&reported), count(&zero)));
            let head = index & !511;
            let all = head as usize..head as usize + 512;
            assert_eq!(
                bitmap.is_reported(head, Order::MAX),
                reported[all.clone()].iter().all(|&bit| bit)
            );
            let first = reported[all].iter().position(|&bit| !bit);
            let found = bitmap.unreported(head, Order::MAX, head, order(12));
            assert_eq!(found.map(|(index, _)| (index - head) as usize), first);
            let from = index.max(head);
            let behind = (from..head + 512).find(|&index| !reported[index as usize]);
            let found_behind = bitmap.unreported(head, Order::MAX, from, order(12));
            assert_eq!(found_behind.map(|(index, _)| index), behind);
            if let Some((index, of)) = found {
                let size = blocks_of(of) as usize;
                let is_clear = |size: usize| {
                    (index as usize).is_multiple_of(size)
                        && !reported[index as usize..index as usize + size].contains(&true)
                };
                assert!(is_clear(size) && (of == order(12) || !is_clear(size * 2)));
                let piece = bitmap.choose(head, Order::MAX, of);
                assert!(
                    !reported[piece as usize..piece as usize + size].contains(&true),
                    "{piece}"
                );
            }
        }
    }

    #[test]
    fn bits_that_move_say_which_blocks_were_reported() {
        let bitmap = bitmap(1024);
        for (index, of) in [(512 + 3, 9), (512 + 8, 10), (512 + 64, 15), (512 + 256, 16)] {
            bitmap.report(index, order(of), true);
        }
        let before = bitmap.reused_pages();
        let moved = bitmap.move_out(512 + 2, order(10), 0).expect("one was");
        assert!(
            moved.has_all(1, order(9))
                && !moved.has_all(0, order(9))
                && !moved.has_all(0, order(10))
        );
        assert!(bitmap.move_out(512 + 2, order(10), 0).is_none(), "they are gone");
        let moved = bitmap.move_out(512, Order::MAX, 0).expect("three were");
        let expected =
            |block: u32| [8..10, 64..128, 256..384].iter().any(|run| run.contains(&block));
        assert!((0..512).all(|block| moved.has_all(block, order(9)) == expected(block)));
        assert!(
            moved.has_all(64, order(15))
                && moved.has_all(256, order(16))
                && !moved.has_all(256, order(17))
        );
        assert_eq!((bitmap.totals(), bitmap.reused_pages()), ((0, 0), before), "nobody has them");
    }

    #[test]
    fn the_floor_is_the_least_since_it_was_asked() {
        let bitmap = bitmap(64);
        let all = 64 * PAGES_PER_BLOCK;
        assert_eq!(bitmap.take_floor(all), all);
        bitmap.take(0, order(11), all - 4 * PAGES_PER_BLOCK, false);
        assert_eq!(bitmap.take_floor(all), all - 4 * PAGES_PER_BLOCK);
        assert_eq!(bitmap.take_floor(all), all);
        bitmap.report(0, order(14), true);
        assert_eq!(bitmap.take_floor(all), all / 2);
        assert_eq!(bitmap.take_floor(all / 2), 0);
    }
}
