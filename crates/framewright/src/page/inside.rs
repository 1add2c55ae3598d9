//! Descriptors inside their block: which eight frames hold them, and how one is reached.
//!
//! 512 descriptors of 64 bytes fill eight frames. Preferred are eight aligned neighbours, which
//! bits of the state word name; the descriptor of the block's frame n is then the n-th of them. A
//! block that has no eight free neighbours when it needs descriptors (parts of it are held by
//! whoever had allocated it whole, or it has holes) uses any eight of its free frames: the state
//! word names the one that describes itself, and its own descriptor, which nobody else has a use
//! for, names the others.
//!
//! Descriptors exist only while the state word says so. They are looked at under the zone lock, by
//! whoever has entered the block's [`Readers`] or has a page of the block (invariants 21 and
//! 22).
//!
//! Orders of memory: Relaxed: which frames a scattered map has is written before the state word
//! says that it is there (Release in `set_state`), and read after that word was (Acquire, or the
//! zone lock).

use super::array::Array;
use super::record::Page;
use crate::block::buddy::Buddy;
use crate::block::table::BlockTable;
use crate::block::{BlockState, DescriptorForm, FreeMap, Segment, State, segment};
use crate::debug::POISON;
use crate::platform::Platform;
use crate::sync::table_atomic::{AtomicU64, Ordering};
use crate::sync::{Readers, Reading};
use crate::units::{PAGE_SIZE, PAGES_PER_BLOCK, Pfn};
use crate::vmemmap_space::VMEMMAP_PAGES_PER_BLOCK;
use core::marker::PhantomData;
use core::ops::Range;

/// Frames that hold descriptors.
pub(crate) const DESCRIPTOR_FRAMES: usize = 8;
/// Frames that one of them describes.
const DESCRIBED: usize = 64;
const FRAMES: usize = FreeMap::<8>::PAGES;
/// Bytes in one of them.
const FRAME_BYTES: usize = DESCRIBED * size_of::<Page>();

const _: () = assert!(DESCRIPTOR_FRAMES as u64 == VMEMMAP_PAGES_PER_BLOCK);
const _: () = assert!(DESCRIPTOR_FRAMES * DESCRIBED == FRAMES && FRAME_BYTES as u64 == PAGE_SIZE);

/// The eight frames, as offsets in their block: number n holds the descriptors of frames 64 n to 64
/// n + 63.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DescriptorFrames([u16; DESCRIPTOR_FRAMES]);

impl DescriptorFrames {
    /// Eight neighbours from `first` on.
    pub(crate) fn run(first: usize) -> Self {
        let mut frames = [0; DESCRIPTOR_FRAMES];
        for (frame, offset) in frames.iter_mut().zip(first..) {
            *frame = u16::try_from(offset).unwrap_or(0);
        }
        Self(frames)
    }

    /// Eight free frames where they do least harm: aligned neighbours in the smallest larger free
    /// run, the highest of those; else the highest eight.
    pub(crate) fn choose(free: &FreeMap) -> Option<Self> {
        let runs = (0..FRAMES)
            .step_by(DESCRIPTOR_FRAMES)
            .rev()
            .filter(|&start| free.is_run_free(start, 3));
        let harm = |&start: &usize| {
            (4..9).take_while(|&order| free.is_run_free(start >> order << order, order)).count()
        };
        if let Some(start) = runs.min_by_key(harm) {
            return Some(Self::run(start));
        }
        let mut highest = (0..FRAMES).rev().filter(|&frame| free.is_free(frame));
        let first = highest.next()?;
        let mut frames = [0; DESCRIPTOR_FRAMES];
        for (part, frame) in frames.iter_mut().enumerate() {
            // The frame that describes itself comes first of all.
            let offset = if part == first / DESCRIBED { first } else { highest.next()? };
            *frame = u16::try_from(offset).ok()?;
        }
        Some(Self(frames))
    }

    /// Makes them not free.
    pub(crate) fn take_from(&self, free: &FreeMap) {
        if self.is_run() {
            free.take_run(self.named(), 3);
        } else {
            self.iter().for_each(|frame| free.take_run(frame, 0));
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().map(|&frame| usize::from(frame))
    }

    /// The first of them that lies in `range`.
    pub(crate) fn first_in(&self, range: &Range<usize>) -> Option<usize> {
        self.iter().filter(|frame| range.contains(frame)).min()
    }

    fn is_run(&self) -> bool {
        *self == Self::run(usize::from(self.0[0])) && self.0[0].is_multiple_of(8)
    }

    /// The frame that the state word names.
    fn named(&self) -> usize {
        let own = |&(part, frame): &(usize, usize)| frame / DESCRIBED == part;
        let named = if self.is_run() {
            self.iter().next()
        } else {
            self.iter().enumerate().find(own).map(|(_, frame)| frame)
        };
        named.unwrap_or(0)
    }

    /// All but the named one, nine bits each.
    fn others(&self, named: usize) -> u64 {
        let others = self.iter().enumerate().filter(|&(part, _)| part != named / DESCRIBED);
        others.zip(0..).fold(0, |word, ((_, frame), place)| word | (frame as u64) << (9 * place))
    }

    /// What [`others`](Self::others) says.
    fn scattered(named: usize, mut others: u64) -> Self {
        let mut frames = [0; DESCRIPTOR_FRAMES];
        for (part, frame) in frames.iter_mut().enumerate() {
            let offset = if part == named / DESCRIBED {
                named as u64
            } else {
                let next = others & 0x1ff;
                others >>= 9;
                next
            };
            *frame = u16::try_from(offset).unwrap_or(0);
        }
        Self(frames)
    }
}

/// What a zone needs for descriptors and counts that are looked at without its lock.
#[derive(Clone, Copy)]
pub(crate) struct Descriptors {
    pub(crate) platform: &'static dyn Platform,
    /// Each block uses one of them.
    pub(crate) readers: &'static [Readers],
    pub(crate) segments: &'static [Segment],
    /// Whether split blocks are to have descriptors.
    pub(crate) are_wanted: bool,
    /// The array, where the zone has one.
    pub(crate) array: Option<Array>,
    /// Whether free memory is poisoned, so that frames which held descriptors are to be.
    pub(crate) poison: bool,
}

impl Descriptors {
    /// The array, where the zone has one.
    pub(crate) const fn array(&self) -> Option<&Array> {
        self.array.as_ref()
    }

    /// Whether any split block is to have descriptors.
    pub(crate) const fn are_wanted(&self) -> bool {
        cfg!(feature = "vmemmap") && self.are_wanted
    }

    fn block_start(&self, index: u32) -> Option<Pfn> {
        Some(segment::find_index(self.segments, index)?.block_of(index).start())
    }

    /// Where the block at `index` has its descriptors when it is split: in the array if that
    /// describes it; else inside, if the adopter wants them and the direct map reaches the block.
    pub(crate) fn form(&self, index: u32) -> DescriptorForm {
        if !self.are_wanted {
            return DescriptorForm::None;
        }
        if self.array.is_some_and(|array| array.describes(index)) {
            return DescriptorForm::Array;
        }
        let reached =
            |start: Pfn| start.add(PAGES_PER_BLOCK).address() <= self.platform.direct_limit();
        if self.block_start(index).is_some_and(reached) {
            DescriptorForm::Inside
        } else {
            DescriptorForm::None
        }
    }

    /// Whether a free page's descriptor is as it should be.
    pub(crate) fn is_clear(&self, page: &Page) -> bool {
        page.is_clear() || self.array.is_some_and(|array| array.is_first_value(page))
    }

    fn readers(&self, index: u32) -> &'static Readers {
        // Blocks that are in use together lie together; the highest bits of this differ for
        // neighbours.
        let slot = (u64::from(index.wrapping_mul(0x9e37_79b1)) * self.readers.len() as u64) >> 32;
        &self.readers[usize::try_from(slot).unwrap_or(0)]
    }

    /// Goes in to look at the block at `index`, with interrupts off. See [`Readers`].
    pub(crate) fn enter(&self, index: u32) -> Reading<'static> {
        self.readers(index).enter(self.platform)
    }

    /// Waits for those who look at the block at `index`. Its state word was changed before, and the
    /// zone lock is held.
    pub(crate) fn wait(&self, index: u32) {
        self.readers(index).wait(self.platform);
    }

    /// Waits for all who look at any block. What describes the blocks in question was changed
    /// before, and they are the caller's.
    pub(crate) fn wait_for_all(&self) {
        self.readers.iter().for_each(|readers| readers.wait(self.platform));
    }

    /// `frames` of the block at `index` hold descriptors no more and are about to be free.
    pub(crate) fn wipe(&self, index: u32, frames: DescriptorFrames) {
        if self.poison {
            self.fill(index, frames, POISON);
        }
    }

    fn fill(&self, index: u32, frames: DescriptorFrames, byte: u8) {
        let Some(block) = self.block_start(index) else { return };
        for frame in frames.iter() {
            let target = self.platform.direct(block.add(frame as u64).address());
            // SAFETY: a managed frame below the direct limit that is free or about to be, so that
            // nobody has it (invariants 1 and 21).
            unsafe { target.write_bytes(byte, FRAME_BYTES) };
        }
    }

    /// Fills `frames` of the block at `index`, which the caller just took out of the free map, with
    /// descriptors, all zero; returns what the state word is to say.
    pub(crate) fn write(
        &self,
        buddy: &mut Buddy,
        index: u32,
        frames: DescriptorFrames,
        state: BlockState,
    ) -> BlockState {
        self.fill(index, frames, 0);
        let named = frames.named();
        let state = state.with_descriptors(named, !frames.is_run());
        if !frames.is_run()
            && let Some(others) =
                BlockPages::of(self, buddy, index, state).and_then(|map| map.names_others())
        {
            others.store(frames.others(named), Ordering::Relaxed);
        }
        state
    }

    /// The descriptors of the block at `index`, under the zone lock.
    pub(crate) fn locked<'a>(&self, buddy: &'a Buddy, index: u32) -> Option<BlockPages<'a>> {
        BlockPages::of(self, buddy, index, buddy.table.state(index))
    }

    /// [`locked`](Self::locked) inside the block's readers.
    pub(crate) fn read<'a>(
        &self,
        reading: &'a Reading<'_>,
        table: &BlockTable,
        index: u32,
    ) -> Option<BlockPages<'a>> {
        debug_assert!(reading.is_of(self.readers(index)), "inside the readers of another block");
        BlockPages::of(self, reading, index, table.state_as_reader(index))
    }

    /// [`locked`](Self::locked) for whoever has a page of the block.
    ///
    /// # Safety
    /// A frame of the block stays allocated while what is returned is used.
    pub(crate) unsafe fn held(
        &self,
        table: &BlockTable,
        index: u32,
    ) -> Option<BlockPages<'static>> {
        BlockPages::of(self, &(), index, table.state_as_reader(index))
    }
}

/// The descriptors of a block, as long as they are there.
pub(crate) struct BlockPages<'a> {
    location: Location,
    block: Pfn,
    /// What keeps the descriptors from going: the zone lock, a reading, or the caller's word.
    kept_by: PhantomData<&'a ()>,
}

/// Where descriptors are.
#[derive(Clone, Copy)]
enum Location {
    Array(Array),
    /// `named` is the frame that the state word names.
    Inside {
        platform: &'static dyn Platform,
        named: usize,
        scattered: bool,
    },
}

impl<'a> BlockPages<'a> {
    /// `state` is the block's, read under what `_kept_by` stands for.
    fn of<K>(
        descriptors: &Descriptors,
        _kept_by: &'a K,
        index: u32,
        state: BlockState,
    ) -> Option<Self> {
        if !state.is(State::Split) {
            return None;
        }
        let location = match state.descriptor_form() {
            DescriptorForm::Inside => Location::Inside {
                platform: descriptors.platform,
                named: state.descriptors_first(),
                scattered: state.has(BlockState::SCATTERED),
            },
            DescriptorForm::Array => Location::Array(descriptors.array?),
            DescriptorForm::None => return None,
        };
        Some(Self { location, block: descriptors.block_start(index)?, kept_by: PhantomData })
    }

    /// The descriptor that begins `slot` descriptors into frame `frame`, one of the eight.
    fn at(&self, platform: &'static dyn Platform, frame: usize, slot: usize) -> &'a Page {
        let address = self.block.add(frame as u64).address() + (slot * size_of::<Page>()) as u64;
        let pointer = platform.direct(address).cast::<Page>();
        // SAFETY: the frame holds descriptors as long as 'a lasts, which makes the reference valid;
        // it is aligned as frames are, any content of the atomics that it consists of is a value,
        // and nobody writes it but through them (invariants 1, 4, 21 and 22).
        unsafe { pointer.as_ref() }
    }

    /// Where a map that is scattered says what its other frames are: in the descriptor of the frame
    /// that describes itself.
    fn names_others(&self) -> Option<&'a AtomicU64> {
        let Location::Inside { platform, named, .. } = self.location else { return None };
        Some(&self.at(platform, named, named % DESCRIBED).owner_words()[0])
    }

    /// The frames of the block that hold the descriptors, where they are inside it.
    pub(crate) fn frames(&self) -> Option<DescriptorFrames> {
        let Location::Inside { named, scattered, .. } = self.location else { return None };
        if scattered {
            Some(DescriptorFrames::scattered(named, self.names_others()?.load(Ordering::Relaxed)))
        } else {
            Some(DescriptorFrames::run(named))
        }
    }

    /// The descriptor of the block's frame `offset`; none for one that holds descriptors itself.
    #[inline]
    pub(crate) fn page(&self, offset: usize) -> Option<&'a Page> {
        if offset >= FRAMES {
            return None;
        }
        let (platform, named, scattered) = match self.location {
            Location::Inside { platform, named, scattered } => (platform, named, scattered),
            Location::Array(array) => {
                // SAFETY: the array describes the block as long as 'a lasts, so that all its
                // descriptors are present and initialised; they are aligned, any content of their
                // atomics is a value, and nobody writes them but through those (invariants 4, 22
                // and 28).
                return Some(unsafe { array.at(self.block.add(offset as u64)).as_ref() });
            }
        };
        if scattered {
            return self.scattered_page(platform, offset);
        }
        let (part, slot) = (offset / DESCRIBED, offset % DESCRIBED);
        let own = (named..named + DESCRIPTOR_FRAMES).contains(&offset);
        if own { None } else { Some(self.at(platform, named + part, slot)) }
    }

    /// [`page`](Self::page) in one copy, for code that is not in a hurry.
    #[inline(never)]
    pub(crate) fn cold_page(&self, offset: usize) -> Option<&'a Page> {
        self.page(offset)
    }

    /// [`page`](Self::page) where the frames that hold descriptors are no neighbours.
    #[inline(never)]
    fn scattered_page(&self, platform: &'static dyn Platform, offset: usize) -> Option<&'a Page> {
        let (part, slot) = (offset / DESCRIBED, offset % DESCRIBED);
        let frames = self.frames()?;
        let own = frames.first_in(&(offset..offset + 1)).is_some();
        if own { None } else { Some(self.at(platform, usize::from(frames.0[part]), slot)) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn free_map(free: impl IntoIterator<Item = usize>) -> FreeMap {
        let map = FreeMap::new();
        for frame in free {
            map.set_range(frame, frame + 1);
        }
        map
    }

    fn check(free: &FreeMap) -> DescriptorFrames {
        let frames = DescriptorFrames::choose(free).expect("eight frames are free");
        let mut sorted: Vec<usize> = frames.iter().collect();
        assert!(sorted.iter().all(|&frame| free.is_free(frame)), "{frames:?}");
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), DESCRIPTOR_FRAMES);
        if !frames.is_run() {
            let named = frames.named();
            assert_eq!(usize::from(frames.0[named / DESCRIBED]), named, "it describes itself");
            assert_eq!(DescriptorFrames::scattered(named, frames.others(named)), frames);
        }
        frames
    }

    #[test]
    fn neighbours_are_preferred_where_they_break_least() {
        assert_eq!(check(&free_map(0..512)), DescriptorFrames::run(504));
        // A run of its own rather than a piece of a larger one.
        assert_eq!(check(&free_map((0..8).chain(256..512))), DescriptorFrames::run(0));
        assert_eq!(check(&free_map((24..32).chain(64..80))), DescriptorFrames::run(24));
        assert!(!check(&free_map(4..12)).is_run(), "not aligned");
    }

    #[test]
    fn any_eight_frames_will_do() {
        for step in 1..60 {
            check(&free_map((0..512).step_by(step).take(8)));
            check(&free_map((0..512).rev().step_by(step).take(11)));
        }
        check(&free_map([0, 63, 64, 127, 128, 300, 301, 511]));
        assert_eq!(DescriptorFrames::choose(&free_map(0..7)), None);
        assert_eq!(DescriptorFrames::choose(&free_map([])), None);
    }

    #[test]
    fn frames_in_a_range() {
        let frames = DescriptorFrames::run(504);
        assert_eq!(frames.first_in(&(0..504)), None);
        assert_eq!(frames.first_in(&(500..506)), Some(504));
        assert_eq!(frames.first_in(&(507..508)), Some(507));
    }
}
