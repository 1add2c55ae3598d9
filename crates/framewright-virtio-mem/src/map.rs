//! Which units are plugged: one bit for each, in memory that no device can access
//! ([`PrivateMemory`]), because it decides what the device is asked for.
//!
//! One page holds 32768 bits: units of 2 MiB need 4 KiB for every 64 GiB in which any of them was
//! plugged.

use framewright_virtio::{PRIVATE_PAGE_BYTES, Private, PrivateMemory};

const WORD_BITS: u32 = u64::BITS;
const PAGE_WORDS: usize = PRIVATE_PAGE_BYTES / size_of::<u64>();
const PAGE_BITS: u32 = 1 << 15;
const PAGES: usize = 512;

/// The most units: 32 TiB of 2 MiB units.
pub const MOST_UNITS: u32 = 1 << 24;

/// A run of contiguous units, numbered from the first one of the region; at least one unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    pub first: u32,
    pub count: u32,
}

impl Run {
    pub const fn end(self) -> u32 {
        self.first.saturating_add(self.count)
    }
}

type Page = [u64; PAGE_WORDS];
type Directory<H> = [Option<Private<H, Page>>; PAGES];

const _: () = {
    assert!(PAGE_BITS as usize == PAGE_WORDS * WORD_BITS as usize);
    assert!(MOST_UNITS as usize == PAGES * PAGE_BITS as usize);
};

/// The bits of all units.
pub struct Map<H: PrivateMemory> {
    directory: Private<H, Directory<H>>,
    units: u32,
    plugged: u32,
}

impl<H: PrivateMemory> Map<H> {
    /// Creates a map of this many units, at most [`MOST_UNITS`], none of them plugged. `None` if
    /// there is no memory.
    pub fn new(units: u32) -> Option<Self> {
        let directory = Private::new([const { None }; PAGES])?;
        Some(Self { directory, units: units.min(MOST_UNITS), plugged: 0 })
    }

    /// The number of plugged units.
    pub fn plugged(&self) -> u32 {
        self.plugged
    }

    /// Makes sure that the bits of `run` can be set. Returns false if there is no memory.
    pub fn prepare(&mut self, run: Run) -> bool {
        if run.count == 0 || run.end() > self.units {
            return false;
        }
        let (first, last) = (run.first / PAGE_BITS, (run.end() - 1) / PAGE_BITS);
        for page in first..=last {
            let Some(place) = self.directory.get_mut(page as usize) else { return false };
            if place.is_none() {
                *place = Private::new([0; PAGE_WORDS]);
            }
            if place.is_none() {
                return false;
            }
        }
        true
    }

    /// Sets the bits of `run`, which was prepared, or clears them.
    pub fn set(&mut self, run: Run, is_plugged: bool) {
        let (mut at, end) = (run.first, run.end().min(self.units));
        while at < end {
            let (mask, next) = mask(at, end);
            if let Some(word) = self.word_mut(at) {
                let before = word.count_ones();
                *word = if is_plugged { *word | mask } else { *word & !mask };
                let after = word.count_ones();
                self.plugged = self.plugged + after - before;
            }
            at = next;
        }
    }

    /// Whether all units of `run` exist, and all are plugged or all are unplugged, as `is_plugged`
    /// says.
    pub fn is_all(&self, run: Run, is_plugged: bool) -> bool {
        run.end() <= self.units && self.next(run.first, run.end(), !is_plugged) == run.end()
    }

    /// The first run of `wanted` unplugged units before `end`, or the longest run if none is that
    /// long.
    pub fn find_unplugged(&self, end: u32, wanted: u32) -> Option<Run> {
        let end = end.min(self.units);
        let mut longest: Option<Run> = None;
        let mut at = 0;
        while wanted > 0 && at < end {
            let first = self.next(at, end, false);
            at = self.next(first, end, true);
            let count = (at - first).min(wanted);
            if count > longest.map_or(0, |run| run.count) {
                longest = Some(Run { first, count });
                if count == wanted {
                    break;
                }
            }
        }
        longest
    }

    /// The first unit from `from` on and before `end` that is plugged or unplugged, as `is_plugged`
    /// says; `end` if there is none.
    fn next(&self, from: u32, end: u32, is_plugged: bool) -> u32 {
        let mut at = from;
        while at < end {
            let page = self.directory.get((at / PAGE_BITS) as usize).and_then(Option::as_ref);
            let Some(page) = page else {
                if !is_plugged {
                    return at;
                }
                at = (at / PAGE_BITS + 1).saturating_mul(PAGE_BITS);
                continue;
            };
            let word = page.get(word_index(at)).copied().unwrap_or(0);
            let wanted = if is_plugged { word } else { !word } >> (at % WORD_BITS);
            if wanted != 0 {
                return (at + wanted.trailing_zeros()).min(end);
            }
            at = (at / WORD_BITS + 1).saturating_mul(WORD_BITS);
        }
        end
    }

    fn word_mut(&mut self, unit: u32) -> Option<&mut u64> {
        let page = self.directory.get_mut((unit / PAGE_BITS) as usize)?;
        page.as_mut()?.get_mut(word_index(unit))
    }
}

/// The index of the word that holds a unit's bit in its page.
const fn word_index(unit: u32) -> usize {
    (unit % PAGE_BITS / WORD_BITS) as usize
}

/// A mask of the units from `at` on and before `end` in one word, and the first unit after them.
fn mask(at: u32, end: u32) -> (u64, u32) {
    let next = (at / WORD_BITS + 1).saturating_mul(WORD_BITS).min(end);
    let count = next - at;
    let ones = if count == WORD_BITS { u64::MAX } else { (1 << count) - 1 };
    (ones << (at % WORD_BITS), next)
}
