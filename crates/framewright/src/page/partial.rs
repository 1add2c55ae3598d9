//! Blocks that are not managed whole: which of their frames are.
//!
//! A free map cannot tell an allocated frame from a hole or a reservation: both are not free.
//! Blocks with such frames are few and known when bring-up ends, so their managed frames are
//! written down then, and a free is held against them.

use crate::block::FreeMap;

/// One such block.
pub(crate) struct Partial {
    index: u32,
    managed: FreeMap,
}

impl Partial {
    /// A place for one.
    pub(crate) fn empty() -> Self {
        Self { index: u32::MAX, managed: FreeMap::new() }
    }

    /// Index of the block.
    pub(crate) const fn index(&self) -> u32 {
        self.index
    }

    /// Notes that the block at `index` has the free frames of `free` and no other.
    pub(crate) fn record(&mut self, index: u32, free: &FreeMap) {
        self.index = index;
        self.managed.copy(free);
    }
}

/// The first frame of `start..end` of a block that is not managed. `partials` are ascending; a
/// block that is not among them is unknown, and then there is none.
pub(crate) fn first_unmanaged(
    partials: &[Partial],
    index: u32,
    start: usize,
    end: usize,
) -> Option<usize> {
    managed_frames(partials, index)?.first_taken(start, end)
}

/// The frames of a block that are managed, if it is among `partials`, which are ascending.
pub(crate) fn managed_frames(partials: &[Partial], index: u32) -> Option<&FreeMap> {
    let place = partials.binary_search_by_key(&index, |partial| partial.index).ok()?;
    partials.get(place).map(|partial| &partial.managed)
}
