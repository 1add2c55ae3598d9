//! A window of virtual addresses in real page tables, in which huge pages are mapped and used.
//!
//! The window is one entry of the root, 512 GiB. A table is taken from a [`FrameSource`] with the
//! first page of its range, and is freed with the last one, after a flush. A call allocates all its
//! tables before it stores an entry that a CPU can see, so a call that fails has changed nothing.

use super::flush::{FlushRequest, FlushTlb, VirtualRange};
use super::frame_stack::FrameStack;
use super::table::{ENTRIES, Table};
use crate::x86_64::entry::{Access, Entry, PageSize, index_of};
use core::fmt;
use framewright::Platform;
use framewright::units::{Order, PHYSICAL_ADDRESS_END, Pfn, PhysRange};
use framewright::vmemmap_space::FrameSource;

/// The range of one entry of the root, which is one window.
const WINDOW_BYTES: u64 = 512 << 30;
/// The most tables that are freed after one flush.
const TABLES_OF_A_FLUSH: usize = 64;
const LARGE: u64 = PageSize::Large.bytes();
const MEDIUM: u64 = PageSize::Medium.bytes();

/// Why nothing was mapped or unmapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SpaceError {
    /// The window is not exactly one entry of the root, or is not in the address space.
    BadBase {
        /// The first address of the window.
        base: u64,
    },
    /// Something is already mapped there.
    Occupied {
        /// The address that is mapped.
        address: u64,
    },
    /// The range is not in the window, is not in whole pages of 2 MiB, covers only a part of a page
    /// of 1 GiB, or maps memory beyond the last physical address.
    BadRange {
        /// Where the range begins.
        address: u64,
    },
    /// No frame is left for a table.
    OutOfFrames,
}

impl fmt::Display for SpaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadBase { base } => write!(f, "no window begins at {base:#x}"),
            Self::Occupied { address } => {
                write!(f, "virtual address {address:#x} is mapped already")
            }
            Self::BadRange { address } => {
                write!(f, "the range at {address:#x} is not whole pages of the window")
            }
            Self::OutOfFrames => f.write_str("no frame left for the window's tables"),
        }
    }
}

impl core::error::Error for SpaceError {}

/// A window. See the module documentation.
pub struct AddressSpace<P: Platform, F> {
    platform: &'static P,
    tlb: F,
    root: Pfn,
    base: u64,
    largest: PageSize,
    tables: u64,
}

impl<P: Platform, F: FlushTlb> AddressSpace<P, F> {
    /// Creates an empty window at `base`, in the tables that begin at `root`. `largest` is
    /// [`PageSize::Large`] if the CPUs have pages of 1 GiB; otherwise pages of 2 MiB are used
    /// instead.
    ///
    /// # Errors
    /// [`SpaceError::BadBase`], [`SpaceError::Occupied`].
    ///
    /// # Safety
    /// `root` is a root table in memory that [`Platform::direct`] reaches. It consists of entries
    /// in the CPU's format, and stays as long as the window lives. Nothing else maps anything in
    /// the window. `tlb` reaches every CPU that uses the tables. Each of these has EFER.NXE set
    /// ([`Features::no_execute`](crate::x86_64::features::Features::no_execute)), because nothing
    /// in the window may be executed: without NXE, every access to the window faults.
    pub unsafe fn new(
        platform: &'static P,
        tlb: F,
        root: u64,
        base: u64,
        largest: PageSize,
    ) -> Result<Self, SpaceError> {
        if !base.is_multiple_of(WINDOW_BYTES) || !matches!(base >> 47, 0 | 0x1_ffff) {
            return Err(SpaceError::BadBase { base });
        }
        let space = Self { platform, tlb, root: Pfn::containing(root), base, largest, tables: 0 };
        if space.table(space.root).get(index_of(base, 4)).is_present() {
            return Err(SpaceError::Occupied { address: base });
        }
        Ok(space)
    }

    /// The window's addresses.
    #[must_use]
    pub const fn range(&self) -> VirtualRange {
        VirtualRange { start: self.base, end: self.base.wrapping_add(WINDOW_BYTES) }
    }

    /// How many frames the window's tables use.
    #[must_use]
    pub const fn tables(&self) -> u64 {
        self.tables
    }

    fn table(&self, frame: Pfn) -> Table<'_> {
        // SAFETY: only the root is passed here, and frames that this window took for tables and has
        // not freed yet (invariants 39 and 40).
        unsafe { Table::at(self.platform, frame) }
    }

    /// The table that an entry points to, if it is present.
    fn below(&self, entry: Entry) -> Option<Table<'_>> {
        entry.is_present().then(|| self.table(Pfn::containing(entry.address())))
    }

    /// The table of level 3, if there is one.
    fn pointers(&self) -> Option<Table<'_>> {
        self.below(self.table(self.root).get(index_of(self.base, 4)))
    }

    fn checked_end(&self, address: u64, bytes: u64) -> Result<u64, SpaceError> {
        let offset =
            address.checked_sub(self.base).filter(|&offset| offset < WINDOW_BYTES && bytes != 0);
        let fits = offset.is_some_and(|offset| bytes <= WINDOW_BYTES - offset);
        if fits && address.is_multiple_of(MEDIUM) && bytes.is_multiple_of(MEDIUM) {
            Ok(address.wrapping_add(bytes))
        } else {
            Err(SpaceError::BadRange { address })
        }
    }

    /// The size of the next page, when `left` bytes are left to map.
    fn next_size(&self, address: u64, physical: u64, left: u64) -> PageSize {
        let aligned = address.is_multiple_of(LARGE) && physical.is_multiple_of(LARGE);
        if self.largest == PageSize::Large && aligned && left >= LARGE {
            PageSize::Large
        } else {
            PageSize::Medium
        }
    }

    /// Maps `memory` at `address`, readable and writable, in pages as large as alignment allows.
    /// The memory still belongs to the caller, who must keep it until [`unmap`](Self::unmap) has
    /// returned.
    ///
    /// # Errors
    /// [`SpaceError::BadRange`], [`SpaceError::Occupied`], [`SpaceError::OutOfFrames`]; nothing has
    /// changed then.
    pub fn map(
        &mut self,
        address: u64,
        memory: PhysRange,
        frames: &mut dyn FrameSource,
    ) -> Result<(), SpaceError> {
        self.checked_end(address, memory.size())?;
        if !memory.start.is_multiple_of(MEDIUM) || memory.end > PHYSICAL_ADDRESS_END {
            return Err(SpaceError::BadRange { address });
        }
        let missing = self.missing_tables(address, memory)?;
        let mut taken = FrameStack::new(self.platform, frames);
        if !(0..missing).all(|_| taken.take(Order::PAGE)) {
            taken.put_back();
            return Err(SpaceError::OutOfFrames);
        }
        let mut new_table = |parent: Table<'_>, index: usize| {
            let (frame, _) = taken.pop()?;
            // SAFETY: the frame was just taken, and is in no table yet (invariant 40).
            let table = unsafe { Table::at(self.platform, frame) };
            table.fill(|_| Entry(0));
            parent.set(index, Entry::table(frame.address()));
            Some(table)
        };
        let root = self.table(self.root);
        let pointers = self.pointers().or_else(|| new_table(root, index_of(self.base, 4)));
        let pointers = pointers.ok_or(SpaceError::OutOfFrames)?;
        let mut done = 0;
        while done < memory.size() {
            let (at, physical) = (address + done, memory.start + done);
            let size = self.next_size(at, physical, memory.size() - done);
            let index = index_of(at, 3);
            let page = Entry::page(physical, size, DATA);
            if size == PageSize::Large {
                pointers.set(index, page);
            } else {
                let directory =
                    self.below(pointers.get(index)).or_else(|| new_table(pointers, index));
                directory.ok_or(SpaceError::OutOfFrames)?.set(index_of(at, 2), page);
            }
            done += size.bytes();
        }
        self.tables += missing;
        Ok(())
    }

    /// How many new tables the mapping needs.
    ///
    /// # Errors
    /// [`SpaceError::Occupied`].
    fn missing_tables(&self, address: u64, memory: PhysRange) -> Result<u64, SpaceError> {
        let pointers = self.pointers();
        let mut missing = u64::from(pointers.is_none());
        let (mut done, mut counted) = (0, None);
        while done < memory.size() {
            let at = address + done;
            let size = self.next_size(at, memory.start + done, memory.size() - done);
            let entry = pointers.map_or(Entry(0), |pointers| pointers.get(index_of(at, 3)));
            let occupied = if size == PageSize::Large || entry.is_page(3) {
                entry.is_present()
            } else {
                self.below(entry)
                    .is_some_and(|directory| directory.get(index_of(at, 2)).is_present())
            };
            if occupied {
                return Err(SpaceError::Occupied { address: at });
            }
            let gib = at / LARGE;
            if size == PageSize::Medium && !entry.is_present() && counted.replace(gib) != Some(gib)
            {
                missing += 1;
            }
            done += size.bytes();
        }
        Ok(missing)
    }

    /// Unmaps whatever is mapped in a range and returns how many bytes were mapped; holes are
    /// allowed. When this returns, no CPU reaches that memory through the window. `free` is called
    /// with the frames of tables that are not needed any more.
    ///
    /// Waits for other CPUs.
    ///
    /// # Errors
    /// [`SpaceError::BadRange`]; nothing has changed then.
    pub fn unmap(
        &mut self,
        range: VirtualRange,
        free: &mut dyn FnMut(Pfn),
    ) -> Result<u64, SpaceError> {
        let bytes = range.end.wrapping_sub(range.start);
        self.checked_end(range.start, bytes)?;
        for edge in [range.start, range.start + (bytes - 1)] {
            let entry =
                self.pointers().map_or(Entry(0), |pointers| pointers.get(index_of(edge, 3)));
            let page = edge / LARGE * LARGE;
            if entry.is_page(3)
                && (page < range.start || range.start + (bytes - 1) < page + (LARGE - 1))
            {
                return Err(SpaceError::BadRange { address: range.start });
            }
        }
        let mut removed_tables =
            Removed { frames: [Pfn(0); TABLES_OF_A_FLUSH], used: 0, changed: false };
        let (mut offset, mut removed) = (0, 0);
        while offset < bytes {
            let at = range.start + offset;
            let part = (LARGE - at % LARGE).min(bytes - offset);
            removed += self.clear_part(at, part, &mut removed_tables);
            offset += part;
            if removed_tables.used == TABLES_OF_A_FLUSH {
                self.flush_and_free(&mut removed_tables, free);
            }
        }
        let root = self.table(self.root).get(index_of(self.base, 4));
        if self.below(root).is_some_and(is_empty) {
            self.table(self.root).set(index_of(self.base, 4), Entry(0));
            removed_tables.push(Pfn::containing(root.address()));
        }
        self.flush_and_free(&mut removed_tables, free);
        Ok(removed)
    }

    /// Clears the entries for `bytes` from `address` on, all within one GiB. Returns how many bytes
    /// were mapped.
    fn clear_part(&self, address: u64, bytes: u64, tables: &mut Removed) -> u64 {
        let Some(pointers) = self.pointers() else { return 0 };
        let index = index_of(address, 3);
        let entry = pointers.get(index);
        if entry.is_page(3) {
            pointers.set(index, Entry(0));
            tables.changed = true;
            return LARGE;
        }
        let Some(directory) = self.below(entry) else { return 0 };
        let first = index_of(address, 2);
        let mut removed = 0;
        for index in (first..ENTRIES).take(usize::try_from(bytes / MEDIUM).unwrap_or(ENTRIES)) {
            if directory.get(index).is_present() {
                directory.set(index, Entry(0));
                tables.changed = true;
                removed += MEDIUM;
            }
        }
        if is_empty(directory) {
            pointers.set(index, Entry(0));
            tables.push(Pfn::containing(entry.address()));
        }
        removed
    }

    /// Flushes the cleared entries on all CPUs and frees the tables.
    fn flush_and_free(&mut self, tables: &mut Removed, free: &mut dyn FnMut(Pfn)) {
        if core::mem::take(&mut tables.changed) {
            // A flush page by page would take 512 addresses for each page of 2 MiB.
            self.tlb.flush(FlushRequest::Everything);
        }
        let used = core::mem::take(&mut tables.used);
        self.tables -= used as u64;
        tables.frames.iter().take(used).for_each(|&frame| free(frame));
    }
}

impl<P: Platform, F> fmt::Debug for AddressSpace<P, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressSpace")
            .field("base", &self.base)
            .field("tables", &self.tables)
            .finish_non_exhaustive()
    }
}

/// Access to a user's memory: never global, so that a change of tables flushes it.
const DATA: Access = Access { write: true, execute: false, global: false, device: false };

fn is_empty(table: Table<'_>) -> bool {
    (0..ENTRIES).all(|index| !table.get(index).is_present())
}

/// Tables that no entry names any more, but that CPUs may still use until the flush.
struct Removed {
    frames: [Pfn; TABLES_OF_A_FLUSH],
    used: usize,
    changed: bool,
}

impl Removed {
    fn push(&mut self, table: Pfn) {
        self.changed = true;
        if let Some(slot) = self.frames.get_mut(self.used) {
            *slot = table;
            self.used += 1;
        }
    }
}
