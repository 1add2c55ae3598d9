//! A sorted, disjoint, joined array of regions (invariant 14).
//!
//! Nothing here allocates or fails. Whoever wants to change a set asks first how many entries that
//! takes, sees to the room, and then changes it.

use super::region::Region;
use super::storage::GrownArray;
use crate::units::PhysRange;

/// Regions that fit without growing.
pub(super) const FIXED_REGIONS: usize = 128;

/// Room that growth leaves beyond what was asked: growing itself adds and splits regions of the
/// reserved set, and a freed array may open a hole in the range that is being covered. Each of the
/// two arrays can do each of the three once.
const SLACK: usize = 6;

/// See the module documentation.
pub(super) struct RegionSet<'a> {
    fixed: &'a mut [Region],
    grown: Option<GrownArray>,
    len: usize,
}

impl<'a> RegionSet<'a> {
    /// No region yet; the first ones go to `fixed`, whatever is in it.
    pub const fn new(fixed: &'a mut [Region]) -> Self {
        Self { fixed, grown: None, len: 0 }
    }

    /// The grown array, if there is one.
    fn grown(&self) -> Option<&GrownArray> {
        self.grown.as_ref().filter(|_| cfg!(feature = "large-maps"))
    }

    /// The regions, ascending.
    pub fn regions(&self) -> &[Region] {
        let entries: &[Region] = self.grown().map_or(&*self.fixed, |grown| &*grown.entries);
        &entries[..self.len]
    }

    /// The first region with a part in `range` that is such a one.
    pub fn first_in(&self, range: PhysRange, is_one: &dyn Fn(&Region) -> bool) -> Option<&Region> {
        let regions = self.regions();
        let first = regions.partition_point(|region| region.range.end <= range.start);
        let before_end = |region: &&Region| region.range.start < range.end;
        regions[first..].iter().take_while(before_end).find(|region| is_one(region))
    }

    /// Bytes in all regions.
    pub fn bytes(&self) -> u64 {
        self.regions().iter().map(|region| region.range.size()).sum()
    }

    /// Where the grown array is; empty when there is none.
    pub fn storage(&self) -> PhysRange {
        self.grown().map_or(PhysRange::default(), |grown| grown.range)
    }

    /// Whether there is a grown array.
    pub fn has_grown(&self) -> bool {
        self.grown().is_some()
    }

    /// Where the grown array is, if its bytes are free after its use; else empty.
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

    /// Nothing when `extra` more regions fit; else the doubled capacity in which they will.
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

    /// Moves all regions to `array`, which is larger. Returns the bytes of the array before it, if
    /// they are free to go.
    pub fn move_to(&mut self, array: GrownArray) -> Option<PhysRange> {
        for (to, from) in array.entries.iter_mut().zip(self.regions()) {
            *to = *from;
        }
        let old = self.grown.replace(array)?;
        (!old.kept).then_some(old.range)
    }

    /// Forgets everything. Returns the bytes of the array, empty when there was none or when they
    /// are not free to go.
    pub fn clear(&mut self) -> PhysRange {
        self.len = 0;
        self.grown
            .take()
            .filter(|grown| !grown.kept)
            .map_or(PhysRange::default(), |grown| grown.range)
    }

    /// Room for so many regions more is enough for [`Self::cover`] with the same arguments.
    pub fn room_to_cover(&self, new: &Region) -> usize {
        // One at most before, between and behind those that there are.
        if self.len < self.fixed.len() / 2 { 0 } else { self.extra_to_cover(new) }
    }

    /// How many regions more there will be after [`Self::cover`] with the same arguments.
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

    /// [`cover`](Self::cover) where nothing is known at or behind `new`, which is not empty, and no
    /// array has to grow: in few instructions, as whole machines are made known so. False, and
    /// nothing was done, where it is not so.
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

    /// Makes the parts of `new.range` that no region covers regions like `new`, joined to
    /// neighbours of the same kind. There is room for [`Self::extra_to_cover`] more regions.
    pub fn cover(&mut self, new: &Region) {
        // Nearly always nothing of it is covered yet.
        match self.gap(new.range.start, new.range.end) {
            Some((index, gap)) if gap == new.range => return self.fill(index, gap, new, false),
            _ => {}
        }
        // Gaps that join a neighbour never need an entry and may set one free, so they go first:
        // the array is then never longer than before or after.
        for joining in [true, false] {
            let mut position = new.range.start;
            while let Some((index, gap)) = self.gap(position, new.range.end) {
                position = gap.end;
                self.fill(index, gap, new, joining);
            }
        }
    }

    /// Makes a gap before the region at `index` a region like `new`; if `only_joining`, nothing
    /// where it joins none.
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

    /// How many regions more there will be after [`Self::uncover`] with the same range: one when it
    /// cuts a hole.
    pub fn extra_to_uncover(&self, range: PhysRange) -> usize {
        let index = self.regions().partition_point(|region| region.range.end <= range.start);
        let hole = self.regions().get(index).filter(|region| {
            !range.is_empty() && region.range.start < range.start && range.end < region.range.end
        });
        usize::from(hole.is_some())
    }

    /// Whether any byte of `range` is in a region.
    pub fn touches(&self, range: PhysRange) -> bool {
        let index = self.regions().partition_point(|region| region.range.end <= range.start);
        self.regions().get(index).is_some_and(|region| region.range.start < range.end)
    }

    /// Takes `range` out of all regions. There is room for [`Self::extra_to_uncover`] more regions.
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

    /// The first run between `position` and `end` that no region covers, and the index of the
    /// region after it.
    fn gap(&self, position: u64, end: u64) -> Option<(usize, PhysRange)> {
        let regions = self.regions();
        // Most come in ascending order.
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

    /// Whether a region like `new` in `gap` would join the region below it, and the one at `index`
    /// above it.
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

    /// All entries, those not in use too.
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
