//! Pages that are in no list of a pool, and where they lie.

use crate::block::PageList;
use crate::units::PfnRange;

/// The most runs that are recorded.
const RUNS: usize = 16;
/// The most parts of zones that pages are taken from together. A caller that wants more takes these
/// and then calls again.
const LISTS: usize = 8;

/// Pages of one size and node that are in no list of the pool. Each of some parts of zones has a
/// list here; the parts are numbered as in the manager.
pub(crate) struct Taken {
    lists: [(usize, PageList); LISTS],
    lists_used: usize,
    /// Where the pages are, if in few pieces; otherwise one has to follow their chains.
    runs: [(PfnRange, usize); RUNS],
    used: usize,
    /// Whether the runs do not cover all pages.
    lost: bool,
}

impl Taken {
    pub(crate) const NONE: Self = Self {
        lists: [(0, PageList::EMPTY); LISTS],
        lists_used: 0,
        runs: [(PfnRange::new(0, 0), 0); RUNS],
        used: 0,
        lost: false,
    };

    #[inline(never)]
    pub(crate) fn pages(&self) -> u64 {
        self.lists().map(|(_, list)| list.pages()).sum()
    }

    /// Returns the lists, each with the number of its part.
    pub(crate) fn lists(&self) -> impl Iterator<Item = (usize, PageList)> + '_ {
        self.lists.iter().take(self.lists_used).copied()
    }

    /// [`lists`](Self::lists), with mutable access.
    pub(crate) fn lists_mut(&mut self) -> impl Iterator<Item = (usize, &mut PageList)> {
        self.lists.iter_mut().take(self.lists_used).map(|(part, list)| (*part, list))
    }

    /// Returns the list of a part; none if there is no room for one more.
    pub(crate) fn list(&mut self, part: usize) -> Option<&mut PageList> {
        let known = self.lists().position(|(of, _)| of == part);
        let place = known.unwrap_or(self.lists_used);
        let list = self.lists.get_mut(place)?;
        if known.is_none() {
            *list = (part, PageList::EMPTY);
            self.lists_used += 1;
        }
        Some(&mut list.1)
    }

    /// Returns whether there is room for pages of a part.
    pub(crate) fn has_room(&self, part: usize) -> bool {
        !self.is_full() || self.lists().any(|(of, _)| of == part)
    }

    /// Returns the number of further parts that there is room for.
    pub(crate) const fn room(&self) -> usize {
        LISTS - self.lists_used
    }

    /// Returns whether there is no room for pages of a further part.
    pub(crate) const fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// Records where pages that join a list are; `frames` is nothing if that is unknown.
    pub(crate) fn note(&mut self, part: usize, frames: Option<PfnRange>) {
        let Some(frames) = frames else {
            self.lost = true;
            return;
        };
        if let Some((last, of)) = self.used.checked_sub(1).and_then(|last| self.runs.get_mut(last))
            && *of == part
        {
            if last.end == frames.start {
                last.end = frames.end;
                return;
            }
            if frames.end == last.start {
                last.start = frames.start;
                return;
            }
        }
        match self.runs.get_mut(self.used) {
            Some(run) => {
                *run = (frames, part);
                self.used += 1;
            }
            None => self.lost = true,
        }
    }

    /// Returns where the pages of a part are, in no order; nothing if that is unknown.
    pub(crate) fn runs(&self, part: usize) -> Option<impl Iterator<Item = PfnRange> + Clone + '_> {
        let runs = self.runs.get(..self.used).filter(|_| !self.lost)?;
        Some(runs.iter().filter(move |(_, of)| *of == part).map(|&(run, _)| run))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn runs_join_on_both_sides_and_too_many_are_lost() {
        let mut taken = Taken::NONE;
        let runs = |taken: &Taken, kind| {
            taken
                .runs(kind)
                .map(|runs| runs.map(|run| (run.start.0, run.end.0)).collect::<Vec<_>>())
        };
        for (start, end, kind) in [(8, 10, 2), (10, 12, 2), (6, 8, 2), (4, 6, 1)] {
            taken.note(kind, Some(PfnRange::new(start, end)));
        }
        assert_eq!(runs(&taken, 2), Some(std::vec![(6, 12)]));
        assert_eq!(runs(&taken, 1), Some(std::vec![(4, 6)]));
        for more in 0..RUNS as u64 - 2 {
            taken.note(2, Some(PfnRange::new(100 + 2 * more, 101 + 2 * more)));
        }
        assert_eq!(runs(&taken, 2).map(|runs| runs.len()), Some(RUNS - 1));
        taken.note(2, Some(PfnRange::new(1000, 1001)));
        assert_eq!(runs(&taken, 2), None);
        for part in 0..LISTS {
            assert!(taken.has_room(part) && taken.list(part).is_some(), "{part}");
        }
        assert!(taken.is_full() && !taken.has_room(LISTS) && taken.list(LISTS).is_none());
        assert!(taken.has_room(0) && taken.list(0).is_some());
        let mut other = Taken::NONE;
        other.note(2, None);
        assert_eq!(runs(&other, 2), None);
    }
}
