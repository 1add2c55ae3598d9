//! A space on trial: the one place that calls what [`VmemmapSpace`] lets only its owner call.

use super::VmemmapSpaceFixture;
use framewright::vmemmap_space::{
    BlockRange, FrameList, FrameSource, OutOfFrames, Unflushed, VmemmapSpace,
};

/// A [`VmemmapSpace`] that nobody uses but who has this.
#[derive(Clone, Copy)]
pub struct TrialSpace<'a>(&'a dyn VmemmapSpace);

impl<'a> TrialSpace<'a> {
    /// The space of a fixture.
    pub fn of<F: VmemmapSpaceFixture>(fixture: &'a F) -> Self {
        Self(fixture.space())
    }

    /// Any space.
    ///
    /// # Safety
    /// As for implementing [`VmemmapSpaceFixture`]: nobody else calls for the space as long as this is
    /// used, no Rust reference leads into its array, and whoever looks there copes with what it
    /// finds. What is flushed was filled by this space.
    pub const unsafe fn new(space: &'a dyn VmemmapSpace) -> Self {
        Self(space)
    }

    /// [`VmemmapSpace::populate`].
    ///
    /// # Errors
    /// As there.
    pub fn populate(
        self,
        blocks: BlockRange,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        // SAFETY: nobody else uses the space (the promise of `new` and of `VmemmapSpaceFixture`;
        // invariant 42).
        unsafe { self.0.populate(blocks, frames, unflushed) }
    }

    /// [`VmemmapSpace::prepare`].
    ///
    /// # Errors
    /// As there.
    pub fn prepare(
        self,
        blocks: BlockRange,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        // SAFETY: as for `populate` (invariant 42).
        unsafe { self.0.prepare(blocks, frames, unflushed) }
    }

    /// [`VmemmapSpace::evict`].
    #[must_use = "blocks may be left present"]
    pub fn evict(self, blocks: BlockRange, unflushed: &mut Unflushed) -> u32 {
        // SAFETY: as for `populate` (invariant 42).
        unsafe { self.0.evict(blocks, unflushed) }
    }

    /// [`VmemmapSpace::merge`].
    ///
    /// # Errors
    /// As there.
    pub fn merge(
        self,
        section: BlockRange,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<bool, OutOfFrames> {
        // SAFETY: as for `populate`; the caller writes to the section's parts only through the
        // fixture, between calls (invariant 42).
        unsafe { self.0.merge(section, frames, unflushed) }
    }

    /// [`VmemmapSpace::flush`].
    pub fn flush(self, unflushed: Unflushed) -> FrameList {
        // SAFETY: as for `populate`; filled by this space (invariants 12 and 42).
        unsafe { self.0.flush(unflushed) }
    }
}
