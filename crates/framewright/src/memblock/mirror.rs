//! Memory that is mirrored: which it is, and that it is handed out first where somebody wants that
//! (Linux: `mm/memblock.c`, `memblock_mark_mirror` and `choose_memblock_flags`).

use super::Memblock;
use super::error::MemblockError;
use super::region::{Region, RegionFlags};
use crate::platform::Platform;
use crate::units::{PHYSICAL_ADDRESS_END, PhysRange};

/// Regions that the memory set has more when a part of one gets a mark.
const MORE_MEMORY: usize = 2;

impl<P: Platform> Memblock<'_, P> {
    /// Marks the whole frames of memory in `range` as mirrored: memory that the machine keeps twice
    /// or protects as well (EFI_MEMORY_MORE_RELIABLE). Called for each such range before the first
    /// allocation. What is no memory stays none. Bring-up forgets the marks unless
    /// `kernelcore=mirror` was asked for; until then they divide what searches take for one run.
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

    /// Takes all marks away, so that nothing is divided by them.
    pub(crate) fn forget_mirrored(&mut self) {
        while self.mirror.any {
            let is_marked = |region: &&Region| region.flags.contains(RegionFlags::MIRRORED);
            let Some(&marked) = self.memory.regions().iter().find(is_marked) else {
                self.mirror.any = false;
                break;
            };
            // No more regions than before: it joins its neighbours or stays one.
            self.memory.uncover(marked.range);
            let flags = marked.flags.without(RegionFlags::MIRRORED);
            self.memory.cover(&Region { flags, ..marked });
        }
    }

    /// The first part of `range` that is memory of one region and not mirrored, as it is when it
    /// is.
    fn first_unmarked(&self, range: PhysRange) -> Option<Region> {
        if range.is_empty() {
            return None;
        }
        let is_unmarked = |region: &Region| !region.flags.contains(RegionFlags::MIRRORED);
        let found = self.memory.first_in(range, &is_unmarked)?;
        let flags = found.flags.union(RegionFlags::MIRRORED);
        Some(Region { range: found.range.intersection(range), flags, ..*found })
    }

    /// Hand out mirrored memory first, as long as there is some. Otherwise it is memory like any
    /// other. Bring-up does so with `kernelcore=mirror`. Needs the feature `moving`.
    pub fn set_mirrored_first(&mut self, first: bool) {
        self.mirror.first = first;
    }

    /// Bytes that were allocated elsewhere, though mirrored memory was wanted
    /// [first](Self::set_mirrored_first) and there was some.
    #[must_use]
    pub const fn unmirrored_bytes(&self) -> u64 {
        self.mirror.failed_bytes
    }

    /// Whether to look into mirrored memory only, at first.
    pub(super) const fn prefers_mirrored(&self) -> bool {
        cfg!(feature = "moving") && self.mirror.first && self.mirror.any
    }

    /// Whether to look into mirrored memory only, search after search.
    pub(super) const fn mirrored(&self) -> &'static [bool] {
        if self.prefers_mirrored() { &[true, false] } else { &[false] }
    }

    /// Counts what is allocated, where it should be mirrored and is not.
    pub(super) fn note_unmirrored(&mut self, range: PhysRange) {
        if self.prefers_mirrored() && self.first_unmarked(range).is_some() {
            self.mirror.failed_bytes = self.mirror.failed_bytes.saturating_add(range.size());
        }
    }

    /// Calls `sink` for all mirrored memory, ascending. Ranges that touch are one.
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
