//! Blocks that are only partly managed, and which of their frames are managed.
//!
//! A free map cannot tell an allocated frame from a hole or a reserved frame: neither is free.
//! Blocks with such frames are few and known when bring-up ends, so their managed frames are
//! recorded then, and every free is checked against the record. When reserved frames are released
//! later, blocks are added here or removed.

use crate::block::FreeMap;
use crate::sync::in_place::write_fields;
use crate::units::{PAGES_PER_BLOCK, PfnRange};
use core::mem::MaybeUninit;
use core::ops::Range;

/// One block and its managed frames.
pub(crate) struct Partial {
    index: u32,
    frames: FreeMap,
}

/// Returns the offsets in their block of the frames of a range, which must lie in one block.
pub(crate) fn in_block(range: PfnRange) -> Range<usize> {
    let offset = |pages: u64| usize::try_from(pages).unwrap_or(0);
    let start = offset(range.start.0 % PAGES_PER_BLOCK);
    start..start + offset(range.pages())
}

impl Partial {
    /// Initialises, in place, an entry for no block. Its frames are left as they are; they are
    /// written when the entry gets a block.
    ///
    /// # Safety
    /// The requirement of [`CpuCache::write`](super::CpuCache::write).
    pub(crate) unsafe fn write(place: &mut MaybeUninit<Self>) -> &mut Self {
        write_fields!(
            Partial at place,
            { index: u32::MAX },
            { frames: |frames: &mut MaybeUninit<FreeMap>| {
                // SAFETY: integers, for which any content is a value (invariant 4).
                unsafe { frames.assume_init_mut() }
            } },
        )
    }

    /// Returns the index of the block.
    pub(crate) const fn index(&self) -> u32 {
        self.index
    }

    /// Records that in the block at `index` exactly `frames` are managed.
    pub(crate) fn record(&mut self, index: u32, frames: &FreeMap) {
        self.index = index;
        self.frames.copy(frames);
    }

    /// Records that in the block at `index` no frame is managed.
    pub(crate) fn begin(&mut self, index: u32) {
        self.index = index;
        self.frames.clear();
    }

    /// Adds managed frames of the block.
    pub(crate) fn add(&mut self, range: PfnRange) {
        self.frames.set_run(in_block(range), true);
    }
}

/// Returns the managed frames of a block, if it is among `blocks`, which ascend.
pub(crate) fn frames_of(blocks: &[Partial], index: u32) -> Option<&FreeMap> {
    let place = blocks.binary_search_by_key(&index, |block| block.index).ok()?;
    blocks.get(place).map(|block| &block.frames)
}

/// The blocks of a zone that are only partly managed, ascending, each with its managed frames.
pub(crate) struct Partials {
    places: Option<&'static mut [Partial]>,
    len: usize,
}

impl Partials {
    pub(crate) const NONE: Self = Self { places: None, len: 0 };
    /// How many more such blocks a zone may have after bring-up.
    pub(crate) const ROOM: usize = 16;

    /// Begins with the first `len` of `places` taken.
    pub(crate) const fn new(places: &'static mut [Partial], len: usize) -> Self {
        Self { places: Some(places), len }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    fn all(&self) -> &[Partial] {
        self.places.as_ref().and_then(|places| places.get(..self.len)).unwrap_or(&[])
    }

    /// Records that nothing of the block with this number is managed any more.
    pub(crate) fn give_up(&mut self, number: usize) {
        if let Some(block) = self.places.as_mut().and_then(|places| places.get_mut(number)) {
            block.frames.clear();
        }
    }

    /// Returns the index of the block with this number.
    pub(crate) fn index(&self, number: usize) -> Option<u32> {
        self.all().get(number).map(Partial::index)
    }

    /// Returns the first unmanaged frame in `start..end` of a block. None if the block is not
    /// recorded here.
    pub(crate) fn first_unmanaged(&self, index: u32, start: usize, end: usize) -> Option<usize> {
        self.managed_frames(index)?.first_taken(start, end)
    }

    /// Returns the managed frames of a block, if it is recorded here.
    pub(crate) fn managed_frames(&self, index: u32) -> Option<&FreeMap> {
        frames_of(self.all(), index)
    }

    /// Returns how many more blocks can be recorded.
    pub(crate) fn room(&self) -> usize {
        self.places.as_ref().map_or(0, |places| places.len() - self.len)
    }

    /// Records that the frames of `range`, all in the block at `index`, are managed now, too.
    /// Returns false and changes nothing if there is no place left.
    pub(crate) fn add(&mut self, index: u32, range: PfnRange) -> bool {
        let found = self.all().binary_search_by_key(&index, |block| block.index);
        let Some(places) = &mut self.places else { return false };
        let at = match found {
            Ok(at) => at,
            Err(at) => {
                let Some(moved) = places.get_mut(at..=self.len) else { return false };
                // There are few, and `rotate_right` is ten times the code.
                (1..moved.len()).rev().for_each(|place| moved.swap(place - 1, place));
                self.len += 1;
                if let Some(block) = places.get_mut(at) {
                    block.begin(index);
                }
                at
            }
        };
        if let Some(block) = places.get_mut(at) {
            block.add(range);
        }
        true
    }

    /// Removes a block that is wholly managed now.
    pub(crate) fn remove(&mut self, index: u32) {
        let found = self.all().binary_search_by_key(&index, |block| block.index);
        if let (Ok(at), Some(places)) = (found, &mut self.places)
            && let Some(moved) = places.get_mut(at..self.len)
        {
            (1..moved.len()).for_each(|place| moved.swap(place - 1, place));
            self.len -= 1;
        }
    }
}
