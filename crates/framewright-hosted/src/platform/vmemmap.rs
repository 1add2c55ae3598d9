//! The vmemmap of a machine in a process: addresses for the descriptors of all its frames, backed
//! by the operating system.
//!
//! It takes no frames of the machine, because a process cannot have memory at two addresses without
//! a file behind it. So its cost shows in the process's resident memory and in the manager's
//! metadata, but not in the machine's free memory.

use super::error::HostedError;
use super::mapping::Mapping;
use super::stores;
use framewright::stores::{Line, Store};
use framewright::units::{BLOCK_SIZE, PAGE_SIZE, PhysRange};
use framewright::vmemmap_space::{
    BLOCKS_PER_CALL, BlockRange, FrameList, FrameSource, OutOfFrames, Unflushed,
    VMEMMAP_PAGES_PER_BLOCK, VmemmapSpace,
};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

/// Bytes of the vmemmap that describe one block.
const BLOCK_BYTES: u64 = VMEMMAP_PAGES_PER_BLOCK * PAGE_SIZE;
/// Bytes of the vmemmap that describe one section.
const SECTION_BYTES: u64 = BLOCK_BYTES * BLOCKS_PER_CALL as u64;

/// The vmemmap of a machine; see the module documentation.
#[derive(Debug)]
pub(super) struct Vmemmap {
    mapping: Mapping,
    bytes: u64,
    /// Whether the manager may rely on new memory of the process being zero.
    is_zeroed: bool,
    /// Whether an access to an absent part stops the process.
    is_guarded: bool,
    /// Parts that the next flush makes absent: offsets and sizes in bytes. Neighbours are joined,
    /// so that one system call serves many evictions.
    leaving: Mutex<Vec<(u64, u64)>>,
}

impl Vmemmap {
    /// Reserves addresses for the descriptors of all frames below `end`, without memory.
    pub(super) fn reserve(
        end: u64,
        is_zeroed: bool,
        is_guarded: bool,
    ) -> Result<Self, HostedError> {
        let bytes = end.div_ceil(BLOCK_SIZE * u64::from(BLOCKS_PER_CALL)) * SECTION_BYTES;
        let mapping = Mapping::reserve(bytes, 0, false)?;
        if !is_guarded {
            let range = PhysRange::new(0, end);
            let refused = |error| HostedError::CannotOpen { range, error };
            mapping.open(0, bytes).map_err(refused)?;
        }
        Ok(Self { mapping, bytes, is_zeroed, is_guarded, leaving: Mutex::default() })
    }

    fn part(&self, blocks: BlockRange) -> Option<(u64, u64)> {
        let (offset, bytes) =
            (u64::from(blocks.start.0) * BLOCK_BYTES, u64::from(blocks.blocks()) * BLOCK_BYTES);
        (offset + bytes <= self.bytes).then_some((offset, bytes))
    }

    /// Returns the address of the blocks' descriptors, and their size in bytes.
    pub(super) fn address(&self, blocks: BlockRange) -> Option<(NonNull<u8>, usize)> {
        let (offset, bytes) = self.part(blocks)?;
        Some((self.mapping.at(offset)?, usize::try_from(bytes).ok()?))
    }

    /// Returns how many bytes the operating system backs now.
    pub(super) fn resident_bytes(&self) -> std::io::Result<u64> {
        super::resident::bytes(self.mapping.addresses())
    }

    /// Drops the memory behind a part of the vmemmap, which then reads as zero.
    fn drop_part(&self, offset: u64, bytes: u64) {
        // SAFETY: the manager reads no descriptor of a block that it has evicted (invariant 28).
        if unsafe { self.mapping.discard(offset, bytes) }.is_err() {
            // The system keeps memory that the process has locked (mlockall).
            // SAFETY: as for the call above; what is evicted is open. The range lies in the
            // mapping, so this cannot fail.
            let _ = unsafe { self.mapping.fill(offset, bytes, 0) };
        }
        if self.is_guarded {
            let closed = self.mapping.close(offset, bytes);
            debug_assert!(closed.is_ok(), "{closed:?}");
        }
    }

    /// Drops the memory behind the descriptors of the blocks with one system call.
    ///
    /// # Safety
    /// As for [`fill`](Self::fill).
    pub(super) unsafe fn discard_part(&self, blocks: BlockRange) -> std::io::Result<()> {
        let (offset, bytes) = self.part(blocks).ok_or(std::io::ErrorKind::InvalidInput)?;
        // SAFETY: the caller upholds it.
        unsafe { self.mapping.discard(offset, bytes) }
    }

    /// Fills the descriptors of the blocks with `byte`.
    ///
    /// # Safety
    /// No other code reads or writes them meanwhile or relies on their content (invariant 28).
    pub(super) unsafe fn fill(&self, blocks: BlockRange, byte: u8) {
        if let Some((offset, bytes)) = self.part(blocks).filter(|_| !self.is_guarded) {
            // SAFETY: the caller vouches for the content. The range lies in the mapping, so this
            // cannot fail.
            let _ = unsafe { self.mapping.fill(offset, bytes, byte) };
        }
    }

    /// Drops the memory behind the whole vmemmap.
    ///
    /// # Safety
    /// As for [`fill`](Self::fill).
    pub(super) unsafe fn discard(&self) -> std::io::Result<()> {
        // SAFETY: the caller upholds it.
        unsafe { self.mapping.discard(0, self.bytes) }
    }
}

// SAFETY: the vmemmap is one mapping of its own, readable and writable where it is populated. It
// takes no frame, so none has to be given back. The system flushes the translations of all threads
// before madvise, in `flush`, returns (invariant 12).
unsafe impl VmemmapSpace for Vmemmap {
    fn base(&self) -> NonNull<u8> {
        // A mapping always has a first byte.
        self.mapping.at(0).unwrap_or(NonNull::dangling())
    }

    fn takes_frames(&self) -> bool {
        false
    }

    fn is_zeroed(&self) -> bool {
        self.is_zeroed
    }

    fn store(&self, descriptor: &Line) -> Store {
        stores::fastest(descriptor)
    }

    unsafe fn populate(
        &self,
        blocks: BlockRange,
        _: &mut dyn FrameSource,
        _: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        let (offset, bytes) = self.part(blocks).ok_or(OutOfFrames)?;
        if self.is_guarded {
            self.mapping.open(offset, bytes).map_err(|_| OutOfFrames)?;
        }
        Ok(())
    }

    unsafe fn prepare(
        &self,
        _: BlockRange,
        _: &mut dyn FrameSource,
        _: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        Ok(())
    }

    unsafe fn evict(&self, blocks: BlockRange, unflushed: &mut Unflushed) -> u32 {
        let Some((offset, bytes)) = self.part(blocks) else { return 0 };
        let mut leaving = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        match leaving.last_mut() {
            Some((start, size)) if *start + *size == offset => *size += bytes,
            _ => leaving.push((offset, bytes)),
        }
        unflushed.mark_stale();
        0
    }

    unsafe fn flush(&self, unflushed: Unflushed) -> FrameList {
        if unflushed.is_stale() {
            // The lock is held meanwhile, so that no part is dropped that is present again.
            let mut leaving = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
            leaving.drain(..).for_each(|(offset, bytes)| self.drop_part(offset, bytes));
        }
        // SAFETY: no translation of a frame has changed (invariant 12).
        unsafe { unflushed.into_flushed() }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn what_is_locked_reads_as_zero_once_it_is_dropped() {
        let vmemmap = Vmemmap::reserve(1 << 30, true, false).expect("addresses");
        let blocks = BlockRange::new(1, 2);
        // SAFETY: only this test uses the vmemmap.
        unsafe { vmemmap.fill(blocks, 0xa5) };
        let (start, bytes) = vmemmap.address(blocks).expect("it lies inside");
        // SAFETY: the range is mapped; locking it changes no content.
        if unsafe { libc::mlock(start.as_ptr().cast(), bytes) } != 0 {
            // It bypasses the test harness, which hides the output of tests that pass; `cargo xtask
            // test` counts these lines. Standard error may be closed.
            let line = b"\nNOT POSSIBLE HERE: locked memory (`ulimit -l`)\n";
            let _ = std::io::stderr().lock().write_all(line);
            return;
        }
        let (offset, bytes) = vmemmap.part(blocks).expect("it lies inside");
        // SAFETY: only this test uses the vmemmap.
        assert!(unsafe { vmemmap.discard_part(blocks) }.is_err(), "the system keeps it");
        vmemmap.drop_part(offset, bytes);
        for at in offset..offset + bytes {
            let byte = vmemmap.mapping.at(at).expect("it lies inside");
            // SAFETY: the vmemmap is readable, and only this test uses it.
            assert_eq!(unsafe { byte.read() }, 0);
        }
    }
}
