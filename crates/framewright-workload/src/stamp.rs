//! Stamps: the owner of a frame, written into the frame.
//!
//! A run of up to 64 frames has a stamp in each frame. A larger run is divided into about 32 to 64
//! windows with one stamped frame each, which differs between allocations. Over time all frames are
//! stamped, and a run of a GiB costs no more than one of 64 pages.
//!
//! Orders of memory: Relaxed: a frame has one owner, and code that hands a run to another CPU
//! orders what was written. If a second owner writes, that need not be seen at once.

use crate::failure::Failure;
use crate::random::mix;
use core::sync::atomic::{AtomicU64, Ordering};
use framewright::Platform;
use framewright::units::{PAGE_SIZE, Pfn, PfnRange};

/// Most windows of a large run, not counting partial ones at its ends.
const STAMPS: u64 = 64;
/// Words in a frame.
const WORDS: u64 = PAGE_SIZE / 8;

/// A run of frames that a worker holds: what one call allocated, or a part of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    pub(crate) range: PfnRange,
    /// A number that differs between allocations.
    owner: u64,
    /// How many frames a window has, of which one is stamped; a power of two.
    window: u64,
    /// Whether it is exactly what one call allocated.
    pub(crate) is_whole: bool,
}

impl Held {
    /// No run.
    pub const NOTHING: Self =
        Self { range: PfnRange::new(0, 0), owner: 0, window: 1, is_whole: false };

    /// Makes a run that was just allocated and is not stamped yet.
    pub(crate) fn new(range: PfnRange, owner: u64) -> Self {
        let window = range.pages().div_ceil(STAMPS).max(1).next_power_of_two();
        Self { range, owner, window, is_whole: true }
    }

    /// Returns a part of the run.
    pub(crate) const fn part(self, start: Pfn, end: Pfn) -> Self {
        Self { range: PfnRange { start, end }, is_whole: false, ..self }
    }

    /// Returns the frames of the run.
    #[must_use]
    pub const fn range(&self) -> PfnRange {
        self.range
    }

    /// Returns the frames that have a stamp.
    fn stamped(self) -> impl Iterator<Item = Pfn> {
        let windows = self.range.start.0 / self.window..self.range.end.0.div_ceil(self.window);
        let frame = move |window: u64| {
            Pfn(window * self.window + (mix(self.owner ^ window) & (self.window - 1)))
        };
        windows.map(frame).filter(move |&frame| self.range.contains(frame))
    }

    /// Returns the stamp of a frame.
    const fn word(self, frame: Pfn) -> u64 {
        mix(self.owner.wrapping_add(frame.0.wrapping_mul(0x9e37_79b9_7f4a_7c15))) | 1
    }

    /// Stamps the run.
    pub(crate) fn write<P: Platform>(self, platform: &P) {
        for frame in self.stamped() {
            for place in [0, WORDS - 1] {
                word(platform, frame, place).store(self.word(frame), Ordering::Relaxed);
            }
        }
    }

    /// Checks the stamps.
    ///
    /// # Errors
    /// [`Failure::Stamp`]: another owner wrote into the run.
    pub(crate) fn check<P: Platform>(self, platform: &P) -> Result<(), Failure> {
        for frame in self.stamped() {
            for place in [0, WORDS - 1] {
                let (wanted, found) =
                    (self.word(frame), word(platform, frame, place).load(Ordering::Relaxed));
                if found != wanted {
                    return Err(Failure::Stamp { pfn: frame, wanted, found });
                }
            }
        }
        Ok(())
    }

    /// Checks that the frames that will be stamped hold zeros.
    ///
    /// # Errors
    /// [`Failure::NotZero`].
    pub(crate) fn check_zero<P: Platform>(self, platform: &P) -> Result<(), Failure> {
        for frame in self.stamped() {
            if (0..WORDS).any(|place| word(platform, frame, place).load(Ordering::Relaxed) != 0) {
                return Err(Failure::NotZero { pfn: frame });
            }
        }
        Ok(())
    }
}

/// Returns a word of an allocated frame. It is atomic, so that a frame that wrongly has two owners
/// shows a wrong stamp and is no data race.
pub(crate) fn word<P: Platform>(platform: &P, frame: Pfn, place: u64) -> &AtomicU64 {
    let address = platform.direct(frame.address() + 8 * place);
    // SAFETY: the frame is managed memory below the direct limit, where it is readable, writable
    // and aligned for ever. It was handed out, so only this function accesses it, and any content
    // is a value (invariants 1 and 4).
    unsafe { AtomicU64::from_ptr(address.as_ptr().cast()) }
}

/// Fills the frames of a run that the caller owns with zeros.
pub(crate) fn clear<P: Platform>(platform: &P, start: Pfn, pages: u64) {
    let bytes = usize::try_from(pages * PAGE_SIZE).unwrap_or(0);
    // SAFETY: the caller was given these frames, which are contiguous in the direct map and have no
    // other user (invariants 1 and 15).
    unsafe { platform.direct(start.address()).write_bytes(0, bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(held: Held) -> usize {
        held.stamped().count()
    }

    #[test]
    fn small_runs_are_stamped_everywhere_and_large_ones_evenly() {
        for pages in [1, 3, 64] {
            let held = Held::new(PfnRange::new(77, 77 + pages), 5);
            assert_eq!(count(held) as u64, pages);
        }
        for pages in [65, 127, 128, 512, 1 << 18] {
            let held = Held::new(PfnRange::new(1 << 18, (1 << 18) + pages), 5);
            assert!((32..=66).contains(&count(held)), "{pages}: {}", count(held));
        }
    }

    #[test]
    fn parts_have_the_stamps_of_the_whole() {
        let whole = Held::new(PfnRange::new(4096, 8192), 9);
        let (one, other) = (whole.part(Pfn(4096), Pfn(5001)), whole.part(Pfn(5001), Pfn(8192)));
        assert!(whole.stamped().eq(one.stamped().chain(other.stamped())));
        assert!(!one.is_whole && whole.is_whole);
    }
}
