//! The memory that has been added: ascending ranges of frames, none of which touches another.

use super::AddError;
use crate::units::PfnRange;

/// See the module documentation.
#[derive(Clone, Copy)]
pub(super) struct Ranges<const MOST: usize> {
    ranges: [PfnRange; MOST],
    len: usize,
}

/// Where a new range belongs among the others.
#[derive(Clone, Copy)]
pub(super) struct Place {
    index: usize,
    /// The new range begins where the one before it ends.
    joins_before: bool,
    /// The new range ends where the one behind it begins.
    pub(super) joins_behind: bool,
}

impl<const MOST: usize> Ranges<MOST> {
    pub(super) const EMPTY: Self = Self { ranges: [PfnRange::new(0, 0); MOST], len: 0 };

    pub(super) fn all(&self) -> &[PfnRange] {
        &self.ranges[..self.len]
    }

    /// Returns the gaps between ranges that have at most `most_pages`.
    pub(super) fn gaps(&self, most_pages: u64) -> impl Iterator<Item = PfnRange> {
        let between =
            self.all().windows(2).map(|two| PfnRange { start: two[0].end, end: two[1].start });
        between.filter(move |gap| gap.pages() <= most_pages)
    }

    /// Returns where `new`, which is not empty, belongs.
    pub(super) fn place_of(&self, new: PfnRange) -> Result<Place, AddError> {
        let all = self.all();
        // Searches from the end, as most ranges come in ascending order.
        let index = all.iter().rposition(|range| range.end <= new.start).map_or(0, |at| at + 1);
        let (before, behind) = (index.checked_sub(1).and_then(|at| all.get(at)), all.get(index));
        if let Some(behind) = behind.filter(|behind| behind.start < new.end) {
            return Err(AddError::Overlaps(behind.intersection(new)));
        }
        let place = Place {
            index,
            joins_before: before.is_some_and(|before| before.end == new.start),
            joins_behind: behind.is_some_and(|behind| behind.start == new.end),
        };
        if self.len == MOST && !place.joins_before && !place.joins_behind {
            return Err(AddError::Full(new));
        }
        Ok(place)
    }

    /// Inserts a range at its place.
    pub(super) fn insert(&mut self, place: Place, new: PfnRange) {
        let Place { index, joins_before, joins_behind } = place;
        match (joins_before, joins_behind) {
            (true, true) => {
                self.ranges[index - 1].end = self.ranges[index].end;
                self.ranges.copy_within(index + 1..self.len, index);
                self.len -= 1;
            }
            (true, false) => self.ranges[index - 1].end = new.end,
            (false, true) => self.ranges[index].start = new.start,
            (false, false) => {
                self.ranges.copy_within(index..self.len, index + 1);
                self.ranges[index] = new;
                self.len += 1;
            }
        }
    }

    pub(super) fn add(&mut self, new: PfnRange) -> Result<(), AddError> {
        // Most ranges come in ascending order, for which this is all.
        if self.all().last().is_none_or(|last| last.end < new.start)
            && let Some(place) = self.ranges.get_mut(self.len)
        {
            *place = new;
            self.len += 1;
            return Ok(());
        }
        let place = self.place_of(new)?;
        self.insert(place, new);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    fn range(start: u64, end: u64) -> PfnRange {
        PfnRange::new(start, end)
    }

    #[test]
    fn what_touches_is_one_and_what_overlaps_is_refused() {
        let mut ranges = Ranges::<3>::EMPTY;
        for (start, end) in [(50, 60), (10, 20), (30, 40)] {
            ranges.add(range(start, end)).expect("room");
        }
        assert_eq!(ranges.all(), [range(10, 20), range(30, 40), range(50, 60)]);
        assert_eq!(ranges.add(range(70, 80)), Err(AddError::Full(range(70, 80))));
        assert_eq!(ranges.add(range(15, 35)), Err(AddError::Overlaps(range(15, 20))));
        assert_eq!(ranges.add(range(0, 90)), Err(AddError::Overlaps(range(10, 20))));
        assert_eq!(ranges.add(range(59, 61)), Err(AddError::Overlaps(range(59, 60))));
        ranges.add(range(40, 45)).expect("it touches");
        ranges.add(range(48, 50)).expect("it touches");
        assert_eq!(ranges.gaps(3).collect::<Vec<_>>(), [range(45, 48)]);
        assert_eq!(ranges.gaps(10).collect::<Vec<_>>(), [range(20, 30), range(45, 48)]);
        ranges.add(range(45, 48)).expect("it touches twice");
        assert_eq!(ranges.all(), [range(10, 20), range(30, 60)]);
        ranges.add(range(70, 80)).expect("there is room again");
    }

    #[test]
    fn any_order_of_pages_gives_the_same() {
        let mut state = 1_u64;
        for _ in 0..200 {
            let mut ranges = Ranges::<64>::EMPTY;
            let mut added = BTreeSet::new();
            for _ in 0..80 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (start, len) = ((state >> 40) % 60, 1 + (state >> 50) % 4);
                let is_new = (start..start + len).all(|page| !added.contains(&page));
                assert_eq!(ranges.add(range(start, start + len)).is_ok(), is_new);
                if is_new {
                    added.extend(start..start + len);
                }
            }
            let all: BTreeSet<_> =
                ranges.all().iter().flat_map(|it| it.start.0..it.end.0).collect();
            assert_eq!(all, added);
            assert!(ranges.all().windows(2).all(|two| two[0].end < two[1].start), "joined");
        }
    }
}
