//! The vmemmap's virtual range in real page tables: a [`VmemmapSpace`] for x86-64 with four levels.
//!
//! The descriptors of a section of 128 MiB take 2 MiB of the vmemmap, which one entry of a
//! *directory* (level 2) maps. That entry has one of three forms:
//!
//! * a page of 2 MiB: all 64 blocks are present, in one run of frames;
//! * a table of the section's own: blocks are present or absent one by one, with eight entries
//!   each;
//! * the *absent table*, which all absent sections share: it maps the zero frame 512 times,
//!   read-only. The directory's entry itself forbids writing too.
//!
//! A section is therefore populated or evicted by one store, costs a table only while some of its
//! blocks are present and others are not, and can always be read. Directories, one for each 64 GiB
//! of physical addresses, are created at the beginning and stay. After that, no two calls that name
//! different sections change the same table, so there is no lock here.
//!
//! Entries are created with their *accessed* and *dirty* bits set, so that no CPU ever writes to a
//! table.
//!
//! ```text
//! root -> pointers (level 4, 3) -> directory -+-> 2 MiB of descriptors
//!                                             +-> own table --+-> 4 KiB of descriptors
//!                                             |               +-> zero frame, read-only
//!                                             +-> absent table -> zero frame, read-only, 512 times
//! ```

mod counts;
mod section;
mod shared;

pub use counts::VmemmapCounts;

use crate::paging::flush::{FlushRequest, FlushTlb, MAX_RANGES, VirtualRange};
use crate::paging::frame_stack::FrameStack;
use crate::paging::table::{ENTRIES, Table};
use crate::x86_64::entry::{Entry, PageSize, index_of};
use crate::x86_64::registers::time_stamp;
use core::fmt;
use core::ptr::NonNull;
use counts::{Counters, add};
use framewright::Platform;
use framewright::stores::{Line, Store};
use framewright::units::{Order, PAGE_SHIFT, PAGE_SIZE, PHYSICAL_ADDRESS_BITS, Pfn};
use framewright::vmemmap_space::{
    BLOCKS_PER_CALL, BlockNumber, BlockRange, FrameList, FrameSource, OutOfFrames, Unflushed,
    VmemmapSpace,
};
use section::Section;
use shared::Shared;

/// Bytes of the vmemmap that describe one block: 512 descriptors of 64 bytes.
const BLOCK_BYTES: u64 = 512 * 64;
/// Bytes of the vmemmap that describe one section.
const SECTION_BYTES: u64 = PageSize::Medium.bytes();
/// The range of one entry of the root.
const ROOT_ENTRY_BYTES: u64 = 512 << 30;
/// One past the highest frame number.
const FRAMES_END: u64 = 1 << (PHYSICAL_ADDRESS_BITS - PAGE_SHIFT);
/// A flush of more pages than this flushes everything instead. Linux has a similar limit
/// (`tlb_single_page_flush_ceiling` in `arch/x86/mm/tlb.c`, 33).
const RANGED_FLUSH_PAGES: u64 = 32;

/// Where a vmemmap is, and what it describes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VmemmapLayout {
    /// The physical address of the root table, into which the vmemmap's entries are written. Other
    /// roots share the vmemmap by copying these entries.
    pub root: u64,
    /// The virtual address of the descriptor of frame 0: a multiple of 512 GiB, but not 0.
    pub base: u64,
    /// One past the highest frame that has a descriptor. The mapped range is rounded up to whole 64
    /// GiB of physical addresses.
    pub frames_end: Pfn,
    /// Whether translations are global, so that they survive a change of tables. If not, a flush of
    /// everything spares the kernel's other, global translations; if so, the vmemmap's translations
    /// stay when tasks change tables.
    pub global: bool,
}

/// Why a vmemmap could not be created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VmemmapError {
    /// The base is 0 or not a multiple of 512 GiB, or the vmemmap does not fit between the base and
    /// the end of its half of the address space, or a frame number has more than 40 bits.
    BadLayout(VmemmapLayout),
    /// Something else is mapped in the range.
    Occupied {
        /// The virtual address that is mapped.
        address: u64,
    },
    /// There are not even enough frames for the upper tables.
    OutOfFrames,
}

impl fmt::Display for VmemmapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadLayout(layout) => {
                write!(
                    f,
                    "no vmemmap of frames below {} fits at {:#x}",
                    layout.frames_end, layout.base
                )
            }
            Self::Occupied { address } => {
                write!(f, "virtual address {address:#x} of the vmemmap is mapped already")
            }
            Self::OutOfFrames => f.write_str("no frame left for the vmemmap's upper tables"),
        }
    }
}

impl core::error::Error for VmemmapError {}

/// The vmemmap in page tables. See the module documentation.
pub struct Vmemmap<P: Platform, F> {
    shared: Shared<P>,
    tlb: F,
    layout: VmemmapLayout,
    sections: u32,
    ranged_flush_pages: u64,
    store: fn(&Line) -> Store,
}

impl<P: Platform, F: FlushTlb> Vmemmap<P, F> {
    /// Creates a vmemmap in which everything is absent. Takes and keeps two frames, one more for
    /// each 64 GiB of physical addresses (including holes), and one more for each 32 TiB.
    ///
    /// # Errors
    /// See [`VmemmapError`]; nothing has changed then.
    ///
    /// # Safety
    /// `layout.root` is a root table in memory that [`Platform::direct`] reaches. It consists of
    /// entries in the CPU's format, and stays as long as the vmemmap lives. Nothing else maps
    /// anything in the vmemmap's range. `tlb` reaches every CPU that uses the tables. Each of these
    /// has EFER.NXE set ([`Features::no_execute`](crate::x86_64::features::Features::no_execute)),
    /// without which every access to the vmemmap faults, and CR0.WP, without which a write to one
    /// absent descriptor does not fault but changes all of them.
    pub unsafe fn new(
        platform: &'static P,
        tlb: F,
        layout: VmemmapLayout,
        frames: &mut dyn FrameSource,
    ) -> Result<Self, VmemmapError> {
        let half_end = (layout.base | 0xffff_8000_0000_0000).wrapping_neg();
        let bytes = (layout.frames_end.0.clamp(1, FRAMES_END) * 64)
            .next_multiple_of(PageSize::Large.bytes());
        let canonical = matches!(layout.base >> 47, 0 | 0x1_ffff);
        // Pointers to descriptors must not be null, and this includes the descriptor of frame 0.
        let is_base = canonical && layout.base != 0 && layout.base.is_multiple_of(ROOT_ENTRY_BYTES);
        if !is_base || bytes > half_end || layout.frames_end.0 > FRAMES_END {
            return Err(VmemmapError::BadLayout(layout));
        }
        // SAFETY: the caller promises this about the root (invariant 39).
        let root = unsafe { Table::at(platform, Pfn::containing(layout.root)) };
        let pointers = bytes.div_ceil(ROOT_ENTRY_BYTES);
        for number in 0..pointers {
            let address = layout.base + number * ROOT_ENTRY_BYTES;
            if root.get(index_of(address, 4)).is_present() {
                return Err(VmemmapError::Occupied { address });
            }
        }
        let directories = bytes / PageSize::Large.bytes();
        let mut taken = FrameStack::new(platform, frames);
        if !(0..2 + pointers + directories).all(|_| taken.take(Order::PAGE)) {
            taken.put_back();
            return Err(VmemmapError::OutOfFrames);
        }
        let mut next = || taken.pop().map(|(frame, _)| frame).ok_or(VmemmapError::OutOfFrames);
        let (zero, absent) = (next()?, next()?);
        // BLOCKS_PER_CALL blocks of the vmemmap fill one directory entry.
        let sections =
            u32::try_from(bytes / SECTION_BYTES).map_err(|_| VmemmapError::BadLayout(layout))?;
        let (global, counters) = (layout.global, Counters::new());
        let shared = Shared { platform, global, zero, absent, counters };
        shared.table(zero).fill(|_| Entry(0));
        shared.table(absent).fill(|_| shared.zero_entry());
        for number in 0..pointers {
            let frame = next()?;
            shared.table(frame).fill(|_| Entry(0));
            let first = number * ENTRIES as u64;
            for (index, _) in (0..ENTRIES).zip(first..directories) {
                let directory = next()?;
                shared.table(directory).fill(|_| shared.absent_entry());
                shared.table(frame).set(index, Entry::table(directory.address()));
            }
            root.set(
                index_of(layout.base + number * ROOT_ENTRY_BYTES, 4),
                Entry::table(frame.address()),
            );
        }
        let (ranged_flush_pages, store) =
            (RANGED_FLUSH_PAGES, Store::of_this_cpu as fn(&Line) -> Store);
        Ok(Self { shared, tlb, layout, sections, ranged_flush_pages, store })
    }

    /// Sets how many pages are flushed page by page; a flush of more pages flushes everything.
    #[must_use]
    pub fn with_ranged_flush_pages(mut self, pages: u64) -> Self {
        self.ranged_flush_pages = pages;
        self
    }

    /// Writes initial values with the store that `store` selects for them, instead of the fastest
    /// store of this CPU that needs no vector registers ([`Store::of_this_cpu`]).
    #[must_use]
    pub fn with_store(mut self, store: fn(&Line) -> Store) -> Self {
        self.store = store;
        self
    }

    /// What was done so far, and what is now in use.
    #[must_use]
    pub fn counts(&self) -> VmemmapCounts {
        self.shared.counters.read()
    }

    /// Where the vmemmap is, and what it describes.
    #[must_use]
    pub const fn layout(&self) -> VmemmapLayout {
        self.layout
    }

    /// The vmemmap's virtual addresses, including those after the last frame's descriptor.
    #[must_use]
    pub const fn range(&self) -> VirtualRange {
        let start = self.layout.base;
        VirtualRange { start, end: start.wrapping_add(self.sections as u64 * SECTION_BYTES) }
    }

    /// The zeroed frame that is read for every absent descriptor.
    #[must_use]
    pub const fn zero_frame(&self) -> Pfn {
        self.shared.zero
    }

    /// The table that all absent sections share.
    #[must_use]
    pub const fn absent_table(&self) -> Pfn {
        self.shared.absent
    }

    /// The TLB flusher.
    pub const fn tlb(&self) -> &F {
        &self.tlb
    }

    /// The section of `blocks`, and the indices of `blocks` in it. `None` if there are no blocks,
    /// or if they are not described here.
    fn section_of(&self, blocks: BlockRange) -> Option<(Section<'_, P>, core::ops::Range<usize>)> {
        let number = blocks.start.0 / BLOCKS_PER_CALL;
        let first = blocks.start.0 % BLOCKS_PER_CALL;
        let end = first + blocks.blocks();
        assert!(end <= BLOCKS_PER_CALL, "{blocks:?} lies in more than one section");
        if blocks.blocks() == 0 || number >= self.sections {
            return None;
        }
        let address = self.layout.base + u64::from(number) * SECTION_BYTES;
        let mut table = self.shared.table(Pfn::containing(self.layout.root));
        for level in [4, 3] {
            table =
                self.shared.table(Pfn::containing(table.get(index_of(address, level)).address()));
        }
        Some((
            Section::new(&self.shared, number, table, index_of(address, 2)),
            first as usize..end as usize,
        ))
    }

    /// The part of the vmemmap that describes `blocks`.
    fn addresses(&self, blocks: BlockRange) -> VirtualRange {
        let address =
            |block: BlockNumber| self.layout.base.wrapping_add(u64::from(block.0) * BLOCK_BYTES);
        VirtualRange { start: address(blocks.start), end: address(blocks.end) }
    }

    fn flush_changed(&self, changed: Option<&[BlockRange]>, has_tables: bool) {
        let start = time_stamp();
        let mut ranges = [VirtualRange::default(); MAX_RANGES];
        let mut few = None;
        if let Some(blocks) = changed {
            ranges
                .iter_mut()
                .zip(blocks)
                .for_each(|(range, blocks)| *range = self.addresses(*blocks));
            few = ranges.get(..blocks.len());
        }
        let pages = |ranges: &[VirtualRange]| ranges.iter().map(|range| range.pages()).sum::<u64>();
        let flush = |request| {
            if has_tables { self.tlb.flush(request) } else { self.tlb.flush_pages(request) }
        };
        match few.filter(|ranges| pages(ranges) <= self.ranged_flush_pages) {
            Some(ranges) => {
                flush(FlushRequest::Ranges(ranges));
                add(&self.shared.counters.flushed_ranges, ranges.len() as u64);
                add(&self.shared.counters.flushed_pages, pages(ranges));
            }
            None => {
                flush(FlushRequest::Everything);
                add(&self.shared.counters.full_flushes, 1);
            }
        }
        add(&self.shared.counters.flushes, 1);
        add(&self.shared.counters.flush_cycles, time_stamp().wrapping_sub(start));
    }
}

impl<P: Platform, F> fmt::Debug for Vmemmap<P, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vmemmap")
            .field("layout", &self.layout)
            .field("counts", &self.shared.counters.read())
            .finish()
    }
}

// SAFETY: a frame is in at most one entry, because the source hands it out once. All frames that a
// call needs are taken before it stores an entry that a CPU can see. `evict`, `merge` and the
// replacing of a table put what they remove into the `Unflushed`, together with the blocks whose
// translations named it; `flush` flushes these blocks' pages, or everything, on every CPU before it
// frees the frames (invariants 12 and 39). No two calls share a table that changes.
unsafe impl<P: Platform, F: FlushTlb> VmemmapSpace for Vmemmap<P, F> {
    fn base(&self) -> NonNull<u8> {
        let address = usize::try_from(self.layout.base).unwrap_or(0);
        NonNull::new(core::ptr::with_exposed_provenance_mut(address)).unwrap_or(NonNull::dangling())
    }

    fn store(&self, descriptor: &Line) -> Store {
        (self.store)(descriptor)
    }

    unsafe fn populate(
        &self,
        blocks: BlockRange,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        match self.section_of(blocks) {
            Some((section, blocks)) => section.populate(&blocks, frames, unflushed),
            None if blocks.blocks() == 0 => Ok(()),
            None => Err(OutOfFrames),
        }
    }

    unsafe fn prepare(
        &self,
        blocks: BlockRange,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        let Some((section, blocks)) = self.section_of(blocks) else { return Ok(()) };
        section.prepare(&blocks, frames, unflushed)
    }

    unsafe fn evict(&self, blocks: BlockRange, unflushed: &mut Unflushed) -> u32 {
        let Some((section, blocks)) = self.section_of(blocks) else { return 0 };
        section.evict(&blocks, unflushed)
    }

    unsafe fn merge(
        &self,
        section: BlockRange,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<bool, OutOfFrames> {
        let Some((section, blocks)) = self.section_of(section) else { return Ok(false) };
        if section::is_whole(&blocks) { section.merge(frames, unflushed) } else { Ok(false) }
    }

    unsafe fn flush(&self, unflushed: Unflushed) -> FrameList {
        if unflushed.is_stale() {
            self.flush_changed(unflushed.changed(), unflushed.has_tables());
        }
        // SAFETY: every CPU has flushed what was changed, or nothing was changed (invariant 12).
        unsafe { unflushed.into_flushed() }
    }
}

/// A table is as large as a frame.
const _: () = assert!(PAGE_SIZE == size_of::<[u64; ENTRIES]>() as u64);
