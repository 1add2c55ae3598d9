//! Blocks that are not managed whole: which of their frames are.
//!
//! A free map cannot tell an allocated frame from a hole or a reservation: both are not free.
//! Blocks with such frames are few and known when bring-up ends, so their managed frames are
//! written down then, and a free is held against them. When reserved frames are released later,
//! blocks come and go here.

use crate::block::FreeMap;
use crate::sync::in_place::write_fields;
use crate::units::{PAGES_PER_BLOCK, PfnRange};
use core::mem::MaybeUninit;
use core::ops::Range;

/// Some frames of one block.
pub(crate) struct Partial {
    index: u32,
    frames: FreeMap,
}

/// Which frames of their block those of a range are, none of which is of another block.
pub(crate) fn in_block(range: PfnRange) -> Range<usize> {
    let offset = |pages: u64| usize::try_from(pages).unwrap_or(0);
    let start = offset(range.start.0 % PAGES_PER_BLOCK);
    start..start + offset(range.pages())
}

impl Partial {
    /// A place for one, of no block, whose frames stay as they are: they are written when it gets
    /// one.
    ///
    /// # Safety
    /// As for [`CpuCache::write`](super::CpuCache::write).
    pub(crate) unsafe fn write(place: &mut MaybeUninit<Self>) -> &mut Self {
        write_fields!(
            Partial at place,
            { index: u32::MAX },
            { frames: |frames: &mut MaybeUninit<FreeMap>| {
                // SAFETY: integers, which any content is a value of (invariant 4).
                unsafe { frames.assume_init_mut() }
            } },
        )
    }

    /// Index of the block.
    pub(crate) const fn index(&self) -> u32 {
        self.index
    }

    /// Notes that the block at `index` has the frames of `frames` and no other.
    pub(crate) fn record(&mut self, index: u32, frames: &FreeMap) {
        self.index = index;
        self.frames.copy(frames);
    }

    /// Notes that the block at `index` has none.
    pub(crate) fn begin(&mut self, index: u32) {
        self.index = index;
        self.frames.clear();
    }

    /// And these, of the block.
    pub(crate) fn add(&mut self, range: PfnRange) {
        self.frames.set_run(in_block(range), true);
    }
}

/// The frames of a block, if it is among `blocks`, which are ascending.
pub(crate) fn frames_of(blocks: &[Partial], index: u32) -> Option<&FreeMap> {
    let place = blocks.binary_search_by_key(&index, |block| block.index).ok()?;
    blocks.get(place).map(|block| &block.frames)
}

/// The blocks of a zone that are managed in part, ascending, each with the frames that are.
pub(crate) struct Partials {
    places: Option<&'static mut [Partial]>,
    len: usize,
}

impl Partials {
    pub(crate) const NONE: Self = Self { places: None, len: 0 };
    /// How many more a zone may have after bring-up.
    pub(crate) const ROOM: usize = 16;

    /// The first `len` of these places are taken.
    pub(crate) const fn new(places: &'static mut [Partial], len: usize) -> Self {
        Self { places: Some(places), len }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    fn all(&self) -> &[Partial] {
        self.places.as_ref().and_then(|places| places.get(..self.len)).unwrap_or(&[])
    }

    /// Nothing is managed any more of the block of this number.
    pub(crate) fn give_up(&mut self, number: usize) {
        if let Some(block) = self.places.as_mut().and_then(|places| places.get_mut(number)) {
            block.frames.clear();
        }
    }

    /// Index of the block that is the one of this number among them.
    pub(crate) fn index(&self, number: usize) -> Option<u32> {
        self.all().get(number).map(Partial::index)
    }

    /// The first frame of `start..end` of a block that is not managed. A block that is not here is
    /// unknown, and then there is none.
    pub(crate) fn first_unmanaged(&self, index: u32, start: usize, end: usize) -> Option<usize> {
        self.managed_frames(index)?.first_taken(start, end)
    }

    /// The frames of a block that are managed, if it is here.
    pub(crate) fn managed_frames(&self, index: u32) -> Option<&FreeMap> {
        frames_of(self.all(), index)
    }

    /// How many more blocks can be here.
    pub(crate) fn room(&self) -> usize {
        self.places.as_ref().map_or(0, |places| places.len() - self.len)
    }

    /// The frames of `range`, all of the block at `index`, are managed now, too. False, and nothing
    /// changed, where there is no place.
    pub(crate) fn add(&mut self, index: u32, range: PfnRange) -> bool {
        let found = self.all().binary_search_by_key(&index, |block| block.index);
        let Some(places) = &mut self.places else { return false };
        let at = match found {
            Ok(at) => at,
            Err(at) => {
                let Some(moved) = places.get_mut(at..=self.len) else { return false };
                moved.rotate_right(1);
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

    /// All of a block is managed now.
    pub(crate) fn remove(&mut self, index: u32) {
        let found = self.all().binary_search_by_key(&index, |block| block.index);
        if let (Ok(at), Some(places)) = (found, &mut self.places)
            && let Some(moved) = places.get_mut(at..self.len)
        {
            moved.rotate_left(1);
            self.len -= 1;
        }
    }
}
