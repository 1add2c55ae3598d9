//! A sorted, disjoint, joined array of regions (invariant 14).
//!
//! Nothing here allocates or fails. A caller that wants to change a set first asks how many entries
//! the change takes, makes room for them, and then changes the set.

use super::region::Region;
use super::storage::GrownArray;
use crate::units::PhysRange;

/// The regions of [`MemblockStorage`](super::MemblockStorage) in each set, which fit without
/// growing.
pub(super) const FIXED_REGIONS: usize = 128;

/// Room that growing leaves beyond what was asked for. Growing itself adds and splits regions of
/// the reserved set, and a freed array may open a hole in the range that is being covered. Each of
/// the two arrays can do each of the three once.
const SLACK: usize = 6;

/// See the module documentation.
pub(super) struct RegionSet<'a> {
    fixed: &'a mut [Region],
    grown: Option<GrownArray>,
    len: usize,
}

impl<'a> RegionSet<'a> {
    /// Makes an empty set. The first regions go to `fixed`, whatever is in it.
    pub const fn new(fixed: &'a mut [Region]) -> Self {
        Self { fixed, grown: None, len: 0 }
    }

    /// Returns the grown array, if there is one.
    fn grown(&self) -> Option<&GrownArray> {
        self.grown.as_ref().filter(|_| cfg!(feature = "large-maps"))
    }

    /// Returns the regions, ascending.
    pub fn regions(&self) -> &[Region] {
        let entries: &[Region] = self.grown().map_or(&*self.fixed, |grown| &*grown.entries);
        &entries[..self.len]
    }

    /// Returns the first region that overlaps `range` and for which `is_one` is true.
    pub fn first_in(&self, range: PhysRange, is_one: &dyn Fn(&Region) -> bool) -> Option<&Region> {
        let regions = self.regions();
        let first = regions.partition_point(|region| region.range.end <= range.start);
        let before_end = |region: &&Region| region.range.start < range.end;
        regions[first..].iter().take_while(before_end).find(|region| is_one(region))
    }

    /// Returns the bytes in all regions.
    pub fn bytes(&self) -> u64 {
        self.regions().iter().map(|region| region.range.size()).sum()
    }

    /// Returns where the grown array is; empty if there is none.
    pub fn storage(&self) -> PhysRange {
        self.grown().map_or(PhysRange::default(), |grown| grown.range)
    }

    /// Returns whether there is a grown array.
    pub fn has_grown(&self) -> bool {
        self.grown().is_some()
    }

    /// Returns where the grown array is if its bytes are free after its use; otherwise empty.
    pub fn free_storage(&self) -> PhysRange {
        self.grown().filter(|grown| !grown.kept).map_or(PhysRange::default(), |grown| grown.range)
    }

    /// Notes that `range` is reserved by somebody else too: if the array lies in it, its bytes stay
    /// reserved after it.
    pub fn keep_storage_in(&mut self, range: PhysRange) {
        if !cfg!(feature = "large-maps") {
            return;
        }
        if let Some(grown) = &mut self.grown {
            grown.kept |= !grown.range.intersection(range).is_empty();
        }
    }

    /// Returns nothing if `extra` more regions fit, otherwise the enlarged capacity in which they
    /// will: the present one, doubled as often as necessary.
    pub fn capacity_to_grow_to(&self, extra: usize) -> Option<usize> {
        let capacity = self.grown().map_or(self.fixed.len(), |grown| grown.entries.len());
        (self.len.saturating_add(extra) > capacity).then(|| {
            let wanted = self.len.saturating_add(extra).saturating_add(SLACK);
            let mut larger = capacity.saturating_mul(2);
            while larger < wanted {
                larger = larger.saturating_mul(2);
            }
            larger
        })
    }

    /// Moves all regions to `array`, which is larger. Returns the bytes of the previous array if
    /// they are to be freed.
    pub fn move_to(&mut self, array: GrownArray) -> Option<PhysRange> {
        for (to, from) in array.entries.iter_mut().zip(self.regions()) {
            *to = *from;
        }
        let old = self.grown.replace(array)?;
        (!old.kept).then_some(old.range)
    }

    /// Forgets everything. Returns the bytes of the array; empty if there was none or if they must
    /// stay reserved.
    pub fn clear(&mut self) -> PhysRange {
        self.len = 0;
        self.grown
            .take()
            .filter(|grown| !grown.kept)
            .map_or(PhysRange::default(), |grown| grown.range)
    }

    /// Returns a number of additional regions for which room is enough to call [`Self::cover`] with
    /// the same arguments.
    pub fn room_to_cover(&self, new: &Region) -> usize {
        // Covering adds at most one region before, between and behind the existing ones.
        if self.len < self.fixed.len() / 2 { 0 } else { self.extra_to_cover(new) }
    }

    /// Returns how many regions [`Self::cover`] will add with the same arguments.
    pub fn extra_to_cover(&self, new: &Region) -> usize {
        let (mut more, mut fewer) = (0_usize, 0_usize);
        let mut position = new.range.start;
        while position < new.range.end
            && let Some((index, gap)) = self.gap(position, new.range.end)
        {
            match self.joins(index, gap, new) {
                (false, false) => more += 1,
                (true, true) => fewer += 1,
                _ => {}
            }
            position = gap.end;
        }
        more.saturating_sub(fewer)
    }

    /// [`cover`](Self::cover) for the case that no region lies at or behind `new`, which is not
    /// empty, and no array has to grow. It takes few instructions, because whole machines become
    /// known this way. Returns false, and does nothing, in any other case.
    pub fn append(&mut self, new: &Region) -> bool {
        if new.range.is_empty() || self.grown().is_some() {
            return false;
        }
        if let Some(last) = self.fixed[..self.len].last_mut() {
            if last.range.end > new.range.start {
                return false;
            }
            if last.range.end == new.range.start && last.is_like(new) {
                last.range.end = new.range.end;
                return true;
            }
        }
        let Some(place) = self.fixed.get_mut(self.len) else { return false };
        *place = *new;
        self.len += 1;
        true
    }

    /// Turns the parts of `new.range` that no region covers into regions like `new`, joined to
    /// neighbours of the same kind. There must be room for [`Self::extra_to_cover`] more regions.
    pub fn cover(&mut self, new: &Region) {
        // Nearly always no part of the range is covered yet.
        match self.gap(new.range.start, new.range.end) {
            Some((index, gap)) if gap == new.range => return self.fill(index, gap, new, false),
            _ => {}
        }
        // Gaps that join a neighbour never need an entry and may free one, so they go first: on the
        // way the array is never longer than the longer of its lengths before and after.
        for joining in [true, false] {
            let mut position = new.range.start;
            while let Some((index, gap)) = self.gap(position, new.range.end) {
                position = gap.end;
                self.fill(index, gap, new, joining);
            }
        }
    }

    /// Turns a gap before the region at `index` into a region like `new`. With `only_joining`, does
    /// nothing if the gap joins no neighbour.
    fn fill(&mut self, index: usize, gap: PhysRange, new: &Region, only_joining: bool) {
        let joins = self.joins(index, gap, new);
        let entries = self.entries();
        match joins {
            (true, true) => {
                entries[index - 1].range.end = entries[index].range.end;
                self.delete(index, index + 1);
            }
            (true, false) => entries[index - 1].range.end = gap.end,
            (false, true) => entries[index].range.start = gap.start,
            (false, false) if only_joining => {}
            (false, false) => self.insert(index, Region { range: gap, ..*new }),
        }
    }

    /// Returns how many regions [`Self::uncover`] will add with the same range: one if it cuts a
    /// hole.
    pub fn extra_to_uncover(&self, range: PhysRange) -> usize {
        let index = self.regions().partition_point(|region| region.range.end <= range.start);
        let hole = self.regions().get(index).filter(|region| {
            !range.is_empty() && region.range.start < range.start && range.end < region.range.end
        });
        usize::from(hole.is_some())
    }

    /// Returns whether any byte of `range` is in a region.
    pub fn touches(&self, range: PhysRange) -> bool {
        let index = self.regions().partition_point(|region| region.range.end <= range.start);
        self.regions().get(index).is_some_and(|region| region.range.start < range.end)
    }

    /// Takes `range` out of all regions. There must be room for [`Self::extra_to_uncover`] more
    /// regions.
    pub fn uncover(&mut self, range: PhysRange) {
        let mut first = self.regions().partition_point(|region| region.range.end <= range.start);
        let mut end = self.regions().partition_point(|region| region.range.start < range.end);
        if range.is_empty() || first >= end {
            return;
        }
        if self.extra_to_uncover(range) > 0 {
            let whole = self.entries()[first];
            self.insert(
                first + 1,
                Region { range: PhysRange::new(range.end, whole.range.end), ..whole },
            );
            self.entries()[first].range.end = range.start;
            return;
        }
        let entries = self.entries();
        if entries[first].range.start < range.start {
            entries[first].range.end = range.start;
            first += 1;
        }
        if first < end && entries[end - 1].range.end > range.end {
            entries[end - 1].range.start = range.end;
            end -= 1;
        }
        self.delete(first, end);
    }

    /// Returns the first run between `position` and `end` that no region covers, and the index of
    /// the region after it.
    fn gap(&self, position: u64, end: u64) -> Option<(usize, PhysRange)> {
        let regions = self.regions();
        // Most ranges come in ascending order.
        if regions.last().is_none_or(|last| last.range.end <= position) {
            return (position < end).then(|| (regions.len(), PhysRange::new(position, end)));
        }
        let mut start = position;
        let mut index = regions.partition_point(|region| region.range.end <= start);
        while let Some(region) = regions.get(index)
            && region.range.start <= start
        {
            start = region.range.end;
            index += 1;
        }
        let gap_end = regions.get(index).map_or(end, |region| region.range.start.min(end));
        (start < gap_end).then(|| (index, PhysRange::new(start, gap_end)))
    }

    /// Returns whether a region like `new` in `gap` would join the region below it, and the one at
    /// `index` above it.
    fn joins(&self, index: usize, gap: PhysRange, new: &Region) -> (bool, bool) {
        let regions = self.regions();
        let below = index.checked_sub(1).and_then(|below| regions.get(below));
        (
            below.is_some_and(|below| below.range.end == gap.start && below.is_like(new)),
            regions
                .get(index)
                .is_some_and(|above| above.range.start == gap.end && above.is_like(new)),
        )
    }

    /// Returns all entries, including those not in use.
    fn entries(&mut self) -> &mut [Region] {
        match &mut self.grown {
            Some(grown) if cfg!(feature = "large-maps") => grown.entries,
            _ => &mut *self.fixed,
        }
    }

    fn insert(&mut self, index: usize, region: Region) {
        let len = self.len;
        let entries = self.entries();
        entries.copy_within(index..len, index + 1);
        entries[index] = region;
        self.len += 1;
    }

    fn delete(&mut self, first: usize, end: usize) {
        let len = self.len;
        self.entries().copy_within(end..len, first);
        self.len -= end - first;
    }
}
