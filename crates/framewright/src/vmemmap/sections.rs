//! Which sections of a zone are withheld, and who initialises each of them.
//!
//! A section is 128 MiB, which 2 MiB of the array describe. It is first *deferred*, then *busy*
//! while whoever claimed it initialises it, then *done*. To claim a section is one atomic
//! operation, so jobs and requests that find too little memory work side by side, in any context.
//! In Linux, zones no longer grow on demand once the jobs begin (Linux: `mm/mm_init.c`,
//! `deferred_init_memmap`).

use crate::sync::table_atomic::{AtomicU32, AtomicU64, Ordering};
use crate::units::PAGES_PER_BLOCK;
use crate::vmemmap_space::BLOCKS_PER_CALL;
use core::ops::Range;

/// The number of frames in a section.
pub(crate) const SECTION_PAGES: u64 = BLOCKS_PER_CALL as u64 * PAGES_PER_BLOCK;

/// The state of a section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SectionState {
    /// Its memory is withheld.
    Deferred,
    /// It is being initialised.
    Busy,
    /// Its memory can be handed out.
    Done,
}

/// How the withheld memory of a zone was brought up.
#[derive(Debug)]
pub(crate) struct DeferredInit {
    /// Pages that were withheld at bring-up.
    pub(crate) pages: u64,
    /// Pages that were initialised because a request found too little memory.
    pub(crate) grown_pages: AtomicU64,
    /// How long the job took; 0 before it.
    pub(crate) elapsed_ns: AtomicU64,
    /// The number of threads that worked in the job, including helpers from other nodes; 0 before
    /// it.
    pub(crate) threads: AtomicU32,
}

impl DeferredInit {
    pub(crate) const fn new() -> Self {
        let (grown_pages, elapsed_ns, threads) =
            (AtomicU64::new(0), AtomicU64::new(0), AtomicU32::new(0));
        Self { pages: 0, grown_pages, elapsed_ns, threads }
    }
}

/// The withheld sections of one zone.
pub(crate) struct Sections {
    /// Section numbers: a frame number divided by [`SECTION_PAGES`].
    range: Range<u32>,
    claimed: &'static [AtomicU64],
    done: &'static [AtomicU64],
    /// No section before this one can be claimed.
    next: AtomicU32,
    /// The number of sections that are not done.
    left: AtomicU32,
}

impl Sections {
    pub(crate) const fn none() -> Self {
        Self {
            range: 0..0,
            claimed: &[],
            done: &[],
            next: AtomicU32::new(0),
            left: AtomicU32::new(0),
        }
    }

    /// Returns the number of words that `count` sections take in each of the two bitmaps.
    pub(crate) const fn words(count: u32) -> usize {
        count.div_ceil(64) as usize
    }

    /// Sections that are all deferred; the bitmaps must be zero.
    pub(crate) fn new(
        range: Range<u32>,
        claimed: &'static [AtomicU64],
        done: &'static [AtomicU64],
    ) -> Self {
        let left = range.end.saturating_sub(range.start);
        Self { next: AtomicU32::new(range.start), left: AtomicU32::new(left), range, claimed, done }
    }

    /// Returns the first block that is withheld.
    pub(crate) const fn first_block(&self) -> u32 {
        if self.range.start < self.range.end {
            self.range.start * BLOCKS_PER_CALL
        } else {
            u32::MAX
        }
    }

    pub(crate) fn range(&self) -> Range<u32> {
        self.range.clone()
    }

    fn bit<'a>(&self, map: &'a [AtomicU64], section: u32) -> Option<(&'a AtomicU64, u64)> {
        let place = section.checked_sub(self.range.start).filter(|_| section < self.range.end)?;
        Some((map.get((place / 64) as usize)?, 1 << (place % 64)))
    }

    /// Returns whether some section is not done.
    #[inline]
    pub(crate) fn are_left(&self) -> bool {
        // Acquire pairs with the Releases in `finish`: whoever sees that all are done sees their
        // memory.
        self.left.load(Ordering::Acquire) != 0
    }

    /// Returns the number of sections that are not done.
    pub(crate) fn left(&self) -> u32 {
        // Acquire, as in `are_left`.
        self.left.load(Ordering::Acquire)
    }

    /// Returns whether a section is being initialised now.
    pub(crate) fn is_busy(&self) -> bool {
        self.claimed.iter().zip(self.done).any(|(claimed, done)| {
            // The order of the loads matters: a section that is done was claimed before. Acquire
            // pairs with the Release in `finish`. Relaxed for the claim, which says nothing about
            // memory.
            let done = done.load(Ordering::Acquire);
            claimed.load(Ordering::Relaxed) & !done != 0
        })
    }

    pub(crate) fn state(&self, section: u32) -> SectionState {
        // Acquire pairs with the Release in `finish`.
        let is_set = |map| {
            self.bit(map, section).is_none_or(|(word, bit)| word.load(Ordering::Acquire) & bit != 0)
        };
        match (is_set(self.claimed), is_set(self.done)) {
            (_, true) => SectionState::Done,
            (true, false) => SectionState::Busy,
            (false, false) => SectionState::Deferred,
        }
    }

    /// Makes a deferred section busy, for the caller alone. False if it is not deferred.
    pub(crate) fn claim(&self, section: u32) -> bool {
        // Relaxed, because the bit orders nothing: the section's memory was described at bring-up,
        // and what the claimer makes of it is published under the zone lock. The load saves
        // searchers the atomic operation on sections that are already claimed.
        self.bit(self.claimed, section).is_some_and(|(word, bit)| {
            word.load(Ordering::Relaxed) & bit == 0
                && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
        })
    }

    /// Claims the lowest deferred section, if it lies before section `end`.
    pub(crate) fn claim_next(&self, end: u32) -> Option<u32> {
        loop {
            // Relaxed: this is a hint that never passes a section that can be claimed; the claim
            // itself decides.
            let found = self.next_unclaimed(self.next.load(Ordering::Relaxed), end)?;
            self.next.fetch_max(found, Ordering::Relaxed);
            if self.claim(found) {
                return Some(found);
            }
        }
    }

    /// Returns the first section from `next` on, and before `end`, that nobody has claimed. Looks
    /// at 64 at a time, as holes may be large.
    #[inline(never)]
    fn next_unclaimed(&self, mut next: u32, end: u32) -> Option<u32> {
        loop {
            let (word, bit) = self.bit(self.claimed, next)?;
            // Relaxed, as in `claim`.
            let unclaimed = !word.load(Ordering::Relaxed) & bit.wrapping_neg();
            if unclaimed != 0 {
                let found = next + (unclaimed.trailing_zeros() - bit.trailing_zeros());
                return (found < self.range.end.min(end)).then_some(found);
            }
            next += u64::BITS - bit.trailing_zeros();
        }
    }

    /// Marks a section as done that has no memory. Called before others know of the sections.
    pub(crate) fn skip(&self, section: u32) {
        if self.claim(section) {
            self.finish(section);
        }
    }

    /// Marks a busy section done, so that its memory can be handed out. Called by whoever claimed
    /// it.
    pub(crate) fn finish(&self, section: u32) {
        if let Some((word, bit)) = self.bit(self.done, section) {
            // Both are Release and pair with the Acquires of those who check whether sections are
            // done. The order matters: whoever finds the section no longer busy also finds that
            // fewer are left, and looks for its memory.
            self.left.fetch_sub(1, Ordering::Release);
            word.fetch_or(bit, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::vec::Vec;

    fn zeros(count: u32) -> &'static [AtomicU64] {
        Box::leak(
            (0..Sections::words(count))
                .map(|_| AtomicU64::new(0))
                .collect::<Vec<_>>()
                .into_boxed_slice(),
        )
    }

    #[test]
    fn each_section_is_claimed_once_and_in_order() {
        let sections = Sections::new(5..140, zeros(135), zeros(135));
        assert!(sections.claim(7) && !sections.claim(7));
        assert!(!sections.claim(4) && !sections.claim(140), "none of this zone's");
        assert_eq!(sections.state(4), SectionState::Done);
        let rest: Vec<u32> = core::iter::from_fn(|| sections.claim_next(u32::MAX)).collect();
        assert_eq!(rest, (5..140).filter(|&section| section != 7).collect::<Vec<_>>());
        assert!(sections.are_left());
        assert_eq!(sections.state(7), SectionState::Busy);
        (5..140).for_each(|section| sections.finish(section));
        assert!(!sections.are_left());
        assert_eq!(sections.state(139), SectionState::Done);
        assert_eq!(Sections::none().claim_next(u32::MAX), None);
    }

    #[test]
    fn sections_without_memory_are_done_and_not_claimed() {
        let sections = Sections::new(60..400, zeros(340), zeros(340));
        (61..390).for_each(|section| sections.skip(section));
        assert_eq!((sections.left(), sections.state(200)), (11, SectionState::Done));
        assert_eq!(sections.claim_next(100), Some(60));
        assert_eq!(sections.claim_next(390), None, "only what lies before the end");
        assert_eq!(sections.claim_next(391), Some(390));
        assert_eq!(sections.claim_next(u32::MAX), Some(391));
    }

    #[test]
    fn many_threads_share_the_sections_out() {
        let sections = Sections::new(0..1000, zeros(1000), zeros(1000));
        let mut all: Vec<u32> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        core::iter::from_fn(|| sections.claim_next(u32::MAX)).collect::<Vec<_>>()
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
        });
        all.sort_unstable();
        assert_eq!(all, (0..1000).collect::<Vec<_>>());
    }
}
