//! The page array of a machine in a process: addresses for the descriptors of all its frames, backed by the operating system.
//!
//! It takes no frames of the machine: a process cannot have its memory at two addresses without a file behind it. So what it costs shows in the process's resident
//! memory and in the manager's metadata, not in what the machine has free.

use super::HostedError;
use super::mapping::Mapping;
use framewright::map_space::{
    BLOCKS_PER_CALL, BlockRange, FrameList, FrameSource, MAP_PAGES_PER_BLOCK, MapSpace, OutOfFrames, Unflushed,
};
use framewright::units::{BLOCK_SIZE, PAGE_SIZE};
use std::ptr::NonNull;

/// Bytes of the array that describe one block.
const BLOCK_BYTES: u64 = MAP_PAGES_PER_BLOCK * PAGE_SIZE;
/// Bytes that describe one section.
const SECTION_BYTES: u64 = BLOCK_BYTES * BLOCKS_PER_CALL as u64;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct PageArray {
    mapping: Mapping,
    bytes: u64,
    /// Whether fresh memory of the process, which is zero, may be taken for such.
    is_zeroed: bool,
}

impl PageArray {
    /// Addresses for the descriptors of all frames below `end`; no memory yet.
    pub(super) fn reserve(end: u64, is_zeroed: bool) -> Result<Self, HostedError> {
        let bytes = end.div_ceil(BLOCK_SIZE * u64::from(BLOCKS_PER_CALL)) * SECTION_BYTES;
        let mapping = Mapping::reserve(bytes, 0, false)?;
        mapping.open(0, bytes).map_err(|error| HostedError::CannotReserve {
            needed_bytes: bytes,
            limit_bytes: 0,
            error,
        })?;
        Ok(Self { mapping, bytes, is_zeroed })
    }

    fn part(&self, blocks: BlockRange) -> Option<(u64, u64)> {
        let (offset, bytes) = (u64::from(blocks.start.0) * BLOCK_BYTES, u64::from(blocks.blocks()) * BLOCK_BYTES);
        (offset + bytes <= self.bytes).then_some((offset, bytes))
    }

    /// Fills the descriptors of the blocks with `byte`.
    ///
    /// # Safety
    /// Nobody reads or writes them meanwhile or relies on their content (invariant 28).
    pub(super) unsafe fn fill(&self, blocks: BlockRange, byte: u8) {
        if let Some((offset, bytes)) = self.part(blocks) {
            // SAFETY: the caller vouches for the content. The range lies in the mapping, so that this cannot fail.
            let _ = unsafe { self.mapping.fill(offset, bytes, byte) };
        }
    }
}

impl PageArray {
    /// Drops the memory behind all of it.
    ///
    /// # Safety
    /// As for [`fill`](Self::fill).
    pub(super) unsafe fn discard(&self) -> std::io::Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.mapping.discard(0, self.bytes) }
    }
}

// SAFETY: the whole array is one mapping of its own, readable and writable all the time, and no frame is ever taken, so none has to be given back; the system flushes
// translations of all threads before madvise returns (invariant 12).
unsafe impl MapSpace for PageArray {
    fn base(&self) -> NonNull<u8> {
        // There is always a first byte.
        self.mapping.at(0).unwrap_or(NonNull::dangling())
    }

    fn takes_frames(&self) -> bool {
        false
    }

    fn is_zeroed(&self) -> bool {
        self.is_zeroed
    }

    fn populate(&self, blocks: BlockRange, _: &mut dyn FrameSource, _: &mut Unflushed) -> Result<(), OutOfFrames> {
        self.part(blocks).map(drop).ok_or(OutOfFrames)
    }

    fn prepare(&self, _: BlockRange, _: &mut dyn FrameSource, _: &mut Unflushed) -> Result<(), OutOfFrames> {
        Ok(())
    }

    fn evict(&self, blocks: BlockRange, _: &mut Unflushed) -> u32 {
        let Some((offset, bytes)) = self.part(blocks) else { return 0 };
        // SAFETY: the manager looks at no descriptor of a block that it evicts (invariant 28).
        match unsafe { self.mapping.discard(offset, bytes) } {
            Ok(()) => 0,
            Err(_) => blocks.blocks(),
        }
    }

    fn flush(&self, unflushed: Unflushed) -> FrameList {
        // SAFETY: no translation that a frame was reached through has changed (invariant 12).
        unsafe { unflushed.into_flushed() }
    }
}
