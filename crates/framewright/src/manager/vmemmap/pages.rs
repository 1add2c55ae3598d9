//! Page descriptors, as the adopter reaches them.

use crate::manager::facets::Vmemmap;
use crate::manager::state::Manager;
use crate::page::Page;
use crate::platform::Platform;
use crate::units::{PAGES_PER_BLOCK, Pfn, PfnRange};
use crate::vmemmap_space::BlockNumber;
use crate::zone::{Segment, Zone};

impl<'m, P: Platform> Vmemmap<'m, P> {
    /// Returns the descriptor of a page that the caller has.
    ///
    /// Every page that a request for less than a block returned has a descriptor, if there is a
    /// vmemmap or bring-up was told `pages=inside`. There is none
    /// * for any page without either,
    /// * for pages of a block that is allocated whole: such a block has a count and an owner word
    ///   of its own ([`References::start`](crate::manager::References::start)),
    /// * for pages of such a block that are kept after a part of the block was freed, until more
    ///   than eight of its frames are free (then their descriptors begin as zero),
    /// * if [`Platform::direct_limit`] ended below the block when it was split,
    /// * for frames that hold descriptors themselves.
    ///
    /// Any context. Takes no lock and writes nothing.
    ///
    /// # Safety
    /// The page, or another one of its 2 MiB block, stays allocated as long as the reference is
    /// used: when the last one is freed, the block becomes whole, and its memory belongs to
    /// somebody else. Nobody reclaims the map of the page's block meanwhile.
    #[must_use]
    pub unsafe fn page(self, pfn: Pfn) -> Option<&'m Page> {
        let (zone, segment, offset) = self.manager.place_of(pfn)?;
        // SAFETY: passed on to the caller.
        unsafe { zone.page(segment.index_of(BlockNumber::containing(pfn)), offset) }
    }

    /// Returns the eight frames of a block that hold the descriptors of its pages, ascending, if
    /// there are any.
    #[must_use]
    pub fn descriptor_frames(self, block: BlockNumber) -> Option<[Pfn; 8]> {
        let (zone, segment, _) = self.manager.place_of(block.start())?;
        zone.descriptor_frames(self.manager.platform, segment.index_of(block), block.start())
    }
}

impl<P: Platform> Manager<P> {
    /// Returns where a frame is described: its zone, its segment, and its offset in its block.
    #[inline]
    pub(crate) fn place_of(&self, pfn: Pfn) -> Option<(&'static Zone, &'static Segment, usize)> {
        let (zone, segment) =
            self.zone_of_range(PfnRange::new(pfn.0, pfn.0.saturating_add(1))).ok()?;
        Some((zone, segment, usize::try_from(pfn.0 % PAGES_PER_BLOCK).unwrap_or(0)))
    }
}
