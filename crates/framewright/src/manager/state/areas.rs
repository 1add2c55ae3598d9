//! Reserve areas: their names, and which of their frames were handed out.
//!
//! Each area has a lock of its own, which a caller holds while it looks at the area's bitmap. The
//! bitmap has a bit for each frame, which is set from before the frame is vacated until the frame
//! is released.
//!
//! Orders of memory: Relaxed: the bitmap is under the lock.

use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::units::{Order, Pfn, PfnRange};

/// The largest possible number of areas.
pub const MOST_AREAS: usize = 20;
/// The most bytes that a name can have.
const NAME_BYTES: usize = 16;
/// How many bitmap words a search looks at under one hold of the lock; it looks at the run that
/// reaches this limit to the end.
const MOST_WORDS: u64 = 4096;

/// The name of an area: up to 16 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AreaName {
    bytes: [u8; NAME_BYTES],
    len: u8,
}

impl AreaName {
    /// Returns a name of 1 to 16 bytes of printable ASCII without a slash; `None` for any other
    /// text.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let fits = name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
        let mut bytes = [0; NAME_BYTES];
        bytes.get_mut(..name.len())?.copy_from_slice(name.as_bytes());
        let len = u8::try_from(name.len()).ok()?;
        (fits && len != 0).then_some(Self { bytes, len })
    }

    /// Returns `name` followed by `number`, which is a node's.
    pub(crate) fn numbered(name: &str, number: usize) -> Option<Self> {
        let mut numbered = Self::new(name)?;
        for unit in [1000, 100, 10, 1].into_iter().filter(|&unit| unit == 1 || number >= unit) {
            let digit = u8::try_from(number / unit % 10).ok()?;
            *numbered.bytes.get_mut(usize::from(numbered.len))? = b'0' + digit;
            numbered.len += 1;
        }
        Some(numbered)
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or("")
    }
}

/// What an area has done and what is left of it (Linux: `/sys/kernel/mm/cma/`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AreaCounts {
    /// Frames of the area.
    pub total_pages: u64,
    /// Those of them that the area has not handed out; they may hold movable contents.
    pub available_pages: u64,
    /// Frames of requests that succeeded.
    pub success_pages: u64,
    /// Frames of requests that failed.
    pub fail_pages: u64,
    /// Frames that were given back.
    pub released_pages: u64,
}

/// One area; its lock protects it.
pub(crate) struct Area {
    pub(crate) name: AreaName,
    pub(crate) pages: PfnRange,
    /// A bit for each frame, set if the frame was handed out or is about to be.
    bits: &'static [AtomicU64],
    pub(crate) counts: AreaCounts,
    /// How many callers are vacating frames of the area right now.
    pub(crate) vacating: u32,
    /// How many callers have ever begun to.
    entered: u64,
}

impl Area {
    /// Returns an area that is wholly available. `bits` are all zero, at least one for each frame.
    pub(crate) fn new(name: AreaName, pages: PfnRange, bits: &'static [AtomicU64]) -> Self {
        let counts = AreaCounts {
            total_pages: pages.pages(),
            available_pages: pages.pages(),
            ..AreaCounts::default()
        };
        Self { name, pages, bits, counts, vacating: 0, entered: 0 }
    }

    /// Notes that a caller is going to vacate frames of the area.
    pub(crate) const fn enter(&mut self) {
        (self.vacating, self.entered) = (self.vacating + 1, self.entered + 1);
    }

    /// Returns a ticket if exactly one caller is vacating frames of the area. The ticket stays the
    /// same until another caller enters, even if that one has left again.
    pub(crate) fn alone(&self) -> Option<u64> {
        (self.vacating == 1).then_some(self.entered)
    }

    /// Calls `change` for each word that has bits of `run`, with a mask of these bits, until it
    /// returns false. Returns whether it never did.
    fn words(&self, run: PfnRange, mut change: impl FnMut(&AtomicU64, u64) -> bool) -> bool {
        let (mut bit, end) = (run.start.0 - self.pages.start.0, run.end.0 - self.pages.start.0);
        while bit < end {
            let Some(word) = usize::try_from(bit / 64).ok().and_then(|word| self.bits.get(word))
            else {
                return false;
            };
            let upto = (bit / 64 * 64 + 64).min(end);
            let mask = (u64::MAX >> (64 - (upto - bit))) << (bit % 64);
            if !change(word, mask) {
                return false;
            }
            bit = upto;
        }
        true
    }

    /// Returns the lowest aligned run at or above `from` of which no frame was handed out, if there
    /// is one. An error says where to continue after others have had the lock.
    pub(crate) fn find(
        &self,
        from: Pfn,
        pages: u64,
        align: Order,
    ) -> Result<Option<PfnRange>, Pfn> {
        let mut start = from.max(self.pages.start);
        let mut looked = 0;
        loop {
            let aligned = start.0.checked_next_multiple_of(align.pages());
            let Some((aligned, end)) =
                aligned.and_then(|start| Some((start, start.checked_add(pages)?)))
            else {
                return Ok(None);
            };
            start = Pfn(aligned);
            if end > self.pages.end.0 {
                return Ok(None);
            }
            if looked >= MOST_WORDS {
                return Err(start);
            }
            let run = PfnRange::new(aligned, end);
            let mut taken = None;
            let mut at = aligned;
            self.words(run, |word, mask| {
                looked += 1;
                let all = word.load(Ordering::Relaxed);
                let set = all & mask;
                if set != 0 {
                    let base = (at - self.pages.start.0) / 64 * 64 + self.pages.start.0;
                    // Skip the set bits that follow it, too.
                    let last = set.ilog2();
                    taken = Some(base + u64::from(last + (all >> last).trailing_ones() - 1));
                }
                at += u64::from(mask.count_ones());
                set == 0
            });
            match taken {
                None => return Ok(Some(run)),
                Some(last) => start = Pfn(last + 1),
            }
        }
    }

    /// Marks a run as handed out, or as available again. As others must not find the run between,
    /// this takes a step for each 64 frames of it: 4096 for a GiB.
    pub(crate) fn mark(&mut self, run: PfnRange, out: bool) {
        self.words(run, |word, mask| {
            let old = word.load(Ordering::Relaxed);
            word.store(if out { old | mask } else { old & !mask }, Ordering::Relaxed);
            true
        });
        if out {
            self.counts.available_pages -= run.pages();
        } else {
            self.counts.available_pages += run.pages();
        }
    }

    /// Takes back a run that was handed out.
    pub(crate) fn take_back(&mut self, run: PfnRange) {
        self.mark(run, false);
        self.counts.released_pages += run.pages();
    }

    /// Returns whether all of a run was handed out.
    pub(crate) fn is_out(&self, run: PfnRange) -> bool {
        !run.is_empty()
            && run.start >= self.pages.start
            && run.end <= self.pages.end
            && self.words(run, |word, mask| word.load(Ordering::Relaxed) & mask == mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn area(pages: PfnRange) -> Area {
        let words = pages.pages().div_ceil(64);
        let bits: Vec<AtomicU64> = (0..words).map(|_| AtomicU64::new(0)).collect();
        Area::new(AreaName::new("one").expect("a name"), pages, bits.leak())
    }

    #[test]
    fn who_was_alone_learns_of_others_that_came_and_went() {
        let mut area = area(PfnRange::new(512, 1024));
        assert_eq!(area.alone(), None);
        area.enter();
        let before = area.alone();
        assert!(before.is_some() && before == area.alone());
        area.enter();
        assert_eq!(area.alone(), None);
        area.vacating -= 1;
        assert!(area.alone().is_some() && before != area.alone());
    }

    fn place(pfn: u64) -> usize {
        usize::try_from(pfn - 512).expect("small")
    }

    #[test]
    fn runs_are_found_as_a_model_finds_them() {
        let pages = PfnRange::new(512, 512 + 700);
        let mut area = area(pages);
        let mut model = [false; 700];
        let mut seed = 3_u64;
        for _ in 0..4000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (size, of) = (1 + (seed >> 40) % 90, u8::try_from(seed >> 60).expect("small") % 7);
            let align = Order::new(of).expect("small");
            let free = |start: u64| (start..start + size).all(|at| !model[place(at)]);
            let expected = (512..=1212 - size)
                .find(|&start| start.is_multiple_of(align.pages()) && free(start))
                .map(|start| PfnRange::new(start, start + size));
            assert_eq!(area.find(Pfn(0), size, align), Ok(expected));
            let run = match expected {
                Some(run) if seed >> 33 & 3 != 0 => run,
                _ => {
                    // Gives this run back if all of it is out.
                    let start = 512 + (seed >> 20) % 600;
                    let run = PfnRange::new(start, start + 1 + (seed >> 50) % 100);
                    let inside = run.end.0 <= 1212;
                    let out = inside && (run.start.0..run.end.0).all(|at| model[place(at)]);
                    assert_eq!(area.is_out(run), out);
                    if out {
                        area.mark(run, false);
                        (run.start.0..run.end.0).for_each(|at| model[place(at)] = false);
                    }
                    continue;
                }
            };
            area.mark(run, true);
            (run.start.0..run.end.0).for_each(|at| model[place(at)] = true);
            let left = model.iter().filter(|&&out| !out).count() as u64;
            assert_eq!(area.counts.available_pages, left);
        }
    }

    #[test]
    fn names_are_short_and_have_no_slash() {
        assert!(AreaName::new("").is_none() && AreaName::new("a/b").is_none());
        assert!(AreaName::new("12345678901234567").is_none());
        for (number, expected) in [(0, "numa0"), (7, "numa7"), (63, "numa63"), (1023, "numa1023")] {
            assert_eq!(AreaName::numbered("numa", number).expect("short").as_str(), expected);
        }
        assert!(AreaName::numbered("123456789012", 1023).is_some());
        assert!(AreaName::numbered("1234567890123", 1023).is_none());
    }

    #[test]
    fn a_look_at_a_large_area_is_in_parts() {
        let mut area = area(PfnRange::new(512, 512 + 64 * 3 * MOST_WORDS));
        let free = PfnRange::new(512 + 64 * (2 * MOST_WORDS + 7), 513 + 64 * (2 * MOST_WORDS + 7));
        area.mark(area.pages, true);
        area.mark(free, false);
        let (mut from, mut looks) = (Pfn(0), 1);
        let found = loop {
            match area.find(from, 1, Order::PAGE) {
                Ok(found) => break found,
                Err(next) => (from, looks) = (next, looks + 1),
            }
        };
        assert_eq!((found, looks), (Some(free), 3));
    }
}
