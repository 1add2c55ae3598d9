//! A page array for a fake machine, at addresses that can really be read and written.
//!
//! Present parts begin as junk, so that a descriptor which nobody initialised is found; absent parts read as zero and fault when they are
//! written. The frames that the tables would name are taken and counted but hold nothing: [`crate::FakePaging`] is the model of tables and TLBs.

use super::FakeMachine;
use super::memory::{map, to_usize};
use framewright::map_space::{
    BLOCKS_PER_CALL, BlockRange, FrameList, FrameSource, MAP_PAGES_PER_BLOCK, MapSpace, OutOfFrames, Unflushed,
};
use framewright::units::{Order, PAGE_SIZE, Pfn, PfnRange};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

/// What a present part of the array holds at first.
const JUNK: u8 = 0x6b;
/// Bytes of the array for one section.
const SECTION_BYTES: usize = 2 << 20;

/// What was done with a [`FakeArray`] and what is in it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ArrayCounts {
    /// Sections that are present.
    pub sections: u64,
    /// Frames that the array and its tables hold.
    pub frames: u64,
    /// Flushes of all CPUs.
    pub flushes: u64,
}

#[derive(Default)]
struct State {
    /// The frames of each present section.
    present: BTreeMap<u32, PfnRange>,
    /// A page table for each GiB of the array, kept for ever.
    tables: BTreeMap<u32, Pfn>,
    flushes: u64,
    /// Calls of `populate` that still work.
    works: Option<u32>,
}

/// See the module documentation.
pub struct FakeArray {
    base: NonNull<u8>,
    bytes: usize,
    takes_frames: bool,
    is_zeroed: bool,
    state: Mutex<State>,
}

// SAFETY: an address of a mapping that is never unmapped.
unsafe impl Send for FakeArray {}
// SAFETY: the state is behind its lock, and who reads and writes the array answers for that.
unsafe impl Sync for FakeArray {}

impl FakeArray {
    /// Gives `machine` an array made of its own frames, with junk in it.
    pub fn install(machine: &'static FakeMachine) -> &'static Self {
        Self::install_with(machine, true, false)
    }

    /// The same; `takes_frames` and `is_zeroed` as [`MapSpace`] asks.
    pub fn install_with(machine: &'static FakeMachine, takes_frames: bool, is_zeroed: bool) -> &'static Self {
        let end = machine.map().present_end().next_multiple_of(128 << 20);
        let bytes = to_usize(end / PAGE_SIZE * 64).max(SECTION_BYTES);
        let flags = libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let base = map(None, bytes + SECTION_BYTES, libc::PROT_READ, flags, -1);
        let array = Self { base, bytes, takes_frames, is_zeroed, state: Mutex::default() };
        let array: &'static Self = Box::leak(Box::new(array));
        machine.set_map_space(array);
        array
    }

    /// Lets `calls` more calls of `populate` succeed and those after them fail.
    pub fn fail_after(&self, calls: u32) {
        self.lock().works = Some(calls);
    }

    /// What is in it.
    #[must_use]
    pub fn counts(&self) -> ArrayCounts {
        let state = self.lock();
        let frames = if self.takes_frames { state.present.len() as u64 * 512 + state.tables.len() as u64 } else { 0 };
        ArrayCounts { sections: state.present.len() as u64, frames, flushes: state.flushes }
    }

    /// Whether no descriptor of the 2 MiB block at `pfn` was ever written since its section became present.
    ///
    /// # Panics
    /// When the block lies beyond the array.
    #[must_use]
    pub fn is_junk(&self, pfn: Pfn) -> bool {
        const BLOCK_BYTES: usize = 512 * 64;
        let offset = to_usize(pfn.0 / 512) * BLOCK_BYTES;
        assert!(offset + BLOCK_BYTES <= self.bytes, "pfn {pfn} lies beyond the array");
        (0..BLOCK_BYTES / 8).all(|word| {
            // SAFETY: inside the mapping, as was just checked, and aligned.
            let word = unsafe { self.base.add(offset + word * 8) }.cast::<std::sync::atomic::AtomicU64>();
            // SAFETY: the same; any content is a value, and descriptors are written as atomics or before anybody looks.
            unsafe { word.as_ref() }.load(std::sync::atomic::Ordering::Relaxed) == u64::from_ne_bytes([JUNK; 8])
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remap(&self, section: u32, protection: libc::c_int) -> NonNull<u8> {
        let offset = section as usize * SECTION_BYTES;
        assert!(offset + SECTION_BYTES <= self.bytes, "section {section} lies beyond the array");
        // SAFETY: inside the mapping, as was just checked.
        let start = unsafe { self.base.add(offset) };
        let flags = libc::MAP_FIXED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        map(Some(start), SECTION_BYTES, protection, flags, -1)
    }
}

fn section_of(blocks: BlockRange) -> u32 {
    assert!(blocks.blocks() == BLOCKS_PER_CALL, "this array knows whole sections only, not {blocks:?}");
    blocks.start.0 / BLOCKS_PER_CALL
}

// SAFETY: present sections are mapped for themselves alone, and a section that becomes absent is mapped anew before its frames go into the Unflushed; the
// process has one set of translations, which the system flushes (invariant 12).
unsafe impl MapSpace for FakeArray {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn takes_frames(&self) -> bool {
        self.takes_frames
    }

    fn is_zeroed(&self) -> bool {
        self.is_zeroed
    }

    fn populate(
        &self,
        blocks: BlockRange,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        let section = section_of(blocks);
        let mut state = self.lock();
        if state.present.contains_key(&section) {
            return Ok(());
        }
        if let Some(works) = &mut state.works {
            *works = works.checked_sub(1).ok_or(OutOfFrames)?;
        }
        let mut own = PfnRange::new(0, 0);
        if self.takes_frames {
            let start = frames.take(Order::BLOCK).ok_or(OutOfFrames)?;
            if let std::collections::btree_map::Entry::Vacant(table) = state.tables.entry(section / 512) {
                let Some(frame) = frames.take(Order::PAGE) else {
                    frames.put_back(start, Order::BLOCK);
                    return Err(OutOfFrames);
                };
                table.insert(frame);
            }
            own = PfnRange::new(start.0, start.0 + 512);
        }
        let start = self.remap(section, libc::PROT_READ | libc::PROT_WRITE);
        if !self.is_zeroed {
            // SAFETY: just mapped, writable, and reached by nobody yet.
            unsafe { start.write_bytes(JUNK, SECTION_BYTES) };
        }
        state.present.insert(section, own);
        unflushed.mark_stale();
        Ok(())
    }

    fn prepare(&self, blocks: BlockRange, _: &mut dyn FrameSource, _: &mut Unflushed) -> Result<(), OutOfFrames> {
        section_of(blocks);
        Ok(())
    }

    fn evict(&self, blocks: BlockRange, unflushed: &mut Unflushed) -> u32 {
        let section = section_of(blocks);
        let mut state = self.lock();
        if let Some(frames) = state.present.remove(&section) {
            self.remap(section, libc::PROT_READ);
            assert!(frames.pages() % MAP_PAGES_PER_BLOCK == 0 && unflushed.push(frames), "one run");
            let table = section / 512;
            let is_last = state.present.range(table * 512..(table + 1) * 512).next().is_none();
            if is_last && let Some(frame) = state.tables.remove(&table) {
                assert!(unflushed.push(PfnRange::new(frame.0, frame.0 + 1)), "one run more");
            }
        }
        0
    }

    fn flush(&self, unflushed: Unflushed) -> FrameList {
        self.lock().flushes += u64::from(unflushed.is_stale());
        // SAFETY: the process's translations changed at once, for all its threads (invariant 12).
        unsafe { unflushed.into_flushed() }
    }
}
