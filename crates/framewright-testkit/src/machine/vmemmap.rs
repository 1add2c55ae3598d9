//! A vmemmap for a fake machine, at addresses of this process that can be read and written.
//!
//! Present parts begin as junk, so that uninitialised descriptors are found; absent parts read as
//! zero and fault on writes. The frames that tables would map are taken and counted but hold
//! nothing: `FakePaging` is the model of tables and TLBs.

use super::fake::FakeMachine;
use super::memory::{map, to_usize};
use crate::lock::lock;
use framewright::units::{Order, PAGE_SIZE, Pfn, PfnRange};
use framewright::vmemmap_space::{
    BLOCKS_PER_CALL, BlockRange, FrameList, FrameSource, OutOfFrames, Unflushed,
    VMEMMAP_PAGES_PER_BLOCK, VmemmapSpace,
};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::Mutex;

/// The initial bytes of a present part.
const JUNK: u8 = 0x6b;
/// The size of the vmemmap for one section.
const SECTION_BYTES: usize = 2 << 20;
/// The size of the vmemmap for one block.
const BLOCK_BYTES: usize = 512 * 64;

/// The counts of a [`FakeVmemmap`].
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct VmemmapCounts {
    /// Sections that are at least partly present.
    pub sections: u64,
    /// Frames that the vmemmap and its tables hold.
    pub frames: u64,
    /// Flushes of all CPUs.
    pub flushes: u64,
}

/// How a section is mapped that is at least partly present.
enum Section {
    /// By one large page.
    Large(PfnRange),
    /// Block by block, through a table.
    Pieces { table: Pfn, blocks: Vec<Option<PfnRange>> },
}

#[derive(Default)]
struct State {
    sections: BTreeMap<u32, Section>,
    /// The page table for each GiB of the vmemmap that has a section.
    tables: BTreeMap<u32, Pfn>,
    flushes: u64,
    /// How many calls of `populate` succeed until they fail; `None` if they never fail.
    works: Option<u32>,
    /// Whether all calls of `prepare` fail.
    refuses: bool,
}

/// A vmemmap for a fake machine; see the module documentation.
pub struct FakeVmemmap {
    base: NonNull<u8>,
    bytes: usize,
    takes_frames: bool,
    is_zeroed: bool,
    state: Mutex<State>,
}

// SAFETY: the pointer is the address of a mapping that is never unmapped.
unsafe impl Send for FakeVmemmap {}
// SAFETY: the state is behind its lock, and users that read and write the vmemmap are responsible
// for their accesses.
unsafe impl Sync for FakeVmemmap {}

impl FakeVmemmap {
    /// Gives `machine` a vmemmap made of the machine's own frames, with junk in it.
    pub fn install(machine: &'static FakeMachine) -> &'static Self {
        Self::install_with(machine, true, false)
    }

    /// Gives `machine` a vmemmap; `takes_frames` and `is_zeroed` are the return values of these
    /// methods of [`VmemmapSpace`].
    pub fn install_with(
        machine: &'static FakeMachine,
        takes_frames: bool,
        is_zeroed: bool,
    ) -> &'static Self {
        let end = machine.map().present_end().next_multiple_of(128 << 20);
        let bytes = to_usize(end / PAGE_SIZE * 64).max(SECTION_BYTES);
        let flags = libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let base = map(None, bytes + SECTION_BYTES, libc::PROT_READ, flags, -1);
        let vmemmap = Self { base, bytes, takes_frames, is_zeroed, state: Mutex::default() };
        let vmemmap: &'static Self = Box::leak(Box::new(vmemmap));
        assert!(machine.vmemmap.set(vmemmap).is_ok(), "the machine has a vmemmap already");
        vmemmap
    }

    /// Makes everything absent, so that the host gets the memory back.
    ///
    /// # Safety
    /// The vmemmap is not used any more, by any manager of the machine either.
    pub(super) unsafe fn discard(&self) {
        let mut state = self.lock();
        let blocks =
            u32::try_from(self.bytes / BLOCK_BYTES).expect("blocks have numbers of 32 bits");
        self.remap(0, blocks, libc::PROT_READ);
        *state = State::default();
    }

    /// Lets `calls` more calls of `populate` succeed and all later ones fail.
    pub fn fail_after(&self, calls: u32) {
        self.lock().works = Some(calls);
    }

    /// Makes all calls of `prepare` fail from now on, or lets them succeed again.
    pub fn refuse_to_prepare(&self, refuses: bool) {
        self.lock().refuses = refuses;
    }

    /// The present counts.
    #[must_use]
    pub fn counts(&self) -> VmemmapCounts {
        let state = self.lock();
        let of = |section: &Section| match section {
            Section::Large(frames) => frames.pages(),
            Section::Pieces { blocks, .. } => {
                1 + blocks.iter().flatten().map(|frames| frames.pages()).sum::<u64>()
            }
        };
        let held = state.sections.values().map(of).sum::<u64>() + state.tables.len() as u64;
        let frames = if self.takes_frames { held } else { 0 };
        VmemmapCounts { sections: state.sections.len() as u64, frames, flushes: state.flushes }
    }

    /// Whether no descriptor of the 2 MiB block at `pfn` was written since the block's section
    /// became present.
    ///
    /// # Panics
    /// If the block lies beyond the vmemmap.
    #[must_use]
    pub fn is_junk(&self, pfn: Pfn) -> bool {
        let offset = to_usize(pfn.0 / 512) * BLOCK_BYTES;
        assert!(offset + BLOCK_BYTES <= self.bytes, "pfn {pfn} lies beyond the vmemmap");
        (0..BLOCK_BYTES / 8).all(|word| {
            // SAFETY: the word is inside the mapping, as was just checked, and aligned.
            let word =
                unsafe { self.base.add(offset + word * 8) }.cast::<std::sync::atomic::AtomicU64>();
            // SAFETY: the word is inside the mapping; any content is a valid value, and descriptors
            // are written as atomics or before any thread reads them.
            unsafe { word.as_ref() }.load(std::sync::atomic::Ordering::Relaxed)
                == u64::from_ne_bytes([JUNK; 8])
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Maps `count` blocks from `block` on afresh, all zero.
    fn remap(&self, block: u32, count: u32, protection: libc::c_int) -> (NonNull<u8>, usize) {
        let (offset, bytes) = (block as usize * BLOCK_BYTES, count as usize * BLOCK_BYTES);
        assert!(offset + bytes <= self.bytes, "block {block} lies beyond the vmemmap");
        // SAFETY: the offset is inside the mapping, as was just checked.
        let start = unsafe { self.base.add(offset) };
        let flags = libc::MAP_FIXED | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        (map(Some(start), bytes, protection, flags, -1), bytes)
    }

    fn make_present(&self, block: u32, count: u32) {
        let (start, bytes) = self.remap(block, count, libc::PROT_READ | libc::PROT_WRITE);
        if !self.is_zeroed {
            // SAFETY: the memory was just mapped, is writable, and is not in use yet.
            unsafe { start.write_bytes(JUNK, bytes) };
        }
    }
}

/// The number of the section, and the blocks in it.
fn in_section(blocks: BlockRange) -> (u32, std::ops::Range<usize>) {
    let first = (blocks.start.0 % BLOCKS_PER_CALL) as usize;
    let end = first + blocks.blocks() as usize;
    assert!(end <= BLOCKS_PER_CALL as usize, "{blocks:?} lies in more than one section");
    (blocks.start.0 / BLOCKS_PER_CALL, first..end)
}

const fn run(start: Pfn, order: Order) -> PfnRange {
    PfnRange { start, end: start.add(order.pages()) }
}

// SAFETY: each present section has its own mapping, and a section that becomes absent is mapped
// afresh before its frames go into the Unflushed; the process has one set of translations, which
// the system flushes (invariant 12).
unsafe impl VmemmapSpace for FakeVmemmap {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn takes_frames(&self) -> bool {
        self.takes_frames
    }

    fn is_zeroed(&self) -> bool {
        self.is_zeroed
    }

    unsafe fn populate(
        &self,
        blocks: BlockRange,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        let (number, range) = in_section(blocks);
        let mut state = self.lock();
        if let Some(Section::Large(_)) = state.sections.get(&number) {
            return Ok(());
        }
        if let Some(works) = &mut state.works {
            *works = works.checked_sub(1).ok_or(OutOfFrames)?;
        }
        let mut taken: Vec<PfnRange> = Vec::new();
        let mut take = |order: Order| {
            if !self.takes_frames {
                return Some(Pfn(0));
            }
            let start = frames.take(order)?;
            taken.push(run(start, order));
            Some(start)
        };
        let all = (|| {
            let upper = if state.tables.contains_key(&(number / 512)) {
                None
            } else {
                Some(take(Order::PAGE)?)
            };
            let section = match state.sections.get(&number) {
                None if range.len() == BLOCKS_PER_CALL as usize => {
                    Section::Large(run(take(Order::BLOCK)?, Order::BLOCK))
                }
                before => {
                    let (table, mut present) = match before {
                        Some(Section::Pieces { table, blocks }) => (*table, blocks.clone()),
                        _ => (take(Order::PAGE)?, vec![None; BLOCKS_PER_CALL as usize]),
                    };
                    let eight = Order::new(3)?;
                    for block in
                        range.clone().filter(|&block| present[block].is_none()).collect::<Vec<_>>()
                    {
                        present[block] = Some(run(take(eight)?, eight));
                    }
                    Section::Pieces { table, blocks: present }
                }
            };
            Some((upper, section))
        })();
        let Some((upper, section)) = all else {
            for range in taken.iter().rev() {
                let order = Order::for_pages(range.pages()).ok_or(OutOfFrames)?;
                // SAFETY: this call took the frames and has changed nothing.
                unsafe { frames.put_back(range.start, order) };
            }
            return Err(OutOfFrames);
        };
        if let Some(frame) = upper {
            state.tables.insert(number / 512, frame);
        }
        for block in range {
            let was = match state.sections.get(&number) {
                Some(Section::Pieces { blocks, .. }) => blocks[block].is_some(),
                _ => false,
            };
            if !was {
                self.make_present(number * BLOCKS_PER_CALL + u32::try_from(block).unwrap_or(0), 1);
            }
        }
        state.sections.insert(number, section);
        unflushed.mark_stale();
        Ok(())
    }

    unsafe fn prepare(
        &self,
        blocks: BlockRange,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        let (number, range) = in_section(blocks);
        let mut state = self.lock();
        if state.refuses {
            return Err(OutOfFrames);
        }
        let Some(Section::Large(large)) = state.sections.get(&number) else { return Ok(()) };
        if range.len() == BLOCKS_PER_CALL as usize {
            return Ok(());
        }
        let table =
            if self.takes_frames { frames.take(Order::PAGE).ok_or(OutOfFrames)? } else { Pfn(0) };
        let piece = |block: u64| {
            let start = large.start.add(block * VMEMMAP_PAGES_PER_BLOCK);
            Some(PfnRange { start, end: start.add(VMEMMAP_PAGES_PER_BLOCK) })
        };
        let blocks = (0..u64::from(BLOCKS_PER_CALL)).map(piece).collect();
        state.sections.insert(number, Section::Pieces { table, blocks });
        unflushed.mark_stale();
        Ok(())
    }

    unsafe fn evict(&self, blocks: BlockRange, unflushed: &mut Unflushed) -> u32 {
        let (number, range) = in_section(blocks);
        let mut state = self.lock();
        let (mut gone, mut left) = (Vec::new(), 0);
        if unflushed.room() < 3 {
            return blocks.blocks();
        }
        match state.sections.get_mut(&number) {
            None => return 0,
            Some(Section::Large(_)) if range.len() < BLOCKS_PER_CALL as usize => {
                return blocks.blocks();
            }
            Some(Section::Large(large)) => gone.push(*large),
            Some(Section::Pieces { table, blocks }) => {
                // Two tables may become free, too.
                let most = unflushed.room() - 2;
                let present: Vec<usize> =
                    range.clone().filter(|&block| blocks[block].is_some()).collect();
                left = present.len().saturating_sub(most);
                gone.extend(present.iter().take(most).filter_map(|&block| blocks[block].take()));
                if blocks.iter().all(Option::is_none) {
                    gone.push(run(*table, Order::PAGE));
                }
            }
        }
        let is_gone = match state.sections.get(&number) {
            Some(Section::Pieces { blocks, .. }) => blocks.iter().all(Option::is_none),
            _ => true,
        };
        for block in blocks.start.0..blocks.end.0 {
            let is_absent = match state.sections.get(&number) {
                Some(Section::Pieces { blocks, .. }) => {
                    blocks[(block % BLOCKS_PER_CALL) as usize].is_none()
                }
                _ => true,
            };
            if is_absent {
                self.remap(block, 1, libc::PROT_READ);
            }
        }
        if is_gone {
            state.sections.remove(&number);
            let upper = number / 512;
            let is_last = state.sections.range(upper * 512..(upper + 1) * 512).next().is_none();
            gone.extend(
                is_last
                    .then(|| state.tables.remove(&upper))
                    .flatten()
                    .map(|frame| run(frame, Order::PAGE)),
            );
        }
        unflushed.mark_stale();
        for frames in gone.into_iter().filter(|_| self.takes_frames) {
            assert!(unflushed.push(frames), "there was room");
        }
        u32::try_from(left).unwrap_or(u32::MAX)
    }

    unsafe fn flush(&self, unflushed: Unflushed) -> FrameList {
        self.lock().flushes += u64::from(unflushed.is_stale());
        // SAFETY: the process's translations changed at once, for all its threads (invariant 12).
        unsafe { unflushed.into_flushed() }
    }
}
