//! A space under test: the only place that calls the methods of [`VmemmapSpace`] that only the
//! space's owner may call.

use super::fixture::VmemmapSpaceFixture;
use framewright::vmemmap_space::{
    BlockRange, FrameList, FrameSource, OutOfFrames, Unflushed, VmemmapSpace,
};

/// A [`VmemmapSpace`] that only the owner of this value uses.
#[derive(Clone, Copy)]
pub struct TrialSpace<'a>(&'a dyn VmemmapSpace);

impl<'a> TrialSpace<'a> {
    /// Returns the space of a fixture.
    pub fn of<F: VmemmapSpaceFixture>(fixture: &'a F) -> Self {
        Self(fixture.space())
    }

    /// Wraps any space.
    ///
    /// # Safety
    /// As for implementing [`VmemmapSpaceFixture`]: no other code calls the space while this is
    /// used, no Rust reference leads into its addresses, and accesses cope with whatever is mapped
    /// there. Each `Unflushed` that is flushed was filled by this space.
    pub const unsafe fn new(space: &'a dyn VmemmapSpace) -> Self {
        Self(space)
    }

    /// Calls [`VmemmapSpace::populate`].
    ///
    /// # Errors
    /// Those of [`VmemmapSpace::populate`].
    pub fn populate(
        self,
        blocks: BlockRange,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        // SAFETY: the space has no other user (the promise of `new` and of `VmemmapSpaceFixture`;
        // invariant 42).
        unsafe { self.0.populate(blocks, frames, unflushed) }
    }

    /// Calls [`VmemmapSpace::prepare`].
    ///
    /// # Errors
    /// Those of [`VmemmapSpace::prepare`].
    pub fn prepare(
        self,
        blocks: BlockRange,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        // SAFETY: as for `populate` (invariant 42).
        unsafe { self.0.prepare(blocks, frames, unflushed) }
    }

    /// Calls [`VmemmapSpace::evict`].
    #[must_use = "blocks may be left present"]
    pub fn evict(self, blocks: BlockRange, unflushed: &mut Unflushed) -> u32 {
        // SAFETY: as for `populate` (invariant 42).
        unsafe { self.0.evict(blocks, unflushed) }
    }

    /// Calls [`VmemmapSpace::merge`].
    ///
    /// # Errors
    /// Those of [`VmemmapSpace::merge`].
    pub fn merge(
        self,
        section: BlockRange,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<bool, OutOfFrames> {
        // SAFETY: as for `populate`. The caller writes to the section's parts only through the
        // fixture, between calls (invariant 42).
        unsafe { self.0.merge(section, frames, unflushed) }
    }

    /// Calls [`VmemmapSpace::flush`].
    pub fn flush(self, unflushed: Unflushed) -> FrameList {
        // SAFETY: as for `populate`, and this space has filled `unflushed` (invariants 12 and 42).
        unsafe { self.0.flush(unflushed) }
    }
}
