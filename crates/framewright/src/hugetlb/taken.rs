//! Pages that are in no list, and where they lie.

use crate::block::PageList;
use crate::units::PfnRange;
use crate::zone::ZoneKind;

/// Runs that are told apart.
const RUNS: usize = 16;

/// Pages of one size and node that are in no list: a list for each of the node's zones.
pub(crate) struct Taken {
    pub(crate) lists: [PageList; ZoneKind::COUNT],
    /// Where they are, if that is in few pieces: else one has to follow their chains.
    runs: [(PfnRange, ZoneKind); RUNS],
    used: usize,
    /// The runs are not all pages.
    lost: bool,
}

impl Taken {
    pub(crate) const NONE: Self = Self {
        lists: [PageList::EMPTY; ZoneKind::COUNT],
        runs: [(PfnRange::new(0, 0), ZoneKind::Dma); RUNS],
        used: 0,
        lost: false,
    };

    pub(crate) fn pages(&self) -> u64 {
        self.lists.iter().map(PageList::pages).sum()
    }

    /// Records where pages are that join a list. Nothing for pages of which nobody knows.
    pub(crate) fn note(&mut self, kind: ZoneKind, frames: Option<PfnRange>) {
        let Some(frames) = frames else {
            self.lost = true;
            return;
        };
        if let Some((last, of)) = self.used.checked_sub(1).and_then(|last| self.runs.get_mut(last))
            && *of == kind
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
                *run = (frames, kind);
                self.used += 1;
            }
            None => self.lost = true,
        }
    }

    /// Where the pages of a zone are, in no order; nothing when that is not known.
    pub(crate) fn runs(
        &self,
        kind: ZoneKind,
    ) -> Option<impl Iterator<Item = PfnRange> + Clone + '_> {
        let runs = self.runs.get(..self.used).filter(|_| !self.lost)?;
        Some(runs.iter().filter(move |(_, of)| *of == kind).map(|&(run, _)| run))
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
        for (start, end, kind) in [
            (8, 10, ZoneKind::Normal),
            (10, 12, ZoneKind::Normal),
            (6, 8, ZoneKind::Normal),
            (4, 6, ZoneKind::Dma32),
        ] {
            taken.note(kind, Some(PfnRange::new(start, end)));
        }
        assert_eq!(runs(&taken, ZoneKind::Normal), Some(std::vec![(6, 12)]));
        assert_eq!(runs(&taken, ZoneKind::Dma32), Some(std::vec![(4, 6)]));
        for more in 0..RUNS as u64 - 2 {
            taken.note(ZoneKind::Normal, Some(PfnRange::new(100 + 2 * more, 101 + 2 * more)));
        }
        assert_eq!(runs(&taken, ZoneKind::Normal).map(|runs| runs.len()), Some(RUNS - 1));
        taken.note(ZoneKind::Normal, Some(PfnRange::new(1000, 1001)));
        assert_eq!(runs(&taken, ZoneKind::Normal), None);
        let mut other = Taken::NONE;
        other.note(ZoneKind::Normal, None);
        assert_eq!(runs(&other, ZoneKind::Normal), None);
    }
}
