//! Runs of split blocks that the hypervisor holds.
//!
//! The free map calls them allocated. They are recorded here so that freeing such a run by mistake
//! is detected, as it is for any other free memory.

use super::list::NONE;
use core::ops::Range;

/// The most runs that are out at once, which is what one call to a device may hold.
pub(crate) const MOST_IN_FLIGHT: usize = 32;

#[derive(Clone, Copy)]
struct Run {
    index: u32,
    start: u16,
    order: u8,
}

impl Run {
    const NONE: Self = Self { index: NONE, start: 0, order: 0 };

    fn frames(self) -> Range<usize> {
        let start = usize::from(self.start);
        start..start + (1 << self.order)
    }
}

/// See the module documentation. Changed under the zone lock only.
pub(crate) struct InFlight {
    runs: [Run; MOST_IN_FLIGHT],
    count: usize,
}

impl InFlight {
    pub(crate) const EMPTY: Self = Self { runs: [Run::NONE; MOST_IN_FLIGHT], count: 0 };

    /// Records a run; false if there is no room.
    pub(crate) fn add(&mut self, index: u32, start: usize, order: u8) -> bool {
        match (self.runs.get_mut(self.count), u16::try_from(start)) {
            (Some(run), Ok(start)) => {
                *run = Run { index, start, order };
                self.count += 1;
                true
            }
            _ => false,
        }
    }

    /// Removes a run that is back. Returns whether it was out, and whether more of its block still
    /// is.
    pub(crate) fn remove(&mut self, index: u32, start: usize) -> (bool, bool) {
        let out = &self.runs[..self.count];
        let Some(place) =
            out.iter().position(|run| run.index == index && usize::from(run.start) == start)
        else {
            return (false, self.pages_of(index) != 0);
        };
        self.count -= 1;
        self.runs.swap(place, self.count);
        (true, self.pages_of(index) != 0)
    }

    /// Returns the number of a block's pages that are out.
    pub(crate) fn pages_of(&self, index: u32) -> u64 {
        if !cfg!(feature = "reporting") {
            return 0;
        }
        self.runs[..self.count]
            .iter()
            .filter(|run| run.index == index)
            .map(|run| 1_u64 << run.order)
            .sum()
    }

    /// Returns the first frame of `range` in a block that is out.
    pub(crate) fn first_in(&self, index: u32, range: &Range<usize>) -> Option<usize> {
        if !cfg!(feature = "reporting") {
            return None;
        }
        let runs =
            self.runs[..self.count].iter().filter(|run| run.index == index).map(|run| run.frames());
        runs.filter(|frames| frames.start < range.end && range.start < frames.end)
            .map(|frames| frames.start.max(range.start))
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_go_out_and_come_back_one_by_one() {
        let mut runs = InFlight::EMPTY;
        assert!(runs.add(7, 0, 4) && runs.add(7, 64, 5) && runs.add(8, 0, 8));
        assert_eq!((runs.pages_of(7), runs.pages_of(8), runs.pages_of(9)), (48, 256, 0));
        assert_eq!(runs.first_in(7, &(10..70)), Some(10));
        assert_eq!(runs.first_in(7, &(16..64)), None);
        assert_eq!(runs.first_in(7, &(16..65)), Some(64));
        assert_eq!(runs.remove(7, 0), (true, true));
        assert_eq!(runs.remove(7, 0), (false, true));
        assert_eq!(runs.remove(7, 64), (true, false));
        assert_eq!(runs.first_in(8, &(255..512)), Some(255));
        for run in 1..MOST_IN_FLIGHT {
            assert!(runs.add(9, run, 0));
        }
        assert!(!runs.add(9, 0, 0), "no more than fit");
    }
}
