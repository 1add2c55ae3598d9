//! Page tables in a fake machine's memory, and CPUs whose TLBs keep every entry until they are
//! flushed.
//!
//! [`FakePaging`] is a [`VmemmapSpace`] with real tables in real frames: a section is one 2 MiB
//! mapping, a table of 512 entries, or absent as a whole through one table that all such sections
//! share. [`FakePaging::load`] and [`FakePaging::store`] go through the TLB of a given CPU, which
//! is as stale as hardware may be: it caches every step of a walk and drops nothing by itself. The
//! use of a translation whose frame went back to its source is an [`AccessFault::Stale`].

mod table;
mod tlb;

pub use framewright_workload::vmemmap_space::AccessFault;

use crate::frames::FrameLedger;
use crate::lock::lock;
use crate::machine::FakeMachine;
use framewright::units::{Order, Pfn, PfnRange};
use framewright::vmemmap_space::{
    BLOCKS_PER_CALL, BlockRange, FrameList, FrameSource, OutOfFrames, Unflushed,
    VMEMMAP_PAGES_PER_BLOCK, VmemmapSpace,
};
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::Mutex;
use table::{ENTRIES, Entry, Table};
use tlb::Tlb;

/// The first address, which only has a meaning for [`FakePaging`].
const BASE: usize = 0xffff_8000_0000_0000;
/// The size of the vmemmap for one section.
const SECTION_BYTES: usize = 2 << 20;

/// What was done so far, and what the tables hold now.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PagingCounts {
    /// Flushes of all CPUs.
    pub flushes: u64,
    /// Pages of the vmemmap that became present.
    pub populated_pages: u64,
    /// Pages of the vmemmap that became absent.
    pub evicted_pages: u64,
    /// Page tables in use, without the shared one.
    pub tables: u64,
    /// Sections mapped by one large entry.
    pub large: u64,
}

struct State {
    /// Sections that are at least partly present.
    sections: BTreeMap<u32, Entry>,
    tlbs: Vec<Tlb>,
    counts: PagingCounts,
}

/// A [`VmemmapSpace`] with simulated page tables and TLBs; see the module documentation.
pub struct FakePaging {
    machine: &'static FakeMachine,
    ledger: FrameLedger,
    zero: Entry,
    absent: Table,
    state: Mutex<State>,
}

impl FakePaging {
    /// Makes an empty space for `machine`. `ledger` belongs to the source of all frames that the
    /// space will get. Two frames, for the zero page and the shared table, are taken at once and
    /// kept.
    ///
    /// # Errors
    /// [`OutOfFrames`] if `frames` lacks these two.
    pub fn new(
        machine: &'static FakeMachine,
        ledger: FrameLedger,
        frames: &mut dyn FrameSource,
    ) -> Result<Self, OutOfFrames> {
        let zero = frames.take(Order::PAGE).ok_or(OutOfFrames)?;
        let Some(absent) = frames.take(Order::PAGE) else {
            // SAFETY: the frame was taken just now, and nothing names it.
            unsafe { frames.put_back(zero, Order::PAGE) };
            return Err(OutOfFrames);
        };
        for address in (zero.address()..zero.add(1).address()).step_by(8) {
            // SAFETY: the source gave the frame to this space, and there is no reference into it.
            unsafe { machine.store(address, 0) };
        }
        let (zero, absent) = (Entry::read_only(zero), Table(absent));
        absent.fill(machine, |_| zero);
        let cpus = framewright::Platform::cpus(machine);
        let tlbs = (0..cpus).map(|_| Tlb::default()).collect();
        let state = State { sections: BTreeMap::new(), tlbs, counts: PagingCounts::default() };
        Ok(Self { machine, ledger, zero, absent, state: Mutex::new(state) })
    }

    /// The counts so far.
    #[must_use]
    pub fn counts(&self) -> PagingCounts {
        let state = lock(&self.state);
        let large = state.sections.values().filter(|entry| entry.is_large()).count() as u64;
        PagingCounts { large, tables: state.sections.len() as u64 - large, ..state.counts }
    }

    /// The number of CPUs of the machine.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        framewright::Platform::cpus(self.machine)
    }

    /// Reads the 64 bits at `address` as CPU `cpu` does.
    ///
    /// # Errors
    /// See [`AccessFault`].
    pub fn load(&self, cpu: u32, address: usize) -> Result<u64, AccessFault> {
        let (entry, offset) = self.access(cpu, address)?;
        Ok(self.machine.load(entry.frame().address() + offset))
    }

    /// Writes the 64 bits at `address` as CPU `cpu` does.
    ///
    /// # Errors
    /// See [`AccessFault`].
    pub fn store(&self, cpu: u32, address: usize, value: u64) -> Result<(), AccessFault> {
        let (entry, offset) = self.access(cpu, address)?;
        if !entry.is_writable() {
            return Err(AccessFault::ReadOnly { cpu, address, frame: entry.frame() });
        }
        // SAFETY: the frame belongs to this space: it was taken and did not go back, as `access`
        // has checked, and the frames of the space are accessed only by address.
        unsafe { self.machine.store(entry.frame().address() + offset, value) };
        Ok(())
    }

    /// Returns the page's translation on `cpu`, which is cached from now on, and the offset in the
    /// page.
    fn access(&self, cpu: u32, address: usize) -> Result<(Entry, u64), AccessFault> {
        let beyond = AccessFault::Beyond { cpu, address };
        let offset = address.checked_sub(BASE).ok_or(beyond)?;
        let section = u32::try_from(offset / SECTION_BYTES).map_err(|_| beyond)?;
        let inside = (offset % SECTION_BYTES) as u64;
        let mut state = lock(&self.state);
        let state = &mut *state;
        let tlb = state
            .tlbs
            .get_mut(cpu as usize)
            .unwrap_or_else(|| panic!("the machine has no CPU {cpu}"));
        let upper = state.sections.get(&section).copied().unwrap_or(Entry::table(self.absent.0));
        let access = tlb::Access { cpu, address, section, page: inside / 4096 };
        let entry = tlb.translate(access, upper, self.machine, &self.ledger)?;
        Ok((entry, inside % 4096))
    }

    fn tables<'a>(&'a self, state: &'a mut State) -> Tables<'a> {
        Tables { paging: self, state }
    }
}

impl std::fmt::Debug for FakePaging {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakePaging").field("counts", &self.counts()).finish_non_exhaustive()
    }
}

/// The number of the section, and the blocks in it, 0..64.
fn in_section(blocks: BlockRange) -> Option<(u32, std::ops::Range<u64>)> {
    if blocks.blocks() == 0 {
        return None;
    }
    let section = blocks.start.0 / BLOCKS_PER_CALL;
    let first = u64::from(blocks.start.0 % BLOCKS_PER_CALL);
    let end = first + u64::from(blocks.blocks());
    assert!(end <= u64::from(BLOCKS_PER_CALL), "{blocks:?} lies in more than one section");
    Some((section, first..end))
}

/// The tables while they are being changed.
struct Tables<'a> {
    paging: &'a FakePaging,
    state: &'a mut State,
}

/// Frames that were taken but are not in a table yet.
struct Taken<'a> {
    frames: &'a mut dyn FrameSource,
    runs: Vec<(Pfn, Order)>,
}

impl Taken<'_> {
    fn take(&mut self, order: Order) -> Option<Pfn> {
        let start = self.frames.take(order)?;
        self.runs.push((start, order));
        Some(start)
    }

    fn put_back(self) -> OutOfFrames {
        for &(start, order) in self.runs.iter().rev() {
            // SAFETY: this call took the frames, and it stores no entry before it has taken all.
            unsafe { self.frames.put_back(start, order) };
        }
        OutOfFrames
    }

    /// The frames of one block, contiguous if possible.
    fn block(&mut self) -> Option<[Pfn; 8]> {
        let together = Order::for_pages(VMEMMAP_PAGES_PER_BLOCK).and_then(|order| self.take(order));
        let mut pages = [Pfn(0); 8];
        for (offset, page) in (0..).zip(&mut pages) {
            *page = match together {
                Some(start) => start.add(offset),
                None => self.take(Order::PAGE)?,
            };
        }
        Some(pages)
    }
}

impl Tables<'_> {
    fn upper(&self, section: u32) -> Entry {
        self.state.sections.get(&section).copied().unwrap_or(Entry::table(self.paging.absent.0))
    }

    fn is_present(&self, table: Table, block: u64) -> bool {
        table.get(self.paging.machine, block * VMEMMAP_PAGES_PER_BLOCK) != self.paging.zero
    }

    /// A present section's own table, or `None` if all of the section is absent.
    fn own_table(&self, section: u32) -> Option<Table> {
        self.state
            .sections
            .get(&section)
            .filter(|upper| !upper.is_large())
            .map(|upper| Table(upper.frame()))
    }

    fn populate(
        &mut self,
        section: u32,
        blocks: std::ops::Range<u64>,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        if self.upper(section).is_large() {
            return Ok(());
        }
        let own = self.own_table(section);
        let table = own.unwrap_or(self.paging.absent);
        let wanted: Vec<u64> = blocks.filter(|&block| !self.is_present(table, block)).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let mut taken = Taken { frames, runs: Vec::new() };
        if wanted.len() == BLOCKS_PER_CALL as usize
            && (own.is_none() || unflushed.room() > 0)
            && let Some(start) = taken.take(Order::BLOCK)
        {
            unflushed.mark_stale();
            if let Some(Table(old)) = own {
                assert!(unflushed.push(PfnRange::new(old.0, old.0 + 1)), "room was checked");
            }
            self.state.sections.insert(section, Entry::large(start));
            self.state.counts.populated_pages += ENTRIES;
            return Ok(());
        }
        let mut pages = Vec::with_capacity(wanted.len());
        for _ in &wanted {
            match taken.block() {
                Some(frames) => pages.push(frames),
                None => return Err(taken.put_back()),
            }
        }
        let machine = self.paging.machine;
        let table = match own {
            Some(own) => own,
            None => match taken.take(Order::PAGE) {
                Some(frame) => {
                    Table(frame).fill(machine, |_| self.paging.zero);
                    Table(frame)
                }
                None => return Err(taken.put_back()),
            },
        };
        unflushed.mark_stale();
        for (&block, pages) in wanted.iter().zip(&pages) {
            for (index, &page) in (block * VMEMMAP_PAGES_PER_BLOCK..).zip(pages) {
                table.set(machine, index, Entry::writable(page));
            }
        }
        self.state.sections.insert(section, Entry::table(table.0));
        self.state.counts.populated_pages += wanted.len() as u64 * VMEMMAP_PAGES_PER_BLOCK;
        Ok(())
    }

    fn prepare(
        &mut self,
        section: u32,
        blocks: &std::ops::Range<u64>,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        let upper = self.upper(section);
        if !upper.is_large() || is_whole(blocks) {
            return Ok(());
        }
        let table = Table(frames.take(Order::PAGE).ok_or(OutOfFrames)?);
        table.fill(self.paging.machine, |index| Entry::writable(upper.frame().add(index)));
        unflushed.mark_stale();
        self.state.sections.insert(section, Entry::table(table.0));
        Ok(())
    }

    fn evict(
        &mut self,
        section: u32,
        blocks: std::ops::Range<u64>,
        unflushed: &mut Unflushed,
    ) -> u32 {
        let upper = self.upper(section);
        if upper.is_large() {
            let start = upper.frame();
            if !is_whole(&blocks) || !unflushed.push(PfnRange::new(start.0, start.0 + ENTRIES)) {
                return u32::try_from(blocks.end - blocks.start).expect("at most 64");
            }
            self.state.sections.remove(&section);
            self.state.counts.evicted_pages += ENTRIES;
            return 0;
        }
        let Some(table) = self.own_table(section) else { return 0 };
        let machine = self.paging.machine;
        let mut left = 0;
        for block in blocks {
            if !self.is_present(table, block) {
                continue;
            }
            if (unflushed.room() as u64) < VMEMMAP_PAGES_PER_BLOCK {
                left += 1;
                continue;
            }
            for index in block * VMEMMAP_PAGES_PER_BLOCK..(block + 1) * VMEMMAP_PAGES_PER_BLOCK {
                let page = table.get(machine, index).frame();
                table.set(machine, index, self.paging.zero);
                assert!(unflushed.push(PfnRange::new(page.0, page.0 + 1)), "room was checked");
            }
            self.state.counts.evicted_pages += VMEMMAP_PAGES_PER_BLOCK;
        }
        let all_absent =
            (0..u64::from(BLOCKS_PER_CALL)).all(|block| !self.is_present(table, block));
        if all_absent && unflushed.push(PfnRange::new(table.0.0, table.0.0 + 1)) {
            self.state.sections.remove(&section);
        }
        left
    }

    /// Merges only in place.
    fn merge(
        &mut self,
        section: u32,
        blocks: &std::ops::Range<u64>,
        unflushed: &mut Unflushed,
    ) -> bool {
        if self.upper(section).is_large() {
            return is_whole(blocks);
        }
        let Some(table) = self.own_table(section).filter(|_| is_whole(blocks)) else {
            return false;
        };
        let start = table.get(self.paging.machine, 0).frame();
        let follows = |index: u64| {
            table.get(self.paging.machine, index)
                == Entry::writable(Pfn(start.0.wrapping_add(index)))
        };
        let mergeable = start.is_aligned(Order::BLOCK) && (0..ENTRIES).all(follows);
        if !mergeable || !unflushed.push(PfnRange::new(table.0.0, table.0.0 + 1)) {
            return false;
        }
        self.state.sections.insert(section, Entry::large(start));
        true
    }
}

fn is_whole(blocks: &std::ops::Range<u64>) -> bool {
    *blocks == (0..u64::from(BLOCKS_PER_CALL))
}

// SAFETY: a frame is in at most one entry, because the source hands it out once; `evict` and the
// replacement of a table put what they remove into the Unflushed; `flush` clears every TLB, cached
// tables included, before it releases frames; nothing is written before all frames are there
// (invariant 12).
unsafe impl VmemmapSpace for FakePaging {
    fn base(&self) -> NonNull<u8> {
        NonNull::without_provenance(NonZeroUsize::new(BASE).expect("not zero"))
    }

    unsafe fn populate(
        &self,
        blocks: BlockRange,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        let Some((section, blocks)) = in_section(blocks) else { return Ok(()) };
        self.tables(&mut lock(&self.state)).populate(section, blocks, frames, unflushed)
    }

    unsafe fn prepare(
        &self,
        blocks: BlockRange,
        frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<(), OutOfFrames> {
        let Some((section, blocks)) = in_section(blocks) else { return Ok(()) };
        self.tables(&mut lock(&self.state)).prepare(section, &blocks, frames, unflushed)
    }

    unsafe fn evict(&self, blocks: BlockRange, unflushed: &mut Unflushed) -> u32 {
        let Some((section, blocks)) = in_section(blocks) else { return 0 };
        self.tables(&mut lock(&self.state)).evict(section, blocks, unflushed)
    }

    unsafe fn merge(
        &self,
        section: BlockRange,
        _frames: &mut dyn FrameSource,
        unflushed: &mut Unflushed,
    ) -> Result<bool, OutOfFrames> {
        let Some((section, blocks)) = in_section(section) else { return Ok(false) };
        Ok(self.tables(&mut lock(&self.state)).merge(section, &blocks, unflushed))
    }

    unsafe fn flush(&self, unflushed: Unflushed) -> FrameList {
        if unflushed.is_stale() {
            let mut state = lock(&self.state);
            state.tlbs.iter_mut().for_each(Tlb::flush);
            state.counts.flushes += 1;
        }
        // SAFETY: every TLB was cleared, or nothing was changed (invariant 12).
        unsafe { unflushed.into_flushed() }
    }
}
