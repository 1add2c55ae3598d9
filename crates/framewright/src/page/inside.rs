//! Descriptors inside their own block: which eight frames hold them, and how to reach one.
//!
//! 512 descriptors of 64 bytes fill eight frames. Eight aligned adjacent frames are preferred: the
//! state word names the first, and the descriptor of the block's frame n is the n-th of them. A
//! block may have no eight such free frames when it needs descriptors, because whoever had
//! allocated it whole still holds parts of it, or because it has holes. It then uses any eight of
//! its free frames. In that case the state word names the frame that holds its own descriptor, and
//! this descriptor, which is of no other use, names the other seven.
//!
//! Descriptors exist only while the state word says so. They are read under the zone lock, by a
//! caller that has entered the block's [`Readers`], or by one that has a page of the block
//! (invariants 21 and 22).
//!
//! Orders of memory: Relaxed: the frames of a scattered map are written before the state word
//! announces it (Release in `set_state`), and are read after that word (Acquire, or under the zone
//! lock).

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

/// The number of frames that hold a block's descriptors.
pub(crate) const DESCRIPTOR_FRAMES: usize = 8;
/// The number of frames that one of them describes.
const DESCRIBED: usize = 64;
const FRAMES: usize = FreeMap::<8>::PAGES;
/// The number of bytes in one of them.
const FRAME_BYTES: usize = DESCRIBED * size_of::<Page>();

const _: () = assert!(DESCRIPTOR_FRAMES as u64 == VMEMMAP_PAGES_PER_BLOCK);
const _: () = assert!(DESCRIPTOR_FRAMES * DESCRIBED == FRAMES && FRAME_BYTES as u64 == PAGE_SIZE);

/// The eight frames, as offsets in their block. Number n holds the descriptors of frames 64 n to 64
/// n + 63.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DescriptorFrames([u16; DESCRIPTOR_FRAMES]);

impl DescriptorFrames {
    /// Returns eight adjacent frames from `first` on.
    pub(crate) fn run(first: usize) -> Self {
        let mut frames = [0; DESCRIPTOR_FRAMES];
        for (frame, offset) in frames.iter_mut().zip(first..) {
            *frame = u16::try_from(offset).unwrap_or(0);
        }
        Self(frames)
    }

    /// Chooses eight free frames where taking them does least harm: aligned adjacent frames in the
    /// smallest larger free run, the highest of equals; else the highest eight free frames.
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
            // The part that describes `first` gets `first` itself, so that one frame holds its own
            // descriptor.
            let offset = if part == first / DESCRIBED { first } else { highest.next()? };
            *frame = u16::try_from(offset).ok()?;
        }
        Some(Self(frames))
    }

    /// Marks the frames not free.
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

    /// Returns the lowest of the frames that lie in `range`.
    pub(crate) fn first_in(&self, range: &Range<usize>) -> Option<usize> {
        self.iter().filter(|frame| range.contains(frame)).min()
    }

    fn is_run(&self) -> bool {
        *self == Self::run(usize::from(self.0[0])) && self.0[0].is_multiple_of(8)
    }

    /// Returns the frame that the state word names.
    fn named(&self) -> usize {
        let own = |&(part, frame): &(usize, usize)| frame / DESCRIBED == part;
        let named = if self.is_run() {
            self.iter().next()
        } else {
            self.iter().enumerate().find(own).map(|(_, frame)| frame)
        };
        named.unwrap_or(0)
    }

    /// Returns all frames but the named one, nine bits each.
    fn others(&self, named: usize) -> u64 {
        let others = self.iter().enumerate().filter(|&(part, _)| part != named / DESCRIBED);
        others.zip(0..).fold(0, |word, ((_, frame), place)| word | (frame as u64) << (9 * place))
    }

    /// Returns the frames that [`others`](Self::others) encoded.
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

/// What a zone needs to reach descriptors and counts without its lock.
#[derive(Clone, Copy)]
pub(crate) struct Descriptors {
    pub(crate) platform: &'static dyn Platform,
    /// Each block uses one of these.
    pub(crate) readers: &'static [Readers],
    pub(crate) segments: &'static [Segment],
    /// Whether split blocks should have descriptors.
    pub(crate) are_wanted: bool,
    /// The array, where the zone has one.
    pub(crate) array: Option<Array>,
    /// Whether free memory is poisoned, so that frames that held descriptors must be poisoned, too.
    pub(crate) poison: bool,
}

impl Descriptors {
    /// Returns the array, where the zone has one.
    pub(crate) const fn array(&self) -> Option<&Array> {
        self.array.as_ref()
    }

    /// Returns whether any split block should have descriptors.
    pub(crate) const fn are_wanted(&self) -> bool {
        cfg!(feature = "vmemmap") && self.are_wanted
    }

    fn block_start(&self, index: u32) -> Option<Pfn> {
        Some(segment::find_index(self.segments, index)?.block_of(index).start())
    }

    /// Returns where the block at `index` has its descriptors while it is split: in the array if
    /// that describes it; else inside, if the adopter wants descriptors and the direct map reaches
    /// the block.
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

    /// Returns whether a free page's descriptor has the value that it should have.
    pub(crate) fn is_clear(&self, page: &Page) -> bool {
        page.is_clear() || self.array.is_some_and(|array| array.is_first_value(page))
    }

    fn readers(&self, index: u32) -> &'static Readers {
        // Blocks in use at one time are often adjacent; the highest bits of this product differ for
        // neighbours.
        let slot = (u64::from(index.wrapping_mul(0x9e37_79b1)) * self.readers.len() as u64) >> 32;
        &self.readers[usize::try_from(slot).unwrap_or(0)]
    }

    /// Enters the readers of the block at `index`, with interrupts off. See [`Readers`].
    pub(crate) fn enter(&self, index: u32) -> Reading<'static> {
        self.readers(index).enter(self.platform)
    }

    /// Waits for readers of the block at `index` to leave. The caller has changed its state word
    /// before and holds the zone lock.
    pub(crate) fn wait(&self, index: u32) {
        self.readers(index).wait(self.platform);
    }

    /// Waits for readers of all blocks to leave. The caller owns the blocks in question and has
    /// changed what describes them before.
    pub(crate) fn wait_for_all(&self) {
        self.readers.iter().for_each(|readers| readers.wait(self.platform));
    }

    /// Poisons `frames` of the block at `index`, if required. They no longer hold descriptors and
    /// are about to become free.
    pub(crate) fn wipe(&self, index: u32, frames: DescriptorFrames) {
        if self.poison {
            self.fill(index, frames, POISON);
        }
    }

    fn fill(&self, index: u32, frames: DescriptorFrames, byte: u8) {
        let Some(block) = self.block_start(index) else { return };
        for frame in frames.iter() {
            let target = self.platform.direct(block.add(frame as u64).address());
            // SAFETY: managed frames below the direct limit that are free or about to be, so nobody
            // has them (invariants 1 and 21).
            unsafe { target.write_bytes(byte, FRAME_BYTES) };
        }
    }

    /// Fills `frames` of the block at `index`, which the caller has just taken out of the free map,
    /// with zeroed descriptors. Returns the new state word.
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

    /// Returns the descriptors of the block at `index`, for a caller with the zone lock.
    pub(crate) fn locked<'a>(&self, buddy: &'a Buddy, index: u32) -> Option<BlockPages<'a>> {
        BlockPages::of(self, buddy, index, buddy.table.state(index))
    }

    /// [`locked`](Self::locked) for a caller inside the block's readers.
    pub(crate) fn read<'a>(
        &self,
        reading: &'a Reading<'_>,
        table: &BlockTable,
        index: u32,
    ) -> Option<BlockPages<'a>> {
        debug_assert!(reading.is_of(self.readers(index)), "inside the readers of another block");
        BlockPages::of(self, reading, index, table.state_as_reader(index))
    }

    /// [`locked`](Self::locked) for a caller that has a page of the block.
    ///
    /// # Safety
    /// A frame of the block must stay allocated while the result is used.
    pub(crate) unsafe fn held(
        &self,
        table: &BlockTable,
        index: u32,
    ) -> Option<BlockPages<'static>> {
        BlockPages::of(self, &(), index, table.state_as_reader(index))
    }
}

/// The descriptors of a block, for as long as they exist.
pub(crate) struct BlockPages<'a> {
    location: Location,
    block: Pfn,
    /// What keeps the descriptors in place: the zone lock, a reading, or the caller's promise.
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
    /// `state` is the block's state word, read under what `_kept_by` stands for.
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

    /// Returns the descriptor at position `slot` in frame `frame`, which is one of the eight.
    fn at(&self, platform: &'static dyn Platform, frame: usize, slot: usize) -> &'a Page {
        let address = self.block.add(frame as u64).address() + (slot * size_of::<Page>()) as u64;
        let pointer = platform.direct(address).cast::<Page>();
        // SAFETY: the frame holds descriptors as long as 'a lasts, so the reference is valid. It is
        // aligned because frames are, any content of its atomics is a value, and nobody writes it
        // except through them (invariants 1, 4, 21 and 22).
        unsafe { pointer.as_ref() }
    }

    /// Returns where a scattered map names its other frames: in the descriptor of the frame that
    /// describes itself.
    fn names_others(&self) -> Option<&'a AtomicU64> {
        let Location::Inside { platform, named, .. } = self.location else { return None };
        Some(&self.at(platform, named, named % DESCRIBED).owner_words()[0])
    }

    /// Returns the frames of the block that hold the descriptors, if they are inside it.
    pub(crate) fn frames(&self) -> Option<DescriptorFrames> {
        let Location::Inside { named, scattered, .. } = self.location else { return None };
        if scattered {
            Some(DescriptorFrames::scattered(named, self.names_others()?.load(Ordering::Relaxed)))
        } else {
            Some(DescriptorFrames::run(named))
        }
    }

    /// Returns the descriptor of the block's frame `offset`; none for a frame that holds
    /// descriptors itself.
    #[inline]
    pub(crate) fn page(&self, offset: usize) -> Option<&'a Page> {
        if offset >= FRAMES {
            return None;
        }
        let (platform, named, scattered) = match self.location {
            Location::Inside { platform, named, scattered } => (platform, named, scattered),
            Location::Array(array) => {
                // SAFETY: the array describes the block as long as 'a lasts, so all its descriptors
                // are present and initialised. They are aligned, any content of their atomics is a
                // value, and nobody writes them except through those (invariants 4, 22 and 28).
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

    /// [`page`](Self::page) as a single copy, for callers off the fast path.
    #[inline(never)]
    pub(crate) fn cold_page(&self, offset: usize) -> Option<&'a Page> {
        self.page(offset)
    }

    /// [`page`](Self::page) for a block whose descriptor frames are not adjacent.
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
        // It prefers a run of its own to a piece of a larger run.
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
