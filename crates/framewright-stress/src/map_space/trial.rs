//! A space on trial: the one place that calls what [`MapSpace`] lets only its owner call.

use super::MapSpaceFixture;
use framewright::map_space::{
    BlockRange, FrameList, FrameSource, MapSpace, OutOfFrames, Unflushed,
};

/// A [`MapSpace`] that nobody uses but who has this.
#[derive(Clone, Copy)]
pub struct TrialSpace<'a>(&'a dyn MapSpace);

impl<'a> TrialSpace<'a> {
    /// The space of a fixture.
    pub fn of<F: MapSpaceFixture>(fixture: &'a F) -> Self {
        Self(fixture.space())
    }

    /// Any space.
    ///
    /// # Safety
    /// As for implementing [`MapSpaceFixture`]: nobody else calls for the space as long as this is
    /// used, no Rust reference leads into its array, and whoever looks there copes with what it
    /// finds. What is flushed was filled by this space.
    pub const unsafe fn new(space: &'a dyn MapSpace) -> Self {
        Self(space)
    }

    /// [`MapSpace::populate`].
    ///
    /// # Errors
    /// As there.
    pub fn populate(
        self,
        blocks: BlockRange,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        // SAFETY: nobody else uses the space (the promise of `new` and of `MapSpaceFixture`;
        // invariant 42).
        unsafe { self.0.populate(blocks, frames, unflushed) }
    }

    /// [`MapSpace::prepare`].
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

    /// [`MapSpace::evict`].
    #[must_use = "blocks may be left present"]
    pub fn evict(self, blocks: BlockRange, unflushed: &mut Unflushed) -> u32 {
        // SAFETY: as for `populate` (invariant 42).
        unsafe { self.0.evict(blocks, unflushed) }
    }

    /// [`MapSpace::merge`].
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

    /// [`MapSpace::flush`].
    pub fn flush(self, unflushed: Unflushed) -> FrameList {
        // SAFETY: as for `populate`; filled by this space (invariants 12 and 42).
        unsafe { self.0.flush(unflushed) }
    }
}
