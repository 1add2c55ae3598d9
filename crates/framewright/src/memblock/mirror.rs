//! Mirrored memory: marks it, and prefers it for allocations if that is wanted (Linux:
//! `mm/memblock.c`, `memblock_mark_mirror` and `choose_memblock_flags`).

use super::Memblock;
use super::error::MemblockError;
use super::region::{Region, RegionFlags};
use crate::platform::Platform;
use crate::units::{PHYSICAL_ADDRESS_END, PhysRange};

/// The regions that the memory set gains when a part of one gets a mark.
const MORE_MEMORY: usize = 2;

impl<P: Platform> Memblock<'_, P> {
    /// Marks the whole frames of memory in `range` as mirrored: memory that the machine stores
    /// twice or protects equally well (EFI_MEMORY_MORE_RELIABLE). Call it for each such range
    /// before the first allocation. Addresses without memory are not affected. Bring-up clears the
    /// marks unless `kernelcore=mirror` was given; until then a search does not find a run across
    /// the border of a mark.
    ///
    /// # Errors
    /// [`MemblockError::NoRoomToGrow`], [`MemblockError::MisalignedDirectMap`],
    /// [`MemblockError::Discarded`]; nothing has changed.
    pub fn mark_mirrored(&mut self, range: PhysRange) -> Result<(), MemblockError> {
        self.check_live()?;
        // The fields are public, so the end may lie before the start.
        let end = range.end.min(PHYSICAL_ADDRESS_END);
        let range = PhysRange::new(range.start.min(end), end).whole_frames().to_phys();
        self.make_room(MORE_MEMORY, 0, &[])?;
        let mut rest = range;
        while let Some(new) = self.first_unmarked(rest) {
            rest.start = new.range.end;
            self.memory.uncover(new.range);
            self.memory.cover(&new);
            self.mirror.any = true;
        }
        Ok(())
    }

    /// Clears all marks, so that they divide no run.
    pub(crate) fn forget_mirrored(&mut self) {
        while self.mirror.any {
            let is_marked = |region: &&Region| region.flags.contains(RegionFlags::MIRRORED);
            let Some(&marked) = self.memory.regions().iter().find(is_marked) else {
                self.mirror.any = false;
                break;
            };
            // This adds no region: the changed one joins its neighbours or stays one.
            self.memory.uncover(marked.range);
            let flags = marked.flags.without(RegionFlags::MIRRORED);
            self.memory.cover(&Region { flags, ..marked });
        }
    }

    /// Returns the first part of `range` that is memory of one region without the mark, as a region
    /// that has the mark.
    fn first_unmarked(&self, range: PhysRange) -> Option<Region> {
        if range.is_empty() {
            return None;
        }
        let is_unmarked = |region: &Region| !region.flags.contains(RegionFlags::MIRRORED);
        let found = self.memory.first_in(range, &is_unmarked)?;
        let flags = found.flags.union(RegionFlags::MIRRORED);
        Some(Region { range: found.range.intersection(range), flags, ..*found })
    }

    /// Sets whether to hand out mirrored memory first, as long as there is some. Otherwise it is
    /// memory like any other. Bring-up sets this with `kernelcore=mirror`. Needs the feature
    /// `moving`.
    pub fn set_mirrored_first(&mut self, first: bool) {
        self.mirror.first = first;
    }

    /// Returns the bytes that were allocated outside mirrored memory, though that was wanted
    /// [first](Self::set_mirrored_first) and there was some.
    #[must_use]
    pub const fn unmirrored_bytes(&self) -> u64 {
        self.mirror.failed_bytes
    }

    /// Returns whether searches begin with mirrored memory only.
    pub(super) const fn prefers_mirrored(&self) -> bool {
        cfg!(feature = "moving") && self.mirror.first && self.mirror.any
    }

    /// Returns, for each successive search, whether to look into mirrored memory only.
    pub(super) const fn mirrored(&self) -> &'static [bool] {
        if self.prefers_mirrored() { &[true, false] } else { &[false] }
    }

    /// Counts an allocation that should be mirrored and is not.
    pub(super) fn note_unmirrored(&mut self, range: PhysRange) {
        if self.prefers_mirrored() && self.first_unmarked(range).is_some() {
            self.mirror.failed_bytes = self.mirror.failed_bytes.saturating_add(range.size());
        }
    }

    /// Calls `sink` for all mirrored memory, ascending. Ranges that touch are reported as one.
    pub(crate) fn for_each_mirrored(&self, sink: &mut dyn FnMut(PhysRange)) {
        let mut last = PhysRange::default();
        for region in self.memory.regions() {
            if !region.flags.contains(RegionFlags::MIRRORED) {
                continue;
            }
            if region.range.start == last.end {
                last.end = region.range.end;
                continue;
            }
            if !last.is_empty() {
                sink(last);
            }
            last = region.range;
        }
        if !last.is_empty() {
            sink(last);
        }
    }
}
